"""The vectors of an index as matrices, in parts that are written once, mapped, and shared by every process.

A row number of the store never gets other vectors, so a part stays valid whatever is added or deleted later. A new
version adds a part for its new rows and notes which older rows are gone.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from recollect.core.checksums import CHECKSUMS, damaged_files, note_checksums
from recollect.core.files import atomic_folder
from recollect.core.nearest import ExactNeighbours, best_of_all, exact_neighbours
from recollect.core.ordering import in_order
from recollect.index.arrow import positions, string_array
from recollect.index.rows import By, Record
from recollect.index.stores.base import Nearest, mean_of_captions

_PARTS = 8  # more parts are joined
_DEAD = 0.3  # share of deleted rows above which parts are rewritten
_SCAN = 16  # below this share of ids, one pass over all ids is faster than a hash table of them


@dataclass(frozen=True)
class MatrixBatch:
    """Some rows as the store reads them, in the order of their numbers."""

    numbers: Int64[np.ndarray, " rows"]
    ids: Any
    image: Float[np.ndarray, "rows width"]
    text: Float[np.ndarray, "captions width"]
    counts: Int64[np.ndarray, " rows"]
    facts: Any


ReadRows = Callable[[int], Iterator[MatrixBatch]]
"""Reads the rows from a row number on, in the order of their numbers."""


@dataclass(frozen=True)
class Part:
    """The vectors of some rows.

    Attributes:
        folder: where it is on disk; None if it is only in this process's memory.
        numbers: row numbers of the store, rising.
        ids: Arrow array of texts.
        image: vectors, zeros for a row without one.
        text: the captions of all rows, one row after the other.
        counts: captions of each row.
        norms: of the stored vectors by kind; rounding to half precision changes them from 1. 0 for zeros.
        facts: mapped Arrow table of `recollect.index.rows.FACTS`; None in memory.
    """

    folder: Path | None
    numbers: Int64[np.ndarray, " rows"]
    ids: Any
    image: Float[np.ndarray, "rows width"]
    text: Float[np.ndarray, "captions width"]
    counts: Int64[np.ndarray, " rows"]
    norms: dict[By, Float32[np.ndarray, " vectors"]]
    facts: Any = None

    def stored(self, by: By) -> Float[np.ndarray, "vectors width"]:
        """The vectors of images or captions as they are stored."""
        return self.image if by == "image" else self.text

    def unit(self, by: By, places: Int64[np.ndarray, " some"]) -> Float32[np.ndarray, "some width"]:
        """Some vectors as float32 with their norm divided out."""
        found = self.stored(by)[places].astype(np.float32)
        if self.stored(by).dtype == np.float32:
            return found
        norms = self.norms[by][places, None]
        return found / np.where(norms > 0, norms, 1)


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
    parts = list(known.parts) if known is not None else _stored_parts(cache, record)
    parts = [part for part in parts if within(part.numbers, numbers).any()]
    covered = np.concatenate([np.empty(0, dtype=np.int64), *(part.numbers for part in parts)])
    missing = numbers[~within(numbers, np.sort(covered))]
    dead = 1 - (len(numbers) - len(missing)) / max(1, len(covered))
    lost = bool(len(missing)) and bool(len(covered)) and bool(missing[0] <= covered.max())
    if not tidy:
        if len(missing):
            parts = [_new_part(None, numbers, record, read)]
    elif lost or (len(parts) >= _PARTS and len(missing)) or dead > _DEAD:
        old = [part.folder for part in _stored_parts(cache, record) if part.folder]
        parts = [_new_part(cache, numbers, record, read)] if len(numbers) else []
        for folder in old:
            if all(folder != part.folder for part in parts):
                shutil.rmtree(folder, ignore_errors=True)  # processes that mapped it keep it until they end
    elif len(missing):
        parts.append(_new_part(cache, missing, record, read))
    return Matrix(version, parts, numbers, record)


def within(some: Int64[np.ndarray, " some"], rising: Int64[np.ndarray, " all"]) -> Bool[np.ndarray, " some"]:
    """Which numbers are among others, which rise; unlike `np.isin` it sorts nothing."""
    if not len(rising):
        return np.zeros(len(some), dtype=bool)
    place = np.minimum(np.searchsorted(rising, some), len(rising) - 1)
    return rising[place] == some


_DAMAGE = (OSError, ValueError, KeyError, TypeError, EOFError)
_FILES = (
    "numbers.npy", "counts.npy", "ids.arrow", "facts.arrow", "image.bin", "text.bin", "image_norms.npy",
    "text_norms.npy",
)  # fmt: skip


def _stored_parts(cache: Path | None, record: Record) -> list[Part]:
    """The intact parts on disk that share no row; damaged ones are deleted."""
    found: list[Part] = []
    for folder in sorted(cache.glob("part-*")) if cache is not None and cache.is_dir() else []:
        try:
            found.append(_read_part(folder, record))
        except _DAMAGE:
            shutil.rmtree(folder, ignore_errors=True)
    kept: list[Part] = []
    for part in sorted(found, key=lambda each: -len(each.numbers)):  # two processes may have written overlapping parts
        if not any(within(part.numbers, other.numbers).any() for other in kept):
            kept.append(part)
    return sorted(kept, key=lambda part: int(part.numbers[0]))


def _new_part(cache: Path | None, numbers: np.ndarray, record: Record, read: ReadRows) -> Part:
    """A new part; in memory where there is no cache, the disk is full or cannot be written to."""
    if cache is not None:
        folder = cache / f"part-{int(numbers[0])}-{int(numbers[-1])}-{len(numbers)}"
        try:
            if not folder.exists():  # else another process was faster
                with atomic_folder(folder) as unfinished:
                    _write_part(unfinished, numbers, record, read)
            return _read_part(folder, record)
        except _DAMAGE:
            pass
    return _part_in_memory(numbers, record, read)


def _chosen(numbers: np.ndarray, read: ReadRows) -> Iterator[MatrixBatch]:
    """The rows of these numbers alone."""
    import pyarrow as pa

    seen = 0
    for batch in read(int(numbers[0])):
        keep = within(batch.numbers, numbers)
        rows = np.flatnonzero(keep)
        text = batch.text[np.repeat(keep, batch.counts)]
        ids, facts = batch.ids.take(pa.array(rows)), batch.facts.take(pa.array(rows))
        yield MatrixBatch(batch.numbers[rows], ids, batch.image[rows], text, batch.counts[rows], facts)
        seen += len(rows)
    if seen != len(numbers):
        raise RuntimeError(f"{seen:,} of {len(numbers):,} rows were read")


def _write_part(folder: Path, numbers: np.ndarray, record: Record, read: ReadRows) -> None:
    """Written batch by batch, so that a full disk is an error; writing to a map would kill the process."""
    import pyarrow as pa

    ids, counts = list[Any](), [np.empty(0, dtype=np.int64)]
    norms: dict[str, list[np.ndarray]] = {"image": [], "text": []}
    facts: Any = None
    with (
        (folder / "image.bin").open("wb") as images,
        (folder / "text.bin").open("wb") as texts,
        pa.OSFile(str(folder / "facts.arrow"), "wb") as file_of_facts,
    ):
        for batch in _chosen(numbers, read):
            for by, vectors, file in (("image", batch.image, images), ("text", batch.text, texts)):
                stored = np.ascontiguousarray(vectors, dtype=record.precision)
                file.write(stored.data)
                norms[by].append(_norms(stored))
            ids.append(batch.ids)
            counts.append(batch.counts)
            facts = facts or pa.ipc.new_file(file_of_facts, batch.facts.schema)
            facts.write_table(batch.facts)
        facts.close()
    np.save(folder / "numbers.npy", numbers)
    np.save(folder / "counts.npy", np.concatenate(counts))
    for by, each in norms.items():
        np.save(folder / f"{by}_norms.npy", np.concatenate([np.empty(0, dtype=np.float32), *each]))
    with pa.OSFile(str(folder / "ids.arrow"), "wb") as file:
        table = pa.table({"id": pa.chunked_array(ids, pa.string())})
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    note_checksums(folder, [folder / name for name in _FILES])


def _read_part(folder: Path, record: Record) -> Part:
    """Map a part, after comparing it with its checksums.

    Raises:
        OSError, ValueError, KeyError: it is damaged, or of another index.
    """
    import pyarrow as pa

    if not (folder / CHECKSUMS).exists() or (damage := damaged_files(folder)):
        raise ValueError(f"{folder}: damaged" if not (folder / CHECKSUMS).exists() else damage[0])
    with pa.memory_map(str(folder / "ids.arrow")) as file:
        column = pa.ipc.open_file(file).read_all()["id"]
    with pa.memory_map(str(folder / "facts.arrow")) as file:
        facts = pa.ipc.open_file(file).read_all()
    arrays = {name.partition(".")[0]: np.load(folder / name) for name in _FILES if name.endswith(".npy")}
    image, text = (_mapped(folder / f"{by}.bin", record) for by in ("image", "text"))
    part = Part(
        folder, arrays["numbers"], pa.concat_arrays(column.chunks), image, text, arrays["counts"],
        {"image": arrays["image_norms"], "text": arrays["text_norms"]}, facts,
    )  # fmt: skip
    if {len(part.numbers), len(part.ids), len(image), len(facts)} != {len(part.counts)} or part.counts.sum() != len(
        text
    ):
        raise ValueError(f"{folder}: of another shape")
    return part


def _mapped(file: Path, record: Record) -> np.ndarray:
    size = file.stat().st_size // (record.width * np.dtype(record.precision).itemsize)
    if not size:
        return np.empty((0, record.width), dtype=record.precision)
    # copy on write: torch warns about arrays that cannot be written to
    return np.memmap(file, dtype=record.precision, mode="c", shape=(size, record.width))


def _part_in_memory(numbers: np.ndarray, record: Record, read: ReadRows) -> Part:
    import pyarrow as pa

    batches = list(_chosen(numbers, read))
    empty = np.empty((0, record.width), dtype=record.precision)
    image, text = (
        np.concatenate([empty, *(np.asarray(getattr(batch, by), dtype=record.precision) for batch in batches)])
        for by in ("image", "text")
    )
    counts = np.concatenate([batch.counts for batch in batches])
    ids = pa.concat_arrays([batch.ids for batch in batches])
    return Part(None, numbers, ids, image, text, counts, {"image": _norms(image), "text": _norms(text)})


def _norms(vectors: np.ndarray) -> Float32[np.ndarray, " vectors"]:
    if vectors.dtype == np.float32:  # stored as they were normalised
        return np.asarray(vectors.any(axis=1), dtype=np.float32)
    return np.asarray(np.linalg.norm(vectors.astype(np.float64), axis=1), dtype=np.float32)
