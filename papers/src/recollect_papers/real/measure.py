"""Measurements of models on features: few-shot accuracy, zero-shot accuracy and retrieval recall."""

from collections.abc import Sequence

import numpy as np

from recollect.core.types import Encoder
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
    found, roles = Measurements(), data.roles
    sets = roles.choosing if part == "choosing" else roles.testing
    for name, splits in sets.items():
        each = data.classes(name)
        for shots, value in few_shot(model, each, splits).items():
            found.add({"measure": "few-shot", "part": part, "set": name, "shots": str(shots)}, 0, value)
        if named and each.class_names:
            at = {"measure": "zero-shot", "part": part, "set": name}
            found.add(at, 0, by_name(model, each, splits))
    pools = dict([roles.choosing_pool]) if part == "choosing" else roles.pools
    for name, split in pools.items() if named else ():
        for k, value in recall(model, data.get(name), split).items():
            found.add({"measure": f"R@{k}", "part": part, "set": name}, 0, value)
    return found


def few_shot(model: Encoder, each: FeatureSet, splits: Sequence[str]) -> dict[int, float]:
    """Return the mean accuracy of prototypes and softmax voting over five draws, by shots."""
    support, query = drop_rare_classes(each, labeled(each, "train"), labeled(each, *splits))
    classes, labels = np.unique(each.labels[support], return_inverse=True)
    task = FewShotTask(
        model.embed_images(each.images[support]).numpy(),
        labels,
        model.embed_images(each.images[query]).numpy(),
        np.searchsorted(classes, each.labels[query]),
        None,
    )
    rows = run_protocol(task, Protocol(METHODS, SHOTS))
    top = [row for row in rows if row["metric"] == "top-1"]
    return {shots: float(np.mean([row["value"] for row in top if row["shots"] == shots])) for shots in SHOTS}


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
    names = model.embed_texts([TEMPLATE.format(name.replace("_", " ")) for name in each.class_names])
    chosen = (model.embed_images(each.images[rows]) @ names.T).argmax(1).numpy()
    return float(100 * (chosen == each.labels[rows]).mean())


def recall(model: Encoder, each: FeatureSet, split: str, ks: Sequence[int] = (1, 10)) -> dict[int, float]:
    """Return recall in percent from the first caption of each picture to the first 1,000 pictures of a split."""
    rows = [row for row in each.rows(split).tolist() if each.captions[row]][:POOL]
    texts = model.embed_texts([each.captions[row][0] for row in rows])
    scores = texts @ model.embed_images(each.images[rows]).T
    better = (scores > scores.diagonal()[:, None]).sum(1)
    return {k: float(100 * (better < k).float().mean()) for k in ks}
