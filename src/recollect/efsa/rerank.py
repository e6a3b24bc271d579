"""Re-rank the first results of a search with the model adapted to the query (EFSA)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.progress import progress
from recollect.efsa.batch import EpisodeBatch, EpisodeQuery, Reranked, number_texts
from recollect.efsa.episodes import MIN_PAIRS, Episodes
from recollect.efsa.memory import TensorMemory
from recollect.efsa.options import EpisodeOptions
from recollect.efsa.pixels import PixelCache
from recollect.index import Hit, Hits, Index, Picture, Query, Term
from recollect.models import DualEncoder

FALLBACK = "zero-shot ranking"
"""End of the notes for queries without a successful episode."""
NOT_FINITE = f"the episode's loss or scores were not finite: {FALLBACK}"
NO_CAPTIONS = (
    "these pictures have no captions to learn from. Write some with `recollect caption INDEX --model CAPTIONER`; "
    "`recollect evaluate retrieval` takes them from --captions."
)
EPISODE = "episode"
"""`scored_by` of a re-ranked hit."""


class QueryAdapter(Protocol):
    """Interface of `Episodes` and its alternatives."""

    def rerank(self, batch: EpisodeBatch) -> Reranked:
        """Adapt to each query of the batch and rescore its candidates."""
        ...


class EpisodeReranker:
    """Adapts the model to each query on its first k results, and re-ranks these (EFSA).

    >>> adapt = EpisodeReranker(index.encoder)                                    # doctest: +SKIP
    >>> index.search("a red snowman", k=20, rerank=adapt)                         # doctest: +SKIP

    Re-ranked hits have the episode's score and come first; all others keep the model's score. The memory use of the
    first query determines how many of the next ones adapt together.

    Args:
        adapt: implementation of episodes.
    """

    def __init__(
        self,
        encoder: DualEncoder,
        options: EpisodeOptions | None = None,
        pixels: PixelCache | None = None,
        adapt: Callable[[DualEncoder, EpisodeOptions], QueryAdapter] = Episodes,
    ) -> None:
        self.encoder, self.options = encoder, options or EpisodeOptions()
        self.depth = self.options.k
        self.pixels = pixels or PixelCache(encoder.transform)
        self.episodes = adapt(encoder, self.options)
        self._row_bytes = 0.0  # memory per picture or caption of an episode; 0 until measured

    def rerank(self, queries: Sequence[Query], found: Sequence[Hits]) -> list[Hits]:
        """Return the same hits with the first k re-ranked."""
        results: list[Hits] = []
        with progress("episodes", len(queries), "queries") as counter:
            while len(results) < len(queries):
                number = self._batch_size(found[len(results) : len(results) + self.options.at_once])
                batch = slice(len(results), len(results) + number)
                results += self._measured(queries[batch], found[batch])
                counter.advance(number)
        return results

    def _rows(self, hits: Hits) -> int:
        first = hits[: self.options.k]
        return len(first) + sum(bool(hit.caption.strip()) for hit in first)

    def _batch_size(self, found: Sequence[Hits]) -> int:
        """Return how many of the next queries fit in memory together: at least 1, and 1 until memory is measured."""
        needed = self._row_bytes * np.cumsum([self._rows(hits) for hits in found])
        return max(1, int((needed <= self.options.gibibytes * 2**30).sum())) if self._row_bytes else 1

    def _measured(self, queries: Sequence[Query], found: Sequence[Hits]) -> list[Hits]:
        if self._row_bytes:
            return self._together(queries, found)
        with TensorMemory() as memory:
            results = self._together(queries, found)
        if any(hit.scored_by == EPISODE for hit in results[0]):
            self._row_bytes = memory.peak / self._rows(found[0])
        return results

    def _together(self, queries: Sequence[Query], found: Sequence[Hits]) -> list[Hits]:
        batch = make_episode_batch(queries, found, self.options.k, self.pixels)
        if batch is None:  # no picture could be opened
            nothing = torch.zeros(len(queries), dtype=torch.int64)
            scores = torch.full((len(queries), 1), torch.nan, dtype=torch.float64)
            reranked = Reranked(scores, nothing.bool(), nothing)
        else:
            reranked = self.episodes.rerank(batch)
        return [self._reordered(hits, reranked, number) for number, hits in enumerate(found)]

    def _reordered(self, found: Hits, reranked: Reranked, number: int) -> Hits:
        first = found.hits[: self.options.k]
        notes = self._notes(first, bool(reranked.failed[number]), int(reranked.pairs[number]))
        scores = reranked.scores[number].numpy()[: len(first)]
        hits = list(first)
        ranked = [rank for rank, score in enumerate(scores.tolist()) if np.isfinite(score)]
        order = sorted(ranked, key=lambda rank: -scores[rank])
        for rank, hit in zip(ranked, order, strict=True):
            hits[rank] = replace(first[hit], score=float(scores[hit]), scored_by=EPISODE)
        return found.with_hits((*hits, *found.hits[len(first) :]), notes)

    def _notes(self, first: Sequence[Hit], failed: bool, pairs: int) -> list[str]:
        unreadable = sum(hit.id in self.pixels.unreadable for hit in first)
        uncaptioned = sum(not hit.caption.strip() for hit in first)
        notes = []
        if unreadable:
            notes.append(f"{unreadable} of {len(first)} pictures cannot be opened and keep their zero-shot places")
        if pairs < MIN_PAIRS:
            notes.append(f"only {pairs} of {len(first)} pictures have a caption to learn from: {FALLBACK}")
        elif uncaptioned:
            notes.append(f"{uncaptioned} of {len(first)} pictures have no caption: the episode learned from {pairs}")
        if failed:
            notes.append(NOT_FINITE)
        return notes


def episode_reranker(
    index: Index, options: EpisodeOptions | None = None, pixels: PixelCache | None = None
) -> EpisodeReranker:
    """Return an `EpisodeReranker` with the model of an index.

    Raises:
        UserError: the model is not a dual encoder, or no picture has a caption.
    """
    encoder = index.encoder
    if not isinstance(encoder, DualEncoder):
        raise UserError(f"{index.address}: its model cannot adapt to queries, since it is not a dual encoder")
    if not index.texts:
        raise UserError(f"{index.address}: {NO_CAPTIONS}")
    return EpisodeReranker(encoder, options, pixels)


def make_episode_batch(
    queries: Sequence[Query], found: Sequence[Hits], k: int, pixels: PixelCache
) -> EpisodeBatch | None:
    """Return the batch with the first k pictures of each query and their captions; None if no picture is readable."""
    pictures: dict[str, Picture] = {hit.id: hit.picture for hits in found for hit in hits.hits[:k]}
    read = dict(zip(pictures, pixels.read(list(pictures.values())), strict=True))
    readable = {id: pixel for id, pixel in read.items() if pixel is not None}
    if not readable:
        return None
    rows = {id: row for row, id in enumerate(readable)}
    captions, numbers = number_texts([picture.caption for picture in pictures.values()])
    texts = dict(zip(pictures, numbers, strict=True))
    most = max(len(hits.hits[:k]) for hits in found)

    def table_of(numbers: dict[str, int]) -> Tensor:
        table = torch.full((len(found), most), -1, dtype=torch.int64)
        for query, hits in enumerate(found):
            for rank, hit in enumerate(hits.hits[:k]):
                table[query, rank] = numbers.get(hit.id, -1)
        return table

    opened = list(readable.values())
    episode_queries = []
    for query in queries:
        words = tuple((term.words, term.weight) for term in query.terms if term.words is not None)
        shown = []
        for term in query.terms:
            if term.picture is not None:
                shown.append((len(opened), term.weight))
                opened.append(pixels.prepared(term.open()))
        episode_queries.append(EpisodeQuery(words, tuple(shown), _vector(query.terms)))
    return EpisodeBatch(tuple(episode_queries), pixels.tensor(opened), table_of(rows), captions, table_of(texts))


def _vector(terms: Sequence[Term]) -> Tensor | None:
    vectors = [term.weight * torch.from_numpy(term.vector) for term in terms if term.vector is not None]
    return torch.stack(vectors).sum(dim=0) if vectors else None
