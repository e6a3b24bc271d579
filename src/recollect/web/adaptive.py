"""A search whose first pictures the model ranks again after one step on them (EFSA), and what it learnt from."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from recollect.core.errors import UserError
from recollect.core.types import Encoder
from recollect.efsa.options import EpisodeOptions
from recollect.memory.store import Memory
from recollect.models import DualEncoder
from recollect.search.episodes.searcher import EPISODE, EpisodicSearcher
from recollect.search.memory_pool import MemoryPool
from recollect.search.query import Query
from recollect.search.searcher import Hit


@dataclass(frozen=True)
class Adapted:
    """The first pictures of a search after an episode.

    Attributes:
        hits: in their new order; each knows its rank by the model as it is, and who scored it.
        notes: what did not go as it should.
    """

    hits: tuple[Hit, ...]
    notes: tuple[str, ...]

    @property
    def changed(self) -> bool:
        """Whether an episode ranked anything."""
        return any(hit.scored_by == EPISODE for hit in self.hits)

    def pairs(self) -> list[dict[str, Any]]:
        """What the episode learnt from: captioned look-alikes, each with its rank before and after."""
        return [
            {"id": hit.item.id, "caption": hit.item.caption, "before": hit.zero_shot_rank, "after": rank}
            for rank, hit in enumerate(self.hits, start=1)
            if hit.item.caption.strip() and hit.scored_by == EPISODE
        ]


class Adaptive:
    """Episodes on a memory; the searcher is made when it is first asked.

    Args:
        memory: what is searched.
        encoder: the model that embedded it.
    """

    def __init__(self, memory: Memory, encoder: Encoder) -> None:
        self.memory, self.encoder = memory, encoder
        self._searcher: EpisodicSearcher | None = None

    @cached_property
    def missing(self) -> str | None:
        """What keeps this model from adapting to these pictures, in one sentence; None if nothing does."""
        if not isinstance(self.encoder, DualEncoder):
            return "This model cannot refine results."
        if not MemoryPool(self.memory).has_captions():
            return "Refining learns from captions, and these pictures have none. `recollect caption` adds some."
        return None

    def search(self, query: Query, where: str | None) -> Adapted:
        """Rank the first pictures of a search again by the model adapted to it.

        Raises:
            UserError: the model cannot adapt, or the memory has no captions to learn from.
        """
        if self._searcher is None:
            if missing := self.missing:
                raise UserError(missing)
            assert isinstance(self.encoder, DualEncoder)
            self._searcher = EpisodicSearcher(self.encoder, MemoryPool(self.memory), options=EpisodeOptions())
        searcher = self._searcher
        found = searcher.search(query, searcher.options.k, where=where)
        return Adapted(found.hits, found.notes)
