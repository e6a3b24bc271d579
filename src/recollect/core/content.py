"""What files hold, as one short text that changes with it."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from recollect.core.errors import UserError
from recollect.core.files import atomic_path
from recollect.core.paths import cache_folder
from recollect.core.progress import progress

_WHOLE = 256 * 2**20
_THOROUGH = 16 * 2**30
_MOST_FILES = 16_384
_AT_ONCE = 2**20
_PROBES = 16
_PROBE = 2**16
_MOST_PROBES = 1024


def content_hash(files: Sequence[Path]) -> str:
    """A hash of what the files hold, for caches: as `portable_hash`, and of the times of change of large files.

    Reading a hundred gigabytes at every start would take minutes.
    """
    times = () if reads_whole(files) else [file.stat().st_mtime_ns for file in files]
    return _digest(f"{portable_hash(files)} {times}")


def portable_hash(files: Sequence[Path]) -> str:
    """A hash of what the files hold that a copy of them shares: of no folder and no time.

    All bytes up to 256 MiB in total. Beyond, every size, and 1,024 blocks of 64 KiB: of each file the first, the last
    and up to 14 between; where there are more than 512 files, the ends of that many, spread evenly. A change of a few
    bytes in between is then not seen; `whole_hash` sees it.
    """
    sizes = [file.stat().st_size for file in files]
    names = "".join(f"{file.name}\0{size}\0" for file, size in zip(files, sizes, strict=True))
    digest, whole = hashlib.blake2b(names.encode(errors="surrogateescape"), digest_size=16), sum(sizes) <= _WHOLE
    probes = max(2, min(_PROBES, _MOST_PROBES // max(1, len(files))))
    step = 1 if whole else max(1, -(-len(files) * probes // _MOST_PROBES))
    for file, size in list(zip(files, sizes, strict=True))[::step]:
        with _read(digest), file.open("rb") as opened:
            if whole or size <= probes * _PROBE:
                digest.update(opened.read())
                continue
            for probe in range(probes):
                opened.seek((size - _PROBE) * probe // (probes - 1))
                digest.update(opened.read(_PROBE))
    return digest.hexdigest()


def reads_whole(files: Sequence[Path]) -> bool:
    """Whether `portable_hash` reads every byte of these files."""
    return sum(file.stat().st_size for file in files) <= _WHOLE


def whole_hash(files: Sequence[Path], name: str = "files") -> str | None:
    """A hash of all bytes of large files, which a copy of them shares; None for more than 16 GiB or 16,384 files.

    It is cached by paths, sizes, times of change and inodes, so unchanged files are read once: a second for each
    gigabyte or two.

    Args:
        name: what to call them while they are read.
    """
    stamps = [_stamp(file) for file in files]
    total = sum(size for _, size, *_ in stamps)
    if total > _THOROUGH or len(files) > _MOST_FILES:
        return None
    kept = cache_folder() / "digests" / f"{_digest(repr(stamps))}.txt"
    with suppress(OSError, ValueError):
        if re.fullmatch(r"[0-9a-f]{32}", found := kept.read_text(encoding="ascii")):
            return found
    digest = hashlib.blake2b(digest_size=16)
    with progress(f"check {name} once", total // 2**20, "MiB") as counter:
        for file, (_, size, *_) in zip(files, stamps, strict=True):
            digest.update(f"{file.name}\0{size}\0".encode(errors="surrogateescape"))
            with _read(digest), file.open("rb") as opened:
                while block := opened.read(_AT_ONCE):
                    digest.update(block)
                    counter.advance(len(block) / 2**20)
    if [_stamp(file) for file in files] == stamps:  # unchanged meanwhile
        with suppress(OSError, UserError), atomic_path(kept) as unfinished:  # no room: it is made again next time
            unfinished.write_text(digest.hexdigest(), encoding="ascii")
    return digest.hexdigest()


def written_hash(files: Sequence[Path]) -> str:
    """A hash that changes whenever one of these files is written to: of paths, sizes, times of change and inodes."""
    return _digest(repr([_stamp(file) for file in files]))


@contextmanager
def _read(digest: "hashlib.blake2b") -> Iterator[None]:
    """Hash the error of a file that cannot be read; opening the file reports it."""
    try:
        yield
    except OSError as error:
        digest.update(f"\0{error.errno}\0".encode())


def _stamp(file: Path) -> tuple[str, int, int, int, int]:
    status = file.stat()
    return str(file.absolute()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=16).hexdigest()
