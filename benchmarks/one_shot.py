"""Calibration of probabilities with one example per class, by the assumed correlation.

python benchmarks/one_shot.py --data FOLDER --out results/few-shot/one-shot.json

FOLDER holds the Parquet files that `recollect-papers lixp/methods` reads; the starter embeds the pictures.
`recollect.classifiers.heads.base.CLASS_CORRELATION` is chosen on the choosing sets and evaluated on the testing sets.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import normalize

from recollect import load_model
from recollect.classifiers.heads import base
from recollect.classifiers.heads.calibration import expected_calibration_error
from recollect.classifiers.heads.proker import ProKeR
from recollect.classifiers.heads.prototype import PrototypeClassifier
from recollect.classifiers.heads.voting import SoftmaxVoting
from recollect.core.files import write_json
from recollect.models import TransformersEncoder
from recollect_papers.real.data import LIGHT_ROLES, FeatureSet, labeled, open_data
from recollect_papers.real.measure import drop_rare_classes

METHODS = {"prototype": PrototypeClassifier, "softmax": SoftmaxVoting, "proker": ProKeR}
CORRELATIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
DRAWS, POOL = 5, 16
COLUMNS = ("method", "accuracy", *(f"error at {correlation}" for correlation in CORRELATIONS))


def errors(
    encoder: TransformersEncoder, features: FeatureSet, splits: tuple[str, ...]
) -> dict[str, list[tuple[float, ...]]]:
    """Return the accuracy, then the calibration error per correlation, of each method and draw, in percent."""
    support, query = drop_rare_classes(features, labeled(features, "train"), labeled(features, *splits), POOL)
    with torch.no_grad():
        examples, queries = (
            normalize(encoder.project_images(features.images[rows]), dim=1).numpy() for rows in (support, query)
        )
    classes, labels = np.unique(features.labels[support], return_inverse=True)
    truth, results = np.searchsorted(classes, features.labels[query]), dict[str, list[tuple[float, ...]]]()
    for draw in range(DRAWS):
        generator = np.random.default_rng(draw)
        rows = [generator.choice(np.flatnonzero(labels == label)) for label in range(len(classes))]
        for name, method in METHODS.items():
            row = list[float]()
            for correlation in CORRELATIONS:
                base.CLASS_CORRELATION = correlation
                fitted = method().fit(examples[rows], np.arange(len(classes)))
                probabilities = fitted.predict_proba(queries)
                row = row or [100 * float((probabilities.argmax(axis=1) == truth).mean())]
                row.append(100 * expected_calibration_error(probabilities, truth))
            results.setdefault(name, []).append(tuple(row))
    return results


def table(title: str, results: Mapping[str, Mapping[str, list[tuple[float, ...]]]]) -> dict[str, object]:
    """Return a table of the means over sets and draws."""
    means = {name: np.mean([each[name] for each in results.values()], axis=(0, 1)) for name in METHODS}
    rows = [(name, *(f"{value:.1f}" for value in mean)) for name, mean in means.items()]
    return {
        "title": title,
        "columns": COLUMNS,
        "rows": rows,
        "notes": [f"means over {', '.join(results)}; {DRAWS} draws"],
    }


def main() -> None:
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/few-shot/one-shot.json"))
    args = parser.parse_args()
    chosen, encoder = base.CLASS_CORRELATION, load_model("starter", "cpu")
    assert isinstance(encoder, TransformersEncoder)
    data, tables = open_data((args.data,), False, LIGHT_ROLES), []
    for part, sets in {"Choosing": data.roles.choosing, "Testing": data.roles.testing}.items():
        results = {name: errors(encoder, data.classes(name), splits) for name, splits in sets.items()}
        tables.append(table(f"{part} sets: calibration error at one shot, by the assumed correlation", results))
    command = "python benchmarks/one_shot.py --data data --out results/few-shot/one-shot.json"
    write_json(args.out, {"command": command, "likeness": chosen, "tables": tables})


if __name__ == "__main__":
    main()
