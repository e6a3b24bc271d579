"""Duplicates for the page: looked for in the background, with progress, until they are found or stopped."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recollect.core.errors import UserError
from recollect.core.progress import watched
from recollect.index import Index
from recollect.web.library import Library

KINDS = ("identical", "near-identical", "similar")

SHOWN_GROUPS = 40
"""Groups in one answer."""

MOST_OF_GROUP = 48
"""Pictures of a group that are shown; the answer says how many more there are."""


@dataclass(frozen=True)
class DuplicateGroup:
    """A group of duplicates: its kind, and the ids of its pictures, the one to keep first.

    Pictures with equal pixels are one picture of the index with several files, so an ``identical`` group has one id.
    """

    kind: str
    ids: tuple[str, ...]


@dataclass
class _Search:
    """One search for duplicates, under way or done."""

    version: int
    state: str = "running"  # then done, stopped or failed
    what: str = ""
    done: float = 0
    total: float | None = None
    error: str = ""
    groups: list[DuplicateGroup] = field(default_factory=list)
    skipped: tuple[str, ...] = ()

    def step(self, what: str, done: float, total: float | None) -> None:
        """Note progress; ends the search if it was stopped."""
        if self.state == "stopped":
            raise _StoppedError
        self.what, self.done, self.total = what, done, total


class _StoppedError(Exception):
    pass


class DuplicateFinder:
    """Looks for the duplicates of a library; safe to call from several threads."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._search: _Search | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Look for duplicates in a thread, unless one is doing so."""
        with self._lock:
            if self._search is not None and self._search.state == "running":
                return
            self._search = _Search(self.library.view().version)
            threading.Thread(target=self._run, args=[self._search], name="duplicates", daemon=True).start()

    def stop(self) -> None:
        """Stop looking; the thread ends at its next step."""
        with self._lock:
            if self._search is not None and self._search.state == "running":
                self._search.state = "stopped"

    def _run(self, search: _Search) -> None:
        try:
            with watched(search.step):
                groups, skipped = find_groups(self.library.index)
        except _StoppedError:
            return
        except (UserError, OSError) as error:
            search.state, search.error = "failed", " ".join(str(error).split())
            return
        with self._lock:
            if search.state == "running":
                search.state, search.groups, search.skipped = "done", groups, skipped

    def progress(self) -> dict[str, Any]:
        """How far the latest search is: ``idle``, ``running``, ``done``, ``stopped`` or ``failed``."""
        search = self._search
        if search is None:
            return {"state": "idle"}
        return {
            "state": search.state,
            "what": search.what,
            "done": search.done,
            "total": search.total,
            "error": search.error,
            "skipped": list(search.skipped),
            "changed": search.version != self.library.version,
        }

    def answer(self, here: set[str], kind: str, start: int) -> dict[str, Any]:
        """Progress, how many groups and pictures of each kind were found, and some groups of one kind.

        Args:
            here: ids of the pictures to show; those that were removed since the search are not among them.
        """
        groups: dict[str, list[DuplicateGroup]] = {each: [] for each in KINDS}
        for found in self._search.groups if self._search is not None else ():
            ids = tuple(id for id in found.ids if id in here)
            if len(ids) > (found.kind != "identical"):
                groups[found.kind].append(DuplicateGroup(found.kind, ids))
        counts = {
            each: {"groups": len(some), "pictures": sum(len(group.ids) for group in some)}
            for each, some in groups.items()
        }
        some = groups.get(kind, [])[start : start + SHOWN_GROUPS]
        return {**self.progress(), "counts": counts, "groups": [self.shown(group) for group in some]}

    def shown(self, group: DuplicateGroup) -> dict[str, Any]:
        """A group with what is known about its pictures; copies are usually called like the original and more."""
        pictures = self.library.pictures(group.ids[:MOST_OF_GROUP])
        return {
            "kind": group.kind,
            "more": max(0, len(group.ids) - MOST_OF_GROUP),
            "pictures": [
                {
                    "id": each.id,
                    "name": each.path.name if each.path else "",
                    "caption": each.caption,
                    "width": each.width,
                    "height": each.height,
                    "taken": each.taken,
                    "files": [
                        {
                            "path": file.path,
                            "name": file.path or f"{file.source}: {file.key}",
                            "bytes": _size(file.path),
                        }
                        for file in sorted(
                            each.files, key=lambda file: (len(Path(file.path or file.key).name), file.path)
                        )
                    ],
                }
                for each in pictures
            ],
        }


def find_groups(index: Index) -> tuple[list[DuplicateGroup], tuple[str, ...]]:
    """Groups of duplicates as `Index.duplicates` finds them, by kind, the largest first.

    Returns:
        The groups, and what was not compared, a sentence each.
    """
    found = index.duplicates()
    files = sorted(found.identical.items(), key=lambda each: (-len(each[1]), each[0]))
    groups = [DuplicateGroup("identical", (id,)) for id, _ in files]
    for kind, alike in (("near-identical", found.near_identical), ("similar", found.similar)):
        groups += [DuplicateGroup(kind, tuple(each)) for each in sorted(alike, key=lambda each: (-len(each), each))]
    return groups, tuple(found.skipped)


def _size(path: str) -> int:
    """Bytes of a file; 0 where it is gone."""
    try:
        return Path(path).stat().st_size if path else 0
    except OSError:
        return 0
