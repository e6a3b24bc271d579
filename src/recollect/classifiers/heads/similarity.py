"""Cosines to the examples of a support, and the nearest ones."""

import numpy as np

from recollect.core.ordering import best_first

_GRID = 2.0**36
_COSINES_AT_ONCE, _EXAMPLES_AT_ONCE = 2**22, 2**13
"""Block sizes in double precision: 32 MiB of cosines, and as much of examples at a width of 512."""


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Cosines of unit rows (left, right) that do not depend on the other rows.

    A matrix product adds in an order that depends on its shape, so the nearer of two equal examples, and the class of a
    tied vote, could change with the batch. Products are therefore computed in double precision and rounded to 2^-36:
    two results for one pair, at most ``2 width 2^-53`` apart (1e-13 at 512), differ at most once in 130 pairs.
    """
    found = np.empty((len(left), len(right)), dtype=left.dtype)
    for first in range(0, len(right), _EXAMPLES_AT_ONCE):
        columns = slice(first, first + _EXAMPLES_AT_ONCE)
        known = right[columns].astype(np.float64).T
        block = max(1, _COSINES_AT_ONCE // known.shape[1])
        for start in range(0, len(left), block):
            rows = slice(start, start + block)
            exact = left[rows].astype(np.float64) @ known
            exact *= _GRID
            np.rint(exact, out=exact)
            exact /= _GRID
            found[rows, columns] = exact
    return found


_ROWS_AT_ONCE = 256


def nearest(similarity: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices and cosines of the k nearest examples of each query, nearest first, ties by lower index: (queries, k).

    Args:
        similarity: cosines (queries, examples).
    """
    k = min(k, similarity.shape[1])
    indices, values = np.empty((len(similarity), k), np.int64), np.empty((len(similarity), k), similarity.dtype)
    for start in range(0, len(similarity), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        indices[rows], values[rows] = _nearest(similarity[rows], k)
    return indices, values


def _nearest(similarity: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    width = similarity.shape[1]
    if k == width:
        part = np.broadcast_to(np.arange(width), similarity.shape)
    else:
        # Partitioning values is faster than partitioning indices.
        border = np.partition(similarity, width - k, axis=1)[:, width - k, None]
        near = similarity >= border
        if np.count_nonzero(near) > k * len(near):  # ties at the border
            part = np.sort(best_first(similarity)[:, :k], axis=1)
        else:
            part = np.flatnonzero(near).reshape(len(near), k) - width * np.arange(len(near))[:, None]
    values = np.take_along_axis(similarity, part, axis=1)
    order = best_first(values)
    return np.take_along_axis(part, order, axis=1), np.take_along_axis(values, order, axis=1)
