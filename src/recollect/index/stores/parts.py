"""Parts of the matrix of an index: the vectors of some rows, written once, mapped, and shared by every process."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from recollect.core.checksums import CHECKSUMS, damaged_files, note_checksums
from recollect.core.files import atomic_folder
from recollect.index.rows import By, Record


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


def stored_parts(cache: Path | None, record: Record) -> list[Part]:
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


def new_part(cache: Path | None, numbers: np.ndarray, record: Record, read: ReadRows) -> Part:
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
