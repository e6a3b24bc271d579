"""WebDataset tars, read in place; remote ones are downloaded to the user's cache folder first.

A damaged header is reported: other readers take it for the end of the file.
"""

import errno
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from recollect.core.errors import UserError, one_line, user_errors
from recollect.core.files import FullDiskError, atomic_path, locked, make_folder, read_json, write_json
from recollect.core.paths import cache_folder
from recollect.core.progress import note, progress
from recollect.data.sources.remote import AbsentFileError, download, is_address, version_of

MOST_OPEN = 64
"""Row groups or tars that a process keeps open: those of one stretch of a run and of the start of the next."""

DAMAGE = "__damage__"
"""What is wrong with a sample; absent or empty if nothing is."""

_BLOCK = tarfile.BLOCKSIZE

_SIZES = "sizes.json"
"""WebDataset's name for the file next to shards that lists the number of samples in each."""

_LOCAL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES})
"""Errors of the cache folder; all others come from the server."""

_TEXT_SUFFIXES = frozenset({"txt", "text", "json", "cls"})


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
        columns: what the files of its samples are called behind the first dot.
        files: files that a reader of tars reaches.
        lost: files that it does not reach; -1 if their number is unknown, because the end is missing.
        cut: whether the tar ends within a file or its padding, so that no reader opens it.
        damage: what is wrong with it; empty if nothing is.
    """

    samples: int
    columns: tuple[str, ...]
    files: int
    lost: int = 0
    cut: bool = False
    damage: str = ""


def read_shard(file: BinaryIO, size: int) -> tuple[MemberRows, ShardState]:
    """Read all headers of an open tar.

    Args:
        size: of the file, in bytes.

    Raises:
        tarfile.ReadError: it is not a tar.
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
    read = len(rows), tuple(sorted({member.column for row in rows for member in row})), files
    if cut:
        return rows, ShardState(*read, -1, True, f"damaged, cut short in the middle of file {files + 1:,}")
    file.seek(place)
    header = file.read(_BLOCK)
    if len(header) < _BLOCK:
        return rows, ShardState(*read, -1, False, f"damaged, cut short: no end mark after {files:,} files")
    beyond = _count_files(file)
    if any(header):
        if not files and not beyond:
            raise tarfile.ReadError("no readable header")
        more = f", and {beyond:,} more follow it" if beyond else ""
        damage = f"the header of file {files + 1:,} is damaged (byte {place:,}){more}"
        return rows, ShardState(*read, beyond + 1, False, damage)
    damage = f"{beyond:,} files follow the end mark, {files:,} come before it" if beyond else ""
    return rows, ShardState(*read, beyond, False, damage)


def _count_files(file: BinaryIO) -> int:
    """Number of files with intact headers from the current position on, skipping anything else."""
    count = 0
    with suppress(tarfile.ReadError), tarfile.open(fileobj=file, mode="r:", ignore_zeros=True) as archive:
        for member in archive:
            count += member.isfile()
            archive.members = []  # type: ignore[attr-defined]
    return count


def _shard_state(tar: Path) -> ShardState:
    """The state of a tar, kept in the user's cache folder until the file changes."""
    about = tar.stat()
    stamp = repr((str(tar.resolve()), about.st_size, about.st_mtime_ns, about.st_ctime_ns))
    cached = cache_folder() / "shards" / f"{_digest(stamp)}.json"
    with suppress(OSError, UserError, TypeError, KeyError):  # absent or damaged: read the tar again
        kept = read_json(cached)
        if kept["digest"] == _digest(json.dumps(kept["state"])):
            return ShardState(**kept["state"] | {"columns": tuple(kept["state"]["columns"])})
    with user_errors(f"{tar}: damaged, or not a tar", OSError, tarfile.TarError), tar.open("rb") as file:
        _, state = read_shard(file, about.st_size)
    with suppress(OSError, UserError):  # no room: it will be read again
        write_json(cached, {"state": asdict(state), "digest": _digest(json.dumps(asdict(state)))})
    return state


def check_shards(files: Sequence[Path], lost_share: float) -> list[ShardState]:
    """Report what is lost in each tar, and return their states.

    Raises:
        UserError: more than ``lost_share`` of all files is lost, an unknown share is, or a tar ends within a file.
    """
    states = []
    with progress("check shards", len(files), "shards", shown=len(files) > 8) as counter:
        for file in files:
            states.append(_shard_state(file))
            counter.advance()
    damaged = [(state, f"{file}: {state.damage}") for file, state in zip(files, states, strict=True) if state.damage]
    lost = sum(max(0, state.lost) for state in states)
    total = lost + sum(state.files for state in states)
    unknown = lost_share < 1 and any(state.lost < 0 for state in states)
    if unknown or any(state.cut for state in states) or lost > lost_share * total:
        _, first = next((each for each in damaged if each[0].cut or each[0].lost < 0), damaged[0])
        more = f" (and {len(damaged) - 1} more shards)" if len(damaged) > 1 else ""
        raise UserError(f"{first}{more}. Copy or create it again, or leave it out.")
    for _, text in damaged:
        note(f"{text}; the rest is read")
    return states


class TarRows:
    """The samples of an open tar. It stays readable if another process removes it from the cache folder."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.samples, _ = read_shard(file, os.fstat(file.fileno()).st_size)

    def __call__(self, row: int) -> dict[str, Any]:
        """The files of a sample by their columns; if any are damaged, `DAMAGE` says for each column how."""
        if row >= len(self.samples):
            raise IndexError(f"its tar ends after {len(self.samples):,} samples")
        found: dict[str, Any] = {"__key__": self.samples[row][0].key}
        damage: dict[str, str] = {}
        for member in self.samples[row]:
            column, name = member.column, f"{member.key}.{member.column}"
            data = os.pread(self.file.fileno(), member.size, member.offset)  # by any thread
            suffix = column.rpartition(".")[2].lower()
            if column in found:
                damage[column] = f"two files {name}"
            found[column] = data.decode("utf-8", "replace") if suffix in _TEXT_SUFFIXES else data
            if suffix in _TEXT_SUFFIXES and (why := _unreadable(data, suffix)):
                damage.setdefault(column, f"{name} is not {why}")
        return found | ({DAMAGE: damage} if damage else {})


def _unreadable(data: bytes, suffix: str) -> str:
    """What a text file should be and is not; empty if nothing is wrong with it."""
    try:
        text = data.decode()
        if suffix == "json":
            json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"{'UTF-8' if isinstance(error, UnicodeError) else 'JSON'} ({one_line(error)})"
    return ""


def tar_columns(files: Sequence[str]) -> set[str]:
    """The columns of the samples of local tars; none of remote ones, of which nothing is read before it is needed."""
    return {name for file in files if not is_address(file) for name in _shard_state(Path(file)).columns}


def open_tar(file: str, rows: int) -> TarRows:
    """Open a local tar, or download one.

    Args:
        file: path or URL.
        rows: number of samples that it should hold.

    Raises:
        UserError: it holds more samples.
        OSError: it cannot be read.
    """
    opened = _fetched(file) if is_address(file) else Path(file).open("rb")  # noqa: SIM115  TarRows keeps it
    found = TarRows(opened)
    if (count := len(found.samples)) > rows:
        raise UserError(f"{file}: holds {count:,} samples, but {_SIZES} says {rows:,}. Correct that file.")
    return found


def tar_sizes(files: Sequence[str], lost_share: float) -> list[int]:
    """Number of samples in each tar: from `_SIZES` for remote ones, from their headers for local ones.

    Raises:
        UserError: a remote size is unknown, a file is not a tar, or more than ``lost_share`` of the files is lost to
            damage.
    """
    if is_address(files[0]):
        _sizes.cache_clear()
        _version.cache_clear()
        return [_listed_size(file) for file in files]
    return [state.samples for state in check_shards([Path(file) for file in files], lost_share)]


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


def _fetched(file: str) -> BinaryIO:
    """A remote tar in the cache folder, named by its version; the least recently opened tars there are removed."""
    folder = cache_folder() / "streams"
    path = folder / f"{_digest(f'{file} {_version(file)}')}.tar"
    make_folder(folder)
    with locked(folder / f".{path.stem[:2]}.lock"):  # one worker of a machine downloads it
        if not path.exists():
            try:
                with atomic_path(path) as unfinished, unfinished.open("wb") as target:
                    download(file, target)
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
    return opened


_version = lru_cache(4096)(version_of)  # asked once by each process


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=12).hexdigest()


def _last_opened(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process has just removed it
        return 0.0
