"""Re-ranks the first pictures of a search by the model adapted to the query (EFSA)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.progress import progress
from recollect.core.types import caption_prefix
from recollect.efsa.batch import EpisodeBatch, EpisodeQuery, Reranked, number_texts
from recollect.efsa.cost import CostCounters, Meter
from recollect.efsa.episodes import LEAST_PAIRS, Episodes
from recollect.efsa.options import EpisodeOptions, EpisodeReport
from recollect.efsa.pixels import PixelCache
from recollect.index import Hit, Hits, Index, Picture, Query, Term
from recollect.models import DualEncoder

NOT_FINITE = "the episode's loss or scores were not finite: zero-shot ranking"
NO_CAPTIONS = (
    "these pictures have no captions to learn from. Write some with `recollect caption INDEX --model CAPTIONER`."
)
EPISODE = "episode"
"""`scored_by` of a re-ranked hit."""


Load = tuple[int, int]
"""Memory needs of a query: its pictures, counted twice if captioned, and the tokens of its longest text."""


@dataclass
class _BatchPlan:
    """Keeps the measured memory of a batch of episodes below a bound.

    The first query runs alone and is measured, and so is each with more pictures or longer texts than all before (texts
    are padded to the longest of a batch). Queries in a batch share tensors, so n of them hold at most n times the
    memory of the largest.

    Attributes:
        most_bytes: maximum memory of the tensors of a batch.
        dearest: largest measured memory of a single query.
    """

    most_queries: int
    most_bytes: float
    dearest: int = 0
    measured: list[Load] = field(default_factory=list)

    def number(self, loads: Sequence[Load]) -> int:
        """Number of the next queries that may run together, at least one."""
        known = next((place for place, load in enumerate(loads) if not self.knows(load)), len(loads))
        fit = self.most_queries if not self.dearest else int(self.most_bytes // self.dearest)
        return max(1, min(known, self.most_queries, fit))

    def knows(self, load: Load) -> bool:
        """Whether a measured query had as many pictures and as long texts."""
        return any(load[0] <= pictures and load[1] <= tokens for pictures, tokens in self.measured)

    def learn(self, load: Load, peak: int) -> None:
        """Record the memory of a single query."""
        self.dearest = max(self.dearest, peak)
        self.measured.append(load)


class Adapts(Protocol):
    """`Episodes`, or another implementation of them."""

    counters: CostCounters

    def rerank(self, batch: EpisodeBatch) -> Reranked:
        """Adapt to each query of the batch and score its candidates again."""
        ...


class EpisodeReranker:
    """Adapts the model to each query on the first k pictures it finds, and re-ranks these (EFSA).

    >>> adapt = EpisodeReranker(index.encoder)                                    # doctest: +SKIP
    >>> index.search("a red snowman", k=20, rerank=adapt)                         # doctest: +SKIP

    Re-ranked hits have the episode's score and come first; the others keep the plain model's score.

    Args:
        adapt: another implementation of episodes, for studies.

    Attributes:
        plan: decides how many queries adapt together.
    """

    def __init__(
        self,
        encoder: DualEncoder,
        options: EpisodeOptions | None = None,
        pixels: PixelCache | None = None,
        adapt: Callable[[DualEncoder, EpisodeOptions], Adapts] = Episodes,
    ) -> None:
        self.encoder, self.options = encoder, options or EpisodeOptions()
        self.depth = self.options.k
        self.counters, self.report = CostCounters(), EpisodeReport()
        self.pixels = pixels or PixelCache(encoder.transform)
        self.episodes = adapt(encoder, self.options)
        self.episodes.counters = self.counters
        self.plan = _BatchPlan(self.options.at_once, self.options.gibibytes * 2**30)

    def rerank(self, queries: Sequence[Query], found: Sequence[Hits]) -> list[Hits]:
        """The same hits, the first k in their new order."""
        results: list[Hits] = []
        with progress("episodes", len(queries), "queries") as counter:
            while len(results) < len(queries):
                some = self._next(queries, found, len(results))
                results += self._measured(queries[some], found[some])
                counter.advance(len(queries[some]))
        return results

    def _next(self, queries: Sequence[Query], found: Sequence[Hits], start: int) -> slice:
        """The next queries that adapt together, as far as memory allows."""
        some = slice(start, start + self.options.at_once)
        loads = [self._load(query, hits) for query, hits in zip(queries[some], found[some], strict=True)]
        return slice(start, start + self.plan.number(loads))

    def _measured(self, queries: Sequence[Query], found: Sequence[Hits]) -> list[Hits]:
        load = self._load(queries[0], found[0])
        if len(queries) > 1 or self.plan.knows(load):
            return self._together(queries, found)
        with Meter() as meter:
            results = self._together(queries, found)
        self.plan.learn(load, meter.peak)
        return results

    def _load(self, query: Query, hits: Hits) -> Load:
        first = hits[: self.options.k]
        texts = [hit.caption for hit in first] + [term.words for term in query.terms if term.words is not None]
        lengths = self.encoder.text_lengths([text or "" for text in texts], caption_prefix(self.encoder))
        longest, most = max(lengths, default=0), self.encoder.longest_text
        pictures = len(first) + sum(term.picture is not None for term in query.terms)
        captioned = sum(bool(hit.caption.strip()) for hit in first)
        return pictures + captioned, longest if most is None else min(longest, most)

    def _together(self, queries: Sequence[Query], found: Sequence[Hits]) -> list[Hits]:
        batch = make_episode_batch(queries, found, self.options.k, self.pixels)
        if batch is None:  # no picture could be opened
            nothing = torch.zeros(len(queries), dtype=torch.int64)
            places = torch.full((len(queries), 1), torch.nan, dtype=torch.float64)
            again = Reranked(places, nothing.bool(), nothing)
        else:
            again = self.episodes.rerank(batch)
        return [self._reordered(hits, again, number) for number, hits in enumerate(found)]

    def _reordered(self, found: Hits, again: Reranked, number: int) -> Hits:
        first = found.hits[: self.options.k]
        notes = self._notes(first, bool(again.failed[number]), int(again.pairs[number]))
        scores = again.scores[number].numpy()[: len(first)]
        hits = list(first)
        ranked = [place for place, score in enumerate(scores.tolist()) if np.isfinite(score)]
        order = sorted(ranked, key=lambda place: -scores[place])
        for place, hit in zip(ranked, order, strict=True):
            hits[place] = replace(first[hit], score=float(scores[hit]), scored_by=EPISODE)
        return found.with_hits((*hits, *found.hits[len(first) :]), notes)

    def _notes(self, first: Sequence[Hit], failed: bool, pairs: int) -> list[str]:
        gone = sum(hit.id in self.pixels.gone for hit in first)
        uncaptioned = sum(not hit.caption.strip() for hit in first)
        self.report.images_gone += gone
        self.report.captions_missing += uncaptioned
        notes = []
        if gone:
            notes.append(f"{gone} of {len(first)} pictures cannot be opened and keep their zero-shot places")
        if pairs < LEAST_PAIRS:
            self.report.without_captions += 1
            notes.append(f"only {pairs} of {len(first)} pictures have a caption to learn from: zero-shot ranking")
        elif uncaptioned:
            notes.append(f"{uncaptioned} of {len(first)} pictures have no caption: the episode learned from {pairs}")
        if failed:
            self.report.not_finite += 1
            notes.append(NOT_FINITE)
        return notes


def episode_reranker(
    index: Index, options: EpisodeOptions | None = None, pixels: PixelCache | None = None
) -> EpisodeReranker:
    """An episode reranker with the model of an index.

    Raises:
        UserError: the model is not a dual encoder, or no picture has a caption.
    """
    encoder = index.encoder
    if not isinstance(encoder, DualEncoder):
        raise UserError(f"{index.address}: its model cannot adapt to a query; only dual encoders can")
    if not index.texts:
        raise UserError(f"{index.address}: {NO_CAPTIONS}")
    return EpisodeReranker(encoder, options, pixels)


def make_episode_batch(
    queries: Sequence[Query], found: Sequence[Hits], k: int, pixels: PixelCache
) -> EpisodeBatch | None:
    """The first k pictures of each query with their captions; None if none can be opened."""
    pictures: dict[str, Picture] = {hit.id: hit.picture for hits in found for hit in hits.hits[:k]}
    read = dict(zip(pictures, pixels.read(list(pictures.values())), strict=True))
    there = {id: pixel for id, pixel in read.items() if pixel is not None}
    if not there:
        return None
    rows = {id: row for row, id in enumerate(there)}
    wordings, numbers = number_texts([picture.caption for picture in pictures.values()])
    texts = dict(zip(pictures, numbers, strict=True))
    most = max(len(hits.hits[:k]) for hits in found)

    def places(numbers: dict[str, int]) -> Tensor:
        table = torch.full((len(found), most), -1, dtype=torch.int64)
        for query, hits in enumerate(found):
            for place, hit in enumerate(hits.hits[:k]):
                table[query, place] = numbers.get(hit.id, -1)
        return table

    opened = list(there.values())
    asked = []
    for query in queries:
        words = tuple((term.words, term.weight) for term in query.terms if term.words is not None)
        shown = []
        for term in query.terms:
            if term.picture is not None:
                shown.append((len(opened), term.weight))
                opened.append(pixels.prepared(term.open()))
        asked.append(EpisodeQuery(words, tuple(shown), _vector(query.terms)))
    return EpisodeBatch(tuple(asked), pixels.tensor(opened), places(rows), wordings, places(texts))


def _vector(terms: Sequence[Term]) -> Tensor | None:
    vectors = [term.weight * torch.from_numpy(term.vector) for term in terms if term.vector is not None]
    return torch.stack(vectors).sum(dim=0) if vectors else None
