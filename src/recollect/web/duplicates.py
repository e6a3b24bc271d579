"""Background search for duplicates, with progress."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recollect.core.progress import watched
from recollect.index import Duplicates, Picture
from recollect.web.library import Library

_SHOWN_GROUPS = 40
"""Groups per answer."""

_SHOWN_PER_GROUP = 48
"""Maximum number of pictures shown per group; the answer has the number of the others."""


@dataclass
class _Search:
    """State and results of a search for duplicates."""

    version: int
    state: str  # idle, running, done, stopped or failed
    what: str = ""
    done: float = 0
    total: float | None = None
    error: str = ""
    found: Duplicates = field(default_factory=Duplicates)

    def step(self, what: str, done: float, total: float | None) -> None:
        """Record progress; ends the search if it was stopped."""
        if self.state == "stopped":
            raise _StoppedError
        self.what, self.done, self.total = what, done, total


class _StoppedError(Exception):
    pass


class DuplicateFinder:
    """Thread-safe search for the duplicates in a library."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._search = _Search(library.version, "idle")
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start a search in a thread, unless one is running."""
        with self._lock:
            if self._search.state == "running":
                return
            self._search = _Search(self.library.view().version, "running")
            threading.Thread(target=self._run, args=[self._search], name="duplicates", daemon=True).start()

    def stop(self) -> None:
        """Stop the search; the thread ends at its next step."""
        with self._lock:
            if self._search.state == "running":
                self._search.state = "stopped"

    def _run(self, search: _Search) -> None:
        try:
            with watched(search.step):
                found = self.library.index.duplicates()
        except _StoppedError:
            return
        except Exception as error:  # any error; otherwise the page would wait forever
            search.state, search.error = "failed", " ".join(str(error).split())
            return
        with self._lock:
            if search.state == "running":
                search.state, search.found = "done", found

    def progress(self) -> dict[str, Any]:
        """Return the state (``idle``, ``running``, ``done``, ``stopped`` or ``failed``) and progress of the search."""
        search = self._search
        facts = {name: getattr(search, name) for name in ("state", "what", "done", "total", "error")}
        return {**facts, "skipped": search.found.skipped, "changed": search.version != self.library.version}

    def answer(self, shown: set[str], kind: str, start: int) -> dict[str, Any]:
        """Return progress, the number of groups and pictures of each kind, and a page of groups of one kind.

        Args:
            shown: ids of the pictures to show, without pictures removed since the search.
            kind: kind of the groups to return.
            start: number of the first group to return.
        """
        groups = {
            name: [ids for group in found if len(ids := [id for id in group if id in shown]) > (name != "identical")]
            for name, found in self._search.found.groups.items()
        }
        return {
            **self.progress(),
            "counts": {each: {"groups": len(of), "pictures": sum(map(len, of))} for each, of in groups.items()},
            "groups": [self._group(kind, ids) for ids in groups.get(kind, [])[start : start + _SHOWN_GROUPS]],
        }

    def _group(self, kind: str, ids: Sequence[str]) -> dict[str, Any]:
        pictures = self.library.pictures(ids[:_SHOWN_PER_GROUP])
        return {"kind": kind, "more": max(0, len(ids) - _SHOWN_PER_GROUP), "pictures": [*map(_facts, pictures)]}


def _facts(picture: Picture) -> dict[str, Any]:
    """Return the facts about a picture; files with short names come first, since copies usually have longer ones."""
    files = sorted(picture.distinct_files, key=lambda file: (len(Path(file.path or file.key).name), file.path))
    return {
        **{name: getattr(picture, name) for name in ("id", "caption", "width", "height", "taken")},
        "name": picture.path.name if picture.path else "",
        "files": [
            {"path": file.path, "name": file.path or f"{file.source}: {file.key}", "bytes": _size(file.path)}
            for file in files
        ],
    }


def _size(path: str) -> int:
    """Return the size of a file in bytes; 0 if it is missing."""
    try:
        return Path(path).stat().st_size if path else 0
    except OSError:
        return 0
