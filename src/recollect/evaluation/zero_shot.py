"""Zero-shot classification by CLIP's prompt ensemble."""

from typing import Any

import numpy as np

from recollect.classifiers.heads.base import softmax
from recollect.classifiers.heads.calibration import expected_calibration_error
from recollect.classifiers.texts import learned_scale
from recollect.core.types import Encoder, Kind
from recollect.evaluation.features import FeatureCache, class_prompts, class_text_features, image_features
from recollect.evaluation.few_shot_protocol import accuracy
from recollect.evaluation.results import Result, ResultRow, content_of
from recollect.evaluation.tasks.classification import ClassificationTask

_TOP = 5  # top-5 accuracy needs more classes


def _top_5(scores: np.ndarray, labels: np.ndarray) -> float:
    """Compute the top-5 accuracy of scores (n, classes) in percent."""
    true = scores[np.arange(len(labels)), labels, None]
    earlier = np.arange(scores.shape[1]) < labels[:, None]  # ties go to the first, as in top-1
    return 100.0 * float(np.mean(((scores > true) | ((scores == true) & earlier)).sum(axis=1) < _TOP))


def zero_shot(
    encoder: Encoder,
    task: ClassificationTask,
    *,
    model: str = "model",
    seed: int = 0,
    prefix: Kind | None = None,
    cache: FeatureCache | None = None,
) -> Result:
    """Classify the query images of ``task`` by the nearest class text.

    Args:
        seed: seed of the model's training, for summaries over seeds; the protocol itself is deterministic.
        prefix: prefix token of class texts, for models that have them.

    Returns:
        Top-1 (with the expected calibration error ``ece`` at the model's scale), mean per-class accuracy, and top-5
        with more than five classes, all in percent.
    """
    texts = class_text_features(encoder, task, prefix)
    query = image_features(encoder, task.query, cache)
    scores = query.images @ texts.T
    predictions = np.argmax(scores, axis=1)
    ece = expected_calibration_error(softmax(learned_scale(encoder) * scores), query.labels)
    rows: list[ResultRow] = [
        {"metric": "top-1", "value": accuracy(predictions, query.labels), "ece": 100 * ece},
        {"metric": "mean per class", "value": accuracy(predictions, query.labels, "mean per class")},
    ]
    if len(task.class_names) > _TOP:
        rows.append({"metric": "top-5", "value": _top_5(scores, query.labels)})
    settings: dict[str, Any] = {"classes": len(task.class_names), "queries": len(query.labels), "prefix": prefix}
    settings |= content_of(encoder, task.query, inputs=class_prompts(task))
    return Result("zero-shot", model, task.name, seed, rows, settings)
