"""Exact nearest neighbours by PyTorch, on any device."""

import numpy as np
import torch
from torch import Tensor

_SCORES = 2**21
"""Scores in memory at a time (8 MB: they stay in a cache), and so the rows of a block."""

_WIDENED = 1_024
"""Rows of half precision that are widened at a time: at width 256 they stay in the second-level cache (1 MB)."""

_GROUP = 64


def nearest_by_torch(
    queries: Tensor, matrix: np.ndarray, k: int, among: np.ndarray | None, norms: np.ndarray | None
) -> tuple[Tensor, Tensor]:
    """Scores and places among those searched; see `recollect.core.nearest.exact_neighbours`."""
    count, device = len(matrix) if among is None else len(among), queries.device
    block = max(_GROUP * k, _SCORES // max(1, len(queries)))
    best_scores = queries.new_full((len(queries), 0), 0.0)
    best_rows = torch.zeros(len(queries), 0, dtype=torch.int64, device=device)
    for start in range(0, count, block):
        stop = min(start + block, count)
        some = slice(start, stop) if among is None else among[start:stop]
        products = _products(queries, matrix[some])
        if norms is not None:
            products /= torch.from_numpy(np.ascontiguousarray(norms[some])).to(device)
        found_scores, found = best_of(products, min(k, stop - start))
        best_scores = torch.cat([best_scores, found_scores], dim=1)
        best_rows = torch.cat([best_rows, found + start], dim=1)
        best_scores, order = best_scores.topk(min(k, best_scores.shape[1]), dim=1)
        best_rows = best_rows.gather(1, order)
    by_row = best_rows.argsort(dim=1)
    order = by_row.gather(1, best_scores.gather(1, by_row).argsort(dim=1, descending=True, stable=True))
    return best_scores.gather(1, order), best_rows.gather(1, order)


def _products(queries: Tensor, rows: np.ndarray) -> Tensor:
    """Of each query with each row. Half precision is widened a few rows at a time, which makes it faster than full
    precision: half as much is read from memory."""
    if rows.dtype == np.float32 or queries.device.type != "cpu":
        return queries @ torch.from_numpy(rows).to(queries.device).float().T
    products = queries.new_empty(len(queries), len(rows))
    for start in range(0, len(rows), _WIDENED):
        wide = torch.from_numpy(rows[start : start + _WIDENED]).to(queries.device, torch.float32)
        torch.mm(queries, wide.T, out=products[:, start : start + _WIDENED])
    return products


def best_of(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """``scores.topk(k)`` for long rows: one pass for the maxima of groups, then a sort of the k best groups alone."""
    rows, columns = scores.shape
    groups = columns // _GROUP
    if groups <= 4 * k:
        return scores.topk(k, dim=1)
    whole = scores[:, : groups * _GROUP].view(rows, groups, _GROUP)
    chosen = whole.amax(dim=2).topk(k, dim=1, sorted=False).indices
    inside = whole.gather(1, chosen[:, :, None].expand(-1, -1, _GROUP)).flatten(1)
    columns_of = (chosen[:, :, None] * _GROUP + torch.arange(_GROUP, device=scores.device)).flatten(1)
    rest = torch.arange(groups * _GROUP, columns, device=scores.device).expand(rows, -1)
    inside, columns_of = torch.cat([inside, scores[:, groups * _GROUP :]], 1), torch.cat([columns_of, rest], 1)
    best, order = inside.topk(k, dim=1)
    return best, columns_of.gather(1, order)
