"""Every way of searching by text in one table, so that one evaluation serves them all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from recollect.core.errors import UserError
from recollect.core.types import Encoder
from recollect.efsa.cost import CostCounters, TextSearch
from recollect.efsa.fine_tuning import fine_tune, index_by
from recollect.efsa.normalisation import Normalisation, normalised
from recollect.efsa.options import EpisodeOptions, RewardOptions, TuningOptions, check_positive
from recollect.efsa.pixels import PixelCache
from recollect.efsa.report import EpisodeReport
from recollect.efsa.rerank import NO_CAPTIONS, EpisodeReranker
from recollect.efsa.rlcf import RewardSearcher
from recollect.index import By, Hits, Index
from recollect.models import DualEncoder


@dataclass(frozen=True)
class MethodOptions:
    """The settings of all methods.

    Attributes:
        episode: of episodes, and of the loss, adapters and optimiser of fine-tuning.
        tuning: of fine-tuning.
        reward: of RLCF.
        full_learning_rate: of episodes that change all parameters, for which the rate of adapters is far too large;
            None takes the episodes' own.
        normalisation: of scores by reference queries; None lets the captions of the index choose.
    """

    episode: EpisodeOptions = field(default_factory=EpisodeOptions)
    tuning: TuningOptions = field(default_factory=TuningOptions)
    reward: RewardOptions = field(default_factory=RewardOptions)
    full_learning_rate: float | None = 3e-6
    normalisation: Normalisation | None = None

    def __post_init__(self) -> None:
        if self.full_learning_rate is not None:
            check_positive("full_learning_rate", self.full_learning_rate)


@dataclass(frozen=True)
class SearchContext:
    """What a method works with.

    Attributes:
        encoder: embedded the index.
        index: what is searched.
        options: of the methods.
        pixels: decoded pictures; methods that are compared may share them.
        teacher: a larger model, for RLCF.
    """

    encoder: DualEncoder
    index: Index
    options: MethodOptions
    pixels: PixelCache
    teacher: Encoder | None = None


@dataclass
class IndexSearch:
    """`Index.search_many` with counts of what it costs.

    Attributes:
        index: what is searched.
        encoder: embeds the queries.
        by: compare with pictures or with captions.
        rerank: episodes, or None.
        counters: rows that went through the towers.
    """

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
        search: the method.
        preparation: rows that went through the towers before the first query.
        encoder: the model that embeds for it, if one model does so for all queries; None where each query has its own,
            or pictures are not compared at all.
    """

    search: TextSearch
    preparation: CostCounters = field(default_factory=CostCounters)
    encoder: DualEncoder | None = None


def _zero_shot(context: SearchContext) -> Prepared:
    return Prepared(IndexSearch(context.index, context.encoder), encoder=context.encoder)


def _fine_tuning(context: SearchContext) -> Prepared:
    done, options = CostCounters(), context.options
    tuned = fine_tune(context.encoder, context.index, options.episode, options.tuning, context.pixels, done)
    index = index_by(tuned, context.index, context.pixels, done)
    return Prepared(IndexSearch(index, tuned), done, tuned)


def _normalised(context: SearchContext) -> Prepared:
    index = normalised(context.index, context.options.normalisation)
    return Prepared(IndexSearch(index, context.encoder), CostCounters(texts_forward=context.index.texts))


def _text_to_text(context: SearchContext) -> Prepared:
    # All captions are searched. EFSA (section 4.1) writes of those of the top k, but its R@10 is below what a random
    # order of sixteen candidates would give.
    if not context.index.texts:
        raise UserError(NO_CAPTIONS)
    search = IndexSearch(context.index, context.encoder, by="text")
    return Prepared(search, CostCounters(texts_forward=context.index.texts))


def _rlcf(context: SearchContext) -> Prepared:
    return Prepared(RewardSearcher(context.index, context.encoder, context.teacher, context.options.reward))


def _episodes(context: SearchContext, options: EpisodeOptions) -> Prepared:
    rerank = EpisodeReranker(context.encoder, options, context.pixels)
    return Prepared(IndexSearch(context.index, context.encoder, rerank=rerank))


def _episode(context: SearchContext) -> Prepared:
    return _episodes(context, replace(context.options.episode, parameters="adapters"))


def _paper_episode(context: SearchContext) -> Prepared:
    return _episodes(context, replace(context.options.episode.as_printed(), parameters="adapters"))


def _full_episode(context: SearchContext) -> Prepared:
    options = replace(context.options.episode, parameters="all")
    if context.options.full_learning_rate is not None:
        options = replace(options, learning_rate=context.options.full_learning_rate)
    return _episodes(context, options)


SEARCH_METHODS: Mapping[str, Callable[[SearchContext], Prepared]] = {
    "zero-shot": _zero_shot,
    "normalised": _normalised,
    "fine-tuning": _fine_tuning,
    "text-to-text": _text_to_text,
    "rlcf": _rlcf,
    "episode-full": _full_episode,
    "episode-paper": _paper_episode,
    "episode": _episode,
}
"""EFSA's rows of Tables 2 and 3, episodes of all parameters (Fig. 4) and episodes with the loss and step as printed, in
the order of a table."""


def prepare(name: str, context: SearchContext) -> Prepared:
    """Make a method ready.

    Raises:
        UserError: no such method, or it lacks captions or a teacher.
    """
    if name not in SEARCH_METHODS:
        raise UserError(f"no method '{name}'. Choose from: {', '.join(SEARCH_METHODS)}.")
    return SEARCH_METHODS[name](context)
