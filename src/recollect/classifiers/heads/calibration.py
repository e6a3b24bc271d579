"""How far a classifier may be trusted: temperature, calibration error, conformal sets. Arrays in, numbers out."""

from collections.abc import Iterator

import numpy as np

BINS = 15
"""Bins of the calibration error, as in Guo et al. (2017)."""

SCORES_AT_ONCE = 2**22
"""Scores (rows x classes) that are turned into double precision at a time: 32 MiB."""


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Row-wise log of the softmax, stable, in double precision."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    shifted = shifted.astype(np.float64, copy=False)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """The temperature T at which ``softmax(logits / T)`` has the least negative log-likelihood at the labels.

    The likelihood is convex in 1/T, so halving finds its one minimum. The targets are smoothed by one example in all
    that is of no class in particular (Platt's rule): otherwise rows that are all right would ask for T = 0. Logits
    that say less than nothing about the labels get the largest temperature that still leaves their order visible.

    Args:
        logits: (n, classes), of examples that the classifier did not learn from.
        labels: (n,).
    """
    count, middle = len(logits), logits.mean(axis=1, keepdims=True)
    block = max(1, SCORES_AT_ONCE // logits.shape[1])

    def parts() -> Iterator[np.ndarray]:
        """Rows about their means in double precision, some at a time: all of them would be several times the scores."""
        for start in range(0, count, block):
            rows = slice(start, start + block)
            yield logits[rows].astype(np.float64, copy=False) - middle[rows]

    spread = max(float(np.abs(part).max()) for part in parts())
    if spread == 0:
        return 1.0
    share = 1 / (count + 1)
    own = logits[np.arange(count), labels].astype(np.float64, copy=False) - middle[:, 0]
    wanted = (1 - share) * own.mean()  # the mean of a row is 0

    def slope(sharpness: float) -> tuple[float, float]:
        """First and second derivative of the loss by the sharpness 1/T."""
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
    for _ in range(60):  # Newton's steps, halving where one would leave the bracket
        first, second = slope(at)
        low, high = (at, high) if first < 0 else (low, at)
        step = at - first / second if second > 0 else 0.0
        if abs(step - at) <= 1e-7 * at:
            break
        at = step if low < step < high else (low * high) ** 0.5
    return 1 / at


def expected_calibration_error(probabilities: np.ndarray, labels: np.ndarray, bins: int = BINS) -> float:
    """Mean distance of confidence from accuracy over equal bins of confidence, weighted by their sizes (0 to 1).

    Args:
        probabilities: (n, classes).
        labels: (n,).
    """
    best = probabilities.argmax(axis=1)
    return calibration_error(probabilities[np.arange(len(best)), best], best == labels, bins)


def calibration_error(confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> float:
    """As `expected_calibration_error`, from each row's confidence (n,) and whether it is right (n,)."""
    if len(confidence) == 0:
        return float("nan")
    place = np.clip((confidence * bins).astype(np.int64), 0, bins - 1)
    gap = np.bincount(place, confidence, bins) - np.bincount(place, right.astype(np.float64), bins)
    return float(np.abs(gap).sum() / len(confidence))


def conformal_thresholds(known: np.ndarray, known_labels: np.ndarray, classes: int, alpha: float) -> np.ndarray:
    """The least fit at which `conformal_p` is above ``alpha``, -inf where a group has too few examples: (classes,).

    Args:
        known: how well each held-out example fits its own class (n,).
        known_labels: its class, or the group of its class (n,).
        classes: how many classes or groups there are.
    """
    least = np.full(classes, -np.inf)
    order = np.lexsort((known, known_labels))
    counts = np.bincount(known_labels, minlength=classes)
    place = np.floor(alpha * (counts + 1) + 1e-9).astype(np.int64)  # so many of the class must fit no better
    place = np.minimum(place, counts)  # an alpha of nearly 1 asks for no more than there are
    starts = np.cumsum(counts) - counts
    some = place > 0
    least[some] = known[order[starts[some] + place[some] - 1]]
    return least


def conformal_p(known: np.ndarray, known_groups: np.ndarray, asked: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Conformal p-value of each class for each query, group by group (Mondrian): (queries, classes).

    ``p_c = (1 + #{i of c's group: known_i <= asked_c}) / (n + 1)``: how many of the group's own n held-out examples fit
    their class no better than the query would fit c. The class is kept at error rate alpha if ``p_c > alpha``.

    Args:
        known: (n,), how well each held-out example fits its own class; larger is better.
        known_groups: (n,), the group of its class.
        asked: (queries, classes), how well each query would fit each class.
        group: of each class (classes,).
    """
    p = np.ones(asked.shape)
    order = np.lexsort((known, known_groups))
    ends = np.cumsum(np.bincount(known_groups, minlength=int(group.max()) + 1))
    starts = np.r_[0, ends[:-1]]
    for label, (start, end) in enumerate(zip(starts[group], ends[group], strict=True)):
        if end > start:
            less = np.searchsorted(known[order[start:end]], asked[:, label], side="right")
            p[:, label] = (1 + less) / (end - start + 1)
    return p
