"""How a memory is to be filled, and what became of it."""

from dataclasses import dataclass, field

from recollect.data.sources.reading import BROKEN_SHARE
from recollect.memory.build.reading import ReadOptions
from recollect.memory.rows import Pairs


@dataclass(frozen=True)
class BuildOptions:
    """How a memory is filled.

    Attributes:
        read: how samples become rows.
        limit: read only so many samples of the source.
        same: leave out rows whose picture and caption are there already.
        near: leave out rows whose image has at least this cosine with one that is there (RECO: 0.94); None keeps them.
        broken_share: stop when more than this share of the pictures cannot be read.
        bring_back: of the pictures that somebody has removed, those that are to come in again: ids, files, or ``all``.
        follow: what somebody has removed stays away also where that is all that the memory held of the source.
    """

    read: ReadOptions = field(default_factory=ReadOptions)
    limit: int | None = None
    same: bool = True
    near: float | None = None
    broken_share: float = BROKEN_SHARE
    bring_back: tuple[str, ...] = ()
    follow: bool = False


@dataclass
class BuildReport:
    """What became of the samples of one call.

    Attributes:
        read: samples read.
        added: rows added.
        replaced: rows that were there, and are now as in this edition of the source.
        removed: rows of an earlier edition that this one lacks.
        unchanged: rows that were there as they are.
        moved: of these, rows whose picture lies elsewhere now: its folder or file was moved or renamed.
        same: rows left out, because picture and caption were there already.
        near: rows left out, because a near-duplicate of the image was there already.
        broken: pictures that could not be read.
        away: samples left out, because somebody has removed their picture.
        wordless: rows added or replaced that have no text.
        earlier: samples that an earlier call had read.
    """

    read: int = 0
    added: int = 0
    replaced: int = 0
    removed: int = 0
    unchanged: int = 0
    moved: int = 0
    same: int = 0
    near: int = 0
    broken: int = 0
    away: int = 0
    wordless: int = 0
    earlier: int = 0

    def count(self, replaced: int, pairs: Pairs) -> None:
        """Count rows that were written, of which some were there."""
        self.replaced += replaced
        self.added += len(pairs) - replaced
        self.wordless += int((~pairs.has_text).sum())
