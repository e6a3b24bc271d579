"""Text search methods for evaluation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from recollect.core.validation import refuse
from recollect.efsa.normalization import normalized
from recollect.efsa.options import EpisodeOptions
from recollect.efsa.pixels import PixelCache
from recollect.efsa.rerank import NO_CAPTIONS, EpisodeReranker
from recollect.index import By, Hits, Index
from recollect.models import DualEncoder

TextSearch = Callable[[Sequence[str], int], list[Hits]]
"""Returns the k best pictures of each query, fewer if the index is smaller."""


@dataclass(frozen=True)
class SearchContext:
    """Inputs of a method.

    Attributes:
        pixels: cache of decoded pictures, shared by the methods.
    """

    encoder: DualEncoder
    index: Index
    episode: EpisodeOptions
    pixels: PixelCache


@dataclass(frozen=True)
class Prepared:
    """A method ready to search.

    Attributes:
        encoder: the model, if results are cosines with one model for all queries; else None.
    """

    search: TextSearch
    encoder: DualEncoder | None = None


Method = Callable[[SearchContext], Prepared]
"""Prepares a search method."""


def index_search(
    index: Index, encoder: DualEncoder, by: By = "image", rerank: EpisodeReranker | None = None
) -> TextSearch:
    """Return `Index.search_many` as a `TextSearch`."""
    return lambda queries, k: index.search_many(list(queries), k, by=by, rerank=rerank, encoder=encoder)


def _zero_shot(context: SearchContext) -> Prepared:
    return Prepared(index_search(context.index, context.encoder), context.encoder)


def _normalized(context: SearchContext) -> Prepared:
    return Prepared(index_search(normalized(context.index), context.encoder))


def _text_to_text(context: SearchContext) -> Prepared:
    # Searches all captions. EFSA (section 4.1) mentions the captions of the top k, but its R@10 is below that of
    # sixteen candidates in random order.
    refuse((not context.index.texts, NO_CAPTIONS))
    return Prepared(index_search(context.index, context.encoder, "text"))


def _episode(context: SearchContext) -> Prepared:
    refuse((not context.index.texts, NO_CAPTIONS))  # otherwise every query would keep its zero-shot ranking
    rerank = EpisodeReranker(context.encoder, context.episode, context.pixels)
    return Prepared(index_search(context.index, context.encoder, rerank=rerank))


SEARCH_METHODS: Mapping[str, Method] = {
    "zero-shot": _zero_shot,
    "normalized": _normalized,
    "text-to-text": _text_to_text,
    "episode": _episode,
}
"""Search methods in table order."""
