"""Results in the form of LAION's CLIP_benchmark, so that its tables and notebooks can read them.

A file there is one JSON object ``{dataset, model, pretrained, task, metrics, language}``, with shares from 0 to 1. Its
``model`` is an architecture and ``pretrained`` the name of weights; here the first is the kind of model that recollect
opened and the second what the user called it.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recollect.core.errors import UserError
from recollect.core.files import write_json
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
    """The result as CLIP_benchmark writes it.

    Retrieval is that of the whole pool. Top-5 is absent where there are five classes or fewer, and of a probe there is
    the metric that was asked for.

    Raises:
        UserError: the protocol has no counterpart there.
    """
    if result.protocol not in CLIP_BENCHMARK_TASKS:
        known = ", ".join(CLIP_BENCHMARK_TASKS)
        raise UserError(f"{result.protocol}: CLIP_benchmark has no such task. It has counterparts of {known}.")
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
    """Write the result into ``folder``, under a name as in CLIP_benchmark's own collections with `Result.identity`
    behind: two sets or models of one name do not take each other's place."""
    record = as_clip_benchmark(result)
    parts = [record[name] for name in ("dataset", "pretrained", "model", "language", "task")]
    name = "_".join(re.sub(r"[^A-Za-z0-9.=-]+", "-", part).strip("-") for part in parts)
    path = Path(folder) / f"{name[:180]}--{result.identity}.json"
    write_json(path, record)
    return path
