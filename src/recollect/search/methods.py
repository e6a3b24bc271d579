"""Every way of searching by text in one table, so that one evaluation serves them all."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from recollect.core.errors import UserError
from recollect.core.types import Encoder
from recollect.models import DualEncoder
from recollect.search.baselines.pool_wide import by_captions, by_model, fine_tune
from recollect.search.baselines.rlcf import RewardSearcher
from recollect.search.counters import CostCounters
from recollect.search.episodes.options import EpisodeOptions, RewardOptions, TuningOptions, check_positive
from recollect.search.episodes.searcher import EpisodicSearcher
from recollect.search.normalisation import Normalisation, normalised
from recollect.search.pixels import PixelCache
from recollect.search.pool import Pool
from recollect.search.searcher import Searcher, TextSearch


@dataclass(frozen=True)
class MethodOptions:
    """The settings of all methods.

    Attributes:
        episode: of episodes, and of the loss, adapters and optimiser of fine-tuning.
        tuning: of fine-tuning.
        reward: of RLCF.
        full_learning_rate: of episodes that change all parameters, which the adapters' rate would destroy; None takes
            the episodes' own.
        normalisation: of scores by reference queries; None lets the pool's own captions choose.
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
    """What a method is made for.

    Attributes:
        encoder: embedded the pool.
        pool: what is searched.
        options: of the methods.
        teacher: a larger model, for RLCF.
        pixels: decoded pictures; methods that are compared may share them.
    """

    encoder: DualEncoder
    pool: Pool
    options: MethodOptions
    pixels: PixelCache
    teacher: Encoder | None = None


@dataclass(frozen=True)
class Prepared:
    """A method that is ready to be asked.

    Attributes:
        search: the method.
        preparation: rows that went through the towers before the first query.
        encoder: the model that embeds for it, where one model does so for all queries; None where each query has its
            own, or images are not searched at all.
    """

    search: TextSearch
    preparation: CostCounters = field(default_factory=CostCounters)
    encoder: DualEncoder | None = None


def _zero_shot(setting: SearchContext) -> Prepared:
    return Prepared(Searcher(setting.encoder, setting.pool), encoder=setting.encoder)


def _fine_tuning(setting: SearchContext) -> Prepared:
    done, options = CostCounters(), setting.options
    tuned = fine_tune(setting.encoder, setting.pool, options.episode, options.tuning, setting.pixels, done)
    pool = by_model(tuned, setting.pool, setting.pixels, done)
    return Prepared(Searcher(tuned, pool, scored_by="fine-tuned model"), done, tuned)


def _normalised(setting: SearchContext) -> Prepared:
    done = CostCounters()
    pool = normalised(setting.encoder, setting.pool, setting.options.normalisation, counters=done)
    return Prepared(Searcher(setting.encoder, pool, scored_by="normalised"), done)


def _text_to_text(setting: SearchContext) -> Prepared:
    done = CostCounters()
    pool = by_captions(setting.encoder, setting.pool, done)
    return Prepared(Searcher(setting.encoder, pool, scored_by="captions"), done)


def _rlcf(setting: SearchContext) -> Prepared:
    reward = setting.options.reward
    return Prepared(RewardSearcher(setting.encoder, setting.pool, teacher=setting.teacher, options=reward))


def _episode(setting: SearchContext) -> Prepared:
    options = replace(setting.options.episode, parameters="adapters")
    return Prepared(EpisodicSearcher(setting.encoder, setting.pool, options=options, pixels=setting.pixels))


def _paper_episode(setting: SearchContext) -> Prepared:
    options = replace(setting.options.episode.as_printed(), parameters="adapters")
    return Prepared(EpisodicSearcher(setting.encoder, setting.pool, options=options, pixels=setting.pixels))


def _full_episode(setting: SearchContext) -> Prepared:
    options = replace(setting.options.episode, parameters="all")
    if setting.options.full_learning_rate is not None:
        options = replace(options, learning_rate=setting.options.full_learning_rate)
    return Prepared(EpisodicSearcher(setting.encoder, setting.pool, options=options, pixels=setting.pixels))


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
"""EFSA's rows of Tables 2 and 3, full-parameter episodes (Fig. 4) and episodes with the loss and step as printed, in
the order of a table."""


def prepare(name: str, setting: SearchContext) -> Prepared:
    """Make a method ready.

    Raises:
        UserError: no such method, or it lacks something: captions, a teacher.
    """
    if name not in SEARCH_METHODS:
        raise UserError(f"no method '{name}'. Choose from: {', '.join(SEARCH_METHODS)}.")
    return SEARCH_METHODS[name](setting)
