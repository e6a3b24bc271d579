"""Checksums that the record of a folder keeps of its files and itself: a flipped bit is an error, no other answer."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recollect.core.errors import UserError

_FILES, _OWN, _CARD = "files", "checksum", "README.md"
_AT_ONCE = 2**22


def sealed(record: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A record with the CRC-32 of every file that lies in its folder by now, not below it, and of itself.

    Of a card (``README.md``) there is none: it is for people, who may write in it.

    Args:
        record: what is written as JSON beside the files.
    """
    sums = {file.name: _sum(file) for file in sorted(folder.iterdir()) if file.is_file() and file.name != _CARD}
    whole = {**record, _FILES: sums}
    return {**whole, _OWN: _own(whole)}


def unsealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as it was before `sealed` added checksums."""
    return {name: value for name, value in record.items() if name not in (_FILES, _OWN)}


def check_seal(record: Any, file: Path) -> None:
    """Refuse a record, and files beside it, that are not as they were written; what has no checksum is taken on trust.

    Args:
        record: as it was read.
        file: that it was read from; of its folder only what is there is looked at.

    Raises:
        UserError: naming the file that was changed or damaged.
    """
    if not isinstance(record, Mapping):
        raise UserError(f"{file}: not a record of recollect. Copy the folder again.")
    if record.get(_OWN, own := _own(record)) != own:
        raise UserError(f"{file}: was changed or damaged (its checksum differs). Copy the folder again.")
    for name, written in record.get(_FILES, {}).items():
        place = file.parent / name
        if place.is_file() and _sum(place) != written:
            raise UserError(
                f"{place}: was changed or damaged (its checksum differs). Copy it again; if it was changed on purpose, "
                f"take '{_FILES}' and '{_OWN}' out of {file.name}."
            )


def _own(record: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in record.items() if key != _OWN}
    return f"{zlib.crc32(json.dumps(rest, sort_keys=True).encode()):08x}"


def _sum(file: Path) -> str:
    made = 0
    with file.open("rb") as opened:
        while block := opened.read(_AT_ONCE):
            made = zlib.crc32(block, made)
    return f"{made:08x}"
