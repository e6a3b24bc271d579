"""What one base model finds for each query before and after its episode, picture by picture."""

from dataclasses import dataclass

from recollect.core.types import ImageLike
from recollect.efsa.rerank import EpisodeReranker
from recollect.evaluation.features import FeatureCache, image_features
from recollect.evaluation.pools import CaptionedPool
from recollect.evaluation.retrieval import asked_texts, first_match
from recollect.evaluation.tasks.retrieval import RetrievalTask
from recollect.index import Hits
from recollect.index.source import source_index
from recollect.models import DualEncoder
from recollect_papers.efsa.world import EfsaWorld, SearchRun, encoder_of, pools
from recollect_papers.study import StudyOptions

SHOWN = 4
"""Images of a query that are kept."""

_Picture = tuple[ImageLike, bool]
"""An image and whether it is a true match."""


@dataclass(frozen=True)
class Answer:
    """One query.

    Attributes:
        query: its text.
        zero_shot, episode: the first images.
        zero_shot_rank, episode_rank: of the first true match.
        truth: a true match.
    """

    query: str
    zero_shot: tuple[_Picture, ...]
    episode: tuple[_Picture, ...]
    zero_shot_rank: int
    episode_rank: int
    truth: _Picture


def answered(where: EfsaWorld, options: StudyOptions, search: SearchRun) -> list[list[Answer]]:
    """For each pool of a search the answers of the first base model."""
    encoder = encoder_of(where.models[0])
    cache = FeatureCache(options.out / "features")
    return [_answers(encoder, pool, where, search, cache) for pool in pools(search, where)]


def _answers(
    encoder: DualEncoder, pool: CaptionedPool, where: EfsaWorld, search: SearchRun, cache: FeatureCache
) -> list[Answer]:
    task, episode = pool.task, search.options.episode
    captions = pool.captions.captions if pool.captions is not None else None
    index = source_index(encoder, task.images, captions, image_features(encoder, task.images, cache).images)
    asked = asked_texts(task, pool.captions, where.queries)
    queries = [task.texts[text] for text in asked]
    before = index.search_many(queries, episode.k)
    after = before
    if "episode" in search.methods:
        after = index.search_many(queries, episode.k, rerank=EpisodeReranker(encoder, episode))
    return [
        _answer(task, text, one, other) for text, one, other in zip(asked, before, after, strict=True)
    ]  # fmt: skip


def _answer(task: RetrievalTask, text: int, before: Hits, after: Hits) -> Answer:
    true = {str(image) for image in task.matches[text]}
    truth = (task.images[task.matches[text][0]].image, True)
    return Answer(
        before.query, _pictures(before, true), _pictures(after, true),
        first_match(before, true), first_match(after, true), truth,
    )  # fmt: skip


def _pictures(hits: Hits, true: set[str]) -> tuple[_Picture, ...]:
    return tuple((hit.picture.read(), hit.id in true) for hit in hits[:SHOWN])
