"""What files hold, as one short text that changes with it."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

_WHOLE = 256 * 2**20
_PROBES = 16
_PROBE = 2**16
_MOST_PROBES = 1024


def content_hash(files: Sequence[Path]) -> str:
    """A hash of what the files hold: all bytes up to 256 MiB in total, else sizes, times and samples of each.

    Reading a hundred gigabytes at every start would cost minutes; beyond the bound a file counts as changed when its
    size, its time of change, or any of 16 blocks spread over it is another.
    """
    sizes = [file.stat().st_size for file in files]
    whole = sum(sizes) <= _WHOLE
    digest = hashlib.blake2b(digest_size=16)
    for file, size in zip(files, sizes, strict=True):
        digest.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as opened:
            if whole:
                digest.update(opened.read())
                continue
            digest.update(str(file.stat().st_mtime_ns).encode())
            for probe in range(_PROBES):
                opened.seek(max(0, size - _PROBE) * probe // (_PROBES - 1))
                digest.update(opened.read(_PROBE))
    return digest.hexdigest()


def portable_hash(files: Sequence[Path]) -> str:
    """A hash of what the files hold that a copy of them shares: of no folder and no time.

    All bytes up to 256 MiB in total. Beyond, every size, and 1,024 blocks of 64 KiB: of each file the first, the last
    and up to 14 between; where there are more than 512 files, the ends of that many, spread evenly. A change of a few
    bytes in between is then not seen.
    """
    sizes = [file.stat().st_size for file in files]
    digest = hashlib.blake2b(digest_size=16)
    for file, size in zip(files, sizes, strict=True):
        digest.update(f"{file.name}\0{size}\0".encode(errors="surrogateescape"))
    whole = sum(sizes) <= _WHOLE
    probes = max(2, min(_PROBES, _MOST_PROBES // max(1, len(files))))
    step = 1 if whole else max(1, -(-len(files) * probes // _MOST_PROBES))
    for file, size in list(zip(files, sizes, strict=True))[::step]:
        with file.open("rb") as opened:
            if whole or size <= probes * _PROBE:
                digest.update(opened.read())
                continue
            for probe in range(probes):
                opened.seek((size - _PROBE) * probe // (probes - 1))
                digest.update(opened.read(_PROBE))
    return digest.hexdigest()
