"""Checksums of files that are written once: a flipped bit is reported, and never becomes a wrong result."""

import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recollect.core.errors import UserError
from recollect.core.files import write_text
from recollect.core.validation import refuse

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


_FILES, _OWN, _CARD = "files", "checksum", "README.md"


def sealed(record: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A record with the CRC-32 of itself and of every file in its folder, except ``README.md``, which users may edit.

    Args:
        record: will be written to the folder as JSON.
        folder: with its other files; those in sub-folders are not included.
    """
    sums = {
        file.name: f"{checksum(file):08x}" for file in sorted(folder.iterdir()) if file.is_file() and file.name != _CARD
    }
    whole = {**record, _FILES: sums}
    return {**whole, _OWN: _own(whole)}


def unsealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record without the checksums that `sealed` added."""
    return {name: value for name, value in record.items() if name not in (_FILES, _OWN)}


def check_seal(record: Any, file: Path) -> None:
    """Check a record and the files of its folder against their checksums; files that have none are trusted.

    Args:
        record: as read from ``file``.
        file: its path.

    Raises:
        UserError: naming the file that was changed or damaged.
    """
    if not isinstance(record, Mapping):
        raise UserError(f"{file}: not a record of recollect. Copy the folder again.")
    damaged = "was changed or damaged (its checksum differs). Copy it again"
    own = _own(record)
    refuse((record.get(_OWN, own) != own, f"{file}: {damaged}."))
    for name, written in record.get(_FILES, {}).items():
        place = file.parent / name
        changed = place.is_file() and f"{checksum(place):08x}" != written
        refuse(
            (changed, f"{place}: {damaged}, or remove '{_FILES}' and '{_OWN}' from {file.name} if that was intended.")
        )


def _own(record: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in record.items() if key != _OWN}
    return f"{zlib.crc32(json.dumps(rest, sort_keys=True).encode()):08x}"
