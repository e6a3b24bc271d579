"""Watch a folder and keep an index in sync with it."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from recollect.core.errors import UserError
from recollect.core.paths import visible_files
from recollect.core.validation import refuse
from recollect.data.sources.images import METADATA, PICTURE_ENDINGS, note
from recollect.index.index import Index
from recollect.index.ingest import IngestReport
from recollect.index.options import IngestOptions

FolderState = tuple[int, int]
"""Number of pictures and a digest that changes with them."""


@dataclass
class FolderWatch:
    """Keeps an index in sync with a folder of pictures, by `Index.add`.

    A change is ingested once the folder is unchanged between two polls, so files still being copied are not read. If
    the folder disappears, becomes unreadable or is empty, nothing is removed: an unmounted disk is more likely than an
    emptied collection.

    Args:
        index: the index to update.
        folder: the folder to watch, including subfolders.
        name: name of the source in the index; default: the folder's name.
        options: how files become rows; by default any number of broken files is allowed, since half-written files are
            read at a later poll.
        on_block: see `Index.add`.
    """

    index: Index
    folder: Path
    name: str = ""
    options: IngestOptions = field(default_factory=lambda: IngestOptions(broken_share=1.0))
    on_block: Callable[[IngestReport, int], None] | None = None
    scan_seconds: float = field(default=0.0, init=False)
    """Duration of the last scan of the folder."""
    _before: FolderState = (0, 0)
    _done: FolderState = (0, 0)

    def __post_init__(self) -> None:
        refuse((not self.folder.is_dir(), f"{self.folder}: no such folder to watch"))

    def poll(self, settled: bool = False) -> IngestReport | None:
        """Update the index if the folder has changed since the last update but not since the last poll.

        Args:
            settled: update immediately, without waiting for another poll.

        Returns:
            The ingest report; None if there was nothing to update yet.

        Raises:
            UserError: see `Index.add`.
        """
        start = time.monotonic()
        state = folder_state(self.folder)
        self.scan_seconds = time.monotonic() - start
        if not state[0] or state == self._done or (state != self._before and not settled):
            self._before = state
            return None
        self._before = state
        self.index.refresh()
        report = self.index.add(self.folder, name=self.name, options=self.options, on_block=self.on_block)
        self._done = state
        return report

    def follow(self, every: float, report: Callable[[IngestReport], None]) -> None:
        """Poll every ``every`` seconds until interrupted; the first poll updates immediately."""
        first = True
        while True:
            try:
                if (done := self.poll(settled=first)) is not None:
                    report(done)
                first = False
            except (UserError, FileNotFoundError) as error:
                if first and folder_state(self.folder) == self._before:
                    raise  # the folder has not changed, so retrying does not help
                note(str(error))  # e.g. a file vanished during the scan; the next poll picks up the change
            time.sleep(every)


def folder_state(folder: Path) -> FolderState:
    """Return the state of a folder's pictures, captions and metadata from file names, sizes and times, opening no file.

    The digest is a sum, so it does not depend on the scan order. It includes ctime, which programs cannot set, so it
    detects two files that swapped names.
    """
    count = total = 0
    for path in _files_below(folder):
        try:
            facts = os.stat(path)
        except OSError:
            continue  # deleted during the scan
        stamp = f"{facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns} {path}"
        total += int.from_bytes(hashlib.blake2b(os.fsencode(stamp), digest_size=16).digest(), "big")
        count += _is_picture(path)
    return count, total % 2**128


def pictures_below(folder: Path) -> Iterator[str]:
    """Yield the paths of a folder's pictures in any order, skipping hidden files and folders and links to folders."""
    return filter(_is_picture, _files_below(folder))


def _files_below(folder: Path) -> Iterator[str]:
    """Yield the paths of pictures, their caption files and metadata files."""
    for path in visible_files(folder):
        if _is_picture(path) or os.path.basename(path).lower() in METADATA or path.lower().endswith(".txt"):
            yield path


def _is_picture(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in PICTURE_ENDINGS
