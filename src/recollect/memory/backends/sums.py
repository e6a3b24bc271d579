"""Checksums of files that are written once: Lance keeps none of its own, and a flipped bit is a wrong vector."""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recollect.core.files import write_json

_SUMS = "checksums.json"
_WRITTEN_ONCE = {".lance", ".arrow", ".bin", ".manifest"}


def checksum(path: Path) -> int:
    """CRC-32 of a file's bytes."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(2**20):
            value = zlib.crc32(block, value)
    return value


def note_sums(memory: Path, table: Path) -> None:
    """Write down the checksums of a table's files that are new, and forget those of files that are gone.

    A disk that is full costs the checksums, not the rows: they are written down with the next change.
    """
    known, there = _read(memory), {file.relative_to(table).as_posix(): file for file in _files(table)}
    if known.keys() == there.keys():
        return
    try:
        found = {name: known.get(name) or {"bytes": file.stat().st_size, "crc32": checksum(file)}
                 for name, file in there.items()}  # fmt: skip
        write_json(memory / _SUMS, found)
    except OSError:
        return


def damaged_files(memory: Path, table: Path) -> list[str]:
    """Files that are not as they were written, a line each; those that nobody has a checksum of are passed over."""
    known = _read(memory)
    found = []
    if not known and (memory / _SUMS).exists():
        found.append(f"{memory / _SUMS}: cannot be read, so the table's files were not compared with their checksums")
    for name, noted in known.items():
        file = table / name
        try:
            same = file.stat().st_size == noted["bytes"] and checksum(file) == noted["crc32"]
        except FileNotFoundError:
            continue  # of a version that was removed; the table itself knows what it needs
        except (OSError, KeyError, TypeError) as error:
            found.append(f"{file}: cannot be read ({error})")
            continue
        if not same:
            found.append(f"{file}: differs from its checksum")
    return found


def _files(table: Path) -> Iterator[Path]:
    """What is never written twice: rows, notes of deleted ones, and versions."""
    for folder in ("data", "_deletions", "_versions"):
        yield from (file for file in (table / folder).glob("*") if file.suffix in _WRITTEN_ONCE)


def _read(memory: Path) -> dict[str, Any]:
    try:
        found = json.loads((memory / _SUMS).read_text())
    except (OSError, ValueError):
        return {}  # none was written yet; or it is damaged itself, which costs no row
    return found if isinstance(found, dict) else {}
