"""A memory that follows a folder: what is new is embedded, what changed is replaced, what is gone is removed."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from recollect.core.errors import UserError
from recollect.core.types import Encoder
from recollect.data.sources import open_source
from recollect.data.sources.images import PICTURE_ENDINGS, note
from recollect.memory.build.building import BuildOptions, BuildReport, check_name, fill_memory
from recollect.memory.build.reading import Reader, ReadOptions
from recollect.memory.store import Memory

_State = dict[str, tuple[int, int, int]]
"""Size and times of change of every picture below a folder: of its bytes, which whoever unpacks or copies a file may
set, and of the file itself, which nobody can, and which is another where two files have exchanged their names."""

_WATCHED = BuildOptions(broken_share=1.0, follow=True)
"""Copies are left out as by a build; a file that is half-written is read again."""


@dataclass
class FolderWatch:
    """Keeps a memory in step with a folder of pictures.

    A change is taken up once nothing has changed between two looks, so that a picture that is still being copied is not
    read. Pictures that have not changed are not embedded again. A folder that is gone, or has no picture at all, takes
    no row away: disks are unmounted by mistake more often than collections are emptied.

    Attributes:
        memory: what follows.
        encoder: the model that embedded it.
        folder: what is followed.
        name: what the memory calls it; by default the folder's name.
        options: how pictures become rows.
    """

    memory: Memory
    encoder: Encoder
    folder: Path
    name: str = ""
    options: ReadOptions = field(default_factory=ReadOptions)
    _before: _State = field(default_factory=dict)
    _done: _State = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.folder.is_dir():
            raise UserError(f"{self.folder}: no such folder to watch")
        self._model = self.encoder.fingerprint

    def look(self, settled: bool = False) -> BuildReport | None:
        """Look once, and follow what has changed and settled.

        Args:
            settled: take every change as settled.

        Returns:
            What was done; None where nothing was to be done yet.

        Raises:
            UserError: the folder's name is that of another source in the memory.
        """
        state = folder_state(self.folder)
        if not state or state == self._done or (state != self._before and not settled):
            self._before = state
            return None
        self._before = state
        source = open_source(str(self.folder), split="all", keep_textless=True)
        reader = Reader(self.encoder, source, self._model, self.options, self.name or self.folder.resolve().name)
        self.memory.refresh()
        check_name(self.memory, reader, given=bool(self.name))
        report = fill_memory(self.memory, reader, _WATCHED)
        self._done = state
        return report

    def follow(self, every: float, told: Callable[[BuildReport], None]) -> None:
        """Look every so many seconds, until interrupted; the first look takes everything as settled."""
        report = self._first(every)
        while True:
            if report is not None:
                told(report)
            time.sleep(every)
            try:
                report = self.look()
            except (UserError, FileNotFoundError) as error:
                # a file that vanished while the folder was read; the next look sees it
                note(str(error))
                report = None

    def _first(self, every: float) -> BuildReport | None:
        """The first look, again where the folder changed under it; what is wrong whatever changes ends the command."""
        while True:
            try:
                return self.look(settled=True)
            except (UserError, FileNotFoundError) as error:
                if folder_state(self.folder) == self._before:
                    raise
                note(str(error))
                time.sleep(every)


def folder_state(folder: Path) -> _State:
    """What is there now, without opening a file; hidden files and folders, and links to folders, are passed over."""
    found: _State = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if name.startswith(".") or Path(name).suffix.lower() not in PICTURE_ENDINGS:
                continue
            path = os.path.join(place, name)
            try:
                facts = os.stat(path)
            except OSError:
                continue  # gone since
            found[path] = (facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    return found
