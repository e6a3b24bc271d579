"""Zero-shot classification by CLIP's prompt ensemble, and by methods that read unlabelled pictures besides."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from recollect.classifiers.heads.base import softmax
from recollect.classifiers.heads.calibration import calibration_error, expected_calibration_error
from recollect.classifiers.texts import learned_scale
from recollect.core.plugins import Table
from recollect.core.types import Encoder, Kind, Source
from recollect.core.validation import check_choice
from recollect.evaluation.features import (
    FeatureCache,
    class_prompts,
    class_text_features,
    image_features,
)
from recollect.evaluation.results import Result, ResultRow, content_of
from recollect.evaluation.tasks.classification import ClassificationTask

_FEW = 5
"""Top-5 accuracy needs more classes."""


@dataclass(frozen=True)
class NamedPictures:
    """Inputs of a method, without labels.

    Attributes:
        source, rows: the pictures, and indices of the readable ones.
        images: their unit embeddings (n, width).
        texts: unit class texts (classes, width).
        seed: of the stream's order and of the views.
    """

    encoder: Encoder
    source: Source
    rows: np.ndarray
    images: np.ndarray
    texts: np.ndarray
    scale: float
    seed: int = 0


Reads = Literal["folder", "stream", "views"]


@dataclass(frozen=True)
class Named:
    """Predictions of a method.

    Attributes:
        confidence: its probability, or its share of votes (n,).
    """

    labels: np.ndarray
    confidence: np.ndarray


@dataclass(frozen=True)
class UnlabelledMethod:
    """A method, and what it reads in addition to one picture and the texts."""

    reads: Reads
    predict: Callable[[NamedPictures], Named]


UNLABELLED_METHODS: Table[UnlabelledMethod] = Table("unlabelled_methods")
"""Packages add theirs (`recollect.core.plugins`); recollect-papers has TransCLIP, StatA, ADAPT, TDA and ZERO."""


def top_1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Accuracy in percent."""
    return 100.0 * float(np.mean(predictions == labels))


def top_5(scores: np.ndarray, labels: np.ndarray) -> float:
    """Top-5 accuracy of scores (n, classes) in percent."""
    best = np.argpartition(scores, -_FEW, axis=1)[:, -_FEW:]
    return 100.0 * float(np.mean((best == labels[:, None]).any(axis=1)))


def mean_per_class(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Mean over classes of the accuracy, in percent; the convention of Pets, Caltech, Flowers."""
    right = predictions == labels
    return 100.0 * float(np.mean([right[labels == label].mean() for label in np.unique(labels)]))


def zero_shot(
    encoder: Encoder,
    task: ClassificationTask,
    *,
    model: str = "model",
    seed: int = 0,
    prefix: Kind | None = None,
    cache: FeatureCache | None = None,
    methods: Sequence[str] = (),
) -> Result:
    """Classify the query images of ``task`` by the nearest class text.

    Args:
        seed: of the model's training, for summaries over seeds; the protocol itself is deterministic.
        prefix: prefix token of class texts, for models that have them.

    Returns:
        Top-1 (with the expected calibration error ``ece`` at the model's scale), mean per-class accuracy, and top-5
        with more than five classes, all in percent; then the first two for each of ``methods``, with ``method`` and
        what it ``reads``: a folder, a stream or views.

    Raises:
        UserError: no such method.
    """
    for name in methods:
        check_choice(name, UNLABELLED_METHODS, "--methods: method")
    texts = class_text_features(encoder, task, prefix)
    query = image_features(encoder, task.query, cache)
    scores = query.images @ texts.T
    predictions = np.argmax(scores, axis=1)
    ece = expected_calibration_error(softmax(learned_scale(encoder) * scores), query.labels)
    rows: list[ResultRow] = [
        {"metric": "top-1", "value": top_1(predictions, query.labels), "ece": 100 * ece},
        {"metric": "mean per class", "value": mean_per_class(predictions, query.labels)},
    ]
    if len(task.class_names) > _FEW:
        rows.append({"metric": "top-5", "value": top_5(scores, query.labels)})
    given = NamedPictures(encoder, task.query, query.rows, query.images, texts, learned_scale(encoder))
    for name in methods:
        method = UNLABELLED_METHODS[name]
        found, about = method.predict(given), {"method": name, "reads": method.reads}
        error = 100 * calibration_error(found.confidence, found.labels == query.labels)
        rows.append({**about, "metric": "top-1", "value": top_1(found.labels, query.labels), "ece": error})
        rows.append({**about, "metric": "mean per class", "value": mean_per_class(found.labels, query.labels)})
    settings: dict[str, Any] = {"classes": len(task.class_names), "queries": len(query.labels), "prefix": prefix}
    settings |= {"methods": list(methods)} if methods else {}
    settings |= content_of(encoder, task.query, asked=class_prompts(task))
    return Result("zero-shot", model, task.name, seed, rows, settings)
