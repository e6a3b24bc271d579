"""The memory as the page reads it: rows by number, their vectors, and small pictures of them."""

import hashlib
import io
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from queue import Empty, Queue

import numpy as np
from PIL import Image

from recollect.core.errors import UserError
from recollect.memory.filters import parse_filter, unknown_names
from recollect.memory.rows import Item, picture_of
from recollect.memory.store import Memory

THUMB_SIDE = 224
VIEW_SIDE = 1600
_CACHE_BYTES = 128 * 2**20
_AT_ONCE = 64

REMOVED = "no longer in the memory"

_FILTERS = 8  # that are kept resolved


@dataclass(frozen=True, eq=False)
class PictureSelection:
    """What a filter leaves of a collection.

    Attributes:
        where: the filter; empty for everything.
        rows: that satisfy it, in order.
        tiles: the same without further captions of a picture: what is listed.
        collection: whose rows they are.
    """

    where: str
    rows: np.ndarray
    tiles: np.ndarray
    collection: "Collection"

    @cached_property
    def _pictures(self) -> tuple[np.ndarray, np.ndarray]:
        pictures, places = np.unique(self.collection.copy_of[self.tiles], return_index=True)
        return pictures, self.tiles[places]

    @property
    def pictures(self) -> np.ndarray:
        """The tiles without copies: the row of each picture that stands for all of them (`Collection.copy_of`).

        Where that does not satisfy the filter itself, a copy of it does.
        """
        return self._pictures[0]

    def tiles_of(self, pictures: np.ndarray) -> np.ndarray:
        """What to show for some of its pictures."""
        own, tiles = self._pictures
        return tiles[np.searchsorted(own, pictures)]

    def has(self, pictures: np.ndarray) -> np.ndarray:
        """Which of some pictures are among its own."""
        return np.isin(pictures, self.pictures)


class Collection:
    """One version of a memory.

    The browser names a picture by the number of its row in this version, never by a path; a number of another version
    is refused.

    Args:
        memory: what is shown.

    Attributes:
        version: a number of this version of this memory, and of no other: a browser keeps pictures by it, also those of
            a memory that was served at the same address before.
        known: fingerprint of the newest version that has these rows: writing labels makes others of it.
        ids: of every row.
        vectors: unit-norm image embeddings (rows, width), float32.

    Raises:
        UserError: the memory is empty.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.known = memory.fingerprint
        self.version = int.from_bytes(hashlib.blake2b(self.known.encode(), digest_size=6).digest())
        self.ids, self.vectors = memory.matrix("image")
        if not self.ids:
            raise UserError(f"{memory.address}: the memory is empty. Add pictures with `recollect memory add`.")
        self._thumbs = _Thumbnails(self)
        self._copies: tuple[np.ndarray, list[str]] | None = None
        self._of_digest: dict[str, int] | None = None
        self._shown: OrderedDict[tuple[str, int], PictureSelection] = OrderedDict()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def name(self) -> str:
        """What to call it, on the page: the last part of its address."""
        address = self.memory.address
        return (address if "://" in address else str(Path(address).resolve())).rstrip("/").rsplit("/", 1)[-1]

    @cached_property
    def row_of(self) -> dict[str, int]:
        """The row of each id."""
        return {id: row for row, id in enumerate(self.ids)}

    @property
    def copy_of(self) -> np.ndarray:
        """For each row the first one of the same picture: of the same pixels, or of another caption of it.

        A picture that is there twice is one picture, for clicks and for everything that is counted of them. Where the
        memory cannot be read (any more) each row is its own.
        """
        if self._copies is None:
            with suppress(UserError, OSError):
                self._copies = self._find_copies()
        return np.arange(len(self)) if self._copies is None else self._copies[0]

    @property
    def digests(self) -> list[str]:
        """Of each row's pixels, by which a picture is known whatever its file is called; "" where that is not known."""
        _ = self.copy_of
        return [""] * len(self) if self._copies is None else self._copies[1]

    def row_of_picture(self, key: str) -> int | None:
        """The first row of a picture by the digest of its pixels, else by its id; None where it is not there."""
        copy_of, digests = self.copy_of, self.digests
        if self._of_digest is None and self._copies is not None:  # else asked again when the memory can be read
            rows = np.flatnonzero(copy_of == np.arange(len(self))).tolist()
            self._of_digest = {digest: row for row in rows if (digest := digests[row])}
        found = (self._of_digest or {}).get(key)
        return self.row_of.get(key) if found is None else found

    @cached_property
    def tile_of(self) -> np.ndarray:
        """For each row the first one of the same picture, of which a memory may have a row for each caption."""
        found, first = np.arange(len(self)), dict[str, int]()
        if any("#" in id for id in self.ids):
            for row, id in enumerate(self.ids):
                found[row] = first.setdefault(picture_of(id), row)
        return found

    @cached_property
    def tiles(self) -> int:
        """How many pictures there are, each with all its captions once."""
        return int((self.tile_of == np.arange(len(self))).sum())

    def _find_copies(self) -> tuple[np.ndarray, list[str]]:
        digests, start = [""] * len(self), 0
        for batch in self.memory.columns(["id", "digest"]):
            ids, end = batch["id"], start + len(batch["id"])
            if self.ids[start:end] == ids:  # as nearly always; a million are looked up in a second
                digests[start:end] = batch["digest"]
            else:
                for id, digest in zip(ids, batch["digest"], strict=True):
                    if (row := self.row_of.get(id)) is not None:
                        digests[row] = digest
            start = end
        keys = [digest or picture_of(id) for id, digest in zip(self.ids, digests, strict=True)]
        _, group, counts = np.unique(np.array([hash(key) for key in keys]), return_inverse=True, return_counts=True)
        found, first = np.arange(len(self)), dict[str, int]()
        for row in np.flatnonzero(counts[group] > 1).tolist():  # few, and told by the whole key
            found[row] = first.setdefault(keys[row], row)
        return found, digests

    def shown(self, where: str | None = None) -> PictureSelection:
        """What satisfies a filter, or everything; the latest few are kept.

        Raises:
            UserError: the filter is malformed, or nothing satisfies it.
        """
        where = (where or "").strip()
        key = (where, self.memory.version if where else 0)
        if (kept := self._shown.get(key)) is not None:
            return kept
        rows = np.arange(len(self))
        if where:
            ids = self.memory.backend.ids_where(parse_filter(where))
            rows = np.sort(np.array([self.row_of[id] for id in ids if id in self.row_of], dtype=np.int64))
            if not len(rows):
                raise UserError(f"no picture satisfies {where}{unknown_names(where, self.memory.metadata_keys())}")
        tiles = rows
        if self.tiles < len(self):
            lengths = np.array([len(self.ids[row]) for row in rows.tolist()])
            by_number = rows[np.lexsort((rows, lengths))]  # ID, ID#1, ID#2: the first stands for the others
            tiles = np.sort(by_number[np.unique(self.tile_of[by_number], return_index=True)[1]])
        found = self._shown[key] = PictureSelection(where, rows, tiles, self)
        while len(self._shown) > _FILTERS:
            self._shown.popitem(last=False)
        return found

    def check(self, rows: Sequence[int]) -> None:
        """Refuse numbers that are no rows.

        Raises:
            UserError: naming the first.
        """
        if wrong := next((row for row in rows if not 0 <= row < len(self)), None):
            raise UserError(f"there is no picture {wrong}")

    def items(self, rows: Sequence[int]) -> list[Item]:
        """What is known of some rows, without their pictures; of one that was removed since, that it was.

        Raises:
            UserError: the memory has vanished.
        """
        ids = [self.ids[row] for row in rows]
        there = self.memory.backend.known(ids)
        known = iter(self.memory.fetch([id for id in ids if id in there], pictures=False))
        return [next(known) if id in there else Item(id, REMOVED, "", {}, None, id) for id in ids]

    def captions(self, row: int) -> list[str]:
        """All that is said of a row's picture: its own caption first, then those of its further rows, each once."""
        rows = np.flatnonzero(self.tile_of == self.tile_of[row]).tolist()
        further = sorted((other for other in rows if other != row), key=lambda other: (len(self.ids[other]), other))
        said = [item.caption for item in self.items([row, *further]) if item.caption]
        return list(dict.fromkeys(said))

    def picture(self, row: int) -> Image.Image:
        """A row's picture, decoded.

        Raises:
            UserError: the memory keeps none, or its file is gone or damaged.
        """
        (item,) = self.memory.fetch([self.ids[row]])
        return item.open()

    def thumbnail(self, row: int) -> bytes:
        """A small JPEG of a row's picture.

        Raises:
            UserError: as in `picture`.
        """
        return self._thumbs.get(row)

    def close(self) -> None:
        """Stop making thumbnails."""
        self._thumbs.close()


def as_jpeg(picture: Image.Image, side: int) -> bytes:
    """The picture as a new JPEG no larger than ``side``: what is served was always made here, from decoded pixels."""
    picture = picture.convert("RGB")
    picture.thumbnail((side, side))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=84)
    return buffer.getvalue()


class _Thumbnails:
    """Many requests for one picture each become few reads of many: a thread collects what is asked at a time."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._asked: Queue[tuple[int, Future[bytes]] | None] = Queue()
        self._worker = threading.Thread(target=self._work, name="thumbnails", daemon=True)
        self._worker.start()

    def get(self, row: int) -> bytes:
        with self._lock:
            if row in self._kept:
                self._kept.move_to_end(row)
                return self._kept[row]
        answer: Future[bytes] = Future()
        self._asked.put((row, answer))
        return answer.result(timeout=60)

    def close(self) -> None:
        self._asked.put(None)

    def _work(self) -> None:
        while (first := self._asked.get()) is not None:
            together = [first]
            while len(together) < _AT_ONCE:
                try:
                    more = self._asked.get_nowait()
                except Empty:
                    break
                if more is None:
                    self._asked.put(None)
                    break
                together.append(more)
            self._make(together)

    def _make(self, asked: list[tuple[int, "Future[bytes]"]]) -> None:
        rows = list(dict.fromkeys(row for row, _ in asked))
        try:
            items = dict(
                zip(rows, self.collection.memory.fetch([self.collection.ids[row] for row in rows]), strict=True)
            )
        except Exception:
            items = {}  # one row may be gone: read each by itself below
        for row, answer in asked:
            try:
                with self._lock:
                    kept = self._kept.get(row)
                if kept is None:
                    picture = items[row].open() if row in items else self.collection.picture(row)
                    kept = as_jpeg(picture, THUMB_SIDE)
                    self._keep(row, kept)
                answer.set_result(kept)
            except Exception as error:
                answer.set_exception(error)

    def _keep(self, row: int, data: bytes) -> None:
        with self._lock:
            self._kept[row] = data
            self._bytes += len(data)
            while self._bytes > _CACHE_BYTES:
                _, old = self._kept.popitem(last=False)
                self._bytes -= len(old)
