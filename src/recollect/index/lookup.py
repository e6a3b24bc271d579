"""Nearest-neighbor lookup: all ranking of pictures in an index happens here."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int64, Shaped

from recollect.index.arrow import integer_array
from recollect.index.filters import Filter
from recollect.index.rows import ROUNDING, By
from recollect.index.stores.base import Nearest, Store

Excluded = Collection[str] | Sequence[str | Collection[str] | None]
"""Ids excluded for all queries (a set), or one entry per query (a sequence): an id, a collection of ids, or None."""

_EXTRA = 32  # vectors requested beyond k if some may be filtered out
_GROWTH = 4
_TOLERANCE = 2.0**-12  # far above the errors of single precision and rounding
_MAX_WITHOUT_PANDAS = 1_000  # ids converted by the slower method that does not import pandas


@dataclass(frozen=True)
class Found:
    """Result of a lookup, best first; rows are padded if fewer than k pictures are left.

    Attributes:
        ids: picture ids; "" as padding.
        scores: cosines; -inf as padding.
        vectors: unit-norm vectors chosen by ``read``; zeros as padding; None if ``read`` is None.
        captions: position of the matching caption if ``by`` is ``text``; else 0.
    """

    ids: Shaped[np.ndarray, "queries k"]
    scores: Float32[np.ndarray, "queries k"]
    vectors: Float32[np.ndarray, "queries k width"] | None = None
    captions: Int64[np.ndarray, "queries k"] | None = None

    def __len__(self) -> int:
        return len(self.ids)


def look_up(
    store: Store,
    queries: Float32[np.ndarray, "queries width"],
    k: int,
    by: By = "image",
    read: By | None = None,
    where: Filter | None = None,
    exclude: Excluded | None = None,
    max_score: float | None = None,
    exact: bool = False,
) -> Found:
    """Return the k pictures nearest to each query; see `Index.lookup`.

    The store returns vectors; this function reduces them to pictures. Only the best caption of a picture counts, and
    excluded or too similar pictures are skipped. More vectors are requested while a query has fewer than k pictures.
    Ties are in row order.
    """
    excluded = _exclusions(exclude, len(queries))
    captioned = by == "text" or read == "text"
    ids = np.full((len(queries), k), "", dtype=object)
    scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
    captions = np.zeros((len(queries), k), dtype=np.int64)
    vectors = None if read is None else np.zeros((len(queries), k, queries.shape[1]), dtype=np.float32)
    filtered = max_score is not None or bool(excluded)
    exact = exact or filtered
    open_queries, requested = np.arange(len(queries)), k + (_EXTRA if filtered else k if by == "text" else 0)
    while len(open_queries):
        found = store.nearest(queries[open_queries], requested, by, where, captioned, exact)
        valid = found.rows >= 0
        if by == "text":
            valid &= _first_of_each(found.rows)
        if max_score is not None:
            valid &= found.scores < max_score
        if excluded:
            valid &= _allowed(found, [excluded[query] for query in open_queries.tolist()])
        order = np.argsort(~valid, axis=1, kind="stable")[:, :k]
        kept, width = np.take_along_axis(valid, order, 1), order.shape[1]
        rows = np.where(kept, np.take_along_axis(found.rows, order, 1), -1)
        ids[open_queries, :width] = _ids_of(found.ids, rows)
        scores[open_queries, :width] = np.where(kept, np.take_along_axis(found.scores, order, 1), -np.inf)
        entries = np.take_along_axis(found.entries, order, 1)
        captions[open_queries, :width] = np.where(kept, entries, 0)
        if vectors is not None and read is not None and kept.any():
            block = np.zeros((*rows.shape, queries.shape[1]), dtype=np.float32)
            block[kept] = found.read(rows[kept], read, entries[kept] if by == read == "text" else None)
            vectors[open_queries, :width] = block
        exhausted = found.rows.shape[1] < requested or (found.rows[:, -1] < 0).all()
        open_queries = open_queries[valid.sum(1) < k] if not exhausted else open_queries[:0]
        requested *= _GROWTH
    return Found(ids, scores, vectors, captions)


def ids_near(
    store: Store, queries: Float32[np.ndarray, "queries width"], threshold: float, by: By = "image"
) -> list[str]:
    """Implement `Index.near`."""
    near, k, count = dict[str, None](), 32, store.count()
    while len(queries) and count:
        found = look_up(store, queries, min(k, count), by, by, exact=True)
        assert found.vectors is not None
        wide = np.einsum("qw,qkw->qk", queries.astype(np.float64), found.vectors.astype(np.float64))
        reach = (found.scores >= threshold - _TOLERANCE) & (wide >= threshold - ROUNDING)
        near |= dict.fromkeys(found.ids[reach].tolist())
        queries = queries[found.scores[:, -1] >= threshold - _TOLERANCE] if k < count else queries[:0]
        k *= 8
    return list(near)


def _first_of_each(rows: np.ndarray) -> Bool[np.ndarray, "queries k"]:
    """Return where a row number appears for the first time in its query's results."""
    order = np.argsort(rows, axis=1, kind="stable")
    ordered = np.take_along_axis(rows, order, 1)
    first = np.ones(rows.shape, dtype=bool)
    np.put_along_axis(first, order[:, 1:], ordered[:, 1:] != ordered[:, :-1], 1)
    return first


def _ids_of(ids: Any, rows: np.ndarray) -> Shaped[np.ndarray, "queries k"]:
    """Return the ids of row numbers; "" for -1."""
    flat = rows.reshape(-1).astype(np.int64)
    out = np.full(len(flat), "", dtype=object)
    taken = ids.take(integer_array(flat[flat >= 0]))
    out[flat >= 0] = taken.to_pylist() if len(flat) <= _MAX_WITHOUT_PANDAS else taken.to_numpy(zero_copy_only=False)
    return out.reshape(rows.shape)


def _allowed(found: Nearest, excluded: list[frozenset[str]]) -> Bool[np.ndarray, "queries k"]:
    """Return which results are not excluded for their query."""
    ids = _ids_of(found.ids, found.rows)
    if all(len(each) == 1 for each in excluded):
        return np.asarray(ids != np.array([next(iter(each)) for each in excluded], dtype=object)[:, None])
    rows = [[id not in each for id in row] for row, each in zip(ids.tolist(), excluded, strict=True)]
    return np.array(rows, dtype=bool).reshape(ids.shape)


def _exclusions(exclude: Excluded | None, queries: int) -> list[frozenset[str]]:
    """Return the excluded ids of each query; an empty list if nothing is excluded."""
    if exclude is None or not len(exclude):
        return []
    if isinstance(exclude, set | frozenset):
        return [frozenset(exclude)] * queries
    if len(exclude) != queries:
        raise ValueError(f"{queries} queries, but {len(exclude)} entries to exclude; pass a set to exclude for all")
    return [frozenset({each} if isinstance(each, str) else each or ()) for each in exclude]
