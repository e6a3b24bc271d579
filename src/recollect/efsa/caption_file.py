"""JSON Lines file of captions, from which an interrupted captioner can resume."""

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
    """Append-only file of lines ``{"id": ..., "caption": ...}``; an incomplete last line is ignored."""

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
                if not _complete(line):  # the writer was killed
                    break
                raise UserError(f'{self.path}: line {number} is not {{"id": ..., "caption": ...}}') from None

    def write(self, captions: Mapping[str, str]) -> None:
        """Append captions and flush them to disk; safe with concurrent writers."""
        make_folder(self.path.parent)
        with self.path.open("a+b") as file, held(file):
            self._end_last_line(file)
            for id, caption in captions.items():
                file.write(json.dumps({"id": id, "caption": caption}, ensure_ascii=False).encode() + b"\n")
            sync_file(file)
        self.captions |= captions

    @staticmethod
    def _end_last_line(file: BinaryIO) -> None:
        """Drop an incomplete last line, or end a complete one with a newline; requires the file lock."""
        end = file.seek(0, os.SEEK_END)
        position = end
        while position > 0:
            start = max(0, position - 4096)
            file.seek(start)
            newline = file.read(position - start).rfind(b"\n")
            if newline >= 0:
                position = start + newline + 1
                break
            position = start
        if position < end:
            file.seek(position)
            if _complete(file.read()):
                file.write(b"\n")
            else:
                file.truncate(position)


def _complete(line: bytes) -> bool:
    """Return whether a line is complete; the last line of a hand-written file may lack a newline."""
    if line.endswith(b"\n"):
        return True
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def captions_of(path: Path, source: Source) -> tuple[str | None, ...]:
    """Return the captions of a source's images from a file, by image key; None for images without a caption.

    Raises:
        UserError: no such file, or it has no caption of these images.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file. Write it with `recollect caption SOURCE --model CAPTIONER`.")
    known = CaptionFile(path).captions
    found = tuple(known.get(key_of(source, index)) for index in range(len(source)))
    if not any(found):
        raise UserError(f"{path}: {len(known)} captions, none of an image of {source.name}. Is it for other data?")
    return found


def key_of(source: Source, index: int) -> str:
    """Return the key of an image in a captions file: its path within the source, a digest of its bytes, or its id.

    The row number is not used, since it changes when the rows are reordered.
    """
    key = source.picture_key(index, source.original(index))
    return source.read(index, extra=False).id if key is None else key


def read_captions(path: Path) -> list[tuple[str, str]]:
    """Read (picture, caption) pairs from a .jsonl file (`CaptionFile`) or a .csv file.

    The .csv file has the columns ``id`` (or ``path``, ``file``, ``image``) and ``caption``, and may list a picture
    several times.

    Raises:
        UserError: no such file, another file type, or missing columns.
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
