"""The vectors of one version of a memory as memory-mapped matrices, written once and shared by every process."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64, Shaped

from recollect.core.files import atomic_folder
from recollect.memory.rows import Modality

Rows = Callable[[], Iterator[tuple[list[str], np.ndarray, np.ndarray, np.ndarray]]]
"""Ids, row numbers, image vectors and text vectors, in batches."""


@dataclass(frozen=True)
class Matrices:
    """Both vectors of every row, in the order of the row numbers.

    Attributes:
        version: of the memory.
        ids: an Arrow array of texts.
        numbers: the store's own row numbers, rising.
        images: vectors, memory-mapped where the folder can be written to.
        texts: vectors, likewise.
    """

    version: int
    ids: Any
    numbers: Int64[np.ndarray, " rows"]
    images: Float32[np.ndarray, "rows width"]
    texts: Float32[np.ndarray, "rows width"]

    @classmethod
    def open(cls, cache: Path, version: int, count: int, width: int, rows: Rows) -> "Matrices":
        """Open the matrices of a version, after writing them if that was not done yet.

        Args:
            cache: folder for the matrices of this memory; those of other versions are removed.
            version: of the memory.
            count: rows of that version.
            width: entries of a vector.
            rows: reads them.
        """
        folder = cache / str(version)
        if not folder.exists():
            try:
                with atomic_folder(folder) as unfinished:
                    shape = (count, width)
                    made = {name: _new(unfinished / f"{name}.npy", shape) for name in ("images", "texts")}
                    _fill(unfinished, made, rows)
            except FileExistsError:
                pass  # another process was faster
            except PermissionError:
                return cls(version, *_in_memory(rows, width))
            for other in cache.iterdir():
                if other.name != folder.name:
                    shutil.rmtree(other, ignore_errors=True)
        return cls(version, *_read(folder))

    def modality(self, modality: Modality) -> Float32[np.ndarray, "rows width"]:
        """The vectors of images or of texts."""
        return self.images if modality == "image" else self.texts

    def ids_at(self, rows: Int64[np.ndarray, "queries k"]) -> Shaped[np.ndarray, "queries k"]:
        """The ids of rows, as an array of texts."""
        return self.ids.take(rows.reshape(-1)).to_numpy(zero_copy_only=False).reshape(rows.shape)

    def positions(self, ids: Sequence[str]) -> Int64[np.ndarray, " rows"]:
        """The rows of ids, all of which are there."""
        import pyarrow as pa
        import pyarrow.compute as pc

        return (
            pc.index_in(pa.array(ids, pa.string()), value_set=self.ids).to_numpy(zero_copy_only=False).astype(np.int64)
        )


def _new(path: Path, shape: tuple[int, int]) -> np.ndarray:
    if 0 in shape:  # nothing can be mapped from an empty file
        np.save(path, np.empty(shape, dtype=np.float32))
        return np.empty(shape, dtype=np.float32)
    return np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)


def _fill(folder: Path, made: dict[str, np.ndarray], rows: Rows) -> None:
    import pyarrow as pa

    ids: list[str] = []
    numbers = [np.empty(0, dtype=np.int64)]
    for some, their_numbers, images, texts in rows():
        place = slice(len(ids), len(ids) + len(some))
        made["images"][place], made["texts"][place] = images, texts
        ids += some
        numbers.append(their_numbers)
    _check_rising(np.concatenate(numbers))
    np.save(folder / "numbers.npy", np.concatenate(numbers))
    with (
        pa.OSFile(str(folder / "ids.arrow"), "wb") as file,
        pa.ipc.new_file(file, pa.schema([("id", pa.string())])) as w,
    ):
        w.write_table(pa.table({"id": pa.array(ids, pa.string())}))
    for matrix in made.values():
        with suppress(AttributeError):
            matrix.flush()  # type: ignore[attr-defined]


def _read(folder: Path) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    import pyarrow as pa

    with pa.memory_map(str(folder / "ids.arrow")) as file:
        column = pa.ipc.open_file(file).read_all()["id"]
    ids = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.string())
    mapped = (
        np.load(folder / f"{name}.npy", mmap_mode="c") if len(ids) else np.load(folder / f"{name}.npy")
        for name in ("images", "texts")
    )
    return ids, np.load(folder / "numbers.npy"), *mapped


def _in_memory(rows: Rows, width: int) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """For a folder that cannot be written to."""
    import pyarrow as pa

    ids: list[str] = []
    parts: list[list[np.ndarray]] = [
        [np.empty(0, dtype=np.int64)],
        *([np.empty((0, width), dtype=np.float32)] for _ in range(2)),
    ]
    for some, *arrays in rows():
        ids += some
        for part, array in zip(parts, arrays, strict=True):
            part.append(array)
    numbers, images, texts = (np.concatenate(part) for part in parts)
    _check_rising(numbers)
    return pa.array(ids, pa.string()), numbers, images, texts


def _check_rising(numbers: np.ndarray) -> None:
    if (np.diff(numbers) <= 0).any():
        raise RuntimeError("rows were not read in the order of their numbers")
