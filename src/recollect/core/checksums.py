"""Checksums of files, so that corruption is reported instead of giving a wrong result."""

import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recollect.core.errors import UserError
from recollect.core.files import write_text

CHECKSUMS = "checksums.json"
"""Name of the file that lists the checksums of the other files in its folder."""


def checksum(path: Path) -> int:
    """Return the CRC-32 of a file."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(2**22):
            value = zlib.crc32(block, value)
    return value


def write_checksums(folder: Path, files: Iterable[Path], changing: Iterable[Path] = ()) -> None:
    """Write the checksum list of a folder, reading only new and ``changing`` files.

    Args:
        folder: folder to write the list to.
        files: files below ``folder`` that never change after they are written.
        changing: files below ``folder`` that may have changed, and are always read.
    """
    known, changed = read_checksums(folder), {_name(folder, file) for file in changing}
    found: dict[str, Any] = {}
    for file in (*files, *(folder / name for name in sorted(changed))):
        name = _name(folder, file)
        if name in known and name not in changed:
            found[name] = known[name]
        elif file.exists():
            found[name] = {"bytes": file.stat().st_size, "crc32": checksum(file)}
    if found != known:
        write_text(folder / CHECKSUMS, json.dumps({"files": found, "crc32": _of(found)}, indent=0))


def write_folder_checksums(folder: Path) -> None:
    """Write the checksums of all files directly in a folder except ``README.md``, which users may edit."""
    files = (file for file in folder.iterdir() if file.is_file() and file.name not in (CHECKSUMS, "README.md"))
    write_checksums(folder, (), files)


def check_checksums(folder: Path) -> None:
    """Check the files of a folder against their checksums, skipping unlisted and missing files.

    Raises:
        UserError: a file was changed or damaged.
    """
    # A hub downloads only the requested files.
    existing = [name for name in read_checksums(folder) if (folder / name).exists()]
    if found := damaged_files(folder, existing):
        raise UserError(f"{found[0]}. Copy it again, or delete {CHECKSUMS} if the change was intended.")


def damaged_files(folder: Path, names: Iterable[str] | None = None) -> list[str]:
    """Return one line for each file that is missing or differs from its checksum.

    Args:
        names: files to check; all listed files by default.
    """
    listed = folder / CHECKSUMS
    if not listed.exists():
        return []
    known, found = _listed(folder), list[str]()
    if known is None:
        return [f"{listed}: damaged, so the files of this folder cannot be checked"]
    for name in known if names is None else names:
        file, expected = folder / name, known.get(name)
        if expected is None:
            continue
        try:
            if file.stat().st_size != expected["bytes"] or checksum(file) != expected["crc32"]:
                found.append(f"{file}: differs from its checksum")
        except OSError as error:
            found.append(f"{file}: cannot be read ({error.strerror})")
    return found


def read_checksums(folder: Path) -> dict[str, Any]:
    """Return the size and checksum of each listed file; empty if the list is missing or damaged."""
    return _listed(folder) or {}


def _listed(folder: Path) -> dict[str, Any] | None:
    """Return the list, or None if it is missing or damaged."""
    try:
        found = json.loads((folder / CHECKSUMS).read_text())
        return dict(found["files"]) if found["crc32"] == _of(found["files"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _of(files: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(files, sort_keys=True).encode())


def _name(folder: Path, file: Path) -> str:
    return file.relative_to(folder).as_posix()
