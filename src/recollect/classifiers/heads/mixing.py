"""Exact optimum of the weight that mixes two scores."""

import numpy as np

from recollect.core.ordering import stable_argsort

SWEEP_BLOCK = 512
"""Number of rows in a block, so that intermediates fit the processor's cache."""


def correct_interval(base: np.ndarray, extra: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval of weights ``a`` at which ``base + a extra`` is largest at the label of each row.

    The condition against each other class is linear in ``a``, so together they hold on one interval.

    Args:
        base, extra: scores (n, classes).
        labels: class indices (n,).

    Returns:
        Lower and upper ends (n,); ``lower >= upper`` if a row is never right.
    """
    lower, upper = np.empty(len(labels)), np.empty(len(labels))
    for start in range(0, len(labels), SWEEP_BLOCK):
        rows = slice(start, start + SWEEP_BLOCK)
        lower[rows], upper[rows] = _intervals(base[rows], extra[rows], labels[rows])
    return lower, upper


def _intervals(base: np.ndarray, extra: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows = np.arange(len(labels))
    # (extra_y - extra_c) a > base_c - base_y
    slope = extra[rows, labels][:, None] - extra
    need = base - base[rows, labels][:, None]
    slope[rows, labels], need[rows, labels] = 1.0, -np.inf  # exclude the label itself
    lost = None
    if not slope.all():  # with equal slopes the base decides; ties go to the first class
        flat = slope == 0
        lost = (flat & ((need > 0) | ((need == 0) & (np.arange(base.shape[1])[None, :] < labels[:, None])))).any(axis=1)
        slope[flat], need[flat] = 1.0, -np.inf
    with np.errstate(over="ignore"):  # a slope near 0 gives no bound: infinity
        bound = np.divide(need, slope, out=need)
    side = np.multiply(slope, np.inf, out=slope)  # positive slopes bound from below, negative ones from above
    lower = np.minimum(bound, side).max(axis=1)
    upper = np.maximum(bound, side, out=side).min(axis=1)
    if lost is not None:
        lower[lost] = np.inf
    return lower, upper


def best_weight(
    base: np.ndarray,
    extra: np.ndarray,
    labels: np.ndarray,
    bounds: tuple[float, float] = (0.0, np.inf),
) -> tuple[float, float]:
    """Return the weight ``a`` in ``bounds`` at which ``base + a extra`` is most accurate, and that accuracy (0 to 1).

    Accuracy is piecewise constant in ``a`` and changes only at the ends of the rows' intervals, so sorting these ends
    finds the maximum exactly. The weight is the center of the lowest best plateau or, if that is unbounded, twice the
    last weight at which any row changes (1 if that is 0).

    Args:
        base, extra: scores (n, classes), at least one row.
        labels: class indices (n,).
    """
    return best_weight_of_intervals(*correct_interval(base, extra, labels), bounds)


def best_weight_of_intervals(
    lower: np.ndarray, upper: np.ndarray, bounds: tuple[float, float] = (0.0, np.inf)
) -> tuple[float, float]:
    """Compute `best_weight` from the intervals (n,) of `correct_interval`, which can be computed in blocks."""
    count = len(lower)
    lower, upper = np.maximum(lower, bounds[0]), np.minimum(upper, bounds[1])
    live = lower < upper
    ends = np.concatenate([bounds, lower[live], upper[live]])
    order = stable_argsort(ends)
    ends = ends[order]
    first = np.flatnonzero(np.concatenate([[True], ends[1:] > ends[:-1]]))
    points = ends[first]
    steps = np.zeros(len(ends))
    steps[2 : 2 + live.sum()], steps[2 + live.sum() :] = 1.0, -1.0
    change = np.add.reduceat(steps[order], first)
    right = np.cumsum(change)[:-1]  # on the open interval from points[i] to points[i + 1]
    best = last = int(np.argmax(right))
    while last + 1 < len(right) and right[last + 1] == right[best]:
        last += 1
    if np.isfinite(points[last + 1]):
        weight = (points[best] + points[last + 1]) / 2
        after = np.searchsorted(points, weight)
        if points[after] == weight:  # avoid a point where one row becomes wrong as another becomes right
            weight = (weight + points[after + 1]) / 2
    else:
        weight = 2 * points[last] if points[last] > 0 else 1.0
    return float(weight), float(right[best]) / count


ScorePair = tuple[np.ndarray, np.ndarray]
"""Two scores of the same queries, each (queries, classes)."""
