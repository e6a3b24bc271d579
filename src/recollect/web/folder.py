"""Indexes of folders, stored in the user's data directory and kept up to date; and pictures added from the page."""

import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from recollect.core.content import hash_of
from recollect.core.errors import UserError
from recollect.core.files import fresh_folder
from recollect.core.paths import expanduser
from recollect.core.progress import note
from recollect.core.types import Encoder
from recollect.core.validation import refuse
from recollect.core.words import is_utf8
from recollect.data.sources.images import PICTURE_ENDINGS, decode, files_below, filter_pictures
from recollect.index import Index, IngestOptions, IngestReport, Record
from recollect.index.annotations import copy_annotations
from recollect.index.changes import relocate_source
from recollect.index.picture import TRASH, File
from recollect.index.stores.base import is_index_folder
from recollect.index.transfer import write_new
from recollect.index.watch import FolderWatch, pictures_below
from recollect.web.library import Library

POLL_SECONDS = 3.0
"""Minimum number of seconds between two polls of a folder."""

_POLL_SHARE = 0.05
"""Maximum share of time spent on polling; scanning a million files takes many seconds."""

_SHOWN_SECONDS = 20.0
"""Seconds to show the result of adding a folder."""

_SAMPLE = 200  # files checked to recognize a renamed folder
_OPTIONS = IngestOptions(broken_share=1.0, early=True)
_UNSAFE, _INVALID_IN_NAMES = re.compile(r"[^\w.-]+"), re.compile(r"[\x00-\x1f/\\:]")
_DIGEST = re.compile(r"-[0-9a-f]{10}$")


def data_directory() -> Path:
    """Return the directory of folder indexes: ``$RECOLLECT_HOME``, or the user's data directory on this system."""
    import platformdirs

    return Path(os.environ.get("RECOLLECT_HOME") or platformdirs.user_data_dir("recollect", appauthor=False))


def index_of_folder(folder: Path, model: str = "") -> Path:
    """Return the path of a folder's index, determined by folder and model."""
    place = folder.resolve()
    return data_directory() / "indexes" / _distinct(place.name, f"{place}\n{model}")


def _distinct(name: str, what: str) -> str:
    """Return a file-system name that is unique for ``what``."""
    return f"{_UNSAFE.sub('-', name)[:60] or 'folder'}-{hash_of(what, 5)}"


def library_name(address: str) -> str:
    """Return the display name of an index: its folder without the digest of `index_of_folder`, or the parent of
    ``index``."""
    if "://" in address:
        return address.rstrip("/").rsplit("/", 1)[-1]
    path = Path(address).resolve()
    if path.parent.parent == data_directory().resolve():
        return _DIGEST.sub("", path.name)
    return path.parent.name if path.name == "index" and path.parent.name else path.name


def absolute(place: str) -> Path:
    """Expand a path given by the user.

    Raises:
        UserError: the path is not absolute.
    """
    path = Path(expanduser(place))
    if not (place and path.is_absolute()):
        raise UserError(f"{place or 'no folder'}: give an absolute path, such as {Path.home() / 'Pictures'}")
    return path


def pictures_in(place: str) -> Path | None:
    """Return the folder of pictures at a path; None if it is an index.

    Raises:
        UserError: the folder is missing, unreadable, or contains no pictures.
    """
    if "://" in place:
        return None
    folder = Path(expanduser(place))
    if not folder.is_dir():
        what = "not a folder" if folder.exists() else "no such folder"
        raise UserError(f"{place}: {what}. Name an index, or a folder of pictures.")
    if is_index_folder(folder):
        return None
    refuse((not is_utf8(str(folder.resolve())), f"{place}: its path is not UTF-8. Rename the folder."))
    if next(pictures_below(folder), None) is None:
        filter_pictures(files_below(folder), folder)  # raises an error that describes the folder's contents
    return folder


def open_folder(folder: Path, model: Record, encoder: Encoder | None = None) -> Index:
    """Open the index of a folder, creating it if it does not exist.

    An existing index of a different model, such as an earlier version of the starter, is kept; the new index is created
    next to it with a copy of its labels.

    Args:
        model: record of the model for a new index.
        encoder: the model; opened on first use if None.
    """
    address, labels = index_of_folder(folder, model.model_name), None
    if not Index.exists(address):
        _adopt_renamed(folder, model.model_name, address)
    if Index.exists(address) and (earlier := Index.open(address)).record.model != model.model:
        address, labels = address.with_name(f"{address.name}-{hash_of(model.model, 4)}"), earlier.annotations
    if Index.exists(address):
        return Index.open(address, encoder)
    address.parent.mkdir(parents=True, exist_ok=True)
    try:
        Index.create(address, width=model.width, model=model.model, model_name=model.model_name, prefix=model.prefix,
                     precision="float16")  # fmt: skip
    except (UserError, OSError):
        if not Index.exists(address):  # else another process created it at the same time
            raise
    opened = Index.open(address, encoder)
    copy_annotations(labels, opened.annotations)
    return opened


def _adopt_renamed(folder: Path, model: str, address: Path) -> None:
    """Reuse the indexes, labels and classifiers of a folder that was renamed or moved.

    If its files were copied, so are these: the folder may be on a drive that is not connected, and ``folder`` a backup.
    """
    name = Path(folder.name).stem  # the name that `open_source` gives it
    for earlier in sorted(address.parent.glob("*")):
        try:
            moved = _moved_source(earlier, folder, name, model)
        except UserError:  # damaged, or not an index
            continue
        if moved is not None:
            file, prefix, same_files = moved
            for each in sorted(address.parent.glob(f"{prefix}*")):  # one index per version of the model
                renamed = address.with_name(address.name + each.name.removeprefix(prefix))
                try:
                    if same_files:
                        os.rename(each, renamed)
                    else:
                        with fresh_folder(renamed, "index") as unfinished:
                            shutil.copytree(each, unfinished, dirs_exist_ok=True)
                except OSError as error:  # on Windows: open in another process
                    note(f"{each}: cannot be reused for {folder} ({error.strerror}), so {folder} is indexed again")
                    return
                relocate_source(Index.open(renamed), file.source, name, folder.absolute())
            return


def _moved_source(earlier: Path, folder: Path, name: str, model: str) -> tuple[File, str, bool] | None:
    """Return whether a folder has the files of an index whose own folder is gone.

    Returns:
        A file of the index, the prefix of the index's name, and whether the files were moved, not copied; or None.
    """
    index, checked = Index.open(earlier), set[str]()
    for file in _files(index):
        if file.place not in checked:
            checked.add(file.place)
            prefix = index_of_folder(Path(file.place), model).name
            if earlier.name.startswith(prefix):
                break
    else:
        return None
    if os.path.exists(file.place):
        return None
    files = list(_files(index))
    taken = any(each.source == name and each.place != file.place for each in files)
    own = [each for each in files if each.place == file.place and Path(each.path).parent.name != TRASH]
    sample = own[:: len(own) // _SAMPLE + 1]
    found = sum(_has_size(folder / each.key, each.size) for each in sample)
    moved = any(_ctime(folder / each.key) == each.ctime for each in sample)
    return None if taken or not found or 2 * found < len(sample) else (file, prefix, moved)


def _has_size(path: Path, size: int) -> bool:
    """Whether a file exists with this size. Cameras give the same names to different pictures."""
    with suppress(OSError):
        return size in (0, path.stat().st_size)  # 0 if unknown
    return False


def _ctime(path: Path) -> int | None:
    """Return the ctime of a file, which a rename of its folder keeps and which no program can give to a copy."""
    with suppress(OSError):
        return path.stat().st_ctime_ns
    return None


def _files(index: Index) -> Iterator[File]:
    return (File(**each) for row in index.store.dicts(["files"], removed=None) for each in row["files"])


class FolderFiller:
    """Thread that adds the pictures of a folder to an index, then watches the folder.

    Args:
        index: the index; opened a second time for writing, since the page reads this one.
        watch: if False, stop after the first pass, and report its result for `_SHOWN_SECONDS` seconds.

    Attributes:
        unreadable: a message for each unreadable picture of the last pass.
    """

    def __init__(self, index: Index, folder: Path, watch: bool = True) -> None:
        self.folder, self.busy = folder, True
        self._index, self._watches = Index.open(index.address, index.model), watch
        self._watch = FolderWatch(self._index, folder, options=_OPTIONS, on_block=self._count)
        self._done = self._total = 0
        self._note, self._ended = "", 0.0
        self.unreadable: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="folder", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, after the current picture."""
        self._stop.set()

    def progress(self) -> dict[str, Any] | None:
        """Return the number of pictures read and the total; None if there is nothing to report."""
        expired = not self._watches and time.monotonic() - self._ended > _SHOWN_SECONDS
        if not self.busy and (expired or not self._note):
            return None
        return {"done": self._done, "total": self._total, "note": self._note, "busy": self.busy}

    def _count(self, report: IngestReport, total: int) -> None:
        self._done, self._total, self.busy = report.read, total, True
        if self._stop.is_set():
            raise _StoppedError

    def _run(self) -> None:
        first, before = True, len(self._index)
        while not self._stop.is_set():
            try:
                if (report := self._watch.poll(settled=first)) is not None:
                    self.unreadable = report.broken
                new = f"{self.folder}: {len(self._index) - before:,} new pictures."
                first, self._note = False, "" if self._watches else new
            except _StoppedError:
                return
            except Exception as error:  # any error: report it on the page and keep watching
                self._note = " ".join(str(error).split())
            if not self.folder.is_dir():
                stay = "Its pictures stay in the library, and indexing resumes when the folder is available again."
                self._note = f"{self.folder} cannot be read at the moment. {stay}"
            self._ended, self.busy = time.monotonic(), False
            if not self._watches:
                return
            self._stop.wait(max(POLL_SECONDS, self._watch.scan_seconds / _POLL_SHARE))


class _StoppedError(Exception):
    pass


class Additions:
    """Pictures added to a library from the page: folders, and files dropped on the page.

    Args:
        folder: folder that the library is filled from and watches, if any.

    Attributes:
        watched: thread that fills the library from ``folder``; None without a folder.
    """

    def __init__(self, library: Library, folder: Path | None = None) -> None:
        self._library = library
        self.watched = None if folder is None else FolderFiller(library.index, folder)
        self._added: FolderFiller | None = None
        self._lock = threading.Lock()

    def start(self, folder: str) -> None:
        """Add the pictures of a folder in a thread.

        Raises:
            UserError: the folder is missing or has no pictures, or another folder is being added.
        """
        path = pictures_in(str(absolute(folder)))
        if path is None:
            raise UserError(f"{folder}: is an index. Open it as a separate library.")
        with self._lock:
            if self._added is not None and self._added.busy:
                raise UserError("another folder is being added. Wait until it is finished.")
            self._added = FolderFiller(self._library.index, path, watch=False)
            self._added.start()

    def stop(self) -> None:
        """Stop reading folders."""
        for each in self._fillers:
            each.stop()

    @property
    def place(self) -> Path:
        """Folder for dropped files: inside the watched folder, or in the data directory."""
        if self.watched is not None:
            return self.watched.folder.absolute() / "Added"
        address = self._library.index.address
        address = address if "://" in address else str(Path(address).resolve())
        return data_directory() / "pictures" / _distinct(self._library.name, address)

    def keep(self, name: str, data: bytes) -> Path:
        """Save a dropped picture to `place`, with a number appended if the name is taken.

        A watched folder picks up the file automatically; for any other, call `start` after saving all files.

        Raises:
            UserError: the data is not a picture, or the file cannot be written.
        """
        decode(data, name)
        file = Path(_INVALID_IN_NAMES.sub("-", name))
        ending = file.suffix if file.suffix.lower() in PICTURE_ENDINGS else ".jpg"
        return write_new(self.place / f"{file.stem.strip('. ') or 'picture'}{ending}", data)

    def progress(self) -> dict[str, Any] | None:
        """Return the progress of the folder being added or watched; None if there is nothing to report."""
        return next((found for each in self._fillers if (found := each.progress()) is not None), None)

    @property
    def unreadable(self) -> list[str]:
        """A message for each unreadable picture."""
        return [message for each in self._fillers for message in each.unreadable]

    @property
    def _fillers(self) -> list[FolderFiller]:
        return [each for each in (self._added, self.watched) if each is not None]
