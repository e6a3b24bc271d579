"""Simulated kills, power cuts and full disks: record every state in which a fault can leave a folder.

Inside `recorded`, the folder is captured before every change and after every fsync. A kill leaves exactly that state.
A power cut leaves less: the fsynced contents of each file, and the names in each folder at its last fsync; names may
also reach the disk before contents do.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

Tree = Mapping[str, bytes | None]
"""File contents by relative path; None for a folder."""

Fault = Literal["kill", "power cut", "power cut, names first", "power cut, half written"]

_CHANGES = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"})
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_listeners: list = []


def _hook(event: str, arguments: tuple) -> None:
    if _listeners and (event in _CHANGES or (event == "open" and _writes(arguments))):
        _listeners[-1](event, arguments)


def _writes(arguments: tuple) -> bool:
    return len(arguments) > 2 and isinstance(arguments[2], int) and bool(arguments[2] & _WRITING)


_installed: list[bool] = []


@contextmanager
def _listen(root: Path, on_event) -> Iterator[None]:
    """Call ``on_event`` before each change below ``root``, except changes that ``on_event`` makes itself."""
    if not _installed:  # an audit hook cannot be removed
        sys.addaudithook(_hook)
        _installed.append(True)
    busy = []

    def listener(event: str, arguments: tuple) -> None:
        if not busy and any(str(root) in str(part) for part in arguments):
            busy.append(True)
            try:
                on_event(event, arguments)
            finally:
                busy.pop()

    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class Recording:
    """States captured by `recorded`.

    Attributes:
        states: distinct states that each fault can leave, with the number of marks set before. States that differ
            only in unfinished files under temporary names count as one.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.marks = root, 0
        self.states: dict[tuple, tuple[Fault, Tree, int]] = {}
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}
        for folder, _, files in os.walk(root):
            self._see_folder(Path(folder))
            for name in files:
                self._see_file(Path(folder) / name)

    def mark(self) -> None:
        """Note that everything written so far must survive any fault from now on."""
        self.marks += 1

    def synced(self, path: Path) -> None:
        self._see_folder(path) if path.is_dir() else self._see_file(path)

    def capture(self, *_: object) -> None:
        for fault, tree in (
            ("kill", self._live(lambda inode, data: data)),
            ("power cut", self._durable(self.root.stat().st_ino, "")),
            ("power cut, names first", self._live(lambda inode, data: self._contents.get(inode, b""))),
            ("power cut, half written", self._live(self._half)),
        ):
            finished = tuple((name, data) for name, data in tree.items() if not _inside_temporary(name))
            self.states.setdefault((fault, self.marks, finished), (fault, tree, self.marks))

    def _half(self, inode: int, data: bytes) -> bytes:
        synced = self._contents.get(inode, b"")
        return data if data == synced else data[: (len(synced) + len(data)) // 2] if data.startswith(synced) else synced

    def _see_file(self, path: Path) -> None:
        self._contents[path.stat().st_ino] = path.read_bytes()

    def _see_folder(self, path: Path) -> None:
        self._names[path.stat().st_ino] = {each.name: (each.inode(), each.is_dir()) for each in os.scandir(path)}

    def _live(self, content) -> dict[str, bytes | None]:
        tree: dict[str, bytes | None] = {}
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            tree[name] = None if path.is_dir() else content(path.stat().st_ino, path.read_bytes())
        return tree

    def _durable(self, inode: int, under: str) -> dict[str, bytes | None]:
        tree: dict[str, bytes | None] = {}
        for name, (entry, folder) in sorted(self._names.get(inode, {}).items()):
            tree[under + name] = None if folder else self._contents.get(entry, b"")
            if folder:
                tree |= self._durable(entry, f"{under}{name}/")
        return tree


def _inside_temporary(name: str) -> bool:
    """Return whether a path is, or is inside, a temporary file or folder."""
    return any(part.startswith(".") and ".tmp" in part for part in name.split("/"))


@contextmanager
def recorded(root: Path) -> Iterator[Recording]:
    """Record every state in which a fault can leave ``root`` during the block; existing files count as fsynced."""
    recording, fsync = Recording(root), os.fsync

    def recorded_fsync(handle: int) -> None:
        fsync(handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path.is_relative_to(root) and path.exists():
            recording.synced(path)
            recording.capture()

    os.fsync = recorded_fsync
    try:
        with _listen(root, recording.capture):
            yield recording
    finally:
        os.fsync = fsync
    recording.capture()


def write_tree(tree: Tree, root: Path) -> Path:
    """Write a recorded state to a new folder."""
    root.mkdir()
    for name, data in tree.items():
        if data is None:
            (root / name).mkdir(parents=True, exist_ok=True)
        else:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
    return root


class FullDisk(OSError):
    """The operating system's error for a full disk."""


@contextmanager
def full_disk(root: Path, after: int) -> Iterator[list[int]]:
    """Fail every open for writing below ``root`` from the ``after``-th on, as a full disk does.

    Yields:
        A list that holds the number of failed opens.
    """
    count, refused = [0], [0]

    def on_event(event: str, arguments: tuple) -> None:
        if event == "open":
            count[0] += 1
            if count[0] >= after:
                refused[0] += 1
                raise FullDisk(28, "No space left on device", str(arguments[0]))

    with _listen(root, on_event):
        yield refused
