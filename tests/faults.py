"""Kills, power cuts and full disks, without killing anything: every state in which one may leave a folder is noted.

While `recorded` is open, the folder is looked at before each change in it, and after each fsync. A process
that is killed leaves the folder as it is then. A power cut leaves less: of a file what was fsynced, and of a folder the
names that stood in it when the folder was fsynced; the names may also have come to the disk before the contents did.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

Tree = Mapping[str, bytes | None]
"""Contents by path below the folder; None for a folder."""

Fault = Literal["kill", "power cut", "power cut, names first", "power cut, half written"]

_CHANGES = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"})
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_listening: list = []


def _hook(event: str, arguments: tuple) -> None:
    if _listening and (event in _CHANGES or (event == "open" and _writes(arguments))):
        _listening[-1](event, arguments)


def _writes(arguments: tuple) -> bool:
    return len(arguments) > 2 and isinstance(arguments[2], int) and bool(arguments[2] & _WRITING)


_hooked: list[bool] = []


@contextmanager
def _listen(root: Path, hear) -> Iterator[None]:
    """Call ``hear`` before each change of a file or folder below ``root``, but for its own."""
    if not _hooked:  # an audit hook stays for good
        sys.addaudithook(_hook)
        _hooked.append(True)
    deaf = []

    def listener(event: str, arguments: tuple) -> None:
        if not deaf and any(str(root) in str(part) for part in arguments):
            deaf.append(True)
            try:
                hear(event, arguments)
            finally:
                deaf.pop()

    _listening.append(listener)
    try:
        yield
    finally:
        _listening.remove(listener)


class Recording:
    """What `recorded` saw.

    Attributes:
        states: what each fault may leave, each different state once, and how many of the marks were set before it.
            States that differ only within what was still being written, under a temporary name, count as one.
        looked: how often the folder was looked at.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.marks, self.looked = root, 0, 0
        self.states: dict[tuple, tuple[Fault, Tree, int]] = {}
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}
        for folder, _, files in os.walk(root):
            self._see_folder(Path(folder))
            for name in files:
                self._see_file(Path(folder) / name)

    def mark(self) -> None:
        """Note that from now on something must be there after any fault."""
        self.marks += 1

    def synced(self, path: Path) -> None:
        self._see_folder(path) if path.is_dir() else self._see_file(path)

    def look(self, *_: object) -> None:
        self.looked += 1
        for fault, tree in (
            ("kill", self._live(lambda inode, data: data)),
            ("power cut", self._durable(self.root.stat().st_ino, "")),
            ("power cut, names first", self._live(lambda inode, data: self._contents.get(inode, b""))),
            ("power cut, half written", self._live(self._half)),
        ):
            different = tuple((name, data) for name, data in tree.items() if not _inside_temporary(name))
            self.states.setdefault((fault, self.marks, different), (fault, tree, self.marks))

    def _half(self, inode: int, data: bytes) -> bytes:
        kept = self._contents.get(inode, b"")
        return data if data == kept else data[: (len(kept) + len(data)) // 2] if data.startswith(kept) else kept

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
    """Whether a path names a temporary file or folder (one of each kind is as good as many), or what is in one."""
    return any(part.startswith(".") and ".tmp" in part for part in name.split("/"))


@contextmanager
def recorded(root: Path) -> Iterator[Recording]:
    """Note every state in which a fault may leave ``root`` while the block runs; what is there now is on the disk."""
    recording, fsync = Recording(root), os.fsync

    def noted(handle: int) -> None:
        fsync(handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path.is_relative_to(root) and path.exists():
            recording.synced(path)
            recording.look()

    os.fsync = noted
    try:
        with _listen(root, recording.look):
            yield recording
    finally:
        os.fsync = fsync
    recording.look()


def write_tree(tree: Tree, root: Path) -> Path:
    """Make a folder hold what a fault left."""
    root.mkdir()
    for name, data in tree.items():
        if data is None:
            (root / name).mkdir(parents=True, exist_ok=True)
        else:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
    return root


class FullDisk(OSError):
    """What the system says where there is no room."""


@contextmanager
def full_disk(root: Path, after: int) -> Iterator[list[int]]:
    """From the ``after``-th opening of a file for writing below ``root`` on, there is no room for any.

    Yields:
        A list that holds the number of refused openings.
    """
    count, refused = [0], [0]

    def hear(event: str, arguments: tuple) -> None:
        if event == "open":
            count[0] += 1
            if count[0] >= after:
                refused[0] += 1
                raise FullDisk(28, "No space left on device", str(arguments[0]))

    with _listen(root, hear):
        yield refused
