"""Read access to the index for the page: the current version, and resized pictures."""

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
from recollect.core.recent import LruCache
from recollect.data.sources.images import small_jpeg
from recollect.index import Index, Picture
from recollect.index.facets import aspect_ratios
from recollect.index.stores.base import TABLE_FOLDER

_THUMB_SIDE = 256
VIEW_SIDE = 1600
FULL_SIDE = 8192
"""Maximum longer side of a zoomed picture, in pixels."""

_CACHE_BYTES = 128 * 2**20
_CHECK_INTERVAL = 0.3  # seconds between checks for changes by other processes
_REMOVED = "no longer in the library"


@dataclass(eq=False)
class View:
    """A version of an index.

    Attributes:
        index: the index; it may have advanced to a later version.
        version: the version of this view.
        ids: ids of the pictures, in row order.
    """

    index: Index
    version: int
    ids: list[str]
    _lock: threading.RLock = field(repr=False)

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Row of each id."""
        return {id: row for row, id in enumerate(self.ids)}

    @cached_property
    def vectors(self) -> Float32[np.ndarray, "rows width"]:
        """Unit-norm image vectors of all rows."""
        return self._read(Index.vectors)

    @cached_property
    def shapes(self) -> UInt8[np.ndarray, " rows"]:
        """Aspect ratio of each row as a byte: 128 + 48 log2(width / height), clipped to 0–255."""
        return np.clip(np.round(128 + 48 * np.log2(self._read(aspect_ratios))), 0, 255).astype(np.uint8)

    def _read(self, read: Callable[[Index], np.ndarray]) -> np.ndarray:
        """Read from this version, even if the index has advanced."""
        with self._lock:
            current = self.index.version == self.version
            return read(self.index if current else Index.open(self.index.address, version=self.version))

    def shapes_of(self, ids: Sequence[str], most: int | None = None) -> bytes:
        """Return `shapes` of the first ``most`` pictures of a list; square for pictures missing in this version."""
        if ids is self.ids:
            return self.shapes[:most].tobytes()
        shapes, row_of = self.shapes, self.row_of
        return bytes(int(shapes[row_of[id]]) if id in row_of else 128 for id in ids[:most])

    def rows(self, ids: Sequence[str]) -> Int64[np.ndarray, " some"]:
        """Return the rows of ids, skipping ids missing in this version."""
        row_of = self.row_of
        return np.array([row_of[id] for id in ids if id in row_of], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class ShownRows:
    """Rows of a view that match a filter.

    Attributes:
        where: the filter; empty for all rows.
    """

    view: View
    rows: np.ndarray
    where: str = ""

    @classmethod
    def all(cls, view: View) -> "ShownRows":
        """Return all rows of a view."""
        return cls(view, np.arange(len(view.ids)))

    @cached_property
    def ids(self) -> list[str]:
        """Ids of the rows."""
        return [self.view.ids[row] for row in self.rows.tolist()] if self.where else self.view.ids


class Library:
    """Thread-safe access to an index that other processes may change while its page is open.

    Attributes:
        name: display name.
    """

    def __init__(self, index: Index, name: str) -> None:
        self.index, self.name = index, name
        self._lock = threading.RLock()
        self._checked = 0.0
        self._place = _place_of(index)
        self._view = self._read()
        self._thumbnails: LruCache[str, bytes] = LruCache(_CACHE_BYTES, len)

    @property
    def version(self) -> int:
        """Version of the latest view."""
        return self._view.version

    def view(self) -> View:
        """Return a view of the current version; other processes' changes show after at most `_CHECK_INTERVAL`.

        Raises:
            UserError: the index is missing, or was rebuilt with another model.
        """
        with self._lock:
            if time.monotonic() - self._checked > _CHECK_INTERVAL:
                self.refresh()
            return self._view

    def refresh(self) -> View:
        """Return a view of the current version, always checking for changes."""
        with self._lock:
            place = _place_of(self.index)
            if place != self._place:  # rebuilt at the same address
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
        if self.index.folder is None:  # without a folder, earlier versions cannot be read later
            _ = view.vectors
        return view

    def pictures(self, ids: Sequence[str]) -> list[Picture]:
        """Return the pictures with the given ids; a removed picture has a caption that says so."""
        known = set(self.index.store.rows(list(ids), ["id"])["id"].to_pylist())
        found = {each.id: each for each in self.index.pictures([id for id in ids if id in known])}
        return [found.get(id) or Picture(id, captions=(_REMOVED,)) for id in ids]

    def thumbnail(self, id: str) -> bytes:
        """Return a small JPEG of a picture.

        Raises:
            UserError: there is no such picture, or its file is missing, changed or damaged.
        """
        return self._thumbnails.get_or_create(id, lambda: self.picture(id, _THUMB_SIDE))

    def original(self, id: str) -> tuple[str, bytes]:
        """Return name and bytes of a picture's original file, or of the copy stored in the index.

        Raises:
            UserError: there is no such picture, or its file is missing.
        """
        (picture,) = self.index.pictures([id])
        if picture.path is not None and picture.path.is_file():
            return picture.path.name, picture.path.read_bytes()
        data = picture.encoded()
        if data is None:
            raise UserError(f"{picture.where}: the picture is not stored in the index")
        return (Path(picture.files[0].key).name if picture.files else id), data

    def picture(self, id: str, side: int = VIEW_SIDE) -> bytes:
        """Return a JPEG of a picture with a longer side of at most ``side`` pixels.

        Raises:
            UserError: as in `thumbnail`.
        """
        return small_jpeg(self.index.pictures([id])[0].open(side), side)


def _place_of(index: Index) -> tuple[int, int]:
    """Return an identifier that changes if an index on disk is deleted and rebuilt."""
    if index.folder is None:
        return (0, 0)
    try:
        found = os.stat(index.folder / TABLE_FOLDER)
    except OSError:
        return (0, 0)
    return (found.st_dev, found.st_ino)
