"""Choosing a mixing weight: exactly, and on the support set alone."""

from collections.abc import Callable, Iterator

import numpy as np

from recollect.fewshot.holdout import FEW_SHOTS, HoldOut

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
    order = np.argsort(ends)
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


def support_folds(labels: np.ndarray, folds: int = 3) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Folds of a support set, one example of each class at a time up to four shots, else three; a class with a single
    example is always learned from, and if all have one there are no folds.

    Yields:
        Indices to learn from and indices to choose on.
    """
    plan = HoldOut.of(labels)
    if len(plan.rows):
        yield from plan.folds(folds)


Pair = tuple[np.ndarray, np.ndarray]
"""Two scores of the same queries, each (queries, classes)."""

Components = Callable[[np.ndarray, np.ndarray, np.ndarray], Pair]
"""From support, labels and held-out queries to the two scores whose mixture is sought."""


def cross_validated_scores(
    components: Components, support: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Both scores of every example when it is held out, and its label; None where nothing can be held out."""
    parts = []
    for learn, choose in support_folds(labels):
        base, extra = components(support[learn], labels[learn], support[choose])
        parts.append((base, extra, labels[choose]))
    if not parts:
        return None
    base, extra, held_out = (np.concatenate(part) for part in zip(*parts, strict=True))
    return base, extra, held_out


def tuned_weight(
    given: float | None,
    components: Components,
    support: np.ndarray,
    labels: np.ndarray,
    *,
    default: float = 1.0,
    bounds: tuple[float, float] = (0.0, np.inf),
    sums: bool = False,
) -> float:
    """The weight of the second score: ``given``, or the best on held-out parts of the support.

    Args:
        given: the user's choice; None to choose here.
        default: where a class has a single example and nothing can be held out.
        bounds: where to search.
        sums: the second score is a sum over examples, which is smaller in a fold than with the whole support.
    """
    if given is not None:
        return given
    scores = cross_validated_scores(components, support, labels)
    if scores is None:
        return default
    return best_weight(*scores, bounds)[0] * (held_in_share(labels) if sums else 1.0)


def held_in_share(labels: np.ndarray) -> float:
    """Share of the support that a fold learns from. A sum over examples shrinks by it, so its weight must too."""
    counts = np.bincount(labels)
    several = counts[counts > 1]
    if not len(several):
        return 1.0
    folds = int(several.max()) if several.max() <= FEW_SHOTS else 3
    return (folds - 1) / folds
