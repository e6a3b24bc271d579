"""Add pictures to an open library from the page: a folder, or files that were dropped; in the background."""

import re
import threading
import time
from pathlib import Path
from typing import Any

from recollect.core.errors import UserError
from recollect.data.sources.images import PICTURE_ENDINGS, decode
from recollect.index import Index, IngestOptions, IngestReport
from recollect.index.transfer import write_new
from recollect.web.folder import absolute, check_folder, data_directory
from recollect.web.library import Library

_UNSAFE = re.compile(r"[\x00-\x1f/\\:]")
_SHOWN = 20.0
"""Seconds that the result of adding a folder is shown."""


class FolderAdder:
    """Adds one folder at a time to a library.

    Attributes:
        watched: the folder that the library follows by itself, if any.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        self.watched: Path | None = None
        self._lock = threading.Lock()
        self._progress: dict[str, Any] | None = None
        self._ended = 0.0

    def start(self, folder: str) -> None:
        """Add the pictures of a folder in a thread.

        Raises:
            UserError: there is no such folder, it has no pictures, or a folder is being added.
        """
        path = absolute(folder)
        check_folder(path)
        with self._lock:
            if self._progress is not None and self._progress["busy"]:
                raise UserError("another folder is being added. Wait until it is done.")
            self._progress = {"done": 0, "total": 0, "note": "", "busy": True}
        threading.Thread(target=self._run, args=[path], name="add", daemon=True).start()

    @property
    def place(self) -> Path:
        """Where files that were dropped are kept: in the watched folder, else in the data directory."""
        return self.watched / "Added" if self.watched is not None else data_directory() / "pictures" / self.library.name

    def keep(self, name: str, data: bytes) -> Path:
        """Write a picture that was dropped to `place`; a name that is taken gets a number.

        A watched folder is read again by itself; any other is to be added by `start` once all files are there.

        Raises:
            UserError: it is not a picture, or cannot be written.
        """
        decode(data, name)
        file = Path(_UNSAFE.sub("-", name))
        ending = file.suffix if file.suffix.lower() in PICTURE_ENDINGS else ".jpg"
        return write_new(self.place / f"{file.stem.strip('. ') or 'picture'}{ending}", data)

    def progress(self) -> dict[str, Any] | None:
        """How many of how many pictures were read, then the result for some seconds; None at other times."""
        found = self._progress
        return None if found is None or (not found["busy"] and time.monotonic() - self._ended > _SHOWN) else found

    def _run(self, folder: Path) -> None:
        def count(report: IngestReport, total: int) -> None:
            self._progress = {"done": report.read, "total": total, "note": "", "busy": True}

        try:
            index = Index.open(self.library.index.address, self.library.index.encoder)
            before = len(index)
            index.add(folder, options=IngestOptions(broken_share=1.0, early=True), on_block=count)
            note = f"{folder}: {len(Index.open(index.address, index.encoder)) - before:,} new pictures."
        except (UserError, OSError) as error:
            note = " ".join(str(error).split())
        self._ended = time.monotonic()
        self._progress = {"done": 0, "total": 0, "note": note, "busy": False}
