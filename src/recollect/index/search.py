"""From queries to hits: embed them, look them up, and cut, rank again and page what was found."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from recollect.core.types import Encoder, caption_prefix
from recollect.core.validation import check_number
from recollect.index.cutoff import CutOff
from recollect.index.filters import Filter
from recollect.index.hits import CAPTIONS, Hit, Hits, Reranker
from recollect.index.query import Asked, Query, QueryEncoder, as_query, check_terms
from recollect.index.rows import By


def search_pictures(
    index: Any,
    queries: Sequence[Asked | Sequence[Asked]],
    k: int,
    where: str | Filter | None = None,
    exclude: Collection[str] = (),
    min_score: float | CutOff | None = None,
    page: int = 1,
    encoder: Encoder | None = None,
    exact: bool = False,
    by: By = "image",
    rerank: Reranker | None = None,
) -> list[Hits]:
    """The k best pictures for each query; see `Index.search`."""
    check_number("k", k, least=1)
    check_number("page", page, least=1)
    asked = [as_query(query) for query in queries]
    for query in asked:
        check_terms(query)
    real = [query for query in asked if not query.empty]
    pictures_by = len(index) if by == "image" else index.texts
    searched = pictures_by if where is None else len(index.ids_where(where))
    if not real or not searched:
        return [Hits((), str(query), query_notes(query, None), searched=searched) for query in asked]
    embeds = encoder or index.model.part_for(real)
    vectors = index.model.embed(real, embeds)
    asked_for = min(max(page * k, rerank.depth if rerank else 0), searched)
    found = index.lookup(vectors, asked_for, by, where=where, exclude=frozenset(exclude) or None, exact=exact)
    pictures = {each.id: each for each in index.pictures([id for id in dict.fromkeys(found.ids.ravel()) if id])}
    scored_by = index.scored_by if by == "image" else CAPTIONS
    ranked = []
    for query, vector, ids, scores in zip(real, vectors, found.ids, found.scores.tolist(), strict=True):
        hits = [
            Hit(pictures[id], score, scored_by, score, rank)
            for rank, (id, score) in enumerate(zip(ids, scores, strict=True), 1)
            if id
        ]
        limit, notes = _limit(query, min_score, vector, scores[0])
        ranked.append((Hits(hits, str(query), (*query_notes(query, embeds), *notes), 1, searched), limit))
    if rerank is not None:
        again = rerank.rerank(real, [hits for hits, _ in ranked])
        ranked = [(hits, limit) for hits, (_, limit) in zip(again, ranked, strict=True)]
    pages = iter([hits.page(page, k, limit) for hits, limit in ranked])
    return [Hits((), str(query), ("empty query",), 1, searched) if query.empty else next(pages) for query in asked]


def _limit(
    query: Query, min_score: float | CutOff | None, vector: np.ndarray, best: float
) -> tuple[float | None, tuple[str, ...]]:
    if not isinstance(min_score, CutOff):
        return min_score, ()
    if not query.words_alone:
        return None, ("nothing is cut: the cut-off is for words, and this query has a picture",)
    limit = min_score.limit_among(vector, best)
    return limit, ("nothing is cut: no picture scores far above the others",) if limit is None else ()


def query_notes(query: Query, encoder: QueryEncoder | None) -> tuple[str, ...]:
    """What to say about words that the model reads only in part, or that name a file."""
    notes = [query.hint] if query.hint else []
    words = [term.words for term in query.terms if term.words is not None]
    most = getattr(encoder, "longest_text", None)
    if words and most is not None:
        longest = max(encoder.text_lengths(words, caption_prefix(encoder)))  # type: ignore[union-attr]
        if longest > most:
            notes.append(f"the query has {longest} tokens; the model reads the first {most} and ignores the rest")
    return tuple(notes)
