"""Exact nearest neighbors: the default search, and the reference for approximate indexes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Float32, Int64

from recollect.core.ordering import best_first

if TYPE_CHECKING:
    from torch import Tensor

_QUERIES = 512
"""Queries per pass over the matrix."""

_WIDEN_ROWS = 1_024
"""Half-precision rows converted at a time: at width 256 they fit into the L2 cache (1 MB)."""

_SCORES = 2**21
"""Scores computed at a time (8 MB, to stay in cache); determines the rows per block."""

_GROUP = 64
"""Scores per group in `_stable_topk`."""


@dataclass(frozen=True)
class ExactNeighbors:
    """Positions and scores of the k best rows for each query, best first."""

    rows: Int64[np.ndarray, "queries k"]
    scores: Float32[np.ndarray, "queries k"]


def exact_neighbors(
    queries: Float32[np.ndarray, "queries width"],
    matrix: Float[np.ndarray, "rows width"],
    k: int,
    among: Int64[np.ndarray, " some"] | None = None,
    norms: Float32[np.ndarray, " rows"] | None = None,
) -> ExactNeighbors:
    """Find the k rows of ``matrix`` with the largest inner product with each query, by blocked matrix products.

    If torch has been imported, they are computed on the best device, else by NumPy: importing torch takes longer than a
    search.

    Ties are broken by row order. ``matrix`` may be memory-mapped and larger than memory: it is read block by block,
    once for every 512 queries. The k best scores of a block are in the k groups of 64 with the largest maxima, so only
    those are sorted.

    Args:
        queries: unit-norm rows.
        matrix: unit-norm rows; half-precision rows are converted block by block before they are multiplied.
        k: at most the number of rows searched.
        among: positions to search; all by default. The result has positions in ``matrix``.
        norms: norms of the rows, to divide products by; not divided by default. Rounding to half precision changes the
            norm of a row, and so all its cosines, by up to 2⁻¹¹.

    Raises:
        ValueError: the widths differ, or k exceeds the number of rows searched.
    """
    count = len(matrix) if among is None else len(among)
    if queries.shape[1] != matrix.shape[1]:
        raise ValueError(f"queries {queries.shape} and rows {matrix.shape} differ in width")
    if not 1 <= k <= count:
        raise ValueError(f"k = {k}, but {count} rows are searched")
    rows = np.empty((len(queries), k), dtype=np.int64)
    scores = np.empty((len(queries), k), dtype=np.float32)
    for start in range(0, len(queries), _QUERIES):
        some = slice(start, min(start + _QUERIES, len(queries)))
        block = np.ascontiguousarray(queries[some])
        nearest = _by_torch if "torch" in sys.modules else nearest_by_numpy
        scores[some], rows[some] = nearest(block, matrix, k, among, norms)
    return ExactNeighbors(rows if among is None else among[rows], scores)


def merge_neighbors(found: Sequence[ExactNeighbors], k: int) -> ExactNeighbors:
    """Merge results for the same queries into the k best per query (all if there are fewer)."""
    rows = np.concatenate([each.rows for each in found], axis=1)
    scores = np.concatenate([each.scores for each in found], axis=1)
    if len(found) == 1:
        return ExactNeighbors(rows[:, :k], scores[:, :k])
    order = best_first(scores)[:, :k]
    return ExactNeighbors(np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1))


def _by_torch(
    queries: np.ndarray, matrix: np.ndarray, k: int, among: np.ndarray | None, norms: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    import torch

    from recollect.core.types import best_device

    scores, rows = nearest_by_torch(torch.from_numpy(queries).to(best_device()), matrix, k, among, norms)
    return scores.cpu().numpy(), rows.cpu().numpy()


def nearest_by_numpy(
    queries: np.ndarray, matrix: np.ndarray, k: int, among: np.ndarray | None, norms: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and positions (within ``among`` if given), like `nearest_by_torch`; fast for few queries."""
    count = len(matrix) if among is None else len(among)
    products = np.empty((len(queries), count), dtype=np.float32)
    for start in range(0, count, _WIDEN_ROWS):
        some = slice(start, start + _WIDEN_ROWS) if among is None else among[start : start + _WIDEN_ROWS]
        products[:, start : start + _WIDEN_ROWS] = queries @ matrix[some].astype(np.float32).T
    if norms is not None:
        products /= norms if among is None else norms[among]
    kth_best = -np.partition(-products, k - 1, axis=1)[:, k - 1]
    rows = np.empty((len(queries), k), dtype=np.int64)
    for query, scores in enumerate(products):
        candidates = np.flatnonzero(scores >= kth_best[query])  # includes all ties for the last place, in row order
        rows[query] = candidates[np.argsort(-scores[candidates], kind="stable")[:k]]
    return np.take_along_axis(products, rows, axis=1), rows


def nearest_by_torch(
    queries: Tensor, matrix: np.ndarray, k: int, among: np.ndarray | None, norms: np.ndarray | None
) -> tuple[Tensor, Tensor]:
    """Return scores and positions (within ``among`` if given), like `nearest_by_numpy`; on the queries' device."""
    import torch

    count, device = len(matrix) if among is None else len(among), queries.device
    block = max(_GROUP * k, _SCORES // max(1, len(queries)))
    best_scores = queries.new_empty(len(queries), 0)
    best_rows = torch.empty(len(queries), 0, dtype=torch.int64, device=device)
    for start in range(0, count, block):
        stop = min(start + block, count)
        some = slice(start, stop) if among is None else among[start:stop]
        products = _products(queries, matrix[some])
        if norms is not None:
            products /= torch.from_numpy(np.ascontiguousarray(norms[some])).to(device)
        scores, rows = _stable_topk(products, min(k, stop - start))
        scores, order = torch.cat([best_scores, scores], 1).sort(dim=1, descending=True, stable=True)
        best_scores, best_rows = scores[:, :k], torch.cat([best_rows, rows + start], 1).gather(1, order[:, :k])
    return best_scores, best_rows


def _products(queries: Tensor, rows: np.ndarray) -> Tensor:
    """Return the products of all queries and rows. On the CPU, half-precision rows are converted a few at a time, which
    is faster than storing full precision because half as much memory is read."""
    import torch

    if rows.dtype == np.float32 or queries.device.type != "cpu":
        return queries @ torch.from_numpy(rows).to(queries.device).float().T
    products = queries.new_empty(len(queries), len(rows))
    for start in range(0, len(rows), _WIDEN_ROWS):
        wide = torch.from_numpy(rows[start : start + _WIDEN_ROWS]).to(queries.device, torch.float32)
        torch.mm(queries, wide.T, out=products[:, start : start + _WIDEN_ROWS])
    return products


def _stable_topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return ``scores.topk(k)`` with ties broken by column order.

    For long rows, one pass computes the maxima of groups, and only the k best groups are sorted.
    """
    import torch

    rows, columns = scores.shape
    groups = columns // _GROUP
    if groups <= 4 * k:
        found = scores.topk(k, dim=1).indices
        tied = (scores >= scores.gather(1, found[:, -1:])).sum(1) > k
    else:
        whole = scores[:, : groups * _GROUP].view(rows, groups, _GROUP)
        maxima = whole.amax(dim=2)
        chosen = maxima.topk(k, dim=1, sorted=False).indices
        inside = whole.gather(1, chosen[:, :, None].expand(-1, -1, _GROUP)).flatten(1)
        columns_of = (chosen[:, :, None] * _GROUP + torch.arange(_GROUP, device=scores.device)).flatten(1)
        rest = torch.arange(groups * _GROUP, columns, device=scores.device).expand(rows, -1)
        inside, columns_of = torch.cat([inside, scores[:, groups * _GROUP :]], 1), torch.cat([columns_of, rest], 1)
        best, order = inside.topk(k, dim=1)
        found = columns_of.gather(1, order)
        tied = ((inside >= best[:, -1:]).sum(1) > k) | ((maxima >= best[:, -1:]).sum(1) > k)
    for query in tied.nonzero().flatten().tolist():  # topk chose arbitrarily among the ties for the last place
        candidates = (scores[query] >= scores[query, found[query]].min()).nonzero().flatten()
        found[query] = candidates[scores[query, candidates].argsort(descending=True, stable=True)[:k]]
    found = found.sort(dim=1).values
    best, order = scores.gather(1, found).sort(dim=1, descending=True, stable=True)
    return best, found.gather(1, order)
