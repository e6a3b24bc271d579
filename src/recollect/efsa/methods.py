"""All text search methods in one table, for one evaluation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from recollect.core.errors import UserError
from recollect.efsa.cost import CostCounters, TextSearch
from recollect.efsa.normalization import normalized
from recollect.efsa.options import EpisodeOptions, EpisodeReport
from recollect.efsa.pixels import PixelCache
from recollect.efsa.rerank import NO_CAPTIONS, EpisodeReranker
from recollect.index import By, Hits, Index
from recollect.models import DualEncoder


@dataclass(frozen=True)
class SearchContext:
    """Inputs of a method.

    Attributes:
        pixels: decoded pictures, which compared methods share.
    """

    encoder: DualEncoder
    index: Index
    episode: EpisodeOptions
    pixels: PixelCache


@dataclass
class IndexSearch:
    """`Index.search_many` with cost counters."""

    index: Index
    encoder: DualEncoder
    by: By = "image"
    rerank: EpisodeReranker | None = None
    counters: CostCounters = field(default_factory=CostCounters)

    def __post_init__(self) -> None:
        if self.rerank is not None:
            self.counters = self.rerank.counters

    @property
    def report(self) -> EpisodeReport:
        """Problems in episodes."""
        return EpisodeReport() if self.rerank is None else self.rerank.report

    def search(self, queries: Sequence[str], k: int = 10) -> list[Hits]:
        """The k best pictures for each query."""
        self.counters.forward(texts=sum(bool(query.strip()) for query in queries))
        return self.index.search_many(list(queries), k, by=self.by, rerank=self.rerank, encoder=self.encoder)


@dataclass(frozen=True)
class Prepared:
    """A method ready to search.

    Attributes:
        preparation: rows that passed the towers before the first query.
        encoder: the one model of all queries; None if each query has its own, or pictures are not compared.
    """

    search: TextSearch
    preparation: CostCounters = field(default_factory=CostCounters)
    encoder: DualEncoder | None = None


Method = Callable[[SearchContext], Prepared]
"""Prepares a search method."""


def _zero_shot(context: SearchContext) -> Prepared:
    return Prepared(IndexSearch(context.index, context.encoder), encoder=context.encoder)


def _normalized(context: SearchContext) -> Prepared:
    search = IndexSearch(normalized(context.index), context.encoder)
    return Prepared(search, CostCounters(texts_forward=context.index.texts))


def _text_to_text(context: SearchContext) -> Prepared:
    # Searches all captions. EFSA (section 4.1) mentions those of the top k, but its R@10 is below that of sixteen
    # candidates in random order.
    if not context.index.texts:
        raise UserError(NO_CAPTIONS)
    search = IndexSearch(context.index, context.encoder, by="text")
    return Prepared(search, CostCounters(texts_forward=context.index.texts))


def _episode(context: SearchContext) -> Prepared:
    rerank = EpisodeReranker(context.encoder, context.episode, context.pixels)
    return Prepared(IndexSearch(context.index, context.encoder, rerank=rerank))


SEARCH_METHODS: Mapping[str, Method] = {
    "zero-shot": _zero_shot,
    "normalized": _normalized,
    "text-to-text": _text_to_text,
    "episode": _episode,
}
"""Search methods in the order of tables."""
