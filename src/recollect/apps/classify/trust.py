"""What a classifier may claim: confidence, sets and "none of these", all from scores of examples that were left out."""

import math
from dataclasses import dataclass

import numpy as np

from recollect.fewshot.base import softmax

UNKNOWN_RATE = 0.02
"""Share of pictures of the classes that may be called "none of these"."""

_BINS = 10
_HALVINGS = 60


def inverse_temperature(scores: np.ndarray, labels: np.ndarray) -> float:
    """The factor t at which ``softmax(t · scores)`` fits the labels best (Guo et al., 2017, over 1/T).

    The mean negative log likelihood is convex in t, so halving an interval on its derivative finds the minimum. Targets
    are Platt's, (n + 1)/(n + 2) for the label and the rest for the others: where every example is right, plain targets
    would send t to infinity, and confidence beyond what n examples can show.

    Args:
        scores: of examples that were left out (n, classes), finite.
        labels: (n,), indices of classes.

    Returns:
        At least 0; 0 where the scores say nothing of the labels.
    """
    count, classes = scores.shape
    rows = np.arange(count)
    right = (count + 1) / (count + 2)
    wanted = np.full(scores.shape, (1 - right) / (classes - 1))
    wanted[rows, labels] = right
    centred = scores.astype(np.float64) - scores.mean(axis=1, keepdims=True)
    target = (wanted * centred).sum(axis=1).mean()

    def slope(t: float) -> float:
        return float((softmax(t * centred) * centred).sum(axis=1).mean() - target)

    if slope(0.0) >= 0:
        return 0.0
    low, high = 0.0, 1.0
    while slope(high) < 0 and high < 2.0**60:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return (low + high) / 2


def negative_log_likelihood(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Mean of −log of the probability of the label."""
    chosen = probabilities[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(chosen, np.finfo(np.float64).tiny)).mean())


def calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Expected calibration error: mean distance of confidence and accuracy over ten equal bins of confidence."""
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    place = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    total = 0.0
    for which in range(_BINS):
        here = place == which
        if here.any():
            total += here.mean() * abs(confidence[here].mean() - right[here].mean())
    return float(total)


@dataclass(frozen=True)
class LeftOut:
    """What the method said of examples while they were left out.

    Attributes:
        rows: positions in the support of the examples that could be left out: those whose class has another.
        scores: of the method (rows, classes).
        labels: indices of classes (rows,).
        how: ``exact`` where each was left out by itself, else ``10 folds``.
    """

    rows: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    how: str

    @property
    def accuracy(self) -> float:
        """Share of examples that get their class while they are left out (0 to 1)."""
        return float((self.scores.argmax(axis=1) == self.labels).mean())


def class_p_values(known: np.ndarray, labels: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """For each query and class, the share of the class's left-out examples that fit it no better than the query.

    ``p_c = (1 + #{i of c: P_i(c) ≤ P(c)}) / (n_c + 1)``, each class by itself (Mondrian), because balanced examples and
    the frequencies of new pictures are not exchangeable. A class with n_c examples can be ruled out at level α only if
    ``n_c ≥ 1/α − 1``. The scores were left-out ones at a method chosen on the same examples, so the level is nearly,
    not exactly, kept (Barber et al., 2021, for the cross-validated form).

    Args:
        known: probabilities of the left-out examples (n, classes).
        labels: (n,).
        queries: probabilities (queries, classes).

    Returns:
        (queries, classes), in (0, 1].
    """
    values = np.ones(queries.shape)
    for c in range(queries.shape[1]):
        own = np.sort(known[labels == c, c])
        worse = np.searchsorted(own, queries[:, c], side="right")
        values[:, c] = (1 + worse) / (len(own) + 1)
    return values


def least_similarity(features: np.ndarray, rate: float = UNKNOWN_RATE) -> tuple[float, float]:
    """The similarity to the nearest example below which a picture is called "none of these".

    The statistic of a picture is its cosine to the nearest example; that of an example, to the nearest other one. The
    threshold is the ``⌊rate (n + 1)⌋``-th least of these, and at least the least.

    Args:
        features: unit-norm examples (n, width), no picture twice.
        rate: share of pictures of the classes that may fall below.

    Returns:
        The threshold, and the share that may in fact fall below it, ``rank/(n + 1)``; −1 and 0 for fewer than two.
    """
    count = len(features)
    if count < 2:
        return -1.0, 0.0
    similarity = features @ features.T
    np.fill_diagonal(similarity, -np.inf)
    rank = max(1, math.floor(rate * (count + 1)))
    return float(np.sort(similarity.max(axis=1))[rank - 1]), rank / (count + 1)
