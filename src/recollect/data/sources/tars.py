"""WebDataset tars, read in place; remote ones are downloaded to the user's cache folder first.

A damaged header is reported: other readers take it for the end of the file.
"""

import errno
import hashlib
import io
import json
import os
import tarfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from recollect.core.errors import UserError, one_line, user_errors
from recollect.core.files import FullDiskError, atomic_path, locked, make_folder, write_json, write_text
from recollect.core.paths import cache_folder
from recollect.core.progress import progress
from recollect.data.sources.images import note
from recollect.data.sources.remote import AbsentFileError, download, is_address, version_of

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


MOST_OPEN = 64
"""Row groups or tars that a process keeps open: those of one stretch of a run and of the start of the next."""

_SIZES = "sizes.json"
"""WebDataset's name for the file next to shards that lists the number of samples in each."""

_VERSION = ".version"
"""Suffix of the file next to a downloaded tar with its version, and when its server was last asked for it."""

_LOCAL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES})
"""Errors of the cache folder; all others come from the server."""

_TEXT_SUFFIXES = frozenset({"txt", "text", "json", "cls"})


class TarRows:
    """The samples of an open tar. It stays readable if another process removes it from the cache folder."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.samples, _ = read_shard(file, os.fstat(file.fileno()).st_size)

    def __call__(self, row: int) -> dict[str, Any]:
        if row >= len(self.samples):
            raise IndexError(f"its tar ends after {len(self.samples):,} samples")
        found: dict[str, Any] = {"__key__": self.samples[row][0].key}
        for member in self.samples[row]:
            data = os.pread(self.file.fileno(), member.size, member.offset)  # by any thread
            suffix = member.column.rpartition(".")[2].lower()
            found[member.column] = data.decode("utf-8", "replace") if suffix in _TEXT_SUFFIXES else data
        return found


def open_tar(file: str, rows: int, since: float) -> TarRows:
    """Open a local tar, or download one.

    Args:
        file: path or URL.
        rows: number of samples that it should hold.
        since: if it was downloaded before this time, ask its server whether it has changed.

    Raises:
        UserError: it holds more samples.
        OSError: it cannot be read.
    """
    opened = _fetched(file, since) if is_address(file) else Path(file).open("rb")  # noqa: SIM115  TarRows keeps it
    found = TarRows(opened)
    if len(found.samples) > rows:
        count = len(found.samples)
        raise UserError(f"{file}: holds {count:,} samples, but {_SIZES} says {rows:,}. Correct that file.")
    return found


def tar_sizes(files: Sequence[str], lost_share: float) -> list[int]:
    """Number of samples in each tar: from `_SIZES` for remote ones, from their headers for local ones.

    Raises:
        UserError: a remote size is unknown, a file is not a tar, or more than ``lost_share`` of the files is lost to
            damage.
    """
    if is_address(files[0]):
        return [_listed_size(file) for file in files]
    return [state.samples for state in check_shards([Path(file) for file in files], lost_share).values()]


def _listed_size(file: str) -> int:
    folder, _, name = file.rpartition("/")
    try:
        return int(_sizes(f"{folder}/{_SIZES}")[name])
    except (AbsentFileError, OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{file}: {folder}/{_SIZES} does not give its number of samples ({one_line(error)}). Add it there (name of "
            "each tar: number of samples), or download the tars."
        ) from error


@lru_cache(1)
def _sizes(place: str) -> Mapping[str, Any]:
    content = io.BytesIO()
    download(place, content)
    found: Mapping[str, Any] = json.loads(content.getvalue())
    return found


def stamp(file: str) -> tuple[str, int, int] | str:
    """Changes with a local file's content: path, size and time. For a remote file, its URL."""
    if is_address(file):
        return file
    about = Path(file).stat()
    return str(Path(file).resolve()), about.st_size, about.st_mtime_ns


def _fetched(file: str, since: float) -> BinaryIO:
    """A remote tar in the cache folder; the least recently opened tars there are removed."""
    folder = cache_folder() / "streams"
    path = folder / f"{hashlib.blake2b(file.encode(), digest_size=12).hexdigest()}.tar"
    make_folder(folder)
    with locked(folder / f".{path.stem[:2]}.lock"):  # one worker of a machine downloads it
        if not (path.exists() and _is_current(file, path, since)):
            try:
                with atomic_path(path) as unfinished, unfinished.open("wb") as target:
                    version = download(file, target)
                _note_version(path, version)
            except OSError as error:
                if not isinstance(error, FullDiskError) and error.errno not in _LOCAL:
                    raise
                raise UserError(
                    f"{folder}: {file} could not be stored ({error.strerror}). Free space for {2 * MOST_OPEN} tars, or "
                    "set RECOLLECT_CACHE to another folder."
                ) from error
        os.utime(path)
        opened = path.open("rb")
    for old in sorted(folder.glob("*.tar"), key=_last_opened)[: -2 * MOST_OPEN]:
        old.unlink(missing_ok=True)
        old.with_suffix(_VERSION).unlink(missing_ok=True)
    return opened


def _is_current(file: str, path: Path, since: float) -> bool:
    """Whether a downloaded tar is still what its server has, as checked by this run or asked now."""
    try:
        checked, _, version = path.with_suffix(_VERSION).read_text(encoding="utf-8").partition(" ")
        if float(checked) >= since:
            return True
    except (OSError, ValueError):  # absent or damaged
        return False
    if version_of(file) != version:
        return False
    _note_version(path, version)
    return True


def _note_version(path: Path, version: str) -> None:
    write_text(path.with_suffix(_VERSION), f"{time.time()} {version}")


def _last_opened(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process has just removed it
        return 0.0
