"""Actions on selected pictures: export, copy, move, remove and delete, with undo."""

import filecmp
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from recollect.core.errors import UserError
from recollect.index.export import CocoKind, export_index
from recollect.index.picture import TRASH, File, Picture
from recollect.index.transfer import Transfer, copy_pictures, move_back, move_pictures, path_before_trash, trash_folder
from recollect.web.folder import absolute
from recollect.web.label_store import LabelStore
from recollect.web.library import Library

ActionKind = Literal["copy", "move", "remove", "delete"]

_MAX_UNDO = 50
_MAX_FOLDERS = 5  # folders listed in a plan
_BATCH = 2_048  # pictures read at a time


@dataclass(frozen=True)
class UndoableAction:
    """An action that can be undone.

    Attributes:
        after: latest label change at that time (`LabelStore.latest`); later changes are undone first.
        at: time of the action, in seconds since the epoch.
    """

    kind: ActionKind
    ids: Sequence[str]
    files: Sequence[tuple[str, str]] = ()
    after: int = 0
    at: float = field(default_factory=time.time)


class Actions:
    """Thread-safe actions on selected pictures."""

    def __init__(self, library: Library, labels: LabelStore) -> None:
        self.library, self.labels = library, labels
        self._lock = threading.Lock()
        self._done: list[UndoableAction] = []

    def plan(self, ids: Sequence[str]) -> dict[str, Any]:
        """Return the number of files that deleting or moving would affect, and their folders."""
        folders, trash = Counter[str](), set[str]()
        for start in range(0, len(ids), _BATCH):
            for picture in self.library.index.pictures(ids[start : start + _BATCH]):
                files = picture.intact_files()
                folders.update(str(Path(file.path).parent) for file in files)
                trash |= {str(trash_folder(file)) for file in files}
        return {
            "pictures": len(ids),
            "files": sum(folders.values()),
            "folders": folders.most_common(_MAX_FOLDERS),
            "more_folders": max(0, len(folders) - _MAX_FOLDERS),
            "trash": sorted(trash)[:_MAX_FOLDERS],
        }

    def act(
        self, kind: ActionKind, ids: Sequence[str], folder: str = "", files: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Run an action, and record it for `undo` even if an error interrupts it.

        Args:
            kind: ``copy`` to a folder; ``move`` to a folder; ``remove`` from the index; ``delete``: remove from the
                index and move the files to the trash or a folder.
            folder: target folder.
            files: with ``move``, the only files to move; by default all files of the pictures.

        Raises:
            UserError: ``files`` is given for another kind, the folder is not an absolute path or is not writable, or
                none of the pictures is in the index.
        """
        if files is not None and kind != "move":
            raise UserError(f"files can be chosen only to move them, not to {kind}. Remove the list of files.")
        index = self.library.index
        to = absolute(folder) if folder or kind in ("copy", "move") else None
        with self._lock:
            existing = self.library.refresh().row_of  # another tab may have removed some
            ids = [id for id in ids if id in existing]
            if not ids:
                raise UserError("the selected pictures are no longer in the library")
            moved, removed = Transfer(), kind in ("remove", "delete")
            if removed:  # before the files move, or a folder watcher may delete the pictures as missing
                index.remove(ids)
            try:
                if kind == "copy" and to is not None:
                    copy_pictures(index, ids, to, moved)
                elif kind != "remove":
                    move_pictures(index, ids, to, files, moved)
            except BaseException:
                if removed:
                    index.restore(ids)
                    removed = False
                raise
            finally:
                if moved.files or removed:
                    action = UndoableAction(kind, list(ids), moved.files, self.labels.latest)
                    self._done = [*self._done, action][-_MAX_UNDO:]
        pictures = len(ids) if kind == "remove" else moved.pictures
        return {"kind": kind, "pictures": pictures, "files": len(moved.files), "missing": len(moved.missing)}

    def pending(self) -> dict[str, Any] | None:
        """Describe what `undo` would undo; None if there is nothing, or if labels were changed later."""
        if not self._done or self._done[-1].after < self.labels.latest:
            return None
        return {"do": self._done[-1].kind, "pictures": len(self._done[-1].ids)}

    def undo(self) -> dict[str, Any] | None:
        """Undo the last action; None as in `pending`.

        Copies are deleted unless they were changed or the original is gone, moved files are moved back, and removed
        pictures are restored.
        """
        with self._lock:
            if (undone := self.pending()) is None:
                return None
            done, index = self._done[-1], self.library.index
            if done.kind == "copy":
                for old, new in done.files:
                    if _still_copy(old, new, done.at):
                        Path(new).unlink()
            elif done.files:
                move_back(index, done.ids, done.files)
            if done.kind in ("remove", "delete"):
                removed = {each.id for each in index.removed()}
                index.restore([id for id in done.ids if id in removed])
            self._done.pop()
            return undone

    def removed(self) -> list[Picture]:
        """Return the removed pictures that can be restored: not those whose files are gone from the trash."""

        def is_left(file: File) -> bool:
            return file.in_trash or Path(file.path).parent.name != TRASH

        return [each for each in self.library.index.removed() if not each.files or any(map(is_left, each.files))]

    def restore(self, ids: Sequence[str]) -> None:
        """Restore removed pictures, and move their files back from the trash.

        Raises:
            UserError: a picture was not removed, or a file cannot be moved.
        """
        with self._lock:
            index = self.library.index
            files = [file for each in index.pictures(ids) for file in each.files]
            move_back(index, ids, [(str(path_before_trash(each)), each.path) for each in files if each.in_trash])
            index.restore(ids)

    def export(self, ids: Sequence[str], ending: str, coco: CocoKind = "captions") -> Path:
        """Export pictures to a temporary file (see `export_index`); the caller deletes its folder."""
        folder = Path(tempfile.mkdtemp(prefix="recollect-"))
        try:
            export_index(self.library.index, folder / f"pictures{ending}", coco, ids)
        except BaseException:
            shutil.rmtree(folder)
            raise
        return folder / f"pictures{ending}"


def _still_copy(old: str, new: str, at: float) -> bool:
    """Whether a copy equals the original; without an original file, whether it was not written since."""
    try:
        return filecmp.cmp(old, new, shallow=False) if old else Path(new).stat().st_mtime <= at
    except OSError:
        return False


def file_manager() -> list[str] | None:
    """Return the command that opens the file manager on this machine; None if there is none."""
    if sys.platform == "darwin":
        return ["open", "-R"]
    if sys.platform == "win32":
        return ["explorer", "/select,"]
    import os

    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    opener = shutil.which("xdg-open")
    return [opener] if screen and opener else None


def show_file(path: Path) -> None:
    """Show a file in the file manager.

    Raises:
        UserError: there is no file manager, or the file is missing.
    """
    command = file_manager()
    if command is None:
        raise UserError("there is no file manager on this machine")
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    what = str(path.parent) if command[-1].endswith("xdg-open") else str(path)
    subprocess.Popen([*command, what], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
