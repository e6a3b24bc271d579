"""``recollect serve FOLDER``: the index of a folder, kept in the user's data directory and up to date."""

import hashlib
import os
import re
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

from recollect.core.errors import UserError
from recollect.core.files import atomic_path
from recollect.core.types import Encoder, caption_prefix
from recollect.data.sources.images import files_below, pictures_among
from recollect.index import Index, IngestOptions, IngestReport
from recollect.index.watch import FolderWatch, pictures_below

POLL = 3.0
"""Seconds between two polls of the folder, at least."""

_POLL_SHARE = 0.05
"""Share of the time that polling may take; a scan of a million files takes many seconds."""

_OPTIONS = IngestOptions(broken_share=1.0, early=True)
_UNSAFE = re.compile(r"[^\w.-]+")
_DIGEST = re.compile(r"-[0-9a-f]{10}$")


def data_directory() -> Path:
    """Where indexes of folders are kept: ``$RECOLLECT_HOME``, else the user's data directory of this system."""
    import platformdirs

    return Path(os.environ.get("RECOLLECT_HOME") or platformdirs.user_data_dir("recollect", appauthor=False))


def index_of_folder(folder: Path, model: str = "") -> Path:
    """Where the index of a folder is: the same place for the same folder and model."""
    place = folder.resolve()
    digest = hashlib.blake2b(f"{place}\n{model}".encode(), digest_size=5).hexdigest()
    return data_directory() / "indexes" / f"{_UNSAFE.sub('-', place.name)[:60] or 'folder'}-{digest}"


def folder_name(address: Path) -> str:
    """What to call the index at an address: in the data directory without the digest that `index_of_folder` adds."""
    name = address.resolve().name
    return _DIGEST.sub("", name) if address.resolve().parent.parent == data_directory().resolve() else name


def absolute(place: str) -> Path:
    """The path that a user named.

    Raises:
        UserError: it is not an absolute path.
    """
    path = Path(place).expanduser()
    if not (place and path.is_absolute()):
        raise UserError(f"{place or 'no folder'}: name a folder from the top, such as {Path.home() / 'Pictures'}")
    return path


def pictures_in(place: str) -> Path | None:
    """The folder of pictures at a place; None where it is an index.

    Raises:
        UserError: nothing is there.
    """
    path = Path(place).expanduser()
    if "://" in place:
        return None
    if not path.is_dir():
        what = "not a folder" if path.exists() else "no such folder"
        raise UserError(f"{place}: {what}. Name an index, or a folder of pictures.")
    return None if any((path / f"{name}.lance").is_dir() for name in ("pictures", "pairs")) else path


def check_folder(folder: Path) -> None:
    """Reject a folder without pictures; of a large one only the first pictures are looked for.

    Raises:
        UserError: there is no such folder, it cannot be read, or it has no picture that can be read.
    """
    if not folder.is_dir():
        what = "not a folder" if folder.exists() else "no such folder"
        raise UserError(f"{folder}: {what}. Name a folder with pictures, or an index.")
    if next(pictures_below(folder), None) is None:
        pictures_among(files_below(folder), folder)  # raises the error that says what is there


def open_folder(folder: Path, encoder: Encoder, model: str) -> Index:
    """The index of a folder, made where there is none.

    The index of another model at the same place, such as an earlier version of the starter, stays as it is; the new one
    is made beside it and starts with its labels.
    """
    address, labels = index_of_folder(folder, model), None
    if Index.exists(address) and (earlier := Index.open(address)).record.model != encoder.fingerprint:
        digest = hashlib.blake2b(encoder.fingerprint.encode(), digest_size=4).hexdigest()
        address, labels = address.with_name(f"{address.name}-{digest}"), earlier.annotations
    if Index.exists(address):
        return Index.open(address, encoder)
    address.parent.mkdir(parents=True, exist_ok=True)
    Index.create(
        address,
        width=encoder.width,
        model=encoder.fingerprint,
        model_name=model,
        prefix=caption_prefix(encoder),
        precision="float16",
    )
    opened = Index.open(address, encoder)
    if labels is not None and labels.is_file() and opened.annotations is not None:
        with (
            atomic_path(opened.annotations) as temporary,
            closing(sqlite3.connect(labels)) as old,
            closing(sqlite3.connect(temporary)) as new,
        ):
            old.backup(new)
    return opened


class FolderFiller:
    """Fills the index of a folder in a thread, then watches the folder.

    Args:
        index: to fill; an object of its own, since the page reads another one.
    """

    def __init__(self, index: Index, folder: Path) -> None:
        self.folder = folder
        self._watch = FolderWatch(index, folder, options=_OPTIONS, on_block=self._count)
        self._done = self._total = 0
        self._busy = True
        self._note = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="folder", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; a picture that is being read is finished first."""
        self._stop.set()

    def progress(self) -> dict[str, Any] | None:
        """How many of how many pictures were read, or what is wrong; None when there is nothing to report."""
        if not self._busy and not self._note:
            return None
        return {"done": self._done, "total": self._total, "note": self._note, "busy": self._busy}

    def _count(self, report: IngestReport, total: int) -> None:
        self._done, self._total, self._busy = report.read, total, True
        if self._stop.is_set():
            raise _StoppedError

    def _run(self) -> None:
        first = True
        while not self._stop.is_set():
            try:
                self._watch.poll(settled=first)
                first, self._note = False, "" if self.folder.is_dir() else self._gone()
            except _StoppedError:
                return
            except (UserError, OSError) as error:
                self._note = " ".join(str(error).split()) if self.folder.is_dir() else self._gone()
            self._busy = False
            self._stop.wait(max(POLL, self._watch.scan_seconds / _POLL_SHARE))

    def _gone(self) -> str:
        return f"{self.folder} cannot be read now. Its pictures stay in the library; indexing goes on when it is back."


class _StoppedError(Exception):
    pass
