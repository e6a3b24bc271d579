"""The look-up: the only place that ranks the pictures of an index."""

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
"""Ids that no query may find (a set), or one entry per query: an id, several, or None (a sequence)."""

_MORE = 32  # vectors asked for beyond k where some of them may not count
_GROWTH = 4
_UNSURE = 2.0**-12  # far more than single precision and rounding can be off by
_FEW = 1_000  # names that are made without importing pandas


@dataclass(frozen=True)
class Found:
    """What a look-up returns, best first.

    Attributes:
        ids: of the pictures; "" where nothing is left.
        scores: cosines; -inf there.
        vectors: what was read from the pictures, unit norm, zeros there; None if nothing was to be read.
        captions: by text, which caption of the picture matched, from 0; 0 elsewhere.
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
    """The k pictures nearest to each query; see `Index.lookup`.

    Vectors of the store become pictures here: the captions of one picture are folded into it, so that it is found once,
    by its best caption; then pictures that are excluded or too near are passed over. As long as a query has fewer than
    k pictures, more vectors are asked for. Equal scores are in the order of the store's rows.
    """
    excluded = _exclusions(exclude, len(queries))
    spoken = by == "text" or read == "text"
    ids = np.full((len(queries), k), "", dtype=object)
    scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
    captions = np.zeros((len(queries), k), dtype=np.int64)
    vectors = None if read is None else np.zeros((len(queries), k, queries.shape[1]), dtype=np.float32)
    filtered = max_score is not None or bool(excluded)
    exact = exact or filtered
    waiting, asked = np.arange(len(queries)), k + (_MORE if filtered else k if by == "text" else 0)
    while len(waiting):
        found = store.nearest(queries[waiting], asked, by, where, spoken, exact)
        counts = found.rows >= 0
        if by == "text":
            counts &= _first_of_each(found.rows)
        if max_score is not None:
            counts &= found.scores < max_score
        if excluded:
            counts &= _allowed(found, [excluded[query] for query in waiting.tolist()])
        order = np.argsort(~counts, axis=1, kind="stable")[:, :k]
        kept, width = np.take_along_axis(counts, order, 1), order.shape[1]
        rows = np.where(kept, np.take_along_axis(found.rows, order, 1), -1)
        ids[waiting, :width] = _names(found.ids, rows)
        scores[waiting, :width] = np.where(kept, np.take_along_axis(found.scores, order, 1), -np.inf)
        entries = np.take_along_axis(found.entries, order, 1)
        captions[waiting, :width] = np.where(kept, entries, 0)
        if vectors is not None and read is not None:
            there = rows >= 0
            if there.any():
                some = np.zeros((*rows.shape, queries.shape[1]), dtype=np.float32)
                some[there] = found.read(rows[there], read, entries[there] if by == read == "text" else None)
                vectors[waiting, :width] = some
        exhausted = found.rows.shape[1] < asked or (found.rows[:, -1] < 0).all()
        waiting, asked = waiting[counts.sum(1) < k] if not exhausted else waiting[:0], _GROWTH * asked
    return Found(ids, scores, vectors, captions)


def ids_near(
    store: Store, queries: Float32[np.ndarray, "queries width"], threshold: float, by: By = "image"
) -> list[str]:
    """The ids of all pictures with a cosine of at least ``threshold`` to any query; see `Index.near`."""
    near, k, count = dict[str, None](), 32, store.count()
    while len(queries) and count:
        found = look_up(store, queries, min(k, count), by, by, exact=True)
        assert found.vectors is not None
        wide = np.einsum("qw,qkw->qk", queries.astype(np.float64), found.vectors.astype(np.float64))
        reach = (found.scores >= threshold - _UNSURE) & (wide >= threshold - ROUNDING)
        near |= dict.fromkeys(found.ids[reach].tolist())
        queries = queries[found.scores[:, -1] >= threshold - _UNSURE] if k < count else queries[:0]
        k *= 8
    return list(near)


def _first_of_each(rows: np.ndarray) -> Bool[np.ndarray, "queries k"]:
    """Where a row appears for the first time in the list of its query."""
    order = np.argsort(rows, axis=1, kind="stable")
    ordered = np.take_along_axis(rows, order, 1)
    first = np.ones(rows.shape, dtype=bool)
    np.put_along_axis(first, order[:, 1:], ordered[:, 1:] != ordered[:, :-1], 1)
    return first


def _names(ids: Any, rows: np.ndarray) -> Shaped[np.ndarray, "queries k"]:
    """The ids of rows, "" for -1."""
    flat = rows.reshape(-1).astype(np.int64)
    names = np.full(len(flat), "", dtype=object)
    taken = ids.take(integer_array(flat[flat >= 0]))
    names[flat >= 0] = taken.to_pylist() if len(flat) <= _FEW else taken.to_numpy(zero_copy_only=False)
    return names.reshape(rows.shape)


def _allowed(found: Nearest, excluded: list[frozenset[str]]) -> Bool[np.ndarray, "queries k"]:
    """Which places may stay: all but those with an id that this query may not find."""
    names = _names(found.ids, found.rows)
    if all(len(each) == 1 for each in excluded):
        return np.asarray(names != np.array([next(iter(each)) for each in excluded], dtype=object)[:, None])
    rows = [[id not in each for id in row] for row, each in zip(names.tolist(), excluded, strict=True)]
    return np.array(rows, dtype=bool).reshape(names.shape)


def _exclusions(exclude: Excluded | None, queries: int) -> list[frozenset[str]]:
    """The ids that each query may not find; an empty list if nothing is excluded."""
    if exclude is None or not len(exclude):
        return []
    if isinstance(exclude, set | frozenset):
        return [frozenset(exclude)] * queries
    if len(exclude) != queries:
        raise ValueError(f"{queries} queries, but {len(exclude)} entries to exclude; pass a set to exclude for all")
    return [frozenset({each} if isinstance(each, str) else each or ()) for each in exclude]
