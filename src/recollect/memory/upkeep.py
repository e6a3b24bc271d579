"""Keeping a memory fast, small and trusted: its indexes, its files, and what it says of itself."""

from recollect.core.errors import UserError
from recollect.memory.backends.base import Compaction
from recollect.memory.backends.cells import IndexRecord
from recollect.memory.handle import MemoryHandle
from recollect.memory.info import MemoryInfo, memory_info, metadata_keys

_FEW = 40  # texts that need no index


class KeptMemory(MemoryHandle):
    """A memory as it is looked after."""

    def index(self, recall: float = 0.99) -> list[IndexRecord]:
        """Make searches fast, at a recall that is measured on this memory's own rows.

        Without an index every search is exact. With one, searches without filters and exclusions read as few rows as
        reach ``recall`` (of the ten nearest, on sampled rows as queries of either modality), and score these exactly;
        where exact search was faster, it stays. ``exact=True`` passes it by. Adding rows does not train it anew.

        Returns:
            What was measured, for images and for texts; empty where the store has an index of its own (Milvus).

        Raises:
            UserError: too few rows, or a recall outside of (0, 1].
        """
        made = [self.backend.index("image", recall)]
        if self.texts > _FEW:
            made.append(self.backend.index("text", recall))
        return [record for record in made if record is not None]

    def renew_indexes(self) -> None:
        """Measure the recall of indexes again where rows have doubled since, and read more cells if that needs it."""
        for record in self.outgrown_indexes():
            self.backend.index(record.modality, record.target, train=False)

    def prepare(self) -> None:
        """Make now what the first search of a memory on disk makes, and later ones read: its vectors as matrices."""
        self.backend.prepare()

    def outgrown_indexes(self) -> list[IndexRecord]:
        """Indexes whose recall was measured when there were half as many rows, or fewer."""
        return [record for record in self.backend.indexes() if len(self) >= 2 * record.rows]

    def optimize(self, keep_days: float = 1.0) -> Compaction | None:
        """Join the small files of many additions, and free what deleted rows and older versions take up.

        Rows, ids and indexes stay as they are. A reader that still has an older version open has to open the memory
        again once that version is gone.

        Args:
            keep_days: versions younger than so many days stay; 0 keeps the newest alone.

        Returns:
            What was freed; None where the store does so by itself (Milvus).

        Raises:
            UserError: a negative number of days.
        """
        if not 0 <= keep_days < float("inf"):
            raise UserError(f"--keep-days {keep_days:g}: from 0 on, and finite")
        return self.backend.optimize(keep_days)

    def damage(self) -> list[str]:
        """Read everything, and say what cannot be trusted, a line each: rows, checksums, vectors that are none."""
        return self.backend.damage()

    def info(self) -> MemoryInfo:
        """What it holds."""
        return memory_info(self.backend)

    def metadata_keys(self) -> tuple[str, ...]:
        """Names that a filter may use, beside ``id``, ``caption`` and ``source``."""
        return metadata_keys(self.backend)
