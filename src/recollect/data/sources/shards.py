"""Is a tar whole? Every header is checked, since a reader of tars takes a damaged one for the end and says nothing."""

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from recollect.core.errors import UserError
from recollect.data.sources.images import note

_BLOCK = 512
_NOTHING = bytes(_BLOCK)
_FILES = frozenset(b"0\x007")  # types of members that hold a file's bytes; the others describe or link
_CHECKSUM = slice(148, 156)


@dataclass(frozen=True)
class ShardState:
    """What a scan of one tar found.

    Attributes:
        files: files that a reader reaches.
        beyond: files whose headers are whole but lie behind damage, or behind an end mark, where no reader comes.
        damage: offset of the first header that is damaged; None if all are whole.
        ended: whether the mark of the end was there.
        cut: whether the tar stops within a file or the zeros that fill its last block; no reader opens it then.
    """

    files: int
    beyond: int
    damage: int | None
    ended: bool
    cut: bool

    @property
    def lost(self) -> float:
        """Share of the files that no reader reaches; 1 where nobody can know."""
        if not self.ended and self.damage is None:
            return 1.0
        broken = 1 if self.damage is not None else 0
        return (self.beyond + broken) / max(1, self.files + self.beyond + broken)


def check_shards(files: Sequence[Path], lost_share: float) -> None:
    """Say of every tar what is missing in it, and stop where that is too much.

    Raises:
        UserError: more than ``lost_share`` of all files cannot be reached, a tar was cut short and nobody knows, or,
            whatever the share, one stops within a file.
    """
    weigh_losses({file: scan(file, file.stat().st_size, file.stat().st_mtime_ns) for file in files}, lost_share)


def weigh_losses(states: Mapping[Path, ShardState], lost_share: float) -> None:
    """Say of every tar what its scan has missed, and stop where that is too much.

    Raises:
        UserError: see `check_shards`.
    """
    words = {file: _words(file, state) for file, state in states.items() if state.lost > 0}
    if not words:
        return
    total = sum(state.files + state.beyond + (state.damage is not None) for state in states.values())
    lost = sum(state.lost * max(1, state.files + state.beyond) for state in states.values()) / max(1, total)
    cut = next((file for file, state in states.items() if state.cut), None)
    unknown = next((file for file, state in states.items() if state.lost == 1.0), None)
    if cut or lost > lost_share or (unknown and lost_share < 1):
        first = cut or unknown or next(iter(words))
        more = f" (and {len(words) - 1} more shards)" if len(words) > 1 else ""
        raise UserError(f"{words[first]}{more}. Copy it again, make it anew, or leave it out.")
    for text in words.values():
        note(f"{text}; the rest is read")


def _words(file: Path, state: ShardState) -> str:
    if state.cut:
        return f"{file}: damaged, cut short in the middle of file {state.files + 1:,}"
    if state.damage is not None:
        behind = f", and {state.beyond:,} more lie behind it" if state.beyond else ""
        return f"{file}: the header of file {state.files + 1:,} is damaged (byte {state.damage:,}){behind}"
    if not state.ended:
        return f"{file}: damaged, cut short: the mark of a tar's end is missing after {state.files:,} files"
    return f"{file}: {state.beyond:,} files lie behind the mark of its end, where {state.files:,} come before it"


@lru_cache(maxsize=100_000)
def scan(file: Path, size: int, changed: int) -> ShardState:
    """Read all headers of a tar of this size, changed at that time (both name its content), and none of its files."""
    if size == 0:
        return ShardState(0, 0, None, False, True)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        files, place = 0, 0
        while place + _BLOCK <= size:
            header = content[place : place + _BLOCK]
            if header == _NOTHING:
                return ShardState(files, _whole_headers(content, place, size), None, True, False)
            length = _length(header)
            if length is None:
                return ShardState(files, _whole_headers(content, place + _BLOCK, size), place, False, False)
            place += _BLOCK + -(-length // _BLOCK) * _BLOCK
            if place > size:
                return ShardState(files, 0, None, False, True)
            files += header[156] in _FILES
        return ShardState(files, 0, None, False, False)


def _whole_headers(content: mmap.mmap, start: int, size: int) -> int:
    """Files whose headers are whole from ``start`` on, whatever lies between them."""
    return sum(header[156] in _FILES for header in _headers_behind(content, start, size))


def _headers_behind(content: mmap.mmap, start: int, size: int) -> Iterator[bytes]:
    # Not block by block, which would take minutes of a large shard: the magic word stands at byte 257 of a header.
    found = content.find(b"ustar", start)
    while found >= 0:
        place = found - 257
        header = content[place : place + _BLOCK] if place >= start and place % _BLOCK == 0 else b""
        length = _length(header) if len(header) == _BLOCK else None
        if length is not None:
            yield header
            place += _BLOCK + -(-length // _BLOCK) * _BLOCK
        found = content.find(b"ustar", max(found + 1, place if length is not None else 0))
        if found >= size:
            return


def _length(header: bytes) -> int | None:
    """Bytes of the member that this header belongs to; None where its checksum says that it is damaged."""
    try:
        claimed = int(header[_CHECKSUM].split(b"\0")[0].strip() or b"0", 8)
        if claimed != sum(header) - sum(header[_CHECKSUM]) + 8 * ord(" "):
            return None
        if header[124] & 0x80:  # more than eight gigabytes: a binary number
            return int.from_bytes(header[125:136], "big")
        return int(header[124:136].split(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        return None
