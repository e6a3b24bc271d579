"""Captions in a file with one JSON object per line, so that an interrupted captioner can resume."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from recollect.core.cells import read_cells
from recollect.core.errors import UserError
from recollect.core.files import held, make_folder, sync_file
from recollect.core.types import Source


class CaptionFile:
    """Lines ``{"id": ..., "caption": ...}``; what was written stays, and a last line that was cut short is dropped."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.captions: dict[str, str] = {}
        if self.path.exists():
            self._read()

    def _read(self) -> None:
        data = self.path.read_bytes()
        for number, line in enumerate(data.splitlines(keepends=True), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                self.captions[str(row["id"])] = str(row["caption"])
            except (ValueError, KeyError, TypeError, AttributeError):
                if not _whole(line):  # killed while it was written
                    break
                raise UserError(
                    f'{self.path}: line {number} is not {{"id": ..., "caption": ...}}. Is it another file?'
                ) from None

    def write(self, captions: Mapping[str, str]) -> None:
        """Add captions; they are on disk when this returns, and so are those that other processes add meanwhile."""
        make_folder(self.path.parent)
        with self.path.open("a+b") as file, held(file):
            self._cut(file)
            for id, caption in captions.items():
                file.write(json.dumps({"id": id, "caption": caption}, ensure_ascii=False).encode() + b"\n")
            sync_file(file)
        self.captions |= captions

    @staticmethod
    def _cut(file: BinaryIO) -> None:
        """Drop a line that was cut short, and end one that was not; the lock keeps other writers out."""
        end = file.seek(0, os.SEEK_END)
        place = end
        while place > 0:
            start = max(0, place - 4096)
            file.seek(start)
            newline = file.read(place - start).rfind(b"\n")
            if newline >= 0:
                place = start + newline + 1
                break
            place = start
        if place < end:
            file.seek(place)
            if _whole(file.read()):
                file.write(b"\n")
            else:
                file.truncate(place)


def _whole(line: bytes) -> bool:
    """Whether a line is there to its end: the last one of a file that people wrote need not have a newline."""
    if line.endswith(b"\n"):
        return True
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def captions_of(path: Path, source: Source) -> tuple[str | None, ...]:
    """The captions of a source's images from a file, None for those without; both are known by the images' keys.

    Raises:
        UserError: no such file, or it is of other images.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file. Write it with `recollect caption SOURCE --model CAPTIONER`.")
    known = CaptionFile(path).captions
    found = tuple(known.get(key_of(source, index)) for index in range(len(source)))
    if not any(found):
        raise UserError(f"{path}: {len(known)} captions, none of an image of {source.name}. Is it of other data?")
    return found


def key_of(source: Source, index: int) -> str:
    """What a captions file calls an image: its file below the source's folder, a digest of its bytes, or its id.

    Never the number of a row, which names another image once the rows are sorted otherwise.
    """
    key = source.picture_key(index, source.original(index))
    return source.read(index, extra=False).id if key is None else key


def read_captions(path: Path) -> list[tuple[str, str]]:
    """Pictures and captions that a user wrote: a .jsonl file of `CaptionFile`, or a .csv with the columns ``id`` (or
    ``path``) and ``caption``, which may name a picture several times.

    Raises:
        UserError: no such file, or it is none of both.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if path.suffix == ".jsonl":
        return list(CaptionFile(path).captions.items())
    if path.suffix != ".csv":
        raise UserError(f"{path}: captions are read from a .jsonl or .csv file")
    names, rows = read_cells(path)
    key = next((name for name in ("id", "path", "file", "image") if name in names), None)
    if key is None or "caption" not in names:
        raise UserError(f"{path}: needs the columns 'id' or 'path', and 'caption'; it has {', '.join(names)}")
    return [(row[key], row["caption"] or "") for row in rows if row[key]]
