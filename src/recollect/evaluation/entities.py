"""Open-domain entity recognition: name what a picture shows among all entities, those never trained on included."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from recollect.core.errors import UserError
from recollect.core.nearest import exact_neighbours
from recollect.core.types import Encoder, Kind
from recollect.data.sources import open_source
from recollect.data.sources.columns import Columns
from recollect.evaluation.features import (
    FeatureCache,
    class_prompts,
    class_text_features,
    image_features,
    learned_scale,
)
from recollect.evaluation.results import Result, Row, content_of
from recollect.evaluation.zero_shot import top_1
from recollect.fewshot.calibration import SCORES_AT_ONCE, calibration_error
from recollect.tasks.classification import ClassificationTask, Division, classification_task
from recollect.tasks.oven import is_oven, open_oven

_IMAGES = 256
"""Images whose scores with all entities are computed at a time."""


def open_entities(
    spec: str, seen: str, unseen: str, templates: tuple[str, ...], columns: Columns | None = None
) -> tuple[ClassificationTask, Bool[np.ndarray, " classes"]]:
    """A task over the classes of two splits, and which of them belong to the first.

    Args:
        spec: a source with labels and class names; or OVEN's own files (see `open_oven`), which say themselves what was
            trained on.
        seen: split whose classes the model was trained on.
        unseen: split of the others.

    Raises:
        UserError: no such split, or one of the two has no class of its own.
    """
    if is_oven(spec):
        return open_oven(spec, templates)
    task = classification_task(
        spec, division=Division(support=None, query=f"{seen}+{unseen}"), templates=templates, columns=columns
    )
    known = open_source(spec, split=seen, kind="label", columns=columns)
    names = {known.class_names[label] for label in np.unique(known.labels).tolist()}
    is_seen = np.array([name in names for name in task.class_names])
    if is_seen.all() or not is_seen.any():
        raise UserError(f"{spec}: all classes of split '{unseen}' are also in '{seen}'; there is nothing unseen")
    return task, is_seen


def harmonic_mean(seen: float, unseen: float) -> float:
    """``2 s u / (s + u)``; 0 where both are."""
    return 0.0 if seen + unseen == 0 else 2 * seen * unseen / (seen + unseen)


def confidence_of_best(
    images: Float[np.ndarray, "n width"],
    texts: Float[np.ndarray, "classes width"],
    best: Float[np.ndarray, " n"],
    scale: float,
) -> Float[np.ndarray, " n"]:
    """The softmax probability of each image's best class, ``1 / sum_c exp(scale (s_c - best))``, block by block.

    Args:
        best: the largest cosine of each image with a text.
        scale: inverse temperature.
    """
    found = np.empty(len(images))
    step = max(1, SCORES_AT_ONCE // _IMAGES)
    for start in range(0, len(images), _IMAGES):
        some = slice(start, start + _IMAGES)
        total = np.zeros(len(images[some]))
        for first in range(0, len(texts), step):
            scores = images[some] @ texts[first : first + step].T
            total += np.exp(scale * (scores - best[some, None])).sum(axis=1, dtype=np.float64)
        found[some] = 1 / total
    return found


def entities(
    encoder: Encoder,
    task: ClassificationTask,
    seen: Bool[np.ndarray, " classes"],
    *,
    model: str,
    seed: int = 0,
    prefix: Kind | None = None,
    cache: FeatureCache | None = None,
) -> Result:
    """Top-1 among all entities, on images of seen and of unseen ones, and their harmonic mean (RECO, Table 2).

    Args:
        task: its classes are all candidates.
        seen: of each class, whether the model was trained on it.
        model: what to call the model in the result.
        seed: of the model's training.

    Returns:
        Rows with ``metric`` seen, unseen and harmonic mean, in percent; beside each ``ece``, the expected calibration
        error of the probabilities at the model's own scale on its images (with the harmonic mean: on all).

    Raises:
        UserError: no image of seen or of unseen entities.
    """
    texts = class_text_features(encoder, task, prefix)
    query = image_features(encoder, task.query, cache)
    nearest = exact_neighbours(query.images, texts, 1)  # block by block: OVEN has six million candidates
    predictions = nearest.rows[:, 0]
    is_seen = seen[query.labels]
    if is_seen.all() or not is_seen.any():
        raise UserError(f"{task.name}: no image of {'unseen' if is_seen.all() else 'seen'} entities")
    values = {
        "seen": top_1(predictions[is_seen], query.labels[is_seen]),
        "unseen": top_1(predictions[~is_seen], query.labels[~is_seen]),
    }
    confidence = confidence_of_best(query.images, texts, nearest.scores[:, 0], learned_scale(encoder))
    right = predictions == query.labels
    of = {"seen": is_seen, "unseen": ~is_seen, "harmonic mean": np.ones_like(is_seen)}
    values["harmonic mean"] = harmonic_mean(values["seen"], values["unseen"])
    rows: list[Row] = [
        {"metric": metric, "value": value, "ece": 100 * calibration_error(confidence[of[metric]], right[of[metric]])}
        for metric, value in values.items()
    ]
    settings: dict[str, Any] = {
        "classes": len(task.class_names),
        "unseen classes": int((~seen).sum()),
        "queries": len(query.labels),
        "unseen queries": int((~is_seen).sum()),
        "prefix": prefix,
    }
    settings |= content_of(encoder, task.query, asked=[class_prompts(task), seen.tolist()])
    return Result("entities", model, task.name, seed, rows, settings)
