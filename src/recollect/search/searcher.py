"""Search by words, pictures, or both, with the model as it is; other ways of searching answer in the same form."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from textwrap import shorten
from typing import Protocol, overload, runtime_checkable

import numpy as np
from jaxtyping import Float
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.types import Encoder, caption_prefix
from recollect.core.words import counted
from recollect.efsa.cost import CostCounters
from recollect.memory import Hits, Item
from recollect.models import DualEncoder
from recollect.search.cutoff import LearntCutOff
from recollect.search.pool import Pool
from recollect.search.query import Query, as_query, check_terms, embed_queries

MODEL = "model"
"""What scores a hit by default: the model that embedded the pool, as it is."""

EMPTY = "empty query"
NO_LEARNT_CUT = "nothing is cut: the cut-off was learnt from captions, and this query has a picture"


@dataclass(frozen=True)
class Hit:
    """One image that a query found.

    Attributes:
        item: the image.
        score: what ranked it; only scores with the same ``scored_by`` can be compared.
        zero_shot_rank: its rank by the model as it is, from 1; None if it was not among the candidates then.
        scored_by: whose score it is: `MODEL`, ``episode``, ``captions``, ...
        model_score: its score by the model as it is, which a cut-off is about; None where that is not known.
    """

    item: Item
    score: float
    zero_shot_rank: int | None
    scored_by: str = MODEL
    model_score: float | None = None

    def __repr__(self) -> str:
        return f"Hit({self.item.id!r}, {self.score:.3f} by {self.scored_by}, {shorten(self.item.caption, 60)!r})"


@dataclass(frozen=True)
class SearchResult:
    """What one query found.

    Attributes:
        query: as it was asked.
        hits: best first; of one page.
        notes: what a reader should know: what was cut off, missing captions, images that are gone, an episode that
            broke down.
        first_rank: rank of the first hit; above 1 from the second page on.
        searched: images that were searched.
        cut: of them, how many a cut-off left out; None where none was reached.
    """

    query: str
    hits: tuple[Hit, ...]
    notes: tuple[str, ...] = ()
    first_rank: int = 1
    searched: int = 0
    cut: int | None = None

    def __repr__(self) -> str:
        best = f", best {self.hits[0]!r}" if self.hits else ""
        return f"SearchResult({shorten(self.query, 60)!r}: {len(self.hits)} of {self.searched:,} images{best})"


@dataclass
class SearchReport:
    """How often something was not as it should be.

    Attributes:
        queries: asked so far.
        empty: of them, without a word; they find nothing.
        shortened: of them, longer than the model can read.
        not_finite: episodes that broke down; these queries have the zero-shot ranking.
        without_captions: queries with fewer than two captioned images, so without an episode.
        captions_missing: candidates without a caption, which their episodes left out.
        images_gone: candidates whose picture cannot be opened any more; they keep their zero-shot places.
    """

    queries: int = 0
    empty: int = 0
    shortened: int = 0
    not_finite: int = 0
    without_captions: int = 0
    captions_missing: int = 0
    images_gone: int = 0


@runtime_checkable
class TextSearch(Protocol):
    """Every way of searching: zero-shot, episodes and their baselines.

    Attributes:
        counters: rows that went through the towers so far.
        report: what was not as it should be.
    """

    counters: CostCounters
    report: SearchReport

    def search(self, queries: Sequence[str | Query], k: int = 10) -> list[SearchResult]:
        """The k best images for each query, in the order of the queries; fewer where the pool is smaller."""
        ...


@dataclass
class Searcher:
    """Search with the model as it is (zero-shot).

    >>> searcher = Searcher(encoder, MemoryPool(Memory.open("memories/mine")))                # doctest: +SKIP
    >>> searcher.search("a red snowman", k=5).hits[0].item.path                               # doctest: +SKIP
    >>> boats = Query.words("red boat") + Query.picture("harbour.jpg") - Query.words("sunset")
    >>> searcher.search(boats, k=20, where="year >= 2020", min_score=0.2, page=2)             # doctest: +SKIP

    Attributes:
        encoder: the model that embedded the pool.
        pool: what is searched.
        query_encoder: embeds the queries, where the model itself does not: one that reads a memory (RECO).
        scored_by: what hits say of their scores.
    """

    encoder: DualEncoder
    pool: Pool
    counters: CostCounters = field(default_factory=CostCounters)
    report: SearchReport = field(default_factory=SearchReport)
    query_encoder: Encoder | None = None
    scored_by: str = MODEL

    def __repr__(self) -> str:
        return f"{type(self).__name__}({counted(len(self.pool), 'image')}, {self.encoder!r})"

    @overload
    def search(  # type: ignore[overload-overlap]  # a text is a sequence of texts to Python, but one query here
        self,
        queries: str | Query,
        k: int = 10,
        *,
        where: str | None = None,
        page: int = 1,
        min_score: float | LearntCutOff | None = None,
    ) -> SearchResult: ...

    @overload
    def search(
        self,
        queries: Sequence[str | Query],
        k: int = 10,
        *,
        where: str | None = None,
        page: int = 1,
        min_score: float | LearntCutOff | None = None,
    ) -> list[SearchResult]: ...

    def search(
        self,
        queries: str | Query | Sequence[str | Query],
        k: int = 10,
        *,
        where: str | None = None,
        page: int = 1,
        min_score: float | LearntCutOff | None = None,
    ) -> SearchResult | list[SearchResult]:
        """The k best images for each query.

        Args:
            queries: one, or several; a text means its words exactly as they are (`Query.parse` reads sums).
            k: images of a page; fewer where there are no more.
            where: search only images that satisfy a filter, e.g. ``source = 'emoji' and year >= 2020``.
            page: 1 for the k best, 2 for the next k, ...
            min_score: leave out images whose score by the model as it is lies below; how many, the result says. A
                learnt one is each query's own, and of words alone.

        Returns:
            One result for one query; for several, a list in their order.

        Raises:
            UserError: the filter is malformed or nothing satisfies it, a picture cannot be opened, or the terms of a
                query cancel out.
        """
        if isinstance(queries, str | Query):
            return self.search([queries], k, where=where, page=page, min_score=min_score)[0]
        if k < 1 or page < 1:
            raise UserError(f"k = {k}, page = {page}: both count from 1")
        pool = self.pool if where is None else self.pool.filtered(where)
        asked = [as_query(query) for query in queries]
        for query in asked:
            check_terms(query)
        real = [query for query in asked if not query.empty]
        self.report.queries += len(asked)
        self.report.empty += len(asked) - len(real)
        found = iter(self._search(real, page * k, pool) if real else [])
        return [
            SearchResult(str(query), (), (EMPTY,))
            if query.empty
            else self._page(
                self._told(query, next(found), min_score), k, page, self._limit(query, min_score), len(pool)
            )
            for query in asked
        ]

    def _search(self, queries: list[Query], k: int, pool: Pool) -> list[SearchResult]:
        """At least the k best images of each query, all of them with a word or a picture; best first."""
        found = self._nearest(queries, k, pool)
        items = open_items(pool, found)
        return [as_result(str(query), found, row, items, self.scored_by) for row, query in enumerate(queries)]

    def _nearest(self, queries: list[Query], k: int, pool: Pool) -> Hits:
        return pool.nearest(self._embed(queries), k)

    def _embed(self, queries: list[Query]) -> Float[Tensor, "queries width"]:
        words = sum(term.words is not None for query in queries for term in query.terms)
        self.counters.forward(texts=words, images=sum(len(query.terms) for query in queries) - words)
        return embed_queries(self.query_encoder or self.encoder, queries, caption_prefix(self.encoder))

    def _told(self, query: Query, result: SearchResult, min_score: float | LearntCutOff | None = None) -> SearchResult:
        """With a note where the model does not read the query to its end, or a learnt cut-off does not fit it."""
        notes = shortened_notes(self.encoder, query)
        self.report.shortened += bool(notes)
        if isinstance(min_score, LearntCutOff) and not query.words_alone:
            notes = (*notes, NO_LEARNT_CUT)
        return replace(result, notes=(*notes, *result.notes)) if notes else result

    def _limit(self, query: Query, min_score: float | LearntCutOff | None) -> float | None:
        """The cosine at which this query's images end."""
        if not isinstance(min_score, LearntCutOff):
            return min_score
        if not query.words_alone:
            return None
        return min_score.score_for(self._embed([query])[0].cpu().numpy())

    def _page(self, result: SearchResult, k: int, page: int, min_score: float | None, searched: int) -> SearchResult:
        """One page of what was found, without what lies below the cut-off."""
        hits, notes, cut = result.hits, result.notes, None
        if min_score is not None:
            kept = tuple(hit for hit in hits if _model_score(hit) >= min_score)
            below = [score for hit in hits if (score := _model_score(hit)) < min_score]
            if below:  # what was found is the best, so all that was not lies below as well
                cut, best = searched - len(kept), max(below)
                notes = (*notes, f"{cut:,} of {searched:,} images score below {min_score:.4g}: cut (best {best:.3f})")
            hits = kept
        first = (page - 1) * k
        return replace(
            result, hits=hits[first : first + k], notes=notes, first_rank=first + 1, searched=searched, cut=cut
        )


def _model_score(hit: Hit) -> float:
    return hit.score if hit.model_score is None else hit.model_score


def shortened_notes(encoder: DualEncoder, query: Query) -> tuple[str, ...]:
    """What to say of words that the model does not read to their end."""
    words = [term.words for term in query.terms if term.words is not None]
    most = encoder.longest_text
    if not words or most is None:
        return ()
    longest = max(encoder.text_lengths(words, caption_prefix(encoder)))
    if longest <= most:
        return ()
    return (f"the query has {longest} tokens, of which the model reads the first {most}: its end is not searched for",)


def open_items(pool: Pool, found: Hits) -> dict[str, Item]:
    """Every item that some query found, by id."""
    ids = list(dict.fromkeys(id for id in found.ids.ravel().tolist() if id))
    return dict(zip(ids, pool.items(ids), strict=True))


def as_result(query: str, found: Hits, row: int, items: dict[str, Item], scored_by: str = MODEL) -> SearchResult:
    """What one of several queries found, in the order in which it was found."""
    ranked = zip(found.ids[row].tolist(), np.asarray(found.scores[row], dtype=np.float64).tolist(), strict=True)
    hits = (Hit(items[id], score, rank, scored_by, score) for rank, (id, score) in enumerate(ranked, start=1) if id)
    return SearchResult(query, tuple(hits))
