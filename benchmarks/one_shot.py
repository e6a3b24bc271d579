"""Confidence with one example of each class: how far the guess of `stand_ins` can be trusted.

python benchmarks/one_shot.py --models RUN0/model RUN1/model --data FOLDER --out results/few-shot/one-shot.json
recollect-papers results docs/few-shot.md

A model is one on a locked image tower (`recollect train siglip-tiny --model MODEL --locked image ...`), so that
pictures are embedded once.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from recollect.classifiers.heads.base import LIKENESS, softmax
from recollect.classifiers.heads.calibration import expected_calibration_error
from recollect.classifiers.heads.methods import FEW_SHOT_METHODS
from recollect.classifiers.heads.protocol import nested_supports
from recollect.classifiers.texts import learned_scale
from recollect.cli.parser import script_options
from recollect.core.errors import UserError
from recollect.core.files import write_json
from recollect.core.progress import output
from recollect.evaluation.features import class_text_features, image_features
from recollect.models import load_model
from recollect.models.dual import DualEncoder
from recollect_papers.study import StudyTable
from which_method import FeatureEncoder, locked_task

CHOOSING = ("eurosat", "dtd10", "tiny_imagenet")
TESTING = ("cifar10", "caltech101", "flowers12", "gtsrb", "resisc12", "imagenette", "butterfly10", "grocery")
METHODS = (
    "prototype", "tip-adapter", "softmax", "rank", "softmax+zero-shot", "dmn-tf", "proker", "tip-x", "ape", "gda",
    "timo", "linear-probe",
)  # fmt: skip

Figures = dict[str, dict[str, dict[str, float]]]
"""By model and set, by method: right, sure, error and the error and confidence of the scores as they are (percent)."""


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        models: folders.
        data: folder of the Parquet files.
        out: the file.
        draws: of one example of each class.
    """

    models: tuple[str, ...]
    data: Path
    out: Path
    draws: int = 5


def as_they_are(method: str, scale: float) -> float:
    """The temperature of a method's scores where nothing says another: that of cosines is the model's, or 0.01."""
    return {"prototype": 0.01, "tip-adapter": 1 / scale, "proker": 1 / scale}.get(method, 1.0)


def measure(model: DualEncoder, name: str, options: Options) -> dict[str, dict[str, float]]:
    """Means over draws on one set, method by method."""
    task, encoder = locked_task(model, options.data, name), FeatureEncoder(model)
    support, query = (image_features(encoder, source) for source in (task.support, task.query))
    texts, scale = class_text_features(encoder, task, None), learned_scale(encoder)
    found: dict[str, list[list[float]]] = defaultdict(list)
    for seed in range(options.draws):
        rows = nested_supports(support.labels, len(texts), 1, seed).ravel()
        for method in METHODS:
            estimator = FEW_SHOT_METHODS[method](texts, scale).fit_checked(support.images[rows], np.arange(len(texts)))
            scores = estimator._scores(query.images)
            plain = softmax(estimator._logits(scores) / as_they_are(method, scale))
            guessed = estimator._probabilities(scores)
            found[method].append(
                [float(np.mean(scores.argmax(axis=1) == query.labels)), *_confidence(guessed, query.labels),
                 *_confidence(plain, query.labels)]
            )  # fmt: skip
    names = "right", "sure", "error", "sure as they are", "error as they are"
    means = {method: 100 * np.mean(rows, axis=0) for method, rows in found.items()}
    return {method: dict(zip(names, np.round(row, 2).tolist(), strict=True)) for method, row in means.items()}


def _confidence(probabilities: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    return float(probabilities.max(axis=1).mean()), expected_calibration_error(probabilities, labels)


def table(figures: Mapping[str, Figures], models: int, draws: int) -> StudyTable:
    """Means over the tested sets, beside the choosing sets."""
    rows = []
    for method in METHODS:
        tested, chosen = (_mean(figures, method, sets) for sets in (TESTING, CHOOSING))
        rows.append((method, *(f"{tested[key]:.1f}" for key in tested), f"{chosen['error']:.1f}"))
    heads = ("method", "right", "confidence", "calibration error", "confidence, scores as they are",
             "calibration error, scores as they are", "calibration error on the choosing sets")  # fmt: skip
    notes = (
        f"percent; chosen on {', '.join(CHOOSING)}; tested on {', '.join(TESTING)}",
        f"means over sets, {models} models and {draws} draws of one example of each class",
    )
    return StudyTable("Confidence at one shot", heads, tuple(rows), notes)


def _mean(figures: Mapping[str, Figures], method: str, sets: Sequence[str]) -> dict[str, float]:
    cells = [figures[model][name][method] for model in figures for name in sets]
    return {key: float(np.mean([cell[key] for cell in cells])) for key in cells[0]}


def main(options: Options) -> None:
    """Measure and write."""
    figures: dict[str, Figures] = {}
    for number, folder in enumerate(options.models):
        model = load_model(folder, "cpu")
        if not isinstance(model, DualEncoder):
            raise UserError(f"{folder}: not a model on a locked tower")
        figures[f"model {number}"] = {name: measure(model, name, options) for name in CHOOSING + TESTING}
    made = table(figures, len(figures), options.draws)
    command = "python benchmarks/one_shot.py --models MODELS --data FOLDER --out results/few-shot/one-shot.json"
    whole = {"command": command, "likeness": LIKENESS, "tables": [asdict(made)], "measured": figures}
    whole |= {"sets tested": len(TESTING)}
    whole["tested"] = {method: _mean(figures, method, TESTING) for method in METHODS}
    write_json(options.out, whole)
    output().print(f"written: {options.out}; `recollect-papers results docs/few-shot.md` puts its table on the page")


if __name__ == "__main__":
    main(script_options(Options))
