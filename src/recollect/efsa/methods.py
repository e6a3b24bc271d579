"""Every way of searching by text in one table, so that one evaluation serves them all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from recollect.core.errors import UserError
from recollect.efsa.cost import CostCounters, TextSearch
from recollect.efsa.normalisation import normalised
from recollect.efsa.options import EpisodeOptions, EpisodeReport
from recollect.efsa.pixels import PixelCache
from recollect.efsa.rerank import NO_CAPTIONS, EpisodeReranker
from recollect.index import By, Hits, Index
from recollect.models import DualEncoder


@dataclass(frozen=True)
class SearchContext:
    """What a method works with.

    Attributes:
        pixels: decoded pictures; methods that are compared may share them.
    """

    encoder: DualEncoder
    index: Index
    episode: EpisodeOptions
    pixels: PixelCache


@dataclass
class IndexSearch:
    """`Index.search_many` with counts of what it costs."""

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
        """What went wrong in episodes."""
        return EpisodeReport() if self.rerank is None else self.rerank.report

    def search(self, queries: Sequence[str], k: int = 10) -> list[Hits]:
        """The k best pictures for each query."""
        self.counters.forward(texts=sum(bool(query.strip()) for query in queries))
        return self.index.search_many(list(queries), k, by=self.by, rerank=self.rerank, encoder=self.encoder)


@dataclass(frozen=True)
class Prepared:
    """A method that is ready to search.

    Attributes:
        preparation: rows that went through the towers before the first query.
        encoder: the model that embeds for it, if one model does so for all queries; None where each query has its own,
            or pictures are not compared at all.
    """

    search: TextSearch
    preparation: CostCounters = field(default_factory=CostCounters)
    encoder: DualEncoder | None = None


Method = Callable[[SearchContext], Prepared]
"""Makes a way of searching ready."""


def _zero_shot(context: SearchContext) -> Prepared:
    return Prepared(IndexSearch(context.index, context.encoder), encoder=context.encoder)


def _normalised(context: SearchContext) -> Prepared:
    search = IndexSearch(normalised(context.index), context.encoder)
    return Prepared(search, CostCounters(texts_forward=context.index.texts))


def _text_to_text(context: SearchContext) -> Prepared:
    # All captions are searched. EFSA (section 4.1) writes of those of the top k, but its R@10 is below what a random
    # order of sixteen candidates would give.
    if not context.index.texts:
        raise UserError(NO_CAPTIONS)
    search = IndexSearch(context.index, context.encoder, by="text")
    return Prepared(search, CostCounters(texts_forward=context.index.texts))


def _episode(context: SearchContext) -> Prepared:
    rerank = EpisodeReranker(context.encoder, context.episode, context.pixels)
    return Prepared(IndexSearch(context.index, context.encoder, rerank=rerank))


SEARCH_METHODS: Mapping[str, Method] = {
    "zero-shot": _zero_shot,
    "normalised": _normalised,
    "text-to-text": _text_to_text,
    "episode": _episode,
}
"""Ways of searching, in the order of a table."""
