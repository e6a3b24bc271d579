"""Cosines to support examples, and nearest neighbors."""

import numpy as np

from recollect.core.ordering import best_first

_GRID = 2.0**36
_COSINE_BLOCK, _EXAMPLE_BLOCK = 2**22, 2**13
"""Block sizes: 32 MiB each in double precision, for examples of width 512."""


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Compute cosines of unit rows (left, right) that do not depend on the other rows.

    The summation order of a matrix product depends on its shape, so the nearer of two equal examples, and the class of
    a tied vote, could change with the batch. Products are therefore computed in double precision and rounded to 2^-36:
    two results for one pair, at most ``2 width 2^-53`` apart (1e-13 at 512), differ at most once in 130 pairs.
    """
    found = np.empty((len(left), len(right)), dtype=left.dtype)
    for first in range(0, len(right), _EXAMPLE_BLOCK):
        columns = slice(first, first + _EXAMPLE_BLOCK)
        known = right[columns].astype(np.float64).T
        block = max(1, _COSINE_BLOCK // known.shape[1])
        for start in range(0, len(left), block):
            rows = slice(start, start + block)
            exact = left[rows].astype(np.float64) @ known
            exact *= _GRID
            np.rint(exact, out=exact)
            exact /= _GRID
            found[rows, columns] = exact
    return found


_QUERY_BLOCK = 256


def nearest(similarity: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the k nearest examples of each query, nearest first, ties by lower index: indices and cosines (queries, k).

    Args:
        similarity: cosines (queries, examples).
    """
    k = min(k, similarity.shape[1])
    indices, values = np.empty((len(similarity), k), np.int64), np.empty((len(similarity), k), similarity.dtype)
    for start in range(0, len(similarity), _QUERY_BLOCK):
        rows = slice(start, start + _QUERY_BLOCK)
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
