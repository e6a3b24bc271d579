"""Export of results in the format of LAION's CLIP_benchmark.

A file is a JSON object ``{dataset, model, pretrained, task, metrics, language}`` with metrics from 0 to 1. ``model`` is
``recollect``, and ``pretrained`` the model's name.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recollect.core.files import write_json
from recollect.core.validation import check_choice
from recollect.evaluation.results import Result

CLIP_BENCHMARK_TASKS = {
    "zero-shot": "zeroshot_classification",
    "retrieval": "zeroshot_retrieval",
    "probe": "linear_probe",
}
"""Protocols of recollect that CLIP_benchmark has too."""

_CLASSIFICATION = {"top-1": "acc1", "top-5": "acc5", "mean per class": "mean_per_class_recall"}
_RETRIEVAL = {"text to image": "image_retrieval_recall", "image to text": "text_retrieval_recall"}


def as_clip_benchmark(result: Result) -> dict[str, Any]:
    """Convert a result to CLIP_benchmark's format. Retrieval figures cover the whole pool.

    Raises:
        UserError: the protocol has no counterpart.
    """
    check_choice(result.protocol, CLIP_BENCHMARK_TASKS, "CLIP_benchmark: counterpart of protocol")
    return {
        "dataset": result.data,
        "model": "recollect",
        "pretrained": result.model,
        "task": CLIP_BENCHMARK_TASKS[result.protocol],
        "metrics": _metrics(result),
        "language": "en",
    }


def _metrics(result: Result) -> Mapping[str, float]:
    if result.protocol == "retrieval":
        whole = [row for row in result.rows if row["method"] == "zero-shot" and row["metric"] == "recall"]
        domains = {row["domain"] for row in whole}
        domain = "all" if "all" in domains else next(iter(domains))
        return {
            f"{_RETRIEVAL[row['direction']]}@{row['k']}": row["value"] / 100 for row in whole if row["domain"] == domain
        }
    first = "lp_" if result.protocol == "probe" else ""
    named = ((_CLASSIFICATION.get(row["metric"]), row["value"] / 100) for row in result.rows)
    return {first + name: value for name, value in named if name}


def save_clip_benchmark(result: Result, folder: str | Path) -> Path:
    """Write the result into ``folder`` under CLIP_benchmark's file name followed by `Result.identity`."""
    record = as_clip_benchmark(result)
    parts = [record[name] for name in ("dataset", "pretrained", "model", "language", "task")]
    name = "_".join(re.sub(r"[^A-Za-z0-9.=-]+", "-", part).strip("-") for part in parts)
    path = Path(folder) / f"{name[:180]}--{result.identity}.json"
    write_json(path, record)
    return path
