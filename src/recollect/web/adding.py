"""Add a folder to an open library from the page, in the background."""

import threading
import time
from pathlib import Path
from typing import Any

from recollect.core.errors import UserError
from recollect.index import Index, IngestOptions, IngestReport
from recollect.web.folder import check_folder
from recollect.web.library import Library

_SHOWN = 20.0
"""Seconds that the result of adding a folder is shown."""


class FolderAdder:
    """Adds one folder at a time to a library.

    Args:
        library: what to add to.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        self._lock = threading.Lock()
        self._progress: dict[str, Any] | None = None
        self._ended = 0.0

    def start(self, folder: str) -> None:
        """Add the pictures of a folder in a thread.

        Raises:
            UserError: there is no such folder, it has no pictures, or a folder is being added.
        """
        path = Path(folder).expanduser()
        if not path.is_absolute():
            raise UserError(f"{folder}: name a folder from the top, such as {Path.home() / 'Pictures'}")
        check_folder(path)
        with self._lock:
            if self._progress is not None and self._progress["busy"]:
                raise UserError("another folder is being added. Wait until it is done.")
            self._progress = {"done": 0, "total": 0, "note": "", "busy": True}
        threading.Thread(target=self._run, args=[path], name="add", daemon=True).start()

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
