"""The vectors of an index as matrices, in parts that are written once, mapped, and shared by every process.

A row number of the store never gets other vectors, so a part stays valid whatever is added or deleted later. A new
version adds a part for its new rows and notes which older rows are gone.
"""

import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int64

from recollect.core.nearest import ExactNeighbours, best_of_all, exact_neighbours
from recollect.core.ordering import in_order
from recollect.index.arrow import positions, string_array
from recollect.index.rows import By, Record
from recollect.index.stores.base import Nearest, mean_of_captions
from recollect.index.stores.parts import Part, ReadRows, new_part, stored_parts, within

_PARTS = 8  # more parts are joined
_DEAD = 0.3  # share of deleted rows above which parts are rewritten
_SCAN = 16  # below this share of ids, one pass over all ids is faster than a hash table of them


class Matrix:
    """The vectors of one version.

    Args:
        version: of the store.
        parts: their rows, one part after the other, are the slots that this class counts in.
        numbers: rising row numbers of the visible rows of this version.
    """

    def __init__(self, version: int, parts: list[Part], numbers: Int64[np.ndarray, " rows"], record: Record) -> None:
        import pyarrow as pa

        self.version, self.parts, self.record = version, parts, record
        self.numbers = np.concatenate([np.empty(0, dtype=np.int64), *(part.numbers for part in parts)])
        self.counts = np.concatenate([np.empty(0, dtype=np.int64), *(part.counts for part in parts)])
        alive = within(self.numbers, numbers)
        self.alive: Bool[np.ndarray, " slots"] | None = None if alive.all() else alive
        self.ids = pa.concat_arrays([part.ids for part in parts]) if parts else pa.array([], pa.string())

    def __len__(self) -> int:
        return len(self.numbers) if self.alive is None else int(self.alive.sum())

    @cached_property
    def first(self) -> Int64[np.ndarray, " slots"]:
        """The first caption of each slot, counting the captions of all parts."""
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def owners(self) -> Int64[np.ndarray, " captions"]:
        """The slot of each caption."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @cached_property
    def _order(self) -> Int64[np.ndarray, " slots"]:
        return in_order(self.numbers)

    @cached_property
    def _has_image(self) -> Bool[np.ndarray, " slots"] | None:
        has = np.concatenate([np.empty(0, dtype=bool), *(part.norms["image"] > 0 for part in self.parts)])
        return None if has.all() else has

    def slots_of_numbers(self, numbers: Int64[np.ndarray, " some"]) -> Int64[np.ndarray, " some"]:
        """The slots of row numbers, -1 for one that is not there."""
        ordered = self.numbers[self._order]
        if not len(ordered):
            return np.full(len(numbers), -1, dtype=np.int64)
        place = np.minimum(np.searchsorted(ordered, numbers), len(ordered) - 1)
        return np.where(ordered[place] == numbers, self._order[place], -1)

    def slots_of(self, ids: Any) -> Int64[np.ndarray, " some"]:
        """The slots of visible ids, -1 for one that is not there."""
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = string_array(ids)
        if self.alive is not None:
            visible = np.flatnonzero(self.alive)
            found = self._find(wanted, self.ids.filter(pa.array(self.alive)), pc, pa)
            return np.where(found >= 0, visible[np.maximum(found, 0)], -1) if len(visible) else found
        return self._find(wanted, self.ids, pc, pa)

    @staticmethod
    def _find(wanted: Any, ids: Any, pc: Any, pa: Any) -> Int64[np.ndarray, " some"]:
        if _SCAN * len(wanted) >= len(ids):
            found = pc.index_in(wanted, value_set=ids)
            return positions(found)
        distinct = wanted.unique()
        which = pc.index_in(ids, value_set=distinct)
        named = positions(which)
        rows = np.flatnonzero(named >= 0)
        out = np.full(len(distinct), -1, dtype=np.int64)
        out[named[rows]] = rows
        return out[positions(pc.index_in(wanted, value_set=distinct))]

    def facts(self, ids: list[str], columns: list[str]) -> Any:
        """Arrow table of these columns of the rows, in the order of ``ids``; None where a row or its facts are not in
        a part on disk."""
        import pyarrow as pa

        slots = self.slots_of(ids)
        if not len(slots) or (slots < 0).any() or any(part.facts is None for part in self.parts):
            return None
        starts = np.cumsum([0, *(len(part.numbers) for part in self.parts)])
        owners = np.searchsorted(starts, slots, side="right") - 1
        rows = [self.parts[part].facts.slice(slot - starts[part], 1) for part, slot in zip(owners, slots, strict=True)]
        return pa.concat_tables(rows).select(columns)

    def searchable(
        self, by: By, chosen: Bool[np.ndarray, " slots"] | None, spoken: bool
    ) -> Int64[np.ndarray, " some"] | None:
        """The images or captions that a search compares with; None for all of them.

        Args:
            chosen: which slots a filter leaves; None for all.
            spoken: only slots with a caption.
        """
        masks = [mask for mask in (self.alive, chosen) if mask is not None]
        if by == "image" and self._has_image is not None:
            masks.append(self._has_image)
        if by == "image" and spoken and not self.counts.all():
            masks.append(self.counts > 0)
        if not masks:
            return None
        mask = np.logical_and.reduce(masks)
        return np.flatnonzero(mask if by == "image" else mask[self.owners])

    def nearest(
        self, queries: Float32[np.ndarray, "queries width"], k: int, by: By, among: Int64[np.ndarray, " some"] | None
    ) -> ExactNeighbours:
        """The k nearest images or captions by exact products, fewer where there are fewer.

        Args:
            among: those to compare with, rising; all by default.
        """
        found, start = [], 0
        for part in self.parts:
            count = len(part.stored(by))
            inside = None
            if among is not None:
                inside = among[np.searchsorted(among, start) : np.searchsorted(among, start + count)] - start
            size = count if inside is None else len(inside)
            if size:
                half = part.stored(by).dtype != np.float32
                norms = part.norms[by] if half else None
                hits = exact_neighbours(queries, part.stored(by), min(k, size), inside, norms=norms)
                found.append(ExactNeighbours(hits.rows + start, hits.scores))
            start += count
        if not found:
            empty = np.empty((len(queries), 0))
            return ExactNeighbours(empty.astype(np.int64), empty.astype(np.float32))
        return best_of_all(found, k)

    def hits(self, found: ExactNeighbours, by: By) -> Nearest:
        """What `nearest` or an approximate index found, with the slots of captions."""
        rows = found.rows if by == "image" else self.owners[found.rows]
        entries = np.zeros_like(rows) if by == "image" else found.rows - self.first[rows]
        return Nearest(rows, entries, found.scores, self.ids, self.read)

    def read(
        self, slots: Int64[np.ndarray, " some"], by: By, entries: Int64[np.ndarray, " some"] | None = None
    ) -> Float32[np.ndarray, "some width"]:
        """Unit-norm vectors of slots; of captions those named by ``entries``, else `mean_of_captions` of each slot."""
        if by == "image":
            return self.unit("image", slots)
        if entries is not None:
            return self.unit("text", self.first[slots] + entries)
        counts = self.counts[slots]
        within_slot = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return mean_of_captions(self.unit("text", np.repeat(self.first[slots], counts) + within_slot), counts)

    def unit(self, by: By, places: Int64[np.ndarray, " some"]) -> Float32[np.ndarray, "some width"]:
        """Unit-norm images or captions by their place among those of all parts."""
        if len(self.parts) == 1:
            return self.parts[0].unit(by, places)
        out, start = np.zeros((len(places), self.record.width), dtype=np.float32), 0
        for part in self.parts:
            count = len(part.stored(by))
            mine = (places >= start) & (places < start + count)
            out[mine] = part.unit(by, places[mine] - start)
            start += count
        return out

    def whole(self, by: By) -> Float32[np.ndarray, "rows width"]:
        """One unit-norm vector per visible row; not copied where they are stored so."""
        if by == "image" and len(self.parts) == 1 and self.alive is None and self.parts[0].image.dtype == np.float32:
            return self.parts[0].image
        slots = np.arange(len(self.numbers)) if self.alive is None else np.flatnonzero(self.alive)
        return self.read(slots, by)

    def drop(self) -> None:
        """Delete the parts from disk, so that they are made again."""
        for part in self.parts:
            if part.folder is not None:
                shutil.rmtree(part.folder, ignore_errors=True)


def open_matrix(
    cache: Path | None,
    version: int,
    numbers: Int64[np.ndarray, " rows"],
    record: Record,
    read: ReadRows,
    known: Matrix | None = None,
    tidy: bool = True,
) -> Matrix:
    """The matrix of a version, after writing what is missing of it.

    Args:
        cache: folder for the parts; None keeps them in this process's memory.
        numbers: rising row numbers of the visible rows of this version.
        read: reads rows.
        known: matrix of an earlier version, whose parts are used again.
        tidy: join parts, and rewrite those that are mostly deleted; not for readers of an old version.
    """
    parts = list(known.parts) if known is not None else stored_parts(cache, record)
    parts = [part for part in parts if within(part.numbers, numbers).any()]
    covered = np.concatenate([np.empty(0, dtype=np.int64), *(part.numbers for part in parts)])
    missing = numbers[~within(numbers, np.sort(covered))]
    dead = 1 - (len(numbers) - len(missing)) / max(1, len(covered))
    lost = bool(len(missing)) and bool(len(covered)) and bool(missing[0] <= covered.max())
    if not tidy:
        if len(missing):
            parts = [new_part(None, numbers, record, read)]
    elif lost or (len(parts) >= _PARTS and len(missing)) or dead > _DEAD:
        old = [part.folder for part in stored_parts(cache, record) if part.folder]
        parts = [new_part(cache, numbers, record, read)] if len(numbers) else []
        for folder in old:
            if all(folder != part.folder for part in parts):
                shutil.rmtree(folder, ignore_errors=True)  # processes that mapped it keep it until they end
    elif len(missing):
        parts.append(new_part(cache, missing, record, read))
    return Matrix(version, parts, numbers, record)
