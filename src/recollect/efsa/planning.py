"""How many queries adapt at once: as many as measured memory allows, whatever the checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass, field

Load = tuple[int, int]
"""Pictures of a query, those with a caption twice, and tokens of its longest text."""


@dataclass
class EpisodeBatchPlan:
    """Keeps the memory of a batch of episodes below a bound, by what episodes were measured to hold.

    The first query runs alone and is measured, and so is any with more pictures or longer texts than every query that
    was (texts are padded to the longest of a batch). Queries that run together share what one alone holds for itself,
    so that n of them hold at most n times as much as the dearest.

    Attributes:
        most_bytes: that the tensors of a batch may hold at once.
    """

    most_queries: int
    most_bytes: float
    dearest: int = 0
    measured: list[Load] = field(default_factory=list)

    def number(self, loads: Sequence[Load]) -> int:
        """How many of the next queries may run together; at least one."""
        known = next((place for place, load in enumerate(loads) if not self.knows(load)), len(loads))
        fit = self.most_queries if not self.dearest else int(self.most_bytes // self.dearest)
        return max(1, min(known, self.most_queries, fit))

    def knows(self, load: Load) -> bool:
        """Whether a query that was measured had as many pictures and as long texts."""
        return any(load[0] <= pictures and load[1] <= tokens for pictures, tokens in self.measured)

    def learn(self, load: Load, peak: int) -> None:
        """Note what one query alone held at once."""
        self.dearest = max(self.dearest, peak)
        self.measured.append(load)
