"""A memory as a pool to search."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from threading import Lock

import numpy as np
from jaxtyping import Float, Float32
from torch import Tensor

from recollect.core.types import ImageLike
from recollect.efsa.caption_file import CaptionFile
from recollect.memory import Hits, Item, Memory
from recollect.memory.filters import parse_filter
from recollect.memory.lookup import nothing_satisfies
from recollect.memory.rows import picture_of

CAPTIONS_FILE = "captions.jsonl"
"""Where a memory's folder keeps the captions that a model wrote."""


class MemoryPool:
    """The images of a memory, or those that satisfy a filter.

    An image that has a row for each of several captions is one image, and goes by the first of these rows. An image's
    caption is the user's own where it has one, else what `recollect caption` wrote.

    Args:
        memory: what is searched.
        where: a filter, e.g. ``source = 'emoji'``.
        written: captions that a model wrote; by default those in the memory's folder, if it is one.
        exact: pass the memory's index by, if it has one.
        each_caption: let each row be an image of its own, also where several are of one with several captions: for
            searches among captions.

    Raises:
        UserError: the filter is malformed or nothing satisfies it.
    """

    def __init__(
        self,
        memory: Memory,
        where: str | None = None,
        written: CaptionFile | None = None,
        exact: bool = False,
        each_caption: bool = False,
    ) -> None:
        self.memory, self.where, self.exact, self.each_caption = memory, where, exact, each_caption
        path = caption_path(memory)
        if written is None and path is not None:
            written = CaptionFile(path)
        if written is not None:
            forget_changed(memory, written)
        self._file = written
        self.written = {} if written is None else written.captions
        if where is not None and not self._rows:
            raise nothing_satisfies(memory.backend, where)

    def __len__(self) -> int:
        return len(self._ids) if self._several or self.where is not None else len(self.memory)

    def nearest(self, vectors: Float[Tensor, "n width"], k: int) -> Hits:
        """For each unit vector its k nearest images, or all if there are fewer, best first."""
        most = max(1, min(k, len(self)))
        if not self._several:
            return self._nearest_rows(vectors, most)
        asked = most
        while True:
            asked = min(2 * asked, len(self._rows))
            rows = self._nearest_rows(vectors, asked)
            found = [self._images(*row) for row in zip(rows.ids.tolist(), rows.scores.tolist(), strict=True)]
            if asked == len(self._rows) or all(len(each) >= most for each in found):
                break
        ids = np.array([list(each)[:most] for each in found], dtype=object).reshape(len(found), most)
        scores = np.array([list(each.values())[:most] for each in found], dtype=np.float32)
        return Hits(ids, scores.reshape(len(found), most))

    def _nearest_rows(self, vectors: Float[Tensor, "n width"], k: int) -> Hits:
        return self.memory.search(vectors, k, modality="image", where=self.where, exact=self.exact)

    def _images(self, ids: list[str], scores: list[float]) -> dict[str, float]:
        """The images of some rows, each with its best score."""
        found: dict[str, float] = {}
        for id, score in zip(ids, scores, strict=True):
            found.setdefault(self._first.get(picture_of(id), id), score)
        return found

    def items(self, ids: Sequence[str]) -> list[Item]:
        """The items of these ids, in their order; their pictures are read together when one of them is opened."""
        if not ids:
            return []
        pictures = _Pictures(self.memory, ids)
        return [
            replace(
                row,
                caption=row.caption if row.caption.strip() else self.written.get(row.id, ""),
                image=pictures.opener(row.id),
            )
            for row in self.memory.fetch(ids, pictures=False)
        ]

    def filtered(self, where: str) -> "MemoryPool":
        """Those images that also satisfy ``where``."""
        parse_filter(where)  # by itself, so that a stray bracket cannot change what the other filter means
        both = where if self.where is None else f"({self.where}) and ({where})"
        return MemoryPool(self.memory, both, self._file, self.exact, self.each_caption)

    def vectors(self, ids: Sequence[str]) -> Float32[np.ndarray, "n width"]:
        """The embeddings of these ids, in their order."""
        return self.memory.vectors(ids, "image")

    def ids(self) -> Sequence[str]:
        """Every id, in the memory's order."""
        return self._ids

    @cached_property
    def _several(self) -> bool:
        """Whether an image has a row for each of several captions, and is one image."""
        if self.each_caption:
            return False
        rows = self._rows if self.where is not None else self.memory.backend.ids_where(parse_filter("id like '%#%'"))
        return any(picture_of(id) != id for id in rows)

    @cached_property
    def _first(self) -> dict[str, str]:
        """The row that each image goes by."""
        found: dict[str, str] = {}
        for id in self._rows:
            known = found.setdefault(picture_of(id), id)
            if (len(id), id) < (
                len(known),
                known,
            ):  # a row that was changed lies behind the others, whatever its number
                found[picture_of(id)] = id
        return found

    @cached_property
    def _ids(self) -> list[str]:
        return self._rows if self.each_caption else list(self._first.values())

    @cached_property
    def _rows(self) -> list[str]:
        if self.where is not None:
            return self.memory.backend.ids_where(parse_filter(self.where))
        return [id for batch in self.memory.columns(["id"]) for id in batch["id"]]

    def has_captions(self) -> bool:
        """Whether any image has one."""
        if self.written:
            return True
        return any(caption.strip() for batch in self.memory.columns(["caption"]) for caption in batch["caption"])


class _Pictures:
    """Pictures of several rows, read from the memory in one go when the first of them is wanted."""

    def __init__(self, memory: Memory, ids: Sequence[str]) -> None:
        self._memory, self._ids, self._lock = memory, list(ids), Lock()
        self._rows: dict[str, Item] | None = None

    def opener(self, id: str) -> Callable[[], ImageLike]:
        return partial(self._open, id)

    def _open(self, id: str) -> ImageLike:
        with self._lock:
            if self._rows is None:
                self._rows = {row.id: row for row in self._memory.fetch(self._ids)}
        return self._rows[id].open()


def forget_changed(memory: Memory, file: CaptionFile) -> None:
    """Of captions that a model wrote, take those for unwritten whose file holds another picture now.

    An id stays with a file's name, and the picture in it may be replaced: its caption says nothing of the new one.
    """
    if not file.pictures or file.checked == memory.fingerprint:
        return
    file.forget(
        [
            id
            for batch in memory.columns(["id", "digest"])
            for id, digest in zip(batch["id"], batch["digest"], strict=True)
            if digest and file.pictures.get(id, digest) != digest
        ]
    )
    file.checked = memory.fingerprint


def caption_path(memory: Memory) -> Path | None:
    """The file of the captions that a model wrote for a memory; None for one that is no folder."""
    return None if "://" in memory.address else Path(memory.address) / CAPTIONS_FILE
