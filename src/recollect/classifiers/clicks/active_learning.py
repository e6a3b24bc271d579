"""Active learning: which pictures to label next."""

import numpy as np
from jaxtyping import Int64

from recollect.classifiers.clicks.cutoff import cut_off
from recollect.classifiers.clicks.model import MIN_CLICKS_PER_CLASS, ClickFit, ClickModel
from recollect.core.ordering import best_first, stable_argsort

_CANDIDATES_PER_ROW, _MIN_CANDIDATES = 10, 50
"""Diverse rows are chosen from this many candidates per requested row, but at least `_MIN_CANDIDATES`."""


def next_to_label(
    model: ClickModel, fit: ClickFit, count: int, among: Int64[np.ndarray, " some"] | None = None
) -> Int64[np.ndarray, " count"]:
    """Return rows to label next: the most likely rows, and diverse rows among the next most likely.

    With fewer than four Yes or No, half have the highest scores, and half are chosen farthest first (k-center, a
    2-approximation) from the rows that follow. Rows spread over the whole pool are nearly all No, and took a fifth more
    clicks to find a class by its name. With more clicks, a fifth are the most probable rows, since labels must not come
    from the cut alone; the others are nearest to the cut, chosen farthest first with distances weighted by the
    uncertainty ``p (1 − p)``.

    Args:
        among: candidate rows (default: all).
    """
    marked = np.zeros(len(fit.scores), dtype=bool)
    marked[fit.rows] = True
    free = np.flatnonzero(~marked) if among is None else among[~marked[among]]
    count = min(count, len(free))
    if not count:
        return np.empty(0, dtype=np.int64)
    cut = cut_off(fit)
    few = min((fit.marks > 0).sum(), (fit.marks < 0).sum()) < MIN_CLICKS_PER_CLASS
    by, sure = (fit.scores, (count + 1) // 2) if few or cut is None else (cut.probability, max(1, count // 5))
    ranked = free[best_first(by[free])]
    likely, rest = ranked[:sure], ranked[sure:]
    weights = np.ones(len(by))
    if not few and cut is not None:
        rest = rest[stable_argsort(np.abs(by[rest] - 0.5))]
        weights = by * (1 - by)
    near = rest[: max(_CANDIDATES_PER_ROW * count, _MIN_CANDIDATES)]
    known = np.concatenate([fit.rows, likely]).astype(np.int64)
    candidates, chosen = (model.centered(rows).astype(np.float32) for rows in (near, known))  # as in the kernel
    spread = near[farthest_first(candidates, chosen, weights[near], count - sure)]
    return np.concatenate([likely, spread] if few else [spread, likely]).astype(np.int64)


def farthest_first(rows: np.ndarray, known: np.ndarray, weights: np.ndarray, count: int) -> Int64[np.ndarray, " count"]:
    """Choose rows by greedy k-center (Gonzalez, 1985): each time the row with the largest weighted distance.

    Args:
        rows, known: unit rows to choose from, and unit rows that count as already chosen.
        weights: factors of the distances of ``rows``.

    Returns:
        Indices into ``rows``.
    """
    distance = np.full(len(rows), 2.0, dtype=np.float32)
    if len(known):
        distance = 1 - (rows @ known.T).max(axis=1, initial=-1.0)
    chosen = []
    weights = np.maximum(weights, 1e-6)
    for _ in range(min(count, len(rows))):
        best = int(np.argmax(np.maximum(distance, 0) * weights + 1e-9 * weights))
        chosen.append(best)
        distance = np.minimum(distance, 1 - rows @ rows[best])
        weights[best] = -1.0
    return np.array(chosen, dtype=np.int64)
