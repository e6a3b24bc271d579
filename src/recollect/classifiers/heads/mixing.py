"""Choosing a mixing weight: exactly, and on the support set alone."""

import numpy as np

from recollect.core.ordering import in_order

SWEEP_BLOCK = 512
"""Rows handled at a time: their intermediates stay in the processor's cache."""


def correct_interval(base: np.ndarray, extra: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each row the weights ``a`` at which ``base + a extra`` is largest at its label.

    Against each other class the condition is linear in ``a``, so all together hold on one interval.

    Args:
        base, extra: scores (n, classes).
        labels: (n,), indices of classes.

    Returns:
        Lower and upper ends (n,); a row that is never right has ``lower >= upper``.
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
    slope[rows, labels], need[rows, labels] = 1.0, -np.inf  # the label itself is no rival
    lost = None
    if not slope.all():  # equal slopes leave the comparison to the base: a tie there goes to the class met first
        flat = slope == 0
        lost = (flat & ((need > 0) | ((need == 0) & (np.arange(base.shape[1])[None, :] < labels[:, None])))).any(axis=1)
        slope[flat], need[flat] = 1.0, -np.inf
    with np.errstate(over="ignore"):  # a slope of nearly nothing bounds nothing: infinity is meant
        bound = np.divide(need, slope, out=need)
    side = np.multiply(slope, np.inf, out=slope)  # a rising rival bounds from below, a falling one from above
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
    """The weight ``a`` at which ``base + a extra`` is right most often, over all reals in ``bounds``.

    Accuracy is piecewise constant in ``a`` and changes only at the ends of the rows' intervals, so sorting these ends
    finds its maximum exactly. The answer is the centre of the best plateau, of the lowest one where several are as
    good; a plateau without upper end gives twice the last weight at which any row changes (1 if that is 0).

    Args:
        base, extra: scores (n, classes), at least one row.
        labels: (n,), indices of classes.
        bounds: where to search.

    Returns:
        The weight, and the share of rows that are right there (0 to 1).
    """
    return best_of_intervals(*correct_interval(base, extra, labels), bounds)


def best_of_intervals(
    lower: np.ndarray, upper: np.ndarray, bounds: tuple[float, float] = (0.0, np.inf)
) -> tuple[float, float]:
    """As `best_weight`, from the intervals (n,) of `correct_interval`; they can be found block by block."""
    count = len(lower)
    lower, upper = np.maximum(lower, bounds[0]), np.minimum(upper, bounds[1])
    live = lower < upper
    ends = np.concatenate([bounds, lower[live], upper[live]])
    order = in_order(ends)
    ends = ends[order]
    first = np.flatnonzero(np.concatenate([[True], ends[1:] > ends[:-1]]))
    places = ends[first]
    steps = np.zeros(len(ends))
    steps[2 : 2 + live.sum()], steps[2 + live.sum() :] = 1.0, -1.0
    change = np.add.reduceat(steps[order], first)
    right = np.cumsum(change)[:-1]  # on the open interval from places[i] to places[i + 1]
    best = last = int(np.argmax(right))
    while last + 1 < len(right) and right[last + 1] == right[best]:
        last += 1
    if np.isfinite(places[last + 1]):
        weight = (places[best] + places[last + 1]) / 2
        after = np.searchsorted(places, weight)
        if places[after] == weight:  # where one row turns wrong as another turns right, both are tied: stay clear of it
            weight = (weight + places[after + 1]) / 2
    else:
        weight = 2 * places[last] if places[last] > 0 else 1.0
    return float(weight), float(right[best]) / count


Pair = tuple[np.ndarray, np.ndarray]
"""Two scores of the same queries, each (queries, classes)."""
