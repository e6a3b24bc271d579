"""Rows of a memory as files that are mapped: written once, whole, with their checksums, and shared by every process."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from recollect.core.checksums import CHECKSUMS, damaged_files, note_checksums, read_checksums
from recollect.core.files import atomic_folder
from recollect.memory.rows import Modality, VectorPrecision

Rows = Callable[[int], Iterator[tuple[list[str], np.ndarray, np.ndarray, np.ndarray]]]
"""Ids, row numbers, image vectors and text vectors, in batches, of the rows from a number on."""

_READ_THROUGH = 2**28  # bytes up to which all of a part is checked when it is opened; vectors of larger ones when used
_DAMAGE = (OSError, ValueError, KeyError, TypeError, EOFError)
_SMALL = ("numbers.npy", "ids.arrow", "norms.npy")
_FILES = (*_SMALL, "images.npy", "texts.npy")


@dataclass(frozen=True)
class Part:
    """Some rows, in the order of their numbers.

    Attributes:
        folder: where it lies; None if it is in this process's memory alone.
        ids: an Arrow array of texts.
        numbers: the store's own row numbers, rising.
        images: vectors.
        texts: vectors.
        norms: of both after rounding, by which products are divided to be cosines; 1 at full precision, and of rows
            that have no text.
        trusted: modalities whose vectors were found to be as they were written.
    """

    folder: Path | None
    ids: Any
    numbers: Int64[np.ndarray, " rows"]
    images: Float[np.ndarray, "rows width"]
    texts: Float[np.ndarray, "rows width"]
    norms: Float32[np.ndarray, "rows 2"]
    trusted: set[Modality] = field(default_factory=set, compare=False)

    def sound(self, modality: Modality) -> bool:
        """Whether the vectors of a modality are as they were written: read once, before they are used for the first
        time. The processor's CRC goes through six gigabytes a second."""
        if self.folder is not None and modality not in self.trusted:
            if part_damage(self.folder, (f"{modality}s.npy",)):
                return False
            self.trusted.add(modality)
        return True

    def modality(self, modality: Modality) -> Float[np.ndarray, "rows width"]:
        """The vectors of images or of texts."""
        return self.images if modality == "image" else self.texts

    def norms_of(self, modality: Modality) -> Float32[np.ndarray, " rows"] | None:
        """The norms of images or of texts; None where all are 1."""
        return None if self.images.dtype == np.float32 else self.norms[:, 0 if modality == "image" else 1]


def within(some: Int64[np.ndarray, " some"], rising: Int64[np.ndarray, " all"]) -> Bool[np.ndarray, " some"]:
    """Which of some numbers are among others, which rise: without sorting those again, as `np.isin` does."""
    if not len(rising):
        return np.zeros(len(some), dtype=bool)
    place = np.minimum(np.searchsorted(rising, some), len(rising) - 1)
    return rising[place] == some


def stored_parts(cache: Path, kind: tuple[int, VectorPrecision]) -> list[Part]:
    """The parts on disk that are whole, without overlaps; what is damaged is removed, to be made again."""
    found: list[Part] = []
    names = sorted(cache.iterdir(), key=lambda path: path.name) if cache.is_dir() else []
    for folder in names:
        if folder.name.startswith("."):
            _clear_if_left_behind(folder)
            continue
        try:
            found.append(_read(folder, kind))
        except _DAMAGE:
            shutil.rmtree(folder, ignore_errors=True)
    return sorted(_apart(found), key=lambda part: int(part.numbers[0]))


def _apart(parts: list[Part]) -> list[Part]:
    """Parts that share no row, the largest first: two processes may have written overlapping ones at once."""
    kept: list[Part] = []
    for part in sorted(parts, key=lambda each: -len(each.numbers)):
        if not any(within(part.numbers, other.numbers).any() for other in kept):
            kept.append(part)
    return kept


def _clear_if_left_behind(folder: Path) -> None:
    """Remove the unfinished folder of a process that has died; one that is alive may still be writing."""
    try:
        owner = int((folder / "owner").read_text())
        os.kill(owner, 0)
    except ProcessLookupError:
        shutil.rmtree(folder, ignore_errors=True)
    except (OSError, ValueError):
        pass


def new_part(cache: Path, numbers: np.ndarray, kind: tuple[int, VectorPrecision], rows: Rows) -> Part:
    """A new part; in this process's memory alone where the disk is full or cannot be written to."""
    folder = cache / f"{int(numbers[0])}-{int(numbers[-1])}-{len(numbers)}"
    try:
        with atomic_folder(folder) as unfinished:
            (unfinished / "owner").write_text(str(os.getpid()))
            _write(unfinished, numbers, kind, rows)
            (unfinished / "owner").unlink()
        return _read(folder, kind)
    except FileExistsError:  # another process was faster
        try:
            return _read(folder, kind)
        except _DAMAGE:
            return part_in_memory(numbers, kind, rows)
    except OSError:
        return part_in_memory(numbers, kind, rows)


def _batches(numbers: np.ndarray, rows: Rows) -> Iterator[tuple[list[str], np.ndarray, np.ndarray, np.ndarray]]:
    """What `rows` reads from the first of these numbers on, without rows that are not among them."""
    seen = [np.empty(0, dtype=np.int64)]
    for ids, theirs, images, texts in rows(int(numbers[0])):
        wanted = np.flatnonzero(within(theirs, numbers))
        seen.append(theirs[wanted])
        yield [ids[row] for row in wanted.tolist()], theirs[wanted], images[wanted], texts[wanted]
    if not np.array_equal(np.concatenate(seen), numbers):
        raise RuntimeError("rows were not read in the order of their numbers")


def _write(folder: Path, numbers: np.ndarray, kind: tuple[int, VectorPrecision], rows: Rows) -> None:
    """Written row by row rather than mapped: on a full disk that is an error, while a map would kill the process."""
    import pyarrow as pa

    width, precision = kind
    ids: list[str] = []
    norms: list[np.ndarray] = []
    header: dict[str, Any] = {"descr": np.lib.format.dtype_to_descr(np.dtype(precision)), "fortran_order": False}
    header["shape"] = (len(numbers), width)
    with (folder / "images.npy").open("wb") as images, (folder / "texts.npy").open("wb") as texts:
        for file in (images, texts):
            np.lib.format.write_array_header_1_0(file, header)
        for some, _, image_rows, text_rows in _batches(numbers, rows):
            ids += some
            kept = [np.ascontiguousarray(each, dtype=precision) for each in (image_rows, text_rows)]
            images.write(kept[0].data)
            texts.write(kept[1].data)
            norms.append(_norms(*kept))
    np.save(folder / "numbers.npy", numbers)
    np.save(folder / "norms.npy", np.concatenate(norms))
    with pa.OSFile(str(folder / "ids.arrow"), "wb") as file:
        table = pa.table({"id": pa.array(ids, pa.string())})
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    note_checksums(folder, [folder / name for name in _FILES])


def _norms(images: np.ndarray, texts: np.ndarray) -> Float32[np.ndarray, "rows 2"]:
    """Of vectors as they are kept; 1 at full precision, where they are as they were given, and of absent texts."""
    found = np.ones((len(images), 2), dtype=np.float32)
    if images.dtype != np.float32:
        for place, vectors in enumerate((images, texts)):
            norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
            found[:, place] = np.where(norms > 0, norms, 1)
    return found


def part_damage(folder: Path, names: Sequence[str] = _FILES) -> list[str]:
    """Files of a part that differ from their checksums, a line each."""
    return damaged_files(folder, names) if (folder / CHECKSUMS).exists() else [f"{folder}: has no checksums"]


def _read(folder: Path, kind: tuple[int, VectorPrecision]) -> Part:
    """Open a part; the vectors of a large one are checked when they are used.

    Raises:
        OSError, ValueError, KeyError: it is not whole.
    """
    import pyarrow as pa

    known = read_checksums(folder)
    sizes = {name: (folder / name).stat().st_size for name in _FILES}
    if any(known[name]["bytes"] != size for name, size in sizes.items()):
        raise ValueError(f"{folder}: not whole")
    small = sum(sizes.values()) <= _READ_THROUGH
    if damaged := part_damage(folder, _FILES if small else _SMALL):
        raise ValueError(damaged[0])
    numbers = np.load(folder / "numbers.npy")
    with pa.memory_map(str(folder / "ids.arrow")) as file:
        column = pa.ipc.open_file(file).read_all()["id"]
    ids = pa.concat_arrays(column.chunks)
    images, texts = (np.load(folder / f"{name}.npy", mmap_mode="c") for name in ("images", "texts"))
    norms = np.load(folder / "norms.npy")
    width, precision = kind
    shapes = {images.shape, texts.shape, (len(numbers), width), (len(ids), width), (len(norms), width)}
    if len(shapes) != 1 or {images.dtype, texts.dtype} != {np.dtype(precision)} or not len(numbers):
        raise ValueError(f"{folder}: of another shape")
    return Part(folder, ids, numbers, images, texts, norms, {"image", "text"} if small else set())


def part_in_memory(numbers: np.ndarray, kind: tuple[int, VectorPrecision], rows: Rows) -> Part:
    """For a folder that cannot be written to."""
    import pyarrow as pa

    width, precision = kind
    ids: list[str] = []
    images, texts = (np.empty((len(numbers), width), dtype=precision) for _ in range(2))
    for some, _, image_rows, text_rows in _batches(numbers, rows):
        place = slice(len(ids), len(ids) + len(some))
        images[place], texts[place] = image_rows, text_rows
        ids += some
    return Part(None, pa.array(ids, pa.string()), numbers, images, texts, _norms(images, texts))
