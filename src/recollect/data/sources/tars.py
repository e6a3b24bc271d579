"""WebDataset tars whose samples are read where they lie, or in the user's cache folder if that is behind an address."""

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
from typing import Any

from recollect.core.errors import UserError
from recollect.core.files import atomic_path, cache_folder, locked, make_folder, read_json, write_json, write_text
from recollect.core.progress import progress
from recollect.data.sources.remote import AbsentFileError, download, is_address, version_of
from recollect.data.sources.shards import ShardState, scan, weigh_losses

MOST_OPEN = 64
"""Row groups or tars that a process keeps open: what one stretch of a run reads, and the next one's beginning."""

_SIZES = "sizes.json"
"""What WebDataset calls the file beside shards that says how many samples each holds."""

_VERSION = ".version"
"""Ending of the note beside a fetched tar: when its store was last asked, and which version it was."""

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES})

_WORDS = frozenset({"txt", "text", "json", "cls"})
"""Endings of members that are read as text."""


class TarRows:
    """The samples of an open tar. It stays readable when another process removes it from the cache folder."""

    def __init__(self, handle: int, samples: list[list["Member"]]) -> None:
        self.handle, self.samples = handle, samples

    def __call__(self, row: int) -> dict[str, Any]:
        if row >= len(self.samples):
            raise IndexError(f"its tar ends after {len(self.samples):,} samples")
        found: dict[str, Any] = {"__key__": self.samples[row][0].key}
        for member in self.samples[row]:
            data = os.pread(self.handle, member.size, member.offset)
            ending = member.column.rpartition(".")[2].lower()
            found[member.column] = data.decode("utf-8", "replace") if ending in _WORDS else data
        return found

    def __del__(self) -> None:
        os.close(self.handle)


@dataclass(frozen=True)
class Member:
    """A file within a tar: what its name ends with, and where its bytes are."""

    key: str
    column: str
    offset: int
    size: int


def _samples_of(handle: int) -> list[list[Member]]:
    """The members of each sample: files that stand behind each other and share their name up to its first dot."""
    samples: list[list[Member]] = []
    with os.fdopen(os.dup(handle), "rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            folder, _, base = member.name.rpartition("/")
            stem, dot, column = base.partition(".")
            if not member.isfile() or not dot or not stem:
                continue
            key = f"{folder}/{stem}" if folder else stem
            if not samples or samples[-1][0].key != key:
                samples.append([])
            samples[-1].append(Member(key, column, member.offset_data, member.size))
            archive.members = []  # type: ignore[attr-defined]  # tarfile would keep every header it has seen
    return samples


def open_tar(file: str, rows: int, since: float) -> TarRows:
    """Open a tar of this machine, or fetch one.

    Args:
        file: path or address.
        rows: how many samples it is said to hold.
        since: of one that was fetched before this time, its store is asked whether it is still the same.

    Raises:
        UserError: it holds more of them.
        tarfile.TarError, OSError: it is none, or cannot be read.
    """
    handle = _handle(file, since)
    try:
        samples = _samples_of(handle)
        if len(samples) > rows:
            raise UserError(f"{file}: holds {len(samples):,} samples, where {_SIZES} says {rows:,}. Mend that file.")
    except BaseException:
        os.close(handle)
        raise
    return TarRows(handle, samples)


def tar_sizes(files: Sequence[str], lost_share: float) -> list[int]:
    """How many samples each tar holds: as `_SIZES` beside it says, else counted once and kept.

    Raises:
        UserError: nobody says it, a tar is none, or more than ``lost_share`` of the files lie behind damage.
    """
    counts, states = [], {}
    with progress("count samples", len(files), "shards", shown=len(files) > 8) as counter:
        for file in files:
            if is_address(file):
                counts.append(_said(file))
            else:
                count, states[Path(file)] = _counted(Path(file))
                counts.append(count)
            counter.advance(1)
    weigh_losses(states, lost_share)
    return counts


def _said(file: str) -> int:
    folder, _, name = file.rpartition("/")
    place = f"{folder}/{_SIZES}"
    try:
        size = int(_sizes(place)[name])
        if size < 0:
            raise ValueError(f"{size:,}")
        return size
    except (AbsentFileError, OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{file}: how many samples it holds is not said by {place} ({error}). Put that file there (name of each "
            "tar: its samples), or copy the tars here."
        ) from error


@lru_cache(1)
def _sizes(place: str) -> Mapping[str, Any]:
    content = io.BytesIO()
    download(place, content)
    found: Mapping[str, Any] = json.loads(content.getvalue())
    return found


def _counted(tar: Path) -> tuple[int, ShardState]:
    name = hashlib.blake2b(repr(stamp(str(tar))).encode(), digest_size=12).hexdigest()
    kept = cache_folder() / "streams" / f"{name}.json"
    if os.path.exists(kept):
        try:
            found = read_json(kept)
            if found.pop("digest") == _digest(found):
                return int(found["samples"]), ShardState(**found["state"])
        except (UserError, AttributeError, KeyError, TypeError, ValueError):
            pass  # damaged: it is counted again
    try:
        about = tar.stat()
        state = scan(tar, about.st_size, about.st_mtime_ns)
        if state.cut:
            return 0, state
        handle = os.open(tar, os.O_RDONLY)
        try:
            count = len(_samples_of(handle))
        finally:
            os.close(handle)
    except (OSError, tarfile.TarError) as error:
        raise UserError(f"{tar}: damaged, or no tar ({error})") from error
    found = {"samples": count, "state": asdict(state)}
    with suppress(OSError, UserError):  # no room: it is counted again next time
        write_json(kept, {**found, "digest": _digest(found)})
    return count, state


def _digest(found: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(found, sort_keys=True).encode(), digest_size=8).hexdigest()


def stamp(file: str) -> tuple[str, int, int] | str:
    """What changes with a file's content: its size and time; of one behind an address its name must do."""
    if "://" in file:
        return file
    about = Path(file).stat()
    return str(Path(file).resolve()), about.st_size, about.st_mtime_ns


def _handle(file: str, since: float) -> int:
    """A handle of a tar, fetched to the user's cache folder if it lies behind an address; those not opened for longest
    make room."""
    if not is_address(file):
        return os.open(file, os.O_RDONLY)
    folder = cache_folder() / "streams"
    path = folder / f"{hashlib.blake2b(file.encode(), digest_size=12).hexdigest()}.tar"
    make_folder(folder)
    with locked(folder / f".{path.stem[:2]}.lock"):  # the workers of a machine fetch it once
        if not (os.path.exists(path) and _still_the_same(file, path, since)):
            try:
                with atomic_path(path) as unfinished, unfinished.open("wb") as target:
                    version = download(file, target)
                _note_version(path, version)
            except OSError as error:
                if error.errno not in _NO_ROOM:  # of the store
                    raise
                raise UserError(
                    f"{folder}: {file} could not be kept there ({error.strerror}). Make room for {2 * MOST_OPEN} of "
                    "them, or name another folder with RECOLLECT_CACHE."
                ) from error
        os.utime(path)
        handle = os.open(path, os.O_RDONLY)
    for old in sorted(folder.glob("*.tar"), key=_last_opened)[: -2 * MOST_OPEN]:
        old.unlink(missing_ok=True)
        old.with_suffix(_VERSION).unlink(missing_ok=True)
    return handle


def _still_the_same(file: str, path: Path, since: float) -> bool:
    """Whether a fetched tar is what lies behind its address: as noted by this run, or as its store says now."""
    try:
        noted, _, version = path.with_suffix(_VERSION).read_text(encoding="utf-8").partition(" ")
        if float(noted) >= since:
            return True
    except (OSError, ValueError):  # nothing noted, or damaged
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
