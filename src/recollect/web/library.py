"""The index as the page reads it: its newest version, and small copies of pictures."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64, UInt8

from recollect.core.errors import UserError
from recollect.core.recent import Recent
from recollect.data.sources.images import small_jpeg
from recollect.index import Index, Picture
from recollect.index.facets import aspect_ratios

THUMB_SIDE = 256
VIEW_SIDE = 1600
FULL_SIDE = 8192
"""Longer side of a picture that is zoomed in."""

_CACHE_BYTES = 128 * 2**20
_CHECK_EVERY = 0.3  # seconds between two looks for changes by other processes
_GONE = "no longer in the library"


@dataclass(eq=False)
class View:
    """One version of an index.

    Attributes:
        index: which index; it may have moved on to a later version.
        ids: of the pictures, in the order of the rows.
    """

    index: Index
    version: int
    ids: list[str]
    _lock: threading.RLock = field(repr=False)

    @cached_property
    def row_of(self) -> dict[str, int]:
        """The row of each id."""
        return {id: row for row, id in enumerate(self.ids)}

    @cached_property
    def vectors(self) -> Float32[np.ndarray, "rows width"]:
        """Unit-norm image vectors of all rows."""
        return self._read(Index.vectors)

    @cached_property
    def shapes(self) -> UInt8[np.ndarray, " rows"]:
        """A byte for the aspect ratio of each row: 128 + 48 log2(width / height), within 0 to 255."""
        return np.clip(np.round(128 + 48 * np.log2(self._read(aspect_ratios))), 0, 255).astype(np.uint8)

    def _read(self, read: Callable[[Index], np.ndarray]) -> np.ndarray:
        """Read from this version, also when the index has moved on."""
        with self._lock:
            here = self.index.version == self.version
            return read(self.index if here else Index.open(self.index.address, version=self.version))

    def shapes_of(self, ids: Sequence[str], most: int | None = None) -> bytes:
        """`shapes` of the first pictures of a list; square for those that this version lacks."""
        if ids is self.ids:
            return self.shapes[:most].tobytes()
        shapes, row_of = self.shapes, self.row_of
        return bytes(int(shapes[row_of[id]]) if id in row_of else 128 for id in ids[:most])

    def rows(self, ids: Sequence[str]) -> Int64[np.ndarray, " some"]:
        """Rows of ids; those that this version lacks are left out."""
        row_of = self.row_of
        return np.array([row_of[id] for id in ids if id in row_of], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class ShownRows:
    """The rows of a version of the index that satisfy a filter.

    Attributes:
        where: the filter; empty for everything.
    """

    view: View
    rows: np.ndarray
    where: str = ""

    @classmethod
    def all(cls, view: View) -> "ShownRows":
        """Every row."""
        return cls(view, np.arange(len(view.ids)))

    @cached_property
    def ids(self) -> list[str]:
        """Ids of the rows."""
        return [self.view.ids[row] for row in self.rows.tolist()] if self.where else self.view.ids


class Library:
    """An index that other processes may change while its page is open; safe to call from several threads.

    Attributes:
        name: what the page calls it.
    """

    def __init__(self, index: Index, name: str) -> None:
        self.index, self.name = index, name
        self._lock = threading.RLock()
        self._checked = 0.0
        self._place = _place_of(index)
        self._view = self._read()
        self._thumbnails: Recent[str, bytes] = Recent(_CACHE_BYTES, len)

    @property
    def version(self) -> int:
        """Of the latest view."""
        return self._view.version

    def view(self) -> View:
        """The newest version.

        Raises:
            UserError: the index is gone, or holds vectors of another model now.
        """
        with self._lock:
            if time.monotonic() - self._checked > _CHECK_EVERY:
                self.refresh()
            return self._view

    def refresh(self) -> View:
        """The newest version, without waiting."""
        with self._lock:
            place = _place_of(self.index)
            if place != self._place:  # built again at the same address
                other = Index.open(self.index.address, self.index.model)
                other.model.check_fingerprint(self.index.record.model, "the model of this page")
                self.index, self._place = other, place
            self.index.refresh()
            if self.index is not self._view.index or self.index.version != self._view.version:
                self._view = self._read()
            self._checked = time.monotonic()
            return self._view

    def _read(self) -> View:
        view = View(self.index, self.index.version, self.index.ids, self._lock)
        if self.index.folder is None:  # its earlier versions cannot be read
            _ = view.vectors
        return view

    def pictures(self, ids: Sequence[str]) -> list[Picture]:
        """Facts about pictures; the caption of one that was removed since says so."""
        known = set(self.index.store.rows(list(ids), ["id"])["id"].to_pylist())
        found = {each.id: each for each in self.index.pictures([id for id in ids if id in known])}
        return [found.get(id) or Picture(id, captions=(_GONE,)) for id in ids]

    def thumbnail(self, id: str) -> bytes:
        """A small JPEG of a picture.

        Raises:
            UserError: there is no such picture, or its file is gone, changed or damaged.
        """
        return self._thumbnails.made(id, lambda: self.picture(id, THUMB_SIDE))

    def original(self, id: str) -> tuple[str, bytes]:
        """The name and the bytes of a picture's own file, or of the picture that the index stores.

        Raises:
            UserError: there is no such picture, or its file is gone.
        """
        (picture,) = self.index.pictures([id])
        if picture.path is not None and picture.path.is_file():
            return picture.path.name, picture.path.read_bytes()
        data = picture.encoded()
        if data is None:
            raise UserError(f"{picture.where}: the index stores no picture for it")
        return (Path(picture.files[0].key).name if picture.files else id), data

    def picture(self, id: str, side: int = VIEW_SIDE) -> bytes:
        """A JPEG of a picture no larger than ``side``.

        Raises:
            UserError: as in `thumbnail`.
        """
        return small_jpeg(self.index.pictures([id])[0].open(side), side)


def _place_of(index: Index) -> tuple[int, int]:
    """Changes when an index on disk was deleted and built again."""
    if index.folder is None:
        return (0, 0)
    try:
        found = os.stat(index.folder / "pictures.lance")
    except OSError:
        return (0, 0)
    return (found.st_dev, found.st_ino)
