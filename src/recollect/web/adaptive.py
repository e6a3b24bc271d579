"""Refining the results of one search: the model adapts to the query and ranks its first pictures again (EFSA)."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from recollect.core.errors import UserError
from recollect.index import Hits, Index, Query
from recollect.models import DualEncoder

if TYPE_CHECKING:
    from recollect.efsa.rerank import EpisodeReranker


@dataclass(frozen=True)
class Adapted:
    """The first results after adapting.

    Attributes:
        changed: whether the adapted model ranked any of them.
        learnt: the captioned pictures that the model learned from, each with its rank before and after.
    """

    hits: Hits
    changed: bool
    learnt: list[dict[str, Any]]


class Adaptive:
    """Adapts to searches of one index."""

    def __init__(self, index: Index) -> None:
        self.index = index

    @property
    def missing(self) -> str | None:
        """Why this model cannot adapt to these pictures, in one sentence; None if it can."""
        if not isinstance(self.index.encoder, DualEncoder):
            return "This model cannot refine results."
        if not self.index.texts:
            return "Refining learns from captions, and these pictures have none. `recollect caption` adds some."
        return None

    @cached_property
    def reranker(self) -> "EpisodeReranker":
        """Adapts the model, and ranks again."""
        from recollect.efsa.rerank import episode_reranker

        return episode_reranker(self.index)

    def search(self, query: Query, where: str | None) -> Adapted:
        """The first results of a search, ranked again.

        Raises:
            UserError: the model cannot adapt, or there are no captions to learn from.
        """
        from recollect.efsa.rerank import EPISODE

        if missing := self.missing:
            raise UserError(missing)
        hits = self.index.search(query, self.reranker.depth, where=where, rerank=self.reranker)
        learnt = [
            {"id": hit.id, "caption": hit.caption, "before": hit.zero_shot_rank, "after": rank}
            for rank, hit in enumerate(hits, start=1)
            if hit.caption.strip() and hit.scored_by == EPISODE
        ]
        return Adapted(hits, any(hit.scored_by == EPISODE for hit in hits), learnt)
