"""Search, and rank the first k of each query again by the model adapted to it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from recollect.core.progress import progress
from recollect.core.types import caption_prefix
from recollect.efsa.batch import Asked, EpisodeBatch, Reranked, number_texts
from recollect.efsa.cost import Meter
from recollect.efsa.episodes import LEAST_PAIRS, Episodes
from recollect.efsa.options import EpisodeOptions
from recollect.efsa.pixels import PixelCache
from recollect.efsa.planning import EpisodeBatchPlan, Load
from recollect.efsa.sequential import FullEpisodes
from recollect.memory import Item
from recollect.search.pool import Pool
from recollect.search.query import Query
from recollect.search.searcher import Hit, Searcher, SearchResult, as_result, open_items

NOT_FINITE = "the episode's loss or scores were not finite: zero-shot ranking"
EPISODE = "episode"
"""Who scores what was ranked again."""


@dataclass(repr=False)
class EpisodicSearcher(Searcher):
    """Search, and rank the first k again by the model adapted to the query on them (EFSA).

    Hits that an episode ranked again are scored by it and stand before the others, which the model as it is scores.

    Attributes:
        options: of the episodes.
        pixels: decoded pictures.
        plan: how many queries adapt at once; the first alone, to measure what one holds.
    """

    options: EpisodeOptions = field(default_factory=EpisodeOptions)
    pixels: PixelCache | None = None

    def __post_init__(self) -> None:
        self.pixels = self.pixels or PixelCache(self.encoder.transform)
        kind = Episodes if self.options.parameters == "adapters" else FullEpisodes
        self.episodes: Episodes | FullEpisodes = kind(self.encoder, self.options)
        self.episodes.counters = self.counters
        self.plan = EpisodeBatchPlan(self.options.at_once, self.options.gibibytes * 2**30)

    def _search(self, queries: list[Query], k: int, pool: Pool) -> list[SearchResult]:
        found = self._nearest(queries, max(k, self.options.k), pool)
        items = open_items(pool, found)
        plain = [as_result(str(query), found, row, items) for row, query in enumerate(queries)]
        results: list[SearchResult] = []
        with progress("episodes", len(queries), "queries") as counter:
            while len(results) < len(queries):
                some = self._next(queries, plain, len(results))
                results += self._measured(queries[some], plain[some])
                counter.advance(len(queries[some]))
        return results

    def _next(self, queries: list[Query], plain: list[SearchResult], start: int) -> slice:
        """Which queries adapt together now: as many as measured memory allows."""
        some = slice(start, start + self.options.at_once)
        loads = [self._load(query, result) for query, result in zip(queries[some], plain[some], strict=True)]
        return slice(start, start + self.plan.number(loads))

    def _measured(self, queries: list[Query], plain: list[SearchResult]) -> list[SearchResult]:
        load = self._load(queries[0], plain[0])
        if len(queries) > 1 or self.plan.knows(load):
            return self._together(queries, plain)
        with Meter() as meter:
            results = self._together(queries, plain)
        self.plan.learn(load, meter.peak)
        return results

    def _load(self, query: Query, result: SearchResult) -> Load:
        first = result.hits[: self.options.k]
        texts = [hit.item.caption for hit in first] + [term.words for term in query.terms if term.words is not None]
        lengths = self.encoder.text_lengths([text or "" for text in texts], caption_prefix(self.encoder))
        longest = max(lengths, default=0)
        pictures = len(first) + sum(term.words is None for term in query.terms)
        captioned = sum(bool(hit.item.caption.strip()) for hit in first)
        return pictures + captioned, longest if self.encoder.longest_text is None else min(
            longest, self.encoder.longest_text
        )

    def _together(self, queries: list[Query], results: list[SearchResult]) -> list[SearchResult]:
        assert self.pixels is not None
        batch = make_episode_batch(queries, results, self.options.k, self.pixels)
        if batch is None:  # no picture could be opened
            nothing = torch.zeros(len(queries), dtype=torch.int64)
            places = torch.full((len(queries), 1), torch.nan, dtype=torch.float64)
            again = Reranked(places, nothing.bool(), nothing)
        else:
            again = self.episodes.rerank(batch)
        return [self._reordered(result, again, number) for number, result in enumerate(results)]

    def _reordered(self, result: SearchResult, again: Reranked, number: int) -> SearchResult:
        first = result.hits[: self.options.k]
        notes = self._notes(first, bool(again.failed[number]), int(again.pairs[number]))
        before = np.array([hit.score for hit in first])
        scores = self.options.mix * again.scores[number].numpy()[: len(first)] + (1 - self.options.mix) * before
        hits = list(first)
        ranked = np.flatnonzero(np.isfinite(scores))
        order = ranked[np.argsort(-scores[ranked], kind="stable")]
        for place, hit in zip(ranked.tolist(), order.tolist(), strict=True):
            hits[place] = replace(first[hit], score=float(scores[hit]), scored_by=EPISODE)
        return replace(result, hits=(*hits, *result.hits[len(first) :]), notes=tuple(notes))

    def _notes(self, first: tuple[Hit, ...], failed: bool, pairs: int) -> list[str]:
        assert self.pixels is not None
        gone = sum(hit.item.id in self.pixels.gone for hit in first)
        uncaptioned = sum(not hit.item.caption.strip() for hit in first)
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


def make_episode_batch(
    queries: Sequence[Query], results: Sequence[SearchResult], k: int, pixels: PixelCache
) -> EpisodeBatch | None:
    """The first k images of each query with their captions, each opened once; None if none can be opened."""
    items: dict[str, Item] = {hit.item.id: hit.item for result in results for hit in result.hits[:k]}
    pictures = dict(zip(items, pixels.read(list(items.values())), strict=True))
    there = {id: picture for id, picture in pictures.items() if picture is not None}
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

    opened = list(there.values())
    asked = []
    for query in queries:
        words = tuple((term.words, term.weight) for term in query.terms if term.words is not None)
        shown = []
        for term in query.terms:
            if term.words is None:
                shown.append((len(opened), term.weight))
                opened.append(pixels.prepared(term.open()))
        asked.append(Asked(words, tuple(shown)))
    return EpisodeBatch(tuple(asked), pixels.tensor(opened), places(rows), wordings, places(texts))
