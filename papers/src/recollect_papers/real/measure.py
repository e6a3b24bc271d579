"""Measurements of models on features: few-shot accuracy, zero-shot accuracy and retrieval recall."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from torch import Tensor

from recollect.core.types import TEXT_SCALE, Encoder
from recollect.evaluation.few_shot_protocol import FewShotTask, Protocol, run_protocol
from recollect_papers.measurements import Measurements
from recollect_papers.real.data import FeatureSet, RealData, labeled

SHOTS = (1, 4, 16)
METHODS = ("prototype", "softmax")
POOL = 1000
TEMPLATE = "a photo of a {}."


def measure(model: Encoder, data: RealData, part: str, named: bool = True) -> Measurements:
    """Measure few-shot accuracy, zero-shot accuracy and recall.

    Args:
        part: ``choosing`` or ``testing``.
        named: whether the model has a text side.
    """
    sets, pools = data.roles.measured(part)
    return measure_sets(model, data, sets, pools if named else {}, named=named, part=part)


def measure_sets(
    model: Encoder,
    data: RealData,
    sets: Mapping[str, Sequence[str]],
    pools: Mapping[str, str],
    *,
    examples: bool = True,
    named: bool = True,
    **at: str,
) -> Measurements:
    """Measure few-shot (``examples``) and zero-shot accuracy (``named``) on sets, and recall on pools.

    Args:
        sets: splits to classify by name of the set.
        pools: split to search by name of the set.
        at: further entries of every address.
    """
    found = Measurements()
    for name, splits in sets.items():
        each = data.classes(name)
        for shots, value in few_shot(model, each, splits).items() if examples else ():
            found.add({**at, "measure": "few-shot", "set": name, "shots": str(shots)}, 0, value)
        if named and each.class_names:
            found.add({**at, "measure": "zero-shot", "set": name}, 0, by_name(model, each, splits))
    for name, split in pools.items():
        for k, value in recall(model, data.get(name), split).items():
            found.add({**at, "measure": f"R@{k}", "set": name}, 0, value)
    return found


def few_shot(model: Encoder, each: FeatureSet, splits: Sequence[str]) -> dict[int, float]:
    """Return the mean accuracy of prototypes and softmax voting over five draws, by shots."""
    rows = run_protocol(few_shot_task(model, each, splits), Protocol(METHODS, SHOTS))
    top = [row for row in rows if row["metric"] == "top-1"]
    return {shots: float(np.mean([row["value"] for row in top if row["shots"] == shots])) for shots in SHOTS}


def few_shot_task(
    model: Encoder, each: FeatureSet, splits: Sequence[str], shots: int = SHOTS[-1], named: bool = False
) -> FewShotTask:
    """Create a task of the classes with at least ``shots`` examples, with their names as class texts if ``named``."""
    support, query = drop_rare_classes(each, labeled(each, "train"), labeled(each, *splits), shots)
    classes, labels = np.unique(each.labels[support], return_inverse=True)
    images, queries = (model.embed_images(each.images[rows]).numpy() for rows in (support, query))
    targets = np.searchsorted(classes, each.labels[query])
    if not named:
        return FewShotTask(images, labels, queries, targets, None)
    texts = embed_names(model, [each.class_names[label] for label in classes]).numpy()
    return FewShotTask(images, labels, queries, targets, texts, model.scale or TEXT_SCALE)


def embed_names(model: Encoder, names: Sequence[str]) -> Float[Tensor, "n width"]:
    """Embed class names with one template."""
    return model.embed_texts([TEMPLATE.format(name.replace("_", " ")) for name in names])


def drop_rare_classes(
    each: FeatureSet, support: np.ndarray, query: np.ndarray, shots: int = SHOTS[-1]
) -> tuple[np.ndarray, np.ndarray]:
    """Remove rows of classes with fewer than ``shots`` support examples."""
    counts = np.bincount(each.labels[support], minlength=len(each.class_names) or 1)
    good = np.flatnonzero(counts >= shots)
    return tuple(rows[np.isin(each.labels[rows], good)] for rows in (support, query))  # type: ignore[return-value]


def by_name(model: Encoder, each: FeatureSet, splits: Sequence[str]) -> float:
    """Return the zero-shot accuracy in percent, with one template."""
    rows = labeled(each, *splits)
    chosen = (model.embed_images(each.images[rows]) @ embed_names(model, each.class_names).T).argmax(1).numpy()
    return float(100 * (chosen == each.labels[rows]).mean())


def recall(model: Encoder, each: FeatureSet, split: str, ks: Sequence[int] = (1, 10)) -> dict[int, float]:
    """Return recall in percent from the first caption of each picture to the first 1,000 pictures of a split."""
    rows = [row for row in each.rows(split).tolist() if each.captions[row]][:POOL]
    texts = model.embed_texts([each.captions[row][0] for row in rows])
    scores = texts @ model.embed_images(each.images[rows]).T
    better = (scores > scores.diagonal()[:, None]).sum(1)
    return {k: float(100 * (better < k).float().mean()) for k in ks}
