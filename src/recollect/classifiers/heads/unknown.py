"""Open-set rule for any method: embeddings far from every class mean are "none of these"."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from recollect.classifiers.heads.base import unit_or_zero
from recollect.classifiers.heads.trust import enough_to_tell

UNKNOWN_RATE = 0.05
"""Share of pictures of the classes that may be rejected.

At 0.02 more than 70 % of the pictures of other classes of the same data set were accepted, at 0.05 about 60 %.
"""


@dataclass(frozen=True)
class UnknownRule:
    """A picture whose cosine to every class mean is below a threshold is "none of these".

    Attributes:
        means: unit-norm class means.
        threshold: the cosine.
        rejected: estimated share of pictures of the classes that are rejected; None with too few examples.
        accepted: estimated share of pictures of other classes that are accepted; None with too few examples.
    """

    means: Float[np.ndarray, "classes width"]
    threshold: float
    rejected: float | None = None
    accepted: float | None = None

    def similarity(self, rows: Float[np.ndarray, "n width"]) -> Float[np.ndarray, " n"]:
        """Cosine of each unit row to the nearest class mean."""
        return (rows @ self.means.T).max(axis=1)

    def is_unknown(self, rows: Float[np.ndarray, "n width"]) -> Bool[np.ndarray, " n"]:
        """Which unit rows belong to none of the classes."""
        if not len(self.means):
            return np.zeros(len(rows), dtype=bool)
        return self.similarity(rows) < self.threshold


def unknown_rule(features: np.ndarray, labels: np.ndarray, rate: float = UNKNOWN_RATE) -> UnknownRule:
    """The rule from labelled examples, with its error rates.

    Each example is compared with class means that exclude it: with all of them as a picture of the classes, and without
    its own class as a picture of another one. The threshold is the smallest cosine of the first kind with rank
    ``max(1, floor(rate (n + 1)))``, so ``rejected`` is ``rank / (n + 1)``; at one shot, where the example's own class
    has no mean, that is an upper bound.

    Args:
        features: unit-norm examples (n, width), each picture once.
        labels: their classes (n,), 0 to C - 1; every class occurs.
        rate: share of pictures of the classes that may be rejected.
    """
    count, width = features.shape
    if count < 2:
        return UnknownRule(np.empty((0, width), features.dtype), -1.0)
    classes = int(labels.max()) + 1
    sums = np.zeros((classes, width), dtype=np.float64)
    np.add.at(sums, labels, features)
    means = unit_or_zero(sums).astype(features.dtype)
    similarity = (features @ means.T).astype(np.float64)
    rows = np.arange(count)
    own = unit_or_zero(sums[labels] - features)
    several = np.bincount(labels)[labels] > 1
    mine = np.where(several, (features * own).sum(axis=1), -1.0)
    similarity[rows, labels] = -1.0
    others = similarity.max(axis=1)
    known = np.maximum(mine, others)
    rank = max(1, math.floor(rate * (count + 1)))
    threshold = float(np.sort(known)[rank - 1])
    if not enough_to_tell(count):
        return UnknownRule(means, threshold)
    accepted = (
        float((others[several] >= threshold).mean()) if classes > 2 and enough_to_tell(int(several.sum())) else None
    )
    return UnknownRule(means, threshold, rank / (count + 1), accepted)
