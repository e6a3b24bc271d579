"""WebDataset tars that are read in place; remote ones are downloaded to the user's cache folder first."""

import errno
import hashlib
import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from recollect.core.errors import UserError, one_line
from recollect.core.files import FullDiskError, atomic_path, locked, make_folder, write_text
from recollect.core.paths import cache_folder
from recollect.data.sources.remote import AbsentFileError, download, is_address, version_of
from recollect.data.sources.shards import check_shards, read_shard

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
