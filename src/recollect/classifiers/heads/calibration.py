"""Temperature, calibration error and conformal sets, from arrays."""

import math
from collections.abc import Iterator

import numpy as np

BINS = 15
"""Number of bins of the calibration error, as in Guo et al. (2017)."""

SCORES_PER_BLOCK = 2**22
"""Block size (rows x classes) of scores converted to double precision: 32 MiB."""


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the temperature T that minimizes the negative log-likelihood of ``softmax(logits / T)``.

    The loss is convex in 1/T. Targets are smoothed by one example spread over all classes (Platt's rule); otherwise T
    would be 0 if all rows are right. Misleading logits get the largest temperature, which keeps their order.

    Args:
        logits: of held-out examples (n, classes).
        labels: (n,).
    """
    count, middle = len(logits), logits.mean(axis=1, keepdims=True)
    block = max(1, SCORES_PER_BLOCK // logits.shape[1])

    def parts() -> Iterator[np.ndarray]:
        """Yield blocks of centered rows in double precision."""
        for start in range(0, count, block):
            rows = slice(start, start + block)
            yield logits[rows].astype(np.float64, copy=False) - middle[rows]

    spread = max(float(np.abs(part).max()) for part in parts())
    if spread == 0:
        return 1.0
    share = 1 / (count + 1)
    truth = logits[np.arange(count), labels].astype(np.float64, copy=False) - middle[:, 0]
    wanted = (1 - share) * truth.mean()  # the mean of a row is 0

    def slope(sharpness: float) -> tuple[float, float]:
        """Return the first and second derivative of the loss with respect to 1/T."""
        first = second = 0.0
        for part in parts():
            weights = np.exp(sharpness * (part - part.max(axis=1, keepdims=True)))
            weights /= weights.sum(axis=1, keepdims=True)
            weights *= part
            means = weights.sum(axis=1)
            weights *= part
            first += float(means.sum())
            second += float((weights.sum(axis=1) - means**2).sum())
        return first / count - wanted, second / count

    low, high = 1e-3 / spread, 1e6 / spread
    if slope(low)[0] >= 0:
        return 1 / low
    at = 1.0 / spread
    for _ in range(60):  # Newton steps, or bisection if a step leaves the bracket
        first, second = slope(at)
        low, high = (at, high) if first < 0 else (low, at)
        step = at - first / second if second > 0 else 0.0
        if abs(step - at) <= 1e-7 * at:
            break
        at = step if low < step < high else (low * high) ** 0.5
    return 1 / at


def expected_calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Compute the mean distance of confidence from accuracy over equal bins, weighted by bin size (0 to 1).

    Args:
        probabilities: (n, classes).
        labels: (n,).
    """
    best = probabilities.argmax(axis=1)
    return calibration_error(probabilities[np.arange(len(best)), best], best == labels)


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Compute `expected_calibration_error` from confidences (n,) and whether each row is right (n,)."""
    if len(confidence) == 0:
        return float("nan")
    bins = np.clip((confidence * BINS).astype(np.int64), 0, BINS - 1)
    gap = np.bincount(bins, confidence, BINS) - np.bincount(bins, right.astype(np.float64), BINS)
    return float(np.abs(gap).sum() / len(confidence))


def conformal_groups(counts: np.ndarray, alpha: float) -> np.ndarray:
    """Return the calibration group of each class: its own, or one shared by all classes with too few examples.

    A class can be ruled out at error rate ``alpha`` only with ``n >= 1 / alpha - 1`` held-out examples. Classes with
    fewer share a group, the "null cluster" of clustered conformal prediction (Ding et al., 2023); its coverage is
    1 - alpha over the pictures of all its classes, not per class.

    Args:
        counts: number of held-out examples per class (classes,).
        alpha: error rate, 0 < alpha < 1.

    Returns:
        Group of each class, 0 to the number of groups - 1 (classes,).
    """
    small = counts < math.ceil(1 / alpha - 1 - 1e-9)
    group = np.cumsum(~small) - 1
    group[small] = int((~small).sum())
    return group


def set_thresholds(known: np.ndarray, labels: np.ndarray, classes: int, alpha: float) -> np.ndarray:
    """Return the lowest conformity at which each class is in a conformal set (classes,), per group (Mondrian).

    The p-value of a class at conformity x is ``(1 + #{i of its group: known_i <= x}) / (n + 1)`` over the n held-out
    examples of its group (`conformal_groups`). It exceeds ``alpha`` at and above the threshold, which is -inf for
    groups that are too small.

    Args:
        known: conformity of each held-out example with its own class (n,).
        labels: class of each example (n,).
    """
    group = conformal_groups(np.bincount(labels, minlength=classes), alpha)
    groups = group[labels]
    order, counts = np.lexsort((known, groups)), np.bincount(groups, minlength=int(group.max()) + 1)
    rank = np.floor(alpha * (counts + 1) + 1e-9).astype(np.int64)  # number of examples that may conform less
    rank = np.minimum(rank, counts)  # alpha near 1
    starts, some = np.cumsum(counts) - counts, rank > 0
    least = np.full(len(counts), -np.inf)
    least[some] = known[order[starts[some] + rank[some] - 1]]
    return least[group]
