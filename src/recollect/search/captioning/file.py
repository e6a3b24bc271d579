"""Captions in a file, one JSON object a line, so that a captioner that was stopped goes on where it was."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from recollect.core.errors import UserError
from recollect.core.types import Source


class CaptionFile:
    """Lines ``{"id": ..., "caption": ...}``; what was written stays, and a line that was cut short is dropped.

    Attributes:
        path: of the file.
        captions: by id, those that are there.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.captions: dict[str, str] = {}
        self._whole = 0  # bytes of whole lines
        if self.path.exists():
            self._read()

    def _read(self) -> None:
        data = self.path.read_bytes()
        for number, line in enumerate(data.splitlines(keepends=True), start=1):
            if not line.endswith(b"\n"):  # killed while it was written
                break
            try:
                row = json.loads(line)
                self.captions[str(row["id"])] = str(row["caption"])
            except (ValueError, KeyError, TypeError):
                raise UserError(
                    f'{self.path}: line {number} is not {{"id": ..., "caption": ...}}. Is it another file?'
                ) from None
            self._whole += len(line)

    def write(self, captions: Mapping[str, str]) -> None:
        """Add captions; they are on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("r+b" if self.path.exists() else "w+b") as file:
            file.seek(self._whole)
            file.truncate()
            for id, caption in captions.items():
                file.write(json.dumps({"id": id, "caption": caption}, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            self._whole = file.tell()
        self.captions |= captions


def captions_of(path: Path, source: Source) -> tuple[str | None, ...]:
    """The captions of a source's images from a file, None for those without.

    Raises:
        UserError: no such file, or it is of other images.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file. Write it with `recollect caption SOURCE --model CAPTIONER`.")
    known = CaptionFile(path).captions
    found = tuple(known.get(source.read(index, extra=False).id) for index in range(len(source)))
    if not any(found):
        raise UserError(f"{path}: {len(known)} captions, none of an image of {source.name}. Is it of other data?")
    return found
