"""Exact nearest neighbors: the reference that every index is measured against, and the default."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Float32, Int64

from recollect.core.ordering import best_first

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_QUERIES = 512

_WIDENED = 1_024
"""Rows of half precision that are widened at a time: at width 256 they stay in the second-level cache (1 MB)."""

_SCORES = 2**21
"""Scores in memory at a time (8 MB: they stay in a cache), and so the rows of a block."""

_GROUP = 64


@dataclass(frozen=True)
class ExactNeighbors:
    """For each query its k best rows: positions, best first, and their scores."""

    rows: Int64[np.ndarray, "queries k"]
    scores: Float32[np.ndarray, "queries k"]


def exact_neighbors(
    queries: Float32[np.ndarray, "queries width"],
    matrix: Float[np.ndarray, "rows width"],
    k: int,
    among: Int64[np.ndarray, " some"] | None = None,
    device: torch.device | None = None,
    norms: Float32[np.ndarray, " rows"] | None = None,
) -> ExactNeighbors:
    """The k rows of ``matrix`` with the largest inner product with each query, by blocked matrix products.

    Of equal products the first row comes first.

    ``matrix`` may be memory-mapped and larger than memory: it is read once for every 512 queries, block by block. The
    k best of a block are in the k groups of 64 whose maxima are largest, so only those are sorted.

    Args:
        queries: unit-norm rows.
        matrix: unit-norm rows; of half precision they are widened, block by block, before they are multiplied.
        k: at most the number of rows searched.
        among: positions to search; all by default. Positions of the result are those of ``matrix``.
        device: where to compute; the best of the machine by default.
        norms: of the rows, by which products are divided; left out, rows count as they are. Rounding to half precision
            changes a row's norm by up to 2⁻¹¹, and without this all its cosines.

    Raises:
        ValueError: the widths differ, or k exceeds the rows.
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
        asked = np.ascontiguousarray(queries[some])
        scores[some], rows[some] = (
            _by_torch(asked, matrix, k, among, norms, device)
            if device is not None or "torch" in sys.modules  # importing it takes longer than a search
            else nearest_by_numpy(asked, matrix, k, among, norms)
        )
    return ExactNeighbors(rows if among is None else among[rows], scores)


def best_of_all(found: Sequence[ExactNeighbors], k: int) -> ExactNeighbors:
    """The k best of what was found in several places, or all if there are fewer."""
    rows = np.concatenate([each.rows for each in found], axis=1)
    scores = np.concatenate([each.scores for each in found], axis=1)
    if len(found) == 1:
        return ExactNeighbors(rows[:, :k], scores[:, :k])
    order = best_first(scores)[:, :k]
    return ExactNeighbors(np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1))


def _by_torch(
    queries: np.ndarray,
    matrix: np.ndarray,
    k: int,
    among: np.ndarray | None,
    norms: np.ndarray | None,
    device: torch.device | None,
) -> tuple[np.ndarray, np.ndarray]:
    import torch

    from recollect.core.types import best_device

    scores, rows = nearest_by_torch(torch.from_numpy(queries).to(device or best_device()), matrix, k, among, norms)
    return scores.cpu().numpy(), rows.cpu().numpy()


def nearest_by_numpy(
    queries: np.ndarray, matrix: np.ndarray, k: int, among: np.ndarray | None, norms: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Scores and places among those searched, like `nearest_by_torch`; for the few queries of one search."""
    count = len(matrix) if among is None else len(among)
    products = np.empty((len(queries), count), dtype=np.float32)
    for start in range(0, count, _WIDENED):
        some = slice(start, start + _WIDENED) if among is None else among[start : start + _WIDENED]
        products[:, start : start + _WIDENED] = queries @ matrix[some].astype(np.float32).T
    if norms is not None:
        products /= norms if among is None else norms[among]
    least = -np.partition(-products, k - 1, axis=1)[:, k - 1]
    rows = np.empty((len(queries), k), dtype=np.int64)
    for query, scores in enumerate(products):
        among_best = np.flatnonzero(scores >= least[query])  # all that tie for the last place, by row
        rows[query] = among_best[np.argsort(-scores[among_best], kind="stable")[:k]]
    return np.take_along_axis(products, rows, axis=1), rows


def nearest_by_torch(
    queries: Tensor, matrix: np.ndarray, k: int, among: np.ndarray | None, norms: np.ndarray | None
) -> tuple[Tensor, Tensor]:
    """Scores and places among those searched, like `nearest_by_numpy`; on any device."""
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
        scores, rows = best_of(products, min(k, stop - start))
        scores, order = torch.cat([best_scores, scores], 1).sort(dim=1, descending=True, stable=True)
        best_scores, best_rows = scores[:, :k], torch.cat([best_rows, rows + start], 1).gather(1, order[:, :k])
    return best_scores, best_rows


def _products(queries: Tensor, rows: np.ndarray) -> Tensor:
    """Of each query with each row. Half precision is widened a few rows at a time, which makes it faster than full
    precision: half as much is read from memory."""
    import torch

    if rows.dtype == np.float32 or queries.device.type != "cpu":
        return queries @ torch.from_numpy(rows).to(queries.device).float().T
    products = queries.new_empty(len(queries), len(rows))
    for start in range(0, len(rows), _WIDENED):
        wide = torch.from_numpy(rows[start : start + _WIDENED]).to(queries.device, torch.float32)
        torch.mm(queries, wide.T, out=products[:, start : start + _WIDENED])
    return products


def best_of(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """``scores.topk(k)`` where of equal scores the first comes first.

    Of long rows, one pass finds the maxima of groups, and only the k best groups are sorted.
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
    for query in tied.nonzero().flatten().tolist():  # several are equally good for the last place
        all_of_them = (scores[query] >= scores[query, found[query]].min()).nonzero().flatten()
        found[query] = all_of_them[scores[query, all_of_them].argsort(descending=True, stable=True)[:k]]
    found = found.sort(dim=1).values
    best, order = scores.gather(1, found).sort(dim=1, descending=True, stable=True)
    return best, found.gather(1, order)
