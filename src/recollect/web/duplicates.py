"""Duplicates for the page: looked for in the background, with progress, until they are found or stopped."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recollect.core.progress import watched
from recollect.index import Index
from recollect.web.library import Library

KINDS = ("identical", "near-identical", "similar")

SHOWN_GROUPS = 40
"""Groups in one answer."""

MOST_OF_GROUP = 48
"""Pictures of a group that are shown; the answer says how many more there are."""


@dataclass
class _Search:
    """A search for duplicates: to come, under way or over."""

    version: int
    state: str  # idle, running, and then done, stopped or failed
    what: str = ""
    done: float = 0
    total: float | None = None
    error: str = ""
    groups: dict[str, list[list[str]]] = field(default_factory=dict)
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
        self._search = _Search(library.version, "idle")
        self._lock = threading.Lock()

    def start(self) -> None:
        """Look for duplicates in a thread, unless one is doing so."""
        with self._lock:
            if self._search.state == "running":
                return
            self._search = _Search(self.library.view().version, "running")
            threading.Thread(target=self._run, args=[self._search], name="duplicates", daemon=True).start()

    def stop(self) -> None:
        """Stop looking; the thread ends at its next step."""
        with self._lock:
            if self._search.state == "running":
                self._search.state = "stopped"

    def _run(self, search: _Search) -> None:
        try:
            with watched(search.step):
                groups, skipped = find_groups(self.library.index)
        except _StoppedError:
            return
        except Exception as error:  # of whatever kind: the page would wait for ever
            search.state, search.error = "failed", " ".join(str(error).split())
            return
        with self._lock:
            if search.state == "running":
                search.state, search.groups, search.skipped = "done", groups, skipped

    def progress(self) -> dict[str, Any]:
        """How far the latest search is: ``idle``, ``running``, ``done``, ``stopped`` or ``failed``."""
        search = self._search
        facts = {name: getattr(search, name) for name in ("state", "what", "done", "total", "error", "skipped")}
        return {**facts, "changed": search.version != self.library.version}

    def answer(self, here: set[str], kind: str, start: int) -> dict[str, Any]:
        """Progress, how many groups and pictures of each kind were found, and some groups of one kind.

        Args:
            here: ids of the pictures to show; those that were removed since the search are not among them.
        """
        groups: dict[str, list[list[str]]] = {each: [] for each in KINDS}
        for name, found in self._search.groups.items():
            some = ([id for id in ids if id in here] for ids in found)
            groups[name] = [ids for ids in some if len(ids) > (name != "identical")]
        return {
            **self.progress(),
            "counts": {each: {"groups": len(of), "pictures": sum(map(len, of))} for each, of in groups.items()},
            "groups": [self._shown(kind, ids) for ids in groups.get(kind, [])[start : start + SHOWN_GROUPS]],
        }

    def _shown(self, kind: str, ids: Sequence[str]) -> dict[str, Any]:
        """A group with what is known about its pictures; copies are usually called like the original and more."""
        pictures = self.library.pictures(ids[:MOST_OF_GROUP])
        return {
            "kind": kind,
            "more": max(0, len(ids) - MOST_OF_GROUP),
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
                            each.distinct_files, key=lambda file: (len(Path(file.path or file.key).name), file.path)
                        )
                    ],
                }
                for each in pictures
            ],
        }


def find_groups(index: Index) -> tuple[dict[str, list[list[str]]], tuple[str, ...]]:
    """Groups of duplicates as `Index.duplicates` finds them, by kind, the largest first.

    Pictures with equal pixels are one picture of the index with several files, so an ``identical`` group has one id.

    Returns:
        Ids of each group, the picture to keep first, and what was not compared, a sentence each.
    """
    found = index.duplicates()
    files = sorted(found.identical.items(), key=lambda each: (-len(each[1]), each[0]))
    near, similar = (
        sorted(map(list, alike), key=lambda each: (-len(each), each)) for alike in (found.near_identical, found.similar)
    )
    identical = [[id] for id, _ in files]
    return dict(zip(KINDS, (identical, near, similar), strict=True)), tuple(found.skipped)


def _size(path: str) -> int:
    """Bytes of a file; 0 where it is gone."""
    try:
        return Path(path).stat().st_size if path else 0
    except OSError:
        return 0
