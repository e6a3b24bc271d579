"""Open-domain entity recognition among all entities, including those the model was not trained on."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64

from recollect.classifiers.heads.calibration import calibration_error
from recollect.classifiers.texts import learned_scale
from recollect.core.errors import UserError
from recollect.core.types import Encoder, Kind, best_device
from recollect.data.sources import open_source
from recollect.data.sources.columns import Columns
from recollect.evaluation.features import FeatureCache, class_prompts, class_text_features, image_features
from recollect.evaluation.few_shot_protocol import accuracy
from recollect.evaluation.results import Result, ResultRow, content_of
from recollect.evaluation.tasks.classification import ClassificationTask, Division, classification_task

_IMAGE_BLOCK, _TEXT_BLOCK = 512, 4096
"""Block sizes: 8 MB of scores fit the processor's cache."""


EntityTask = tuple[ClassificationTask, Bool[np.ndarray, " classes"]]
"""A task over all candidates, and which of them the model was trained on."""


def open_entities(
    spec: str, seen: str, unseen: str, templates: tuple[str, ...], columns: Columns | None = None
) -> EntityTask:
    """Open a task over the classes of two splits, with a mask of the classes of the first.

    Args:
        spec: a source with labels and class names.
        seen: split whose classes the model was trained on.
        unseen: split of the other classes.

    Raises:
        UserError: no such split, or no unseen class.
    """
    task = classification_task(
        spec, division=Division(support=None, query=f"{seen}+{unseen}"), templates=templates, columns=columns
    )
    known = open_source(spec, split=seen, kind="label", columns=columns)
    names = {known.class_names[label] for label in np.unique(known.labels).tolist()}
    is_seen = np.array([name in names for name in task.class_names])
    if is_seen.all() or not is_seen.any():
        raise UserError(f"{spec}: all classes of split '{unseen}' are also in '{seen}', so none is unseen")
    return task, is_seen


def harmonic_mean(seen: float, unseen: float) -> float:
    """Compute ``2 s u / (s + u)``, or 0 if both are 0."""
    return 0.0 if seen + unseen == 0 else 2 * seen * unseen / (seen + unseen)


def best_and_confidence(
    images: Float32[np.ndarray, "n width"],
    texts: Float32[np.ndarray, "classes width"],
    scale: float,
) -> tuple[Int64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """Return the best class of each image (ties go to the first) and its softmax probability.

    ``1 / sum_c exp(scale (s_c - best))`` is computed in one pass over blocks with a running maximum, since OVEN has six
    million candidates.
    """
    device = best_device()
    rows, confidence = np.empty(len(images), dtype=np.int64), np.empty(len(images))
    for start in range(0, len(images), _IMAGE_BLOCK):
        queries = torch.from_numpy(np.ascontiguousarray(images[start : start + _IMAGE_BLOCK])).to(device)
        best = torch.full((len(queries),), -torch.inf, dtype=torch.float32, device=device)
        found, total = torch.zeros_like(best, dtype=torch.int64), torch.zeros(len(queries), dtype=torch.float64)
        for first in range(0, len(texts), _TEXT_BLOCK):
            scores = queries @ torch.from_numpy(texts[first : first + _TEXT_BLOCK]).to(device).T
            value, column = scores.max(dim=1)
            better = value > best  # ties go to the first
            found = torch.where(better, column + first, found)
            before, best = best, torch.maximum(best, value)
            total *= ((before - best) * scale).exp().cpu()
            total += scores.sub_(best[:, None]).mul_(scale).exp_().sum(dim=1).cpu()
        rows[start : start + _IMAGE_BLOCK] = found.cpu().numpy()
        confidence[start : start + _IMAGE_BLOCK] = (1 / total).numpy()
    return rows, confidence


def entities(
    encoder: Encoder,
    task: ClassificationTask,
    seen: Bool[np.ndarray, " classes"],
    *,
    model: str = "model",
    seed: int = 0,
    prefix: Kind | None = None,
    cache: FeatureCache | None = None,
) -> Result:
    """Measure top-1 accuracy among all entities for seen and unseen ones, and their harmonic mean (RECO, Table 2).

    Args:
        task: task whose classes are the candidates.
        seen: whether the model was trained on each class.

    Returns:
        Rows with ``metric`` seen, unseen and harmonic mean, in percent, each with the expected calibration error
        ``ece`` at the model's scale on these images (on all for the harmonic mean).

    Raises:
        UserError: no image of seen or of unseen entities.
    """
    texts = class_text_features(encoder, task, prefix)
    query = image_features(encoder, task.query, cache)
    is_seen = seen[query.labels]
    if is_seen.all() or not is_seen.any():
        raise UserError(f"{task.name}: no image of {'unseen' if is_seen.all() else 'seen'} entities")
    predictions, confidence = best_and_confidence(query.images, texts, learned_scale(encoder))
    values = {
        "seen": accuracy(predictions[is_seen], query.labels[is_seen]),
        "unseen": accuracy(predictions[~is_seen], query.labels[~is_seen]),
    }
    right = predictions == query.labels
    groups = {"seen": is_seen, "unseen": ~is_seen, "harmonic mean": np.ones_like(is_seen)}
    values["harmonic mean"] = harmonic_mean(values["seen"], values["unseen"])
    rows: list[ResultRow] = [
        {"metric": metric, "value": values[metric], "ece": 100 * calibration_error(confidence[group], right[group])}
        for metric, group in groups.items()
    ]
    settings: dict[str, Any] = {
        "classes": len(task.class_names),
        "unseen classes": int((~seen).sum()),
        "queries": len(query.labels),
        "unseen queries": int((~is_seen).sum()),
        "prefix": prefix,
    }
    settings |= content_of(encoder, task.query, inputs=[class_prompts(task), seen.tolist()])
    return Result("entities", model, task.name, seed, rows, settings)
