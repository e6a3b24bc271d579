"""Checksums of the files of a memory: Lance keeps none of its own, and a flipped bit would be a wrong vector."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from recollect.core.checksums import CHECKSUMS, checksum, damaged_files, note_checksums, read_checksums

_VERSIONS, _HINT = "_versions", "latest_version_hint.json"


def note_sums(memory: Path, table: Path) -> None:
    """Write down the checksums of a table's new files, and forget those of files that are gone.

    On a full disk they are written with the next change.
    """
    hint = table / _VERSIONS / _HINT
    with suppress(OSError):
        note_checksums(memory, [file for file in _files(table) if file != hint], [hint])


def damaged_table(memory: Path, table: Path) -> list[str]:
    """Files of a memory that differ from their checksums, a line each, without opening its table."""
    if old := _older_list(memory):
        there = {table / name: noted for name, noted in old.items() if (table / name).exists()}
        found = [
            f"{file}: differs from its checksum" for file, noted in there.items() if checksum(file) != noted["crc32"]
        ]
    else:  # files may be gone with their version: the table itself knows which it needs
        hint = (table / _VERSIONS / _HINT).relative_to(memory).as_posix()
        known = read_checksums(memory)
        found = damaged_files(memory, [name for name in known if name != hint and (memory / name).exists()] or None)
        # A process that was killed after a commit has changed the hint and not the list, which lacks its manifest, too.
        changed = damaged_files(memory, [hint] if hint in known and (memory / hint).exists() else [])
        newest = [file.relative_to(memory).as_posix() for file in _manifests(table)[:1]]
        found += changed if newest and newest[0] in known else []
    for part in sorted((memory / "cache").glob("*/")):
        found += damaged_files(part)
    return found


def damaged_version(memory: Path, table: Path, version: int | None) -> list[str]:
    """Whether the file that lists what a version holds differs from its checksum; reading a damaged one, Lance panics.

    Args:
        version: the newest by default.
    """
    if _older_list(memory):
        return []
    wanted = _manifests(table)[:1] if version is None else [table / _VERSIONS / f"{2**64 - 1 - version}.manifest"]
    return damaged_files(memory, [file.relative_to(memory).as_posix() for file in wanted if file.exists()])


def _manifests(table: Path) -> list[Path]:
    """Of every version, the newest first."""
    return sorted((table / _VERSIONS).glob("*.manifest"))


def _files(table: Path) -> Iterator[Path]:
    yield from sorted(file for file in table.rglob("*") if file.is_file() and not file.name.startswith("."))


def _older_list(memory: Path) -> dict[str, Any]:
    """The list of a memory that was last written before the list had a checksum of its own."""
    try:
        found = json.loads((memory / CHECKSUMS).read_text())
        return found if all(isinstance(noted, dict) and "bytes" in noted for noted in found.values()) else {}
    except (OSError, ValueError, AttributeError):
        return {}
