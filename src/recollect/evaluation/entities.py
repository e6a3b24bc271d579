"""Open-domain entity recognition: name what a picture shows among all entities, those never trained on included."""

from typing import Any

import numpy as np
from jaxtyping import Bool

from recollect.core.errors import UserError
from recollect.core.nearest import exact_neighbours
from recollect.core.types import Encoder, Kind
from recollect.data.sources import open_source
from recollect.data.sources.columns import Columns
from recollect.evaluation.features import FeatureCache, class_prompts, class_text_features, image_features
from recollect.evaluation.results import Result, Row, content_of
from recollect.evaluation.zero_shot import top_1
from recollect.tasks.classification import ClassificationTask, Division, classification_task
from recollect.tasks.oven import is_oven, open_oven


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
        Rows with ``metric`` seen, unseen and harmonic mean, in percent.

    Raises:
        UserError: no image of seen or of unseen entities.
    """
    texts = class_text_features(encoder, task, prefix)
    query = image_features(encoder, task.query, cache)
    predictions = exact_neighbours(query.images, texts, 1).rows[:, 0]  # block by block: OVEN has six million candidates
    is_seen = seen[query.labels]
    if is_seen.all() or not is_seen.any():
        raise UserError(f"{task.name}: no image of {'unseen' if is_seen.all() else 'seen'} entities")
    values = {
        "seen": top_1(predictions[is_seen], query.labels[is_seen]),
        "unseen": top_1(predictions[~is_seen], query.labels[~is_seen]),
    }
    values["harmonic mean"] = harmonic_mean(values["seen"], values["unseen"])
    rows: list[Row] = [{"metric": metric, "value": value} for metric, value in values.items()]
    settings: dict[str, Any] = {
        "classes": len(task.class_names),
        "unseen classes": int((~seen).sum()),
        "queries": len(query.labels),
        "unseen queries": int((~is_seen).sum()),
        "prefix": prefix,
    }
    settings |= content_of(encoder, task.query, asked=[class_prompts(task), seen.tolist()])
    return Result("entities", model, task.name, seed, rows, settings)
