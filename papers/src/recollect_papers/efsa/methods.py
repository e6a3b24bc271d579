"""Search methods compared in EFSA's tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from recollect.core.types import Encoder
from recollect.efsa.methods import SEARCH_METHODS, Method, Prepared, SearchContext, index_search
from recollect.efsa.options import EpisodeOptions
from recollect.efsa.rerank import EpisodeReranker
from recollect_papers.efsa.fine_tuning import fine_tune, index_by
from recollect_papers.efsa.options import RewardOptions, TuningOptions
from recollect_papers.efsa.rlcf import RewardSearcher
from recollect_papers.efsa.sequential import FullEpisodes, SequentialEpisodes


@dataclass(frozen=True)
class MethodOptions:
    """Settings of all methods.

    Attributes:
        episode: options of episodes; fine-tuning uses their loss, adapters and optimizer too.
        tuning: options of fine-tuning.
        reward: options of RLCF.
        full_learning_rate: learning rate of episodes that adapt all parameters, much lower than for adapters; None
            means that of ``episode``.
        steps: steps per episode (Fig. 5).
    """

    episode: EpisodeOptions = field(default_factory=EpisodeOptions)
    tuning: TuningOptions = field(default_factory=TuningOptions)
    reward: RewardOptions = field(default_factory=RewardOptions)
    full_learning_rate: float | None = 3e-6
    steps: int = 1


def search_methods(options: MethodOptions, teacher: Encoder | None = None) -> Mapping[str, Method]:
    """Return the methods of EFSA's Tables 2 and 3, and episodes that adapt all parameters (Fig. 4).

    Args:
        teacher: larger model, for RLCF.
    """

    def fine_tuning(context: SearchContext) -> Prepared:
        tuned = fine_tune(context.encoder, context.index, context.episode, options.tuning, context.pixels)
        return Prepared(index_search(index_by(tuned, context.index, context.pixels), tuned), tuned)

    def rlcf(context: SearchContext) -> Prepared:
        return Prepared(RewardSearcher(context.index, context.encoder, teacher, options.reward).search)

    def full(context: SearchContext) -> Prepared:
        episode = context.episode
        if options.full_learning_rate is not None:
            episode = replace(episode, learning_rate=options.full_learning_rate)
        rerank = EpisodeReranker(context.encoder, episode, context.pixels, FullEpisodes)
        return Prepared(index_search(context.index, context.encoder, rerank=rerank))

    def several_steps(context: SearchContext) -> Prepared:
        adapt = partial(SequentialEpisodes, steps=options.steps)
        rerank = EpisodeReranker(context.encoder, context.episode, context.pixels, adapt)
        return Prepared(index_search(context.index, context.encoder, rerank=rerank))

    more: dict[str, Method] = {"fine-tuning": fine_tuning, "rlcf": rlcf, "episode-full": full}
    return {**SEARCH_METHODS, **more, **({"episode": several_steps} if options.steps > 1 else {})}
