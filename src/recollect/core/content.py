"""Hashes of contents."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from recollect.core.errors import UserError
from recollect.core.files import atomic_path
from recollect.core.paths import cache_folder
from recollect.core.progress import progress

_MAX_FULL_READ = 256 * 2**20  # bytes; larger sets of files are sampled by `portable_hash`
_MAX_BYTES, _MAX_FILES = 16 * 2**30, 16_384  # limits of `full_hash`
_CHUNK = 2**20
_PROBE_SIZE = 2**16
_PROBES_PER_FILE, _MAX_PROBES = 16, 1024


def content_hash(files: Sequence[Path]) -> str:
    """Return a hash of the contents for cache keys: `portable_hash`, plus modification times of large files.

    Reading a hundred gigabytes at every start would take minutes.
    """
    times = () if reads_every_byte(files) else [file.stat().st_mtime_ns for file in files]
    return hash_of(f"{portable_hash(files)} {times}")


def portable_hash(files: Sequence[Path]) -> str:
    """Return a hash of names and contents, independent of folders and modification times.

    Up to 256 MiB in total, all bytes are hashed. Beyond that, the hash covers every size and about 1,024 blocks of
    64 KiB: the first, the last and up to 14 in between of each file, or the first and last of 512 evenly spaced files
    if there are more. This can miss a change of a few bytes; `full_hash` does not.
    """
    sizes = [file.stat().st_size for file in files]
    names = "".join(f"{file.name}\0{size}\0" for file, size in zip(files, sizes, strict=True))
    digest = hashlib.blake2b(names.encode(errors="surrogateescape"), digest_size=16)
    whole = sum(sizes) <= _MAX_FULL_READ
    probes = max(2, min(_PROBES_PER_FILE, _MAX_PROBES // max(1, len(files))))
    step = 1 if whole else max(1, -(-len(files) * probes // _MAX_PROBES))
    for file, size in list(zip(files, sizes, strict=True))[::step]:
        with _hash_errors(digest), file.open("rb") as opened:
            if whole or size <= probes * _PROBE_SIZE:
                digest.update(opened.read())
                continue
            for probe in range(probes):
                opened.seek((size - _PROBE_SIZE) * probe // (probes - 1))
                digest.update(opened.read(_PROBE_SIZE))
    return digest.hexdigest()


def reads_every_byte(files: Sequence[Path]) -> bool:
    """Whether `portable_hash` reads every byte of these files."""
    return sum(file.stat().st_size for file in files) <= _MAX_FULL_READ


def full_hash(files: Sequence[Path], name: str = "files") -> str | None:
    """Return a hash of all bytes, equal for copies; None for more than 16 GiB or 16,384 files.

    The hash is cached by path, size, modification and change times and inode, so unchanged files are read only once, at
    1–2 GB/s.

    Args:
        name: name of the files in the progress bar.
    """
    stamps = [_stamp(file) for file in files]
    total = sum(size for _, size, *_ in stamps)
    if total > _MAX_BYTES or len(files) > _MAX_FILES:
        return None
    cached = cache_folder() / "digests" / f"{hash_of(repr(stamps))}.txt"
    with suppress(OSError, ValueError):
        if re.fullmatch(r"[0-9a-f]{32}", found := cached.read_text(encoding="ascii")):
            return found
    digest = hashlib.blake2b(digest_size=16)
    with progress(f"check {name} once", total // 2**20, "MiB") as counter:
        for file, (_, size, *_) in zip(files, stamps, strict=True):
            digest.update(f"{file.name}\0{size}\0".encode(errors="surrogateescape"))
            with _hash_errors(digest), file.open("rb") as opened:
                while block := opened.read(_CHUNK):
                    digest.update(block)
                    counter.advance(len(block) / 2**20)
    if [_stamp(file) for file in files] == stamps:  # unchanged meanwhile
        with suppress(OSError, UserError), atomic_path(cached) as unfinished:  # if the disk is full, it is not cached
            unfinished.write_text(digest.hexdigest(), encoding="ascii")
    return digest.hexdigest()


def modification_hash(files: Sequence[Path]) -> str:
    """Return a hash of paths, sizes, times and inodes, which changes whenever a file is written.

    The change time is included because the modification time can be set back.
    """
    return hash_of(repr([_stamp(file) for file in files]))


@contextmanager
def _hash_errors(digest: "hashlib.blake2b") -> Iterator[None]:
    """Hash the error code of an unreadable file instead of raising; whoever opens the file reports the error."""
    try:
        yield
    except OSError as error:
        digest.update(f"\0{error.errno}\0".encode())


def _stamp(file: Path) -> tuple[str, int, int, int, int]:
    status = file.stat()
    return str(file.absolute()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def hash_of(content: str | bytes, size: int = 16) -> str:
    """Return a hash of a text or of bytes as hexadecimal digits; texts may contain file names that are not UTF-8.

    Args:
        size: number of bytes of the hash.
    """
    data = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    return hashlib.blake2b(data, digest_size=size).hexdigest()
