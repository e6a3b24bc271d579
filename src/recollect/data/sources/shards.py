"""Reading WebDataset tars. A damaged header is reported: other readers take it for the end of the file."""

import hashlib
import json
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from recollect.core.errors import UserError, user_errors
from recollect.core.files import write_json
from recollect.core.paths import cache_folder
from recollect.core.progress import progress
from recollect.data.sources.images import note

_BLOCK = tarfile.BLOCKSIZE


@dataclass(frozen=True)
class Member:
    """A file in a tar: its column (suffix) and where its bytes are."""

    key: str
    column: str
    offset: int
    size: int


MemberRows = list[list[Member]]
"""The files of each sample: consecutive members whose names agree up to the first dot."""


@dataclass(frozen=True)
class ShardState:
    """What reading a tar found.

    Attributes:
        samples: complete samples.
        files: files that a reader of tars reaches.
        beyond: further files with intact headers, after damage or after the end mark.
        damage: offset of the first damaged header; None if there is none.
        ended: whether the end mark is present.
        cut: whether the tar ends within a file or its padding, so that no reader opens it.
    """

    samples: int
    files: int
    beyond: int
    damage: int | None
    ended: bool
    cut: bool

    @property
    def lost(self) -> float:
        """Share of the files that no reader reaches; 1 if that is unknown."""
        if not self.ended and self.damage is None:
            return 1.0
        broken = int(self.damage is not None)
        return (self.beyond + broken) / max(1, self.files + self.beyond + broken)

    def describe(self, file: Path) -> str:
        """What is lost, for a message."""
        if self.cut:
            return f"{file}: damaged, cut short in the middle of file {self.files + 1:,}"
        if self.damage is not None:
            behind = f", and {self.beyond:,} more follow it" if self.beyond else ""
            return f"{file}: the header of file {self.files + 1:,} is damaged (byte {self.damage:,}){behind}"
        if not self.ended:
            return f"{file}: damaged, cut short: no end mark after {self.files:,} files"
        return f"{file}: {self.beyond:,} files follow the end mark, {self.files:,} come before it"


def read_shard(file: BinaryIO, size: int) -> tuple[MemberRows, ShardState]:
    """Read all headers of an open tar.

    Args:
        size: of the file, in bytes.
    """
    rows: MemberRows = []
    files, place, cut = 0, 0, size == 0
    with suppress(tarfile.ReadError), tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            if cut := archive.offset > size:
                break
            place = archive.offset
            archive.members = []  # type: ignore[attr-defined]  # tarfile would keep every header
            files += member.isfile()
            folder, _, base = member.name.rpartition("/")
            stem, dot, column = base.partition(".")
            if not member.isfile() or not dot or not stem:
                continue
            key = f"{folder}/{stem}" if folder else stem
            if not rows or rows[-1][0].key != key:
                rows.append([])
            rows[-1].append(Member(key, column, member.offset_data, member.size))
    file.seek(place)
    header = b"" if cut else file.read(_BLOCK)
    ended, whole = not any(header), len(header) == _BLOCK
    beyond = _count_files(file) if whole else 0
    return rows, ShardState(len(rows), files, beyond, place if whole and not ended else None, whole and ended, cut)


def _count_files(file: BinaryIO) -> int:
    """Number of files with intact headers from the current position on, skipping anything else."""
    count = 0
    with suppress(tarfile.ReadError), tarfile.open(fileobj=file, mode="r:", ignore_zeros=True) as archive:
        for member in archive:
            count += member.isfile()
            archive.members = []  # type: ignore[attr-defined]
    return count


def shard_state(tar: Path) -> ShardState:
    """The state of a tar, kept in the user's cache folder until the file changes.

    Raises:
        UserError: it is not a tar.
    """
    about = tar.stat()
    stamp = repr((str(tar.resolve()), about.st_size, about.st_mtime_ns, about.st_ctime_ns))
    name = hashlib.blake2b(stamp.encode(errors="surrogateescape"), digest_size=12).hexdigest()
    cached = cache_folder() / "shards" / f"{name}.json"
    with suppress(OSError, ValueError, AttributeError, KeyError, TypeError):  # absent or damaged: read the tar again
        found = json.loads(cached.read_text(encoding="utf-8"))
        if found.pop("digest") == _digest(found):
            return ShardState(**found)
    with user_errors(f"{tar}: damaged, or not a tar", OSError, tarfile.TarError), tar.open("rb") as file:
        _, state = read_shard(file, about.st_size)
    if not (state.files or state.beyond or state.cut or state.ended):
        raise UserError(f"{tar}: damaged, or not a tar")
    with suppress(OSError, UserError):  # no room: it will be read again
        write_json(cached, {**asdict(state), "digest": _digest(asdict(state))})
    return state


def _digest(found: Mapping[str, object]) -> str:
    return hashlib.blake2b(json.dumps(found, sort_keys=True).encode(), digest_size=8).hexdigest()


def check_shards(files: Sequence[Path], lost_share: float) -> dict[Path, ShardState]:
    """Report what is lost in each tar, and return their states.

    Raises:
        UserError: more than ``lost_share`` of all files is lost, an unknown share is, or a tar ends within a file.
    """
    states = {}
    with progress("check shards", len(files), "shards", shown=len(files) > 8) as counter:
        for file in files:
            states[file] = shard_state(file)
            counter.advance()
    losses = {file: state.describe(file) for file, state in states.items() if state.lost > 0}
    total = sum(state.files + state.beyond + (state.damage is not None) for state in states.values())
    lost = sum(state.lost * max(1, state.files + state.beyond) for state in states.values()) / max(1, total)
    cut = next((file for file, state in states.items() if state.cut), None)
    unknown = next((file for file, state in states.items() if state.lost == 1.0), None)
    if cut or lost > lost_share or (unknown and lost_share < 1):
        first = cut or unknown or next(iter(losses))
        more = f" (and {len(losses) - 1} more shards)" if len(losses) > 1 else ""
        raise UserError(f"{losses[first]}{more}. Copy or create it again, or leave it out.")
    for text in losses.values():
        note(f"{text}; the rest is read")
    return states
