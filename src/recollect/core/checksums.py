"""Checksums of files that are written once: a flipped bit is reported, and never becomes a wrong result."""

import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recollect.core.errors import UserError
from recollect.core.files import write_text

CHECKSUMS = "checksums.json"
"""The file in a folder that lists the checksums of the other files."""


def checksum(path: Path) -> int:
    """CRC-32 of the bytes of a file."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(2**22):
            value = zlib.crc32(block, value)
    return value


def note_checksums(folder: Path, files: Iterable[Path], changing: Iterable[Path] = ()) -> None:
    """Write the checksums of files; those known already are not read again.

    Args:
        folder: that gets the list.
        files: below it, each written once and never changed.
        changing: files below it that are written again and again, so that they are always read.
    """
    known, changed = read_checksums(folder), {_name(folder, file) for file in changing}
    found: dict[str, Any] = {}
    for file in (*files, *(folder / name for name in changed)):
        name = _name(folder, file)
        if name in known and name not in changed:
            found[name] = known[name]
        elif file.exists():
            found[name] = {"bytes": file.stat().st_size, "crc32": checksum(file)}
    if found != known:
        write_text(folder / CHECKSUMS, json.dumps({"files": found, "crc32": _of(found)}, indent=0))


def note_whole_folder(folder: Path) -> None:
    """Write the checksums of all files of a folder, but of ``README.md``, which users may edit, and of sub-folders."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.name not in (CHECKSUMS, "README.md"))
    note_checksums(folder, (), files)


def check_checksums(folder: Path) -> None:
    """Compare the files of a folder with their checksums; files that have none, or are not there, are left out.

    Raises:
        UserError: naming a file that was changed or damaged.
    """
    there = [
        name for name in read_checksums(folder) if (folder / name).exists()
    ]  # a hub gives those that are asked for
    if found := damaged_files(folder, there):
        raise UserError(f"{found[0]}. Copy it again, or delete {CHECKSUMS} if the change was intended.")


def damaged_files(folder: Path, names: Iterable[str] | None = None) -> list[str]:
    """One line for each file that differs from its checksum or is gone.

    Args:
        names: only these files; by default every file in the list.
    """
    listed = folder / CHECKSUMS
    if not listed.exists():
        return []
    known, found = _listed(folder), list[str]()
    if known is None:
        return [f"{listed}: is damaged, so the files of this folder cannot be compared with their checksums"]
    for name in known if names is None else names:
        file, noted = folder / name, known.get(name)
        if noted is None:
            continue
        try:
            if file.stat().st_size != noted["bytes"] or checksum(file) != noted["crc32"]:
                found.append(f"{file}: differs from its checksum")
        except OSError as error:
            found.append(f"{file}: cannot be read ({error.strerror})")
    return found


def read_checksums(folder: Path) -> dict[str, Any]:
    """Size and checksum of each file in the list; empty if the list is missing or damaged."""
    return _listed(folder) or {}


def _listed(folder: Path) -> dict[str, Any] | None:
    """The list; None where it is missing or damaged."""
    try:
        found = json.loads((folder / CHECKSUMS).read_text())
        return dict(found["files"]) if found["crc32"] == _of(found["files"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _of(files: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(files, sort_keys=True).encode())


def _name(folder: Path, file: Path) -> str:
    return file.relative_to(folder).as_posix()
