"""Search pipeline: embed queries, look them up, re-rank, cut off and page the results."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32

from recollect.core.types import Encoder, caption_prefix
from recollect.core.validation import check_number, refuse
from recollect.index.cutoff import CutOff
from recollect.index.filters import Filter
from recollect.index.hits import CAPTIONS, Hit, Hits, Reranker
from recollect.index.query import Query, QueryEncoder, QueryLike, as_query
from recollect.index.rows import By

if TYPE_CHECKING:
    from recollect.index.index import Index


@dataclass(frozen=True)
class Ranking:
    """Results of a query as ids, before any picture is read.

    Attributes:
        ids, scores: best first.
        notes: notes on the query for the user.
        searched: number of pictures compared.
        limit: score at which the results end; None for no cut-off.
        vector: unit-norm embedding of the query (width,); None if nothing was compared.
    """

    query: Query
    ids: Sequence[str] = ()
    scores: Float32[np.ndarray, " k"] = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    notes: tuple[str, ...] = ()
    searched: int = 0
    limit: float | None = None
    vector: Float32[np.ndarray, " width"] | None = None


def rank_pictures(
    index: "Index",
    queries: Sequence[QueryLike | Sequence[QueryLike]],
    k: int,
    where: str | Filter | None = None,
    exclude: Collection[str] = (),
    min_score: float | CutOff | None = None,
    encoder: Encoder | None = None,
    exact: bool = False,
    by: By = "image",
    lock: AbstractContextManager[Any] | None = None,
) -> list[Ranking]:
    """Return the ids and scores of the k best pictures for each query; `search_pictures` also reads the pictures.

    Args:
        lock: held while the model is used, but not during the lookup.
    """
    learned = "a learned cut-off applies to pictures, not to captions. Give a score instead."
    refuse((by == "text" and isinstance(min_score, CutOff), learned))
    parsed = [as_query(query) for query in queries]
    nonempty = [query for query in parsed if not query.empty]
    total = len(index) if by == "image" else index.texts
    searched = total if where is None else index.count_where(where)
    if not nonempty or not searched:
        return [Ranking(query, notes=_query_notes(query, None), searched=searched) for query in parsed]
    with lock or nullcontext():
        encoder = encoder or index.model.encoder_for(nonempty)
        vectors, notes = index.model.embed(nonempty, encoder), [_query_notes(query, encoder) for query in nonempty]
    found = index.lookup(vectors, min(k, searched), by, where=where, exclude=frozenset(exclude) or None, exact=exact)
    ranked = []
    for query, vector, noted, row, scores in zip(nonempty, vectors, notes, found.ids, found.scores, strict=True):
        ids = [id for id in row.tolist() if id]
        limit = _limit(query, min_score, vector, float(scores[0]))
        ranked.append(Ranking(query, ids, scores[: len(ids)], noted, searched, limit, vector))
    each = iter(ranked)
    empty = ("empty query",)
    return [Ranking(query, notes=empty, searched=searched) if query.empty else next(each) for query in parsed]


def search_pictures(
    index: "Index",
    queries: Sequence[QueryLike | Sequence[QueryLike]],
    k: int,
    *,
    page: int = 1,
    rerank: Reranker | None = None,
    by: By = "image",
    min_score: float | CutOff | None = None,
    **options: Any,
) -> list[Hits]:
    """Return the k best pictures for each query; see `Index.search`."""
    check_number("k", k, least=1)
    check_number("page", page, least=1)
    wanted = max(page * k, rerank.depth if rerank else 0)
    ranked = rank_pictures(index, queries, wanted, by=by, min_score=min_score, **options)
    pictures = {each.id: each for each in index.pictures(list(dict.fromkeys(id for one in ranked for id in one.ids)))}
    scored_by = index.scored_by if by == "image" else CAPTIONS
    found = []
    for one in ranked:
        scored = enumerate(zip(one.ids, one.scores.tolist(), strict=True), 1)
        hits = [Hit(pictures[id], score, scored_by, score, rank) for rank, (id, score) in scored]
        notes = (*one.notes, *_no_limit_notes(one, min_score))
        found.append(Hits(hits, str(one.query), notes, 1, one.searched))
    if rerank is not None:
        nonempty = [number for number, hits in enumerate(found) if hits]
        reranked = rerank.rerank([ranked[number].query for number in nonempty], [found[number] for number in nonempty])
        for number, reordered in zip(nonempty, reranked, strict=True):
            found[number] = reordered
    return [each.page(page, k, one.limit) for each, one in zip(found, ranked, strict=True)]


def _limit(query: Query, min_score: float | CutOff | None, vector: np.ndarray, best: float) -> float | None:
    if not isinstance(min_score, CutOff):
        return min_score
    return min_score.score_limit(vector, best) if query.only_words else None


def _no_limit_notes(ranking: Ranking, min_score: float | CutOff | None) -> tuple[str, ...]:
    """Return a note on why a `CutOff` does not apply."""
    if not isinstance(min_score, CutOff) or ranking.limit is not None or not ranking.ids:
        return ()
    if ranking.query.only_words:
        return ("nothing is cut off: no picture scores far above the others",)
    return ("nothing is cut off: the cut-off applies to text queries only, and this query contains a picture",)


def _query_notes(query: Query, encoder: QueryEncoder | None) -> tuple[str, ...]:
    """Return notes on words that exceed the model's maximum length or are the path of a picture."""
    notes = [query.hint] if query.hint else []
    words = [term.words for term in query.terms if term.words is not None]
    limit = getattr(encoder, "longest_text", None)
    if words and limit is not None:
        longest = max(encoder.text_lengths(words, caption_prefix(encoder)))  # type: ignore[union-attr]
        if longest > limit:
            notes.append(f"the query has {longest} tokens; the model reads the first {limit} and ignores the rest")
    return tuple(notes)
