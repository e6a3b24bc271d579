"""Searches of a memory beyond the k nearest: what may not be found, and all that is near."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Float64, Shaped

from recollect.core.errors import UserError
from recollect.memory.backends.base import Backend, Hits
from recollect.memory.filters import Filter, unknown_names
from recollect.memory.info import metadata_keys
from recollect.memory.rows import Modality, picture_of

ROUNDING = 2.0**-21
"""What rounding can cost the cosine of two equal vectors, at most.

An entry rounded to half precision is off by at most 2⁻¹¹ of itself, so a vector is turned by an angle of at most 2⁻¹¹
(its norm, which changes more, is divided out), and by twice that where the other one was rounded too: 1 − cos ≤ 2⁻²¹.
"""

MORE = 32  # rows asked for beyond k where some of them may not count
_UNSURE = 2.0**-12  # far more than single precision and rounding can be off by
_GROWTH = 8


@dataclass(frozen=True)
class Question:
    """Where a search looks; ``words`` is the filter as the user wrote it."""

    modality: Modality
    where: Filter | None = None
    words: str | None = None
    with_text: bool = False
    exact: bool = False


@dataclass(frozen=True)
class Exclusions:
    """What a query may not find: near-duplicates, the rows of one picture for each query, and some rows for all."""

    max_score: float | None
    own: np.ndarray | None
    exclude_ids: frozenset[str]

    @property
    def none(self) -> bool:
        """Whether nothing is excluded."""
        return self.max_score is None and self.own is None and not self.exclude_ids

    def counts(self, found: Hits, queries: np.ndarray) -> np.ndarray:
        """Which places of what some queries found may stay."""
        counts = np.ones(found.scores.shape, dtype=bool)
        if self.max_score is not None:
            counts &= found.scores < self.max_score
        if self.own is not None:
            pictures = np.array([picture_of(id) for id in found.ids.ravel().tolist()], dtype=object)
            counts &= pictures.reshape(counts.shape) != self.own[queries, None]
        if self.exclude_ids:
            here = [id not in self.exclude_ids for id in found.ids.ravel().tolist()]
            counts &= np.array(here, dtype=bool).reshape(counts.shape)
        return counts


def find(backend: Backend, queries: np.ndarray, k: int, question: Question) -> Hits:
    """The k nearest rows that a question allows.

    Raises:
        UserError: nothing satisfies its filter.
    """
    if not len(queries):
        return Hits(np.empty((0, k), dtype=object), np.empty((0, k), dtype=np.float32))
    found = backend.search(queries, k, question.modality, question.where, question.with_text, question.exact)
    if found.scores.shape[1] == 0:
        raise nothing_satisfies(backend, str(question.words))
    return found


def find_beside(
    backend: Backend, queries: np.ndarray, k: int, question: Question, exclusions: Exclusions, rows: int
) -> Hits:
    """Ask for more than k, pass over what does not count, and ask again for queries that are left with too few.

    Args:
        rows: that could be found at all.
    """
    ids = np.full((len(queries), k), "", dtype=object)
    scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
    waiting, most = np.arange(len(queries)), min(k + MORE, rows)
    while len(waiting):
        found = find(backend, queries[waiting], most, question)
        counts = exclusions.counts(found, waiting)
        order = np.argsort(~counts, axis=1, kind="stable")[:, :k]
        kept = np.take_along_axis(counts, order, 1)
        width = order.shape[1]
        ids[waiting, :width] = np.where(kept, np.take_along_axis(found.ids, order, 1), "")
        scores[waiting, :width] = np.where(kept, np.take_along_axis(found.scores, order, 1), -np.inf)
        if found.scores.shape[1] < most or most == rows:
            break
        waiting, most = waiting[counts.sum(1) < k], min(4 * most, rows)
    return Hits(ids, scores)


def find_near(
    backend: Backend, queries: Float32[np.ndarray, "queries width"], threshold: float, modality: Modality
) -> list[str]:
    """The ids of all rows with a cosine of at least ``threshold`` to any query, compared exactly.

    Rounding parts no equals: a cosine that lies `ROUNDING` below counts as well.
    """
    near: dict[str, None] = {}
    rows = backend.count_texts() if modality == "text" else len(backend)
    k = min(MORE, rows)
    while len(queries) and rows:
        found = backend.search(queries, k, modality, None, exact=True)
        near |= dict.fromkeys(found.ids[_reach(backend, queries, found, threshold, modality)].tolist())
        queries = queries[found.scores[:, -1] >= threshold - _UNSURE] if k < rows else queries[:0]
        k = min(_GROWTH * k, rows)
    return list(near)


def _reach(
    backend: Backend, queries: np.ndarray, found: Hits, threshold: float, modality: Modality
) -> Bool[np.ndarray, "queries k"]:
    """Which hits reach a threshold; close to it, single precision does not decide."""
    reach = found.scores >= threshold
    asked, places = np.nonzero(np.abs(found.scores - threshold) < _UNSURE)
    for start in range(0, len(asked), 4096):
        some = asked[start : start + 4096], places[start : start + 4096]
        distinct, rows = np.unique(found.ids[some], return_inverse=True)
        vectors = backend.vectors(distinct.tolist(), modality)[rows]
        reach[some] = _cosines(queries[some[0]], vectors) >= threshold - ROUNDING
    return reach


def _cosines(
    one: Shaped[np.ndarray, "rows width"], other: Shaped[np.ndarray, "rows width"]
) -> Float64[np.ndarray, " rows"]:
    """Of the rows of two matrices with each other, in double precision, whatever their norms."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    return (one * other).sum(1) / (np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1))


def nothing_satisfies(backend: Backend, where: str) -> UserError:
    """What to say where a filter leaves nothing: which of its names no row has, if that is why."""
    why = unknown_names(where, metadata_keys(backend))
    return UserError(
        f"{backend.address}: no row satisfies {where}{why}. `recollect memory info` shows sources and metadata."
    )
