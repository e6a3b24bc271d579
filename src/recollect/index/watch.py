"""Watch a folder: new pictures are added, changed ones replaced, and deleted ones leave the index."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from recollect.core.errors import UserError
from recollect.core.validation import refuse
from recollect.data.sources.images import METADATA, PICTURE_ENDINGS, note
from recollect.index.index import Index
from recollect.index.ingest import IngestReport
from recollect.index.samples import IngestOptions

FolderState = tuple[int, int]
"""Number of pictures and a digest: equal for a folder whose pictures have not changed."""


@dataclass
class FolderWatch:
    """Keeps an index up to date with a folder of pictures, by the same upsert as `Index.add`.

    A change is read once nothing has changed between two polls, so that files that are still being copied are not read.
    If the folder disappears, becomes unreadable or is empty, nothing is removed: disks are unmounted by mistake more
    often than collections are emptied.

    Args:
        index: what is kept up to date.
        folder: what is watched, with its subfolders.
        name: what the index calls the folder; the folder's own name by default.
        options: how files become rows; by default broken files are passed over, since half-written ones are read later.
        on_block: as in `Index.add`.
    """

    index: Index
    folder: Path
    name: str = ""
    options: IngestOptions = field(default_factory=lambda: IngestOptions(broken_share=1.0))
    on_block: Callable[[IngestReport, int], None] | None = None
    scan_seconds: float = field(default=0.0, init=False)
    """What the last scan of the folder took."""
    _before: FolderState = (0, 0)
    _done: FolderState = (0, 0)

    def __post_init__(self) -> None:
        refuse((not self.folder.is_dir(), f"{self.folder}: no such folder to watch"))

    def poll(self, settled: bool = False) -> IngestReport | None:
        """Update the index if the folder has changed and the change has settled.

        Args:
            settled: do not wait for another poll.

        Returns:
            What was done; None if there was nothing to do yet.

        Raises:
            UserError: as `Index.add`.
        """
        began = time.monotonic()
        state = folder_state(self.folder)
        self.scan_seconds = time.monotonic() - began
        if not state[0] or state == self._done or (state != self._before and not settled):
            self._before = state
            return None
        self._before = state
        self.index.refresh()
        report = self.index.add(self.folder, name=self.name, options=self.options, on_block=self.on_block)
        self._done = state
        return report

    def follow(self, every: float, report: Callable[[IngestReport], None]) -> None:
        """Poll every so many seconds until interrupted; the first poll takes everything as settled."""
        first = True
        while True:
            try:
                if (done := self.poll(settled=first)) is not None:
                    report(done)
                first = False
            except (UserError, FileNotFoundError) as error:
                if first and folder_state(self.folder) == self._before:
                    raise  # of a folder that does not change meanwhile
                note(str(error))  # a file that vanished while the folder was read; the next poll sees it
            time.sleep(every)


def folder_state(folder: Path) -> FolderState:
    """The state of the pictures of a folder and of what describes them, from paths, sizes and times; no file is opened.

    The digest is a sum, so the order of reading does not matter. The change time counts as well as the modification
    time: programs that copy or unpack files cannot set it, so it tells two files apart that exchanged their names.
    """
    count = total = 0
    for path in _files_below(folder):
        try:
            facts = os.stat(path)
        except OSError:
            continue  # deleted meanwhile
        stamp = f"{facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns} {path}"
        total += int.from_bytes(hashlib.blake2b(os.fsencode(stamp), digest_size=16).digest(), "big")
        count += _is_picture(path)
    return count, total % 2**128


def pictures_below(folder: Path) -> Iterator[str]:
    """Paths of the pictures of a folder, in any order; hidden files and folders and links to folders are ignored."""
    return filter(_is_picture, _files_below(folder))


def _files_below(folder: Path) -> Iterator[str]:
    """Paths of pictures, their captions and metadata files."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith(".") and (_is_picture(name) or name in METADATA or name.lower().endswith(".txt")):
                yield os.path.join(place, name)


def _is_picture(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in PICTURE_ENDINGS
