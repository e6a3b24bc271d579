"""Vectors and facts of an index in immutable, memory-mapped parts, shared between processes.

Row numbers are never reused, so parts stay valid when rows are added or deleted later. A new version adds a part for
its new rows and masks deleted rows of older parts.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from recollect.core.checksums import CHECKSUMS, damaged_files, write_checksums
from recollect.core.files import atomic_folder
from recollect.core.nearest import ExactNeighbors, exact_neighbors, merge_neighbors
from recollect.index.arrow import caption_matrix, integer_array, integer_values, string_array, vector_matrix
from recollect.index.filters import PHYSICAL, Filter, FilterColumns, filter_value
from recollect.index.rows import FACTS, By, Record
from recollect.index.stores.base import Nearest, mean_of_captions

ROW = "_rowid"
"""Column with the store's row numbers."""

ReadRows = Callable[[int], Iterator[Any]]
"""Reads rows from a row number on, in number order, as Arrow tables of `FACTS`, vectors and `ROW`."""

_MAX_PARTS = 8  # more parts are merged
_MAX_DEAD = 0.3  # share of deleted rows above which parts are rewritten
_BATCH_ROWS = 8_192
_CACHED_FILTERS = 16
_DAMAGE = (OSError, ValueError, KeyError, TypeError, EOFError)
_KINDS: tuple[By, ...] = ("image", "text")
_ROWS = "rows.arrow"


@dataclass(frozen=True)
class Part:
    """Some rows, in the order of their numbers.

    Attributes:
        folder: folder on disk; None for a part in memory.
        rows: Arrow table of `FACTS` and `ROW`.
        stored: vectors in stored precision: of images, zero for a row without one; and of the captions of all rows,
            concatenated.
        norms: norms of the stored vectors, which differ from 1 by rounding to half precision; 0 for zero vectors.
    """

    folder: Path | None
    rows: Any
    stored: dict[By, Float[np.ndarray, "_ width"]]
    norms: dict[By, Float32[np.ndarray, " _"]]

    @cached_property
    def numbers(self) -> Int64[np.ndarray, " rows"]:
        """Sorted row numbers."""
        return integer_values(self.rows[ROW])

    @cached_property
    def counts(self) -> Int64[np.ndarray, " rows"]:
        """Number of captions per row."""
        import pyarrow.compute as pc

        return integer_values(pc.list_value_length(self.rows["captions"]))

    def unit(self, by: By, positions: Int64[np.ndarray, " some"]) -> Float32[np.ndarray, "some width"]:
        """Return the vectors at some positions as float32 with unit norm."""
        found = self.stored[by][positions].astype(np.float32)
        if self.stored[by].dtype == np.float32:
            return found
        norms = self.norms[by][positions, None]
        return found / np.where(norms > 0, norms, 1)


def filter_columns(rows: Any) -> FilterColumns:
    """Return the filter columns of an Arrow table that contains `FACTS`."""
    return FilterColumns(
        len(rows), lambda name: [filter_value(name, value) for value in rows[PHYSICAL.get(name, name)].to_pylist()]
    )


def within(values: Int64[np.ndarray, " some"], ordered: Int64[np.ndarray, " all"]) -> Bool[np.ndarray, " some"]:
    """Return which values are in a sorted array; unlike `np.isin` without sorting."""
    if not len(ordered):
        return np.zeros(len(values), dtype=bool)
    position = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return ordered[position] == values


class Matrix:
    """The rows of one version. A slot is the position of a row in the concatenated parts.

    Args:
        version: version of the store.
        parts: parts that cover the visible rows.
        numbers: sorted row numbers of the visible rows.

    Attributes:
        mask: returns which slots satisfy a filter; cached.
    """

    def __init__(self, version: int, parts: list[Part], numbers: Int64[np.ndarray, " rows"], record: Record) -> None:
        self.version, self.parts, self.record = version, parts, record
        self.numbers = np.concatenate([np.empty(0, dtype=np.int64), *(part.numbers for part in parts)])
        self.counts = np.concatenate([np.empty(0, dtype=np.int64), *(part.counts for part in parts)])
        alive = within(self.numbers, numbers)
        self.alive: Bool[np.ndarray, " slots"] | None = None if alive.all() else alive
        self.columns = filter_columns(self.rows) if parts else FilterColumns(0, lambda name: ())
        self.mask = lru_cache(_CACHED_FILTERS)(lambda where: where.mask(self.columns))

    def __len__(self) -> int:
        return len(self.numbers) if self.alive is None else int(self.alive.sum())

    @cached_property
    def ids(self) -> Any:
        """Ids of the slots, as an Arrow array."""
        import pyarrow as pa

        chunks = [chunk for part in self.parts for chunk in part.rows["id"].chunks]
        return pa.concat_arrays(chunks) if chunks else pa.array([], pa.string())

    @cached_property
    def rows(self) -> Any:
        """Arrow table of `FACTS` and `ROW` by slot; requires at least one part."""
        import pyarrow as pa

        return pa.concat_tables([part.rows for part in self.parts])

    @cached_property
    def visible(self) -> Int64[np.ndarray, " rows"]:
        """Slots of visible rows."""
        return np.arange(len(self.numbers)) if self.alive is None else np.flatnonzero(self.alive)

    @cached_property
    def first(self) -> Int64[np.ndarray, " slots"]:
        """Position of each slot's first caption among the captions of all parts."""
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def owners(self) -> Int64[np.ndarray, " captions"]:
        """Slot of each caption."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @cached_property
    def has_image(self) -> Bool[np.ndarray, " slots"]:
        """Whether each slot has an image vector."""
        return np.concatenate([np.empty(0, dtype=bool), *(part.norms["image"] > 0 for part in self.parts)])

    def slots_of(self, ids: Any) -> Int64[np.ndarray, " some"]:
        """Return the slots of ids; -1 for ids that are not visible."""
        import pyarrow.compute as pc

        wanted = string_array(ids)
        visible = self.ids if self.alive is None else self.ids.take(integer_array(self.visible))
        distinct = wanted.unique()  # a hash table of these and one pass over all ids: faster than the reverse
        positions = integer_values(pc.index_in(visible, value_set=distinct))
        rows = np.flatnonzero(positions >= 0)
        slots = np.full(len(distinct), -1, dtype=np.int64)
        slots[positions[rows]] = self.visible[rows]
        return slots[integer_values(pc.index_in(wanted, value_set=distinct))]

    def facts(self, slots: Int64[np.ndarray, " some"], columns: list[str]) -> Any:
        """Return columns of `FACTS` for some slots, as an Arrow table."""
        return self.rows.select(columns).take(integer_array(slots))

    def scan(self, columns: list[str], where: Filter | None) -> Iterator[Any]:
        """Yield Arrow tables with columns of `FACTS`, for the visible rows that satisfy a filter."""
        chosen = self._selected(where)
        for start in range(0, len(self.numbers), _BATCH_ROWS):
            table = self.rows.select(columns).slice(start, _BATCH_ROWS)
            if chosen is not None:
                table = table.take(integer_array(np.flatnonzero(chosen[start : start + _BATCH_ROWS])))
            if len(table):
                yield table

    def count(self, captioned: bool, where: Filter | None) -> int:
        """Return the number of visible rows; with ``captioned`` only rows with a caption."""
        mask = self._selected(where, self.counts > 0 if captioned else None)
        return len(self) if mask is None else int(mask.sum())

    def _selected(
        self, where: Filter | None, *conditions: Bool[np.ndarray, " slots"] | None
    ) -> Bool[np.ndarray, " slots"] | None:
        """Return which slots are visible and satisfy a filter and all conditions; None for all slots."""
        masks = (self.alive, None if where is None else self.mask(where), *conditions)
        given = [mask for mask in masks if mask is not None]
        return np.logical_and.reduce(given) if given else None

    def searchable(self, by: By, where: Filter | None, captioned: bool) -> Int64[np.ndarray, " some"] | None:
        """Return the positions of the images or captions to search; None for all.

        Args:
            captioned: search only slots with a caption.
        """
        if by == "text":
            mask = self._selected(where)
            return None if mask is None else np.flatnonzero(mask[self.owners])
        has_caption = self.counts > 0 if captioned and not self.counts.all() else None
        mask = self._selected(where, None if self.has_image.all() else self.has_image, has_caption)
        return None if mask is None else np.flatnonzero(mask)

    def nearest(
        self, queries: Float32[np.ndarray, "queries width"], k: int, by: By, among: Int64[np.ndarray, " some"] | None
    ) -> ExactNeighbors:
        """Return the k nearest images or captions by exact products; fewer if fewer exist.

        Args:
            among: sorted positions to search; None for all.
        """
        empty = np.empty((len(queries), 0))
        found, start = [ExactNeighbors(empty.astype(np.int64), empty.astype(np.float32))], 0
        for part in self.parts:
            stored, inside = part.stored[by], None
            if among is not None:
                first, last = np.searchsorted(among, (start, start + len(stored)))
                inside = among[first:last] - start
            size = len(stored) if inside is None else len(inside)
            if size:
                norms = part.norms[by] if stored.dtype != np.float32 else None
                hits = exact_neighbors(queries, stored, min(k, size), inside, norms=norms)
                found.append(ExactNeighbors(hits.rows + start, hits.scores))
            start += len(stored)
        return merge_neighbors(found[1:] or found, k)

    def hits(self, found: ExactNeighbors, by: By) -> Nearest:
        """Convert results of `nearest` or of an approximate index to `Nearest`, mapping captions to slots."""
        rows = found.rows if by == "image" else self.owners[found.rows]
        entries = np.zeros_like(rows) if by == "image" else found.rows - self.first[rows]
        return Nearest(rows, entries, found.scores, self.ids, self.read)

    def read(
        self, slots: Int64[np.ndarray, " some"], by: By, entries: Int64[np.ndarray, " some"] | None = None
    ) -> Float32[np.ndarray, "some width"]:
        """Return unit-norm vectors of slots; for text the captions at ``entries``, or `mean_of_captions` if None."""
        if by == "image":
            return self.unit("image", slots)
        if entries is not None:
            return self.unit("text", self.first[slots] + entries)
        counts = self.counts[slots]
        within_slot = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return mean_of_captions(self.unit("text", np.repeat(self.first[slots], counts) + within_slot), counts)

    def unit(self, by: By, positions: Int64[np.ndarray, " some"]) -> Float32[np.ndarray, "some width"]:
        """Return unit-norm image or caption vectors by their position among all parts."""
        if len(self.parts) == 1:
            return self.parts[0].unit(by, positions)
        out, start = np.zeros((len(positions), self.record.width), dtype=np.float32), 0
        for part in self.parts:
            count = len(part.stored[by])
            mine = (positions >= start) & (positions < start + count)
            out[mine] = part.unit(by, positions[mine] - start)
            start += count
        return out

    def whole(self, by: By) -> Float32[np.ndarray, "rows width"]:
        """Return one unit-norm vector per visible row, without copying if possible."""
        if by == "image" and len(self.parts) == 1 and self.alive is None:
            stored = self.parts[0].stored["image"]
            if stored.dtype == np.float32:
                return stored
        return self.read(self.visible, by)

    def drop(self) -> None:
        """Delete the parts from disk."""
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
    """Return the matrix of a version, writing missing parts.

    Args:
        cache: folder of the parts; None keeps them in memory.
        numbers: sorted row numbers of the visible rows of this version.
        read: reads rows from the store.
        known: matrix of an earlier version whose parts are reused.
        tidy: merge parts if there are many or many rows are deleted; False for readers of an old version.
    """
    parts = list(known.parts) if known is not None else _stored_parts(cache, record)
    parts = [part for part in parts if within(part.numbers, numbers).any()]
    covered = np.concatenate([np.empty(0, dtype=np.int64), *(part.numbers for part in parts)])
    missing = numbers[~within(numbers, np.sort(covered))]
    dead = 1 - (len(numbers) - len(missing)) / max(1, len(covered))
    lost = bool(len(missing)) and bool(len(covered)) and bool(missing[0] <= covered.max())
    own_cache = cache if tidy else None
    if lost or (tidy and ((len(parts) >= _MAX_PARTS and len(missing)) or dead > _MAX_DEAD)):
        old = [part.folder for part in _stored_parts(own_cache, record) if part.folder]
        parts = [_new_part(own_cache, numbers, record, read)] if len(numbers) else []
        for folder in old:
            if all(folder != part.folder for part in parts):
                shutil.rmtree(folder, ignore_errors=True)  # processes that have mapped it can still read it
    elif len(missing):
        parts.append(_new_part(own_cache, missing, record, read))
    return Matrix(version, parts, numbers, record)


def _stored_parts(cache: Path | None, record: Record) -> list[Part]:
    """Return the intact, non-overlapping parts on disk; damaged parts are deleted."""
    found: list[Part] = []
    for folder in sorted(cache.glob("part-*")) if cache is not None and cache.is_dir() else []:
        try:
            found.append(_read_part(folder, record))
        except _DAMAGE:
            shutil.rmtree(folder, ignore_errors=True)
    kept: list[Part] = []
    for part in sorted(found, key=lambda each: -len(each.numbers)):  # concurrent processes may write overlapping parts
        if not any(within(part.numbers, other.numbers).any() for other in kept):
            kept.append(part)
    return sorted(kept, key=lambda part: int(part.numbers[0]))


def _new_part(cache: Path | None, numbers: np.ndarray, record: Record, read: ReadRows) -> Part:
    """Create a part; in memory if there is no cache, or if the disk is full or read-only."""
    import pyarrow as pa

    if cache is not None:
        folder = cache / f"part-{int(numbers[0])}-{int(numbers[-1])}-{len(numbers)}"
        try:
            if not folder.exists():  # another process may have written it
                with atomic_folder(folder) as unfinished:
                    _write_part(unfinished, numbers, record, read)
            return _read_part(folder, record)
        except _DAMAGE:
            pass
    batches = list(_chosen(numbers, record, read))
    stored = {by: np.concatenate([vectors[by] for _, vectors in batches]) for by in _KINDS}
    rows = pa.concat_tables([rows for rows, _ in batches])
    return Part(None, rows, stored, {by: _norms(vectors) for by, vectors in stored.items()})


def _chosen(numbers: np.ndarray, record: Record, read: ReadRows) -> Iterator[tuple[Any, dict[By, np.ndarray]]]:
    """Yield facts and vectors of the rows with the given numbers."""
    import pyarrow as pa

    seen = 0
    for table in read(int(numbers[0])):
        keep = within(integer_values(table[ROW]), numbers)
        table = table if keep.all() else table.filter(pa.array(keep))
        image, text = vector_matrix(table["image_vector"]), caption_matrix(table["caption_vectors"])[0]
        vectors = (np.ascontiguousarray(each, dtype=record.precision) for each in (image, text))
        yield table.select([ROW, *FACTS]), dict(zip(_KINDS, vectors, strict=True))
        seen += table.num_rows
    if seen != len(numbers):
        raise RuntimeError(f"{seen:,} of {len(numbers):,} rows were read")


def _write_part(folder: Path, numbers: np.ndarray, record: Record, read: ReadRows) -> None:
    """Write a part batch by batch: a full disk then raises, while writing to a memory map would kill the process."""
    import pyarrow as pa

    norms: dict[By, list[np.ndarray]] = {by: [np.empty(0, dtype=np.float32)] for by in _KINDS}
    with ExitStack() as stack:
        files = {by: stack.enter_context((folder / f"{by}.bin").open("wb")) for by in _KINDS}
        writer: Any = None
        for rows, vectors in _chosen(numbers, record, read):
            writer = writer or stack.enter_context(pa.ipc.new_file(str(folder / _ROWS), rows.schema))
            writer.write_table(rows)
            for by, each in vectors.items():
                files[by].write(each.data)
                norms[by].append(_norms(each))
    for by, parts in norms.items():
        np.save(folder / f"{by}.npy", np.concatenate(parts))
    write_checksums(folder, sorted(folder.iterdir()))


def _read_part(folder: Path, record: Record) -> Part:
    """Verify the checksums of a part and map it.

    Raises:
        OSError, ValueError, KeyError: it is damaged, or belongs to another index.
    """
    import pyarrow as pa

    if not (folder / CHECKSUMS).exists() or damaged_files(folder):
        raise ValueError(f"{folder}: damaged")
    with pa.memory_map(str(folder / _ROWS)) as file:
        rows = pa.ipc.open_file(file).read_all()
    norms = {by: np.load(folder / f"{by}.npy") for by in _KINDS}
    part = Part(folder, rows, {by: _mapped(folder / f"{by}.bin", record) for by in _KINDS}, norms)
    sizes = {by: {len(part.stored[by]), len(norms[by])} for by in _KINDS}
    if sizes != {"image": {len(rows)}, "text": {int(part.counts.sum())}}:
        raise ValueError(f"{folder}: wrong shape")
    return part


def _mapped(file: Path, record: Record) -> np.ndarray:
    size = file.stat().st_size // (record.width * np.dtype(record.precision).itemsize)
    if not size:
        return np.empty((0, record.width), dtype=record.precision)
    # copy-on-write, since torch warns about read-only arrays
    return np.memmap(file, dtype=record.precision, mode="c", shape=(size, record.width))


def _norms(vectors: np.ndarray) -> Float32[np.ndarray, " vectors"]:
    if vectors.dtype == np.float32:  # already normalized
        return np.asarray(vectors.any(axis=1), dtype=np.float32)
    return np.asarray(np.linalg.norm(vectors.astype(np.float64), axis=1), dtype=np.float32)
