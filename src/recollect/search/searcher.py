"""Search by text: with the model as it is, or adapted to each query by an episode."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from recollect.core.progress import progress
from recollect.core.types import Encoder
from recollect.models import DualEncoder
from recollect.search.counters import CostCounters
from recollect.search.episodes.batch import EpisodeBatch, Reranked, number_texts
from recollect.search.episodes.batched import LEAST_PAIRS, Episodes, caption_kind
from recollect.search.episodes.options import EpisodeOptions
from recollect.search.episodes.sequential import FullEpisodes
from recollect.search.pixels import PixelCache
from recollect.search.pool import Pool, PoolItem, QueryHits

NOT_FINITE = "the episode's loss or scores were not finite: zero-shot ranking"


@dataclass(frozen=True)
class Hit:
    """One image that a query found.

    Attributes:
        item: the image.
        score: cosine that ranked it.
        zero_shot_rank: its rank by the model as it is, from 1; None if it was not among the candidates then.
    """

    item: PoolItem
    score: float
    zero_shot_rank: int | None


@dataclass(frozen=True)
class SearchResult:
    """What one query found.

    Attributes:
        query: the text.
        hits: best first.
        notes: what a reader should know: missing captions, images that are gone, an episode that broke down.
    """

    query: str
    hits: tuple[Hit, ...]
    notes: tuple[str, ...] = ()


@dataclass
class SearchReport:
    """How often something was not as it should be.

    Attributes:
        queries: asked so far.
        empty: of them, without a word; they find nothing.
        not_finite: episodes that broke down; these queries have the zero-shot ranking.
        without_captions: queries with fewer than two captioned images, so without an episode.
        captions_missing: candidates without a caption, which their episodes left out.
        images_gone: candidates whose picture cannot be opened any more; they keep their zero-shot places.
    """

    queries: int = 0
    empty: int = 0
    not_finite: int = 0
    without_captions: int = 0
    captions_missing: int = 0
    images_gone: int = 0


@runtime_checkable
class TextSearch(Protocol):
    """Every way of searching: zero-shot, episodes and their baselines.

    Attributes:
        tally: rows that went through the towers so far.
        report: what was not as it should be.
    """

    tally: CostCounters
    report: SearchReport

    def search(self, queries: Sequence[str], k: int = 10) -> list[SearchResult]:
        """The k best images for each query, in the order of the queries; fewer where the pool is smaller."""
        ...


@dataclass
class Searcher:
    """Search with the model as it is (zero-shot).

    >>> Searcher(encoder, pool).search(["a red snowman", "a river and a bridge"], k=5)  # doctest: +SKIP

    Attributes:
        encoder: the model that embedded the pool.
        pool: what is searched.
        query_encoder: embeds the queries, where the model itself does not: one that reads a memory (RECO).
    """

    encoder: DualEncoder
    pool: Pool
    tally: CostCounters = field(default_factory=CostCounters)
    report: SearchReport = field(default_factory=SearchReport)
    query_encoder: Encoder | None = None

    def search(self, queries: Sequence[str], k: int = 10) -> list[SearchResult]:
        """The k best images for each query, in the order of the queries; fewer where the pool is smaller."""
        asked = [query for query in queries if query.strip()]
        self.report.queries += len(queries)
        self.report.empty += len(queries) - len(asked)
        results = iter(self._search(asked, k))
        return [next(results) if query.strip() else SearchResult(query, (), ("empty query",)) for query in queries]

    def _search(self, queries: list[str], k: int) -> list[SearchResult]:
        found = self._nearest(queries, k)
        items = open_items(self.pool, found)
        return [as_result(query, each, items) for query, each in zip(queries, found, strict=True)]

    def _nearest(self, queries: list[str], k: int) -> list[QueryHits]:
        if not queries:
            return []
        self.tally.forward(texts=len(queries))
        return self.pool.nearest(
            (self.query_encoder or self.encoder).embed_texts(queries, caption_kind(self.encoder)), k
        )


@dataclass
class EpisodicSearcher(Searcher):
    """Search, and rank the first k again by the model adapted to the query on them (EFSA).

    Attributes:
        options: of the episodes.
        pixels: decoded pictures.
    """

    options: EpisodeOptions = field(default_factory=EpisodeOptions)
    pixels: PixelCache | None = None

    def __post_init__(self) -> None:
        self.pixels = self.pixels or PixelCache(self.encoder.transform)
        kind = Episodes if self.options.parameters == "adapters" else FullEpisodes
        self.episodes: Episodes | FullEpisodes = kind(self.encoder, self.options)
        self.episodes.tally = self.tally

    def _search(self, queries: list[str], k: int) -> list[SearchResult]:
        found = self._nearest(queries, max(k, self.options.k))
        results = []
        with progress("episodes", len(queries), "queries") as counter:
            for start in range(0, len(queries), self.options.in_flight):
                some = slice(start, start + self.options.in_flight)
                results += self._flight(queries[some], found[some])
                counter.advance(len(queries[some]))
        return [replace(result, hits=result.hits[:k]) for result in results]

    def _flight(self, queries: list[str], found: list[QueryHits]) -> list[SearchResult]:
        items = open_items(self.pool, found)
        results = [as_result(query, each, items) for query, each in zip(queries, found, strict=True)]
        assert self.pixels is not None
        flight = make_flight(results, self.options.k, self.pixels)
        if flight is None:  # no picture could be opened
            nothing = torch.zeros(len(queries), dtype=torch.int64)
            places = torch.full((len(queries), 1), torch.nan, dtype=torch.float64)
            again = Reranked(places, nothing.bool(), nothing)
        else:
            again = self.episodes.rerank(flight)
        return [self._reordered(result, again, number) for number, result in enumerate(results)]

    def _reordered(self, result: SearchResult, again: Reranked, number: int) -> SearchResult:
        first = result.hits[: self.options.k]
        notes = self._notes(first, bool(again.failed[number]), int(again.pairs[number]))
        scores = again.scores[number].numpy()[: len(first)]
        hits = list(first)
        ranked = np.flatnonzero(np.isfinite(scores))
        order = ranked[np.argsort(-scores[ranked], kind="stable")]
        for place, hit in zip(ranked.tolist(), order.tolist(), strict=True):
            hits[place] = replace(first[hit], score=float(scores[hit]))
        return SearchResult(result.query, (*hits, *result.hits[len(first) :]), tuple(notes))

    def _notes(self, first: tuple[Hit, ...], failed: bool, pairs: int) -> list[str]:
        assert self.pixels is not None
        gone = sum(hit.item.id in self.pixels.gone for hit in first)
        uncaptioned = sum(not (hit.item.caption or "").strip() for hit in first)
        self.report.images_gone += gone
        self.report.captions_missing += uncaptioned
        notes = []
        if gone:
            notes.append(f"{gone} of {len(first)} images cannot be opened any more and keep their zero-shot places")
        if pairs < LEAST_PAIRS:
            self.report.without_captions += 1
            notes.append(f"{pairs} of {len(first)} images can be learnt from, so no episode: zero-shot ranking")
        elif uncaptioned:
            notes.append(f"{uncaptioned} of {len(first)} images have no caption: the episode learnt from {pairs}")
        if failed:
            self.report.not_finite += 1
            notes.append(NOT_FINITE)
        return notes


def open_items(pool: Pool, found: Sequence[QueryHits]) -> dict[str, PoolItem]:
    """Every item that some query found, by id."""
    ids = list(dict.fromkeys(id for each in found for id in each.ids))
    return dict(zip(ids, pool.items(ids), strict=True))


def as_result(query: str, found: QueryHits, items: dict[str, PoolItem]) -> SearchResult:
    """What a query found, in the order in which it was found."""
    ranked = enumerate(zip(found.ids, found.scores, strict=True), start=1)
    return SearchResult(query, tuple(Hit(items[id], float(score), rank) for rank, (id, score) in ranked))


def make_flight(results: Sequence[SearchResult], k: int, pixels: PixelCache) -> EpisodeBatch | None:
    """The first k images of each query with their captions, each opened once; None if none can be opened."""
    items = {hit.item.id: hit.item for result in results for hit in result.hits[:k]}
    pictures = dict(zip(items, pixels.read(list(items.values())), strict=True))
    there = [id for id, picture in pictures.items() if picture is not None]
    if not there:
        return None
    rows = {id: row for row, id in enumerate(there)}
    wordings, numbers = number_texts([item.caption for item in items.values()])
    texts = dict(zip(items, numbers, strict=True))
    most = max(len(result.hits[:k]) for result in results)

    def places(numbers: dict[str, int]) -> torch.Tensor:
        table = torch.full((len(results), most), -1, dtype=torch.int64)
        for query, result in enumerate(results):
            for place, hit in enumerate(result.hits[:k]):
                table[query, place] = numbers.get(hit.item.id, -1)
        return table

    stacked = pixels.tensor([picture for id in there if (picture := pictures[id]) is not None])
    queries = tuple(result.query for result in results)
    return EpisodeBatch(queries, stacked, places(rows), wordings, places(texts))
