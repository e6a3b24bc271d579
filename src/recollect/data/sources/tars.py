"""WebDataset tars, read in place; remote tars are first downloaded to the user's cache folder.

Damaged headers are reported, while other readers treat them as the end of the file.
"""

import errno
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

from recollect.core.content import hash_of, modification_hash
from recollect.core.errors import UserError, one_line, user_errors
from recollect.core.files import FullDiskError, atomic_path, locked, make_folder, read_json, write_json
from recollect.core.paths import cache_folder
from recollect.core.progress import note, progress
from recollect.data.sources.remote import AbsentFileError, download, is_address, version_of

MAX_OPEN = 64
"""Maximum number of row groups or tars that a process keeps open, enough for one stretch and the start of the next."""

DAMAGE_KEY = "__damage__"
"""Column that describes a sample's damage; missing or empty if the sample is intact."""

_BLOCK = tarfile.BLOCKSIZE

_SIZES_FILE = "sizes.json"
"""WebDataset's file with the number of samples in each shard of a folder."""

_CACHE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES})
"""Errors of the cache folder; all others are attributed to the server."""

_TEXT_SUFFIXES = frozenset({"txt", "text", "caption", "json", "cls"})


@dataclass(frozen=True)
class Member:
    """File in a tar: its column (suffix in lower case, as in WebDataset) and the location of its bytes."""

    key: str
    column: str
    offset: int
    size: int


MemberRows = list[list[Member]]
"""Files of each sample: consecutive members with the same name up to the first dot."""


@dataclass(frozen=True)
class ShardState:
    """Contents and damage of a tar.

    Attributes:
        samples: number of complete samples.
        columns: names of its files after the first dot.
        files: number of readable files.
        lost: number of files lost to damage; -1 if unknown because the end is missing.
        cut: whether the tar ends inside a file or its padding, which makes it unreadable.
        damage: description of the damage; empty if the tar is intact.
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
        file: the open tar.
        size: size of the file in bytes.

    Raises:
        tarfile.ReadError: the file is not a tar.
    """
    rows: MemberRows = []
    files, end, cut = 0, 0, size == 0
    with suppress(tarfile.ReadError), tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            if cut := archive.offset > size:
                break
            end = archive.offset
            archive.members = []  # type: ignore[attr-defined]  # tarfile would keep all headers in memory
            files += member.isfile()
            folder, _, base = member.name.rpartition("/")
            stem, dot, column = base.partition(".")
            if not member.isfile() or not dot or not stem:
                continue
            key = f"{folder}/{stem}" if folder else stem
            if not rows or rows[-1][0].key != key:
                rows.append([])
            rows[-1].append(Member(key, column.lower(), member.offset_data, member.size))
    read = len(rows), tuple(sorted({member.column for row in rows for member in row})), files
    if cut:
        return rows, ShardState(*read, -1, True, f"damaged, cut short in the middle of file {files + 1:,}")
    file.seek(end)
    header = file.read(_BLOCK)
    if len(header) < _BLOCK:
        return rows, ShardState(*read, -1, False, f"damaged, cut short: no end mark after {files:,} files")
    beyond = _count_files(file)
    if any(header):
        if not files and not beyond:
            raise tarfile.ReadError("no readable header")
        more = f", and {beyond:,} more follow it" if beyond else ""
        damage = f"the header of file {files + 1:,} is damaged (byte {end:,}){more}"
        return rows, ShardState(*read, beyond + 1, False, damage)
    damage = f"{beyond:,} files follow the end mark, after {files:,} before it" if beyond else ""
    return rows, ShardState(*read, beyond, False, damage)


def _count_files(file: BinaryIO) -> int:
    """Count files with intact headers from the current position, skipping anything else."""
    count = 0
    with suppress(tarfile.ReadError), tarfile.open(fileobj=file, mode="r:", ignore_zeros=True) as archive:
        for member in archive:
            count += member.isfile()
            archive.members = []  # type: ignore[attr-defined]
    return count


def _shard_state(tar: Path) -> ShardState:
    """Return the state of a tar, cached in the user's cache folder until the file changes."""
    path = cache_folder() / "shard-states" / f"{modification_hash([tar])}.json"
    with suppress(OSError, UserError, TypeError, KeyError):  # missing or damaged: read the tar again
        cached = read_json(path)
        if cached["digest"] == hash_of(json.dumps(cached["state"])):
            return ShardState(**cached["state"] | {"columns": tuple(cached["state"]["columns"])})
    with user_errors(f"{tar}: damaged, or not a tar", OSError, tarfile.TarError), tar.open("rb") as file:
        _, state = read_shard(file, tar.stat().st_size)
    with suppress(OSError, UserError):  # disk full: read it again next time
        write_json(path, {"state": asdict(state), "digest": hash_of(json.dumps(asdict(state)))})
    return state


def check_shards(files: Sequence[Path], lost_share: float) -> list[ShardState]:
    """Report the files lost in each tar, and return the states of the tars.

    Raises:
        UserError: more than ``lost_share`` of all files are lost, their number is unknown, or a tar ends inside a file.
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
        note(f"{text}; reading the rest")
    return states


class TarRows:
    """Samples of an open tar, which stays readable if another process removes it from the cache folder."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.samples, _ = read_shard(file, os.fstat(file.fileno()).st_size)

    def __call__(self, row: int) -> dict[str, Any]:
        """Return the files of a sample by column, with errors by column in `DAMAGE_KEY`, if any."""
        if row >= len(self.samples):
            raise IndexError(f"its tar ends after {len(self.samples):,} samples")
        sample: dict[str, Any] = {"__key__": self.samples[row][0].key}
        damage: dict[str, str] = {}
        for member in self.samples[row]:
            column, name = member.column, f"{member.key}.{member.column}"
            data = os.pread(self.file.fileno(), member.size, member.offset)  # thread-safe, unlike seek and read
            suffix = column.rpartition(".")[2]
            if column in sample:
                damage[column] = f"two files {name}"
            sample[column] = data.decode("utf-8-sig", "replace") if suffix in _TEXT_SUFFIXES else data
            if suffix in _TEXT_SUFFIXES and (error := _format_error(data, suffix)):
                damage.setdefault(column, f"{name} is not {error}")
        return sample | ({DAMAGE_KEY: damage} if damage else {})


def _format_error(data: bytes, suffix: str) -> str:
    """Return the format that a text file violates, with details; empty if the file is valid."""
    try:
        text = data.decode("utf-8-sig")
        if suffix == "json":
            json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"{'UTF-8' if isinstance(error, UnicodeError) else 'JSON'} ({one_line(error)})"
    return ""


def tar_columns(files: Sequence[str]) -> set[str]:
    """Return the columns of local tars; remote tars are skipped because they are downloaded only when needed."""
    return {name for file in files if not is_address(file) for name in _shard_state(Path(file)).columns}


def open_tar(file: str, rows: int) -> TarRows:
    """Open a local tar, or download one.

    Args:
        file: path or URL.
        rows: expected number of samples.

    Raises:
        UserError: the tar contains more samples.
        OSError: the tar cannot be read.
    """
    opened = _open_cached(file) if is_address(file) else Path(file).open("rb")  # noqa: SIM115  TarRows keeps it open
    tar = TarRows(opened)
    if (count := len(tar.samples)) > rows:
        raise UserError(f"{file}: contains {count:,} samples, but {_SIZES_FILE} says {rows:,}. Correct {_SIZES_FILE}.")
    return tar


def tar_sizes(files: Sequence[str], lost_share: float) -> list[int]:
    """Return the number of samples in each tar, from `_SIZES_FILE` for remote tars and from headers for local ones.

    Raises:
        UserError: a remote size is unknown, a file is not a tar, or more than ``lost_share`` of the files are lost to
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
        return int(_sizes(f"{folder}/{_SIZES_FILE}")[name])
    except (AbsentFileError, OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{file}: {folder}/{_SIZES_FILE} does not list its number of samples ({one_line(error)}). Add it "
            "(name of each tar: number of samples), or download the tars."
        ) from error


@lru_cache(1)
def _sizes(place: str) -> Mapping[str, Any]:
    content = io.BytesIO()
    download(place, content)
    sizes: Mapping[str, Any] = json.loads(content.getvalue())
    return sizes


def _open_cached(file: str) -> BinaryIO:
    """Open a remote tar from the cache folder, downloading it if needed and removing the least recently opened tars."""
    folder = cache_folder() / "streams"
    path = folder / f"{hash_of(f'{file} {_version(file)}')}.tar"
    make_folder(folder)
    with locked(folder / f".{path.stem[:2]}.lock"):  # only one process per machine downloads it
        if not path.exists():
            try:
                with atomic_path(path) as unfinished, unfinished.open("wb") as target:
                    download(file, target)
            except OSError as error:
                if not isinstance(error, FullDiskError) and error.errno not in _CACHE_ERRNOS:
                    raise
                raise UserError(
                    f"{folder}: {file} cannot be stored ({error.strerror}). Free space for {2 * MAX_OPEN} tars, or "
                    "set RECOLLECT_CACHE to another folder."
                ) from error
        os.utime(path)
        opened = path.open("rb")
    for old in sorted(folder.glob("*.tar"), key=_last_opened)[: -2 * MAX_OPEN]:
        old.unlink(missing_ok=True)
    return opened


_version = lru_cache(4096)(version_of)  # one request per file and process


def _last_opened(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # removed by another process
        return 0.0
