"""The vectors of a memory as memory-mapped matrices: written once, in parts that grow with it, shared by every process.

What stands at one row number of the store never changes, so a part stays right whatever is added or deleted later: a
new version needs a part for its new rows and a note of which old ones are gone.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64, Shaped

from recollect.core.files import atomic_folder
from recollect.core.nearest import ExactNeighbours, exact_neighbours, merged
from recollect.memory.backends.sums import checksum
from recollect.memory.rows import Modality, Precision

Rows = Callable[[int], Iterator[tuple[list[str], np.ndarray, np.ndarray, np.ndarray]]]
"""Ids, row numbers, image vectors and text vectors, in batches, of the rows from a number on."""

_SCAN = 16  # times as many rows as are looked for, from which one pass over all of them is faster than a table
_PARTS = 8  # more are joined to one
_DEAD = 0.3  # share of deleted rows from which a part is written anew
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
            if _damage(self.folder, (f"{modality}s.npy",)):
                return False
            self.trusted.add(modality)
        return True

    def modality(self, modality: Modality) -> Float[np.ndarray, "rows width"]:
        """The vectors of images or of texts."""
        return self.images if modality == "image" else self.texts

    def norms_of(self, modality: Modality) -> Float32[np.ndarray, " rows"] | None:
        """The norms of images or of texts; None where all are 1."""
        return None if self.images.dtype == np.float32 else self.norms[:, 0 if modality == "image" else 1]


@dataclass(frozen=True)
class Matrices:
    """Both vectors of every row of one version.

    Attributes:
        version: of the memory.
        parts: their rows, one part after the other, are the positions that searches return.
        alive: which positions are rows of this version; None if all are.
        with_text: likewise, those that have a text.
    """

    version: int
    parts: tuple[Part, ...]
    alive: Bool[np.ndarray, " rows"] | None
    with_text: Bool[np.ndarray, " rows"] | None

    @classmethod
    def open(
        cls,
        cache: Path,
        version: int,
        there: tuple[np.ndarray, np.ndarray],
        kind: tuple[int, Precision],
        rows: Rows,
        known: "Matrices | None" = None,
        tidy: bool = True,
    ) -> "Matrices":
        """Open the matrices of a version, after writing what is missing of them.

        Args:
            cache: folder for the matrices of this memory.
            version: of the memory.
            there: numbers of the rows of that version, rising, and whether each has a text.
            kind: entries of a vector, and their precision.
            rows: reads them.
            known: matrices of an earlier version, whose parts need not be opened again.
            tidy: join parts and write anew what is mostly gone; not for a reader of an earlier version.
        """
        numbers, texts = there
        parts = list(known.parts) if known is not None else _stored(cache, kind)
        covered = _covered(parts)
        if np.array_equal(covered, numbers) and len(parts) <= _PARTS:  # nothing has changed
            return cls(version, tuple(parts), None, None if texts.all() else texts)
        parts = [part for part in parts if within(part.numbers, numbers).any()]
        dead = 1 - len(numbers) / max(1, sum(len(part.numbers) for part in parts))
        missing = numbers[~within(numbers, np.sort(covered))]
        if not tidy and len(missing):  # rows that were rewritten since; nobody else will ask for them
            parts, missing = [_in_memory(numbers, kind, rows)], missing[:0]
        lost = len(missing) > 0 and covered.size > 0 and bool(missing[0] <= covered.max())
        if tidy and (lost or len(parts) > _PARTS or dead > _DEAD):
            old = [part.folder for part in _stored(cache, kind) if part.folder]
            parts = [_made(cache, numbers, kind, rows)] if len(numbers) else []
            for folder in old:  # complete, and of no more use; whoever has them open keeps them
                if all(folder != part.folder for part in parts):
                    shutil.rmtree(folder, ignore_errors=True)
        elif len(missing):
            parts.append(_made(cache, missing, kind, rows))
        place = np.concatenate([np.empty(0, dtype=np.int64), *(part.numbers for part in parts)])
        alive = within(place, numbers)
        spoken = within(place, numbers[texts])
        return cls(version, tuple(parts), None if alive.all() else alive, None if spoken[alive].all() else spoken)

    @property
    def width(self) -> int:
        """Entries of a vector."""
        return self.parts[0].images.shape[1]

    @cached_property
    def starts(self) -> list[int]:
        """Position of the first row of each part."""
        return [0, *np.cumsum([len(part.numbers) for part in self.parts])[:-1].tolist()]

    @cached_property
    def ids(self) -> Any:
        """The ids of all positions; empty for rows that are gone."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found = pa.concat_arrays([part.ids for part in self.parts]) if self.parts else pa.array([], pa.string())
        return found if self.alive is None else pc.if_else(pa.array(self.alive), found, "")

    def search(
        self,
        queries: Float[np.ndarray, "queries width"],
        modality: Modality,
        k: int,
        among: Int64[np.ndarray, " some"] | None,
    ) -> ExactNeighbours:
        """The k nearest rows by exact products; positions as `among` counts them."""
        found = []
        for start, part in zip(self.starts, self.parts, strict=True):
            inside = None
            count = len(part.numbers)
            if among is not None:
                inside = among[np.searchsorted(among, start) : np.searchsorted(among, start + count)] - start
                count = len(inside)
            if count:
                vectors, norms = part.modality(modality), part.norms_of(modality)
                hits = exact_neighbours(queries, vectors, min(k, count), inside, norms=norms)
                found.append(ExactNeighbours(hits.rows + start, hits.scores))
        return merged(found, k)

    def searchable(self, with_text: bool) -> Int64[np.ndarray, " some"] | None:
        """Positions of the rows of this version, or of those with a text; None if that is all of them."""
        mask = self.with_text if with_text and self.with_text is not None else self.alive
        return None if mask is None else np.flatnonzero(mask)

    def take(self, positions: Int64[np.ndarray, " some"], modality: Modality) -> Float[np.ndarray, "some width"]:
        """Vectors of positions, as float32."""
        if len(self.parts) == 1:
            return _gathered(self.parts[0].modality(modality), positions)
        out = np.empty((len(positions), self.width), dtype=np.float32)
        for start, part in zip(self.starts, self.parts, strict=True):
            mine = (positions >= start) & (positions < start + len(part.numbers))
            out[mine] = _gathered(part.modality(modality), positions[mine] - start)
        return out

    def norms(self, positions: Int64[np.ndarray, " some"], modality: Modality) -> Float32[np.ndarray, " some"]:
        """Norms of vectors of positions, after rounding."""
        out = np.ones(len(positions), dtype=np.float32)
        for start, part in zip(self.starts, self.parts, strict=True):
            if (norms := part.norms_of(modality)) is not None:
                mine = (positions >= start) & (positions < start + len(part.numbers))
                out[mine] = norms[positions[mine] - start]
        return out

    def ids_at(self, rows: Int64[np.ndarray, "queries k"]) -> Shaped[np.ndarray, "queries k"]:
        """The ids of rows, as an array of texts."""
        return self.ids.take(rows.reshape(-1)).to_numpy(zero_copy_only=False).reshape(rows.shape)

    def positions(self, ids: Sequence[str]) -> Int64[np.ndarray, " rows"]:
        """The rows of ids; −1 for one that is not there."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if _SCAN * len(ids) >= len(self.ids):
            found = pc.index_in(pa.array(ids, pa.string()), value_set=self.ids)
            return found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        # few of many: one pass over all, in a tenth of the time of a table of all
        distinct, place = np.unique(np.asarray(ids, dtype=object), return_inverse=True)
        which = pc.index_in(self.ids, value_set=pa.array(distinct, pa.string()))
        rows = np.flatnonzero(which.is_valid().to_numpy(zero_copy_only=False))
        out = np.full(len(distinct), -1, dtype=np.int64)
        out[which.take(pa.array(rows)).to_numpy(zero_copy_only=False)] = rows
        return out[place]

    def numbers_of(self, positions: Int64[np.ndarray, " some"]) -> Int64[np.ndarray, " some"]:
        """The store's row numbers of positions."""
        return _covered(self.parts)[positions] if len(self.parts) > 1 else self.parts[0].numbers[positions]

    def positions_of(self, numbers: Int64[np.ndarray, " some"]) -> Int64[np.ndarray, " some"]:
        """The positions of the store's row numbers, rising."""
        found = []
        for start, part in zip(self.starts, self.parts, strict=True):
            mine = np.searchsorted(part.numbers, numbers)
            inside = mine < len(part.numbers)
            inside[inside] = part.numbers[mine[inside]] == numbers[inside]
            found.append(mine[inside] + start)
        return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *found]))

    def whole(self, modality: Modality) -> Float32[np.ndarray, "rows width"]:
        """The unit-norm vectors of every row of this version; not copied where they are kept so."""
        if len(self.parts) == 1 and self.alive is None and self.parts[0].norms_of(modality) is None:
            return self.parts[0].modality(modality)
        found = []
        for start, part in zip(self.starts, self.parts, strict=True):
            vectors, norms = torch.from_numpy(part.modality(modality)), part.norms_of(modality)
            wide = vectors.float() if norms is None else vectors.float().div_(torch.from_numpy(norms[:, None].copy()))
            found.append(wide.numpy() if self.alive is None else wide.numpy()[self.alive[start : start + len(wide)]])
        return found[0] if len(found) == 1 else np.concatenate(found)

    def sound(self, modality: Modality) -> bool:
        """Whether the vectors of a modality are as they were written."""
        return all(part.sound(modality) for part in self.parts)

    def damage(self) -> list[str]:
        """What differs from the checksums that were written with the parts, a line each."""
        return [line for part in self.parts if part.folder for line in _damage(part.folder)]

    def drop(self) -> None:
        """Remove the parts from disk, so that they are made again."""
        for part in self.parts:
            if part.folder is not None:
                shutil.rmtree(part.folder, ignore_errors=True)


def _gathered(vectors: np.ndarray, rows: np.ndarray) -> Float32[np.ndarray, "rows width"]:
    """Some rows, widened: by torch, in a fifth of NumPy's time for half precision."""
    return torch.from_numpy(vectors).index_select(0, torch.from_numpy(rows)).float().numpy()


def _covered(parts: Sequence[Part]) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype=np.int64), *(part.numbers for part in parts)])


def within(some: Int64[np.ndarray, " some"], rising: Int64[np.ndarray, " all"]) -> Bool[np.ndarray, " some"]:
    """Which of some numbers are among others, which rise: without sorting those again, as `np.isin` does."""
    if not len(rising):
        return np.zeros(len(some), dtype=bool)
    place = np.minimum(np.searchsorted(rising, some), len(rising) - 1)
    return rising[place] == some


def _stored(cache: Path, kind: tuple[int, Precision]) -> list[Part]:
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


def _made(cache: Path, numbers: np.ndarray, kind: tuple[int, Precision], rows: Rows) -> Part:
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
            return _in_memory(numbers, kind, rows)
    except OSError:
        return _in_memory(numbers, kind, rows)


def _batches(numbers: np.ndarray, rows: Rows) -> Iterator[tuple[list[str], np.ndarray, np.ndarray, np.ndarray]]:
    """What `rows` reads from the first of these numbers on, without rows that are not among them."""
    seen = [np.empty(0, dtype=np.int64)]
    for ids, theirs, images, texts in rows(int(numbers[0])):
        wanted = np.flatnonzero(within(theirs, numbers))
        seen.append(theirs[wanted])
        yield [ids[row] for row in wanted.tolist()], theirs[wanted], images[wanted], texts[wanted]
    if not np.array_equal(np.concatenate(seen), numbers):
        raise RuntimeError("rows were not read in the order of their numbers")


def _write(folder: Path, numbers: np.ndarray, kind: tuple[int, Precision], rows: Rows) -> None:
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
    sums = {name: {"bytes": (folder / name).stat().st_size, "crc32": checksum(folder / name)} for name in _FILES}
    (folder / "sums.json").write_text(json.dumps(sums))


def _norms(images: np.ndarray, texts: np.ndarray) -> Float32[np.ndarray, "rows 2"]:
    """Of vectors as they are kept; 1 at full precision, where they are as they were given, and of absent texts."""
    found = np.ones((len(images), 2), dtype=np.float32)
    if images.dtype != np.float32:
        for place, vectors in enumerate((images, texts)):
            norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
            found[:, place] = np.where(norms > 0, norms, 1)
    return found


def _damage(folder: Path, names: Sequence[str] = _FILES) -> list[str]:
    try:
        sums = json.loads((folder / "sums.json").read_text())
        return [
            f"{folder / name}: differs from its checksum"
            for name in names
            if checksum(folder / name) != sums[name]["crc32"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"{folder}: cannot be read ({error})"]


def _read(folder: Path, kind: tuple[int, Precision]) -> Part:
    """Open a part; the vectors of a large one are checked when they are used.

    Raises:
        OSError, ValueError, KeyError: it is not whole.
    """
    import pyarrow as pa

    sums = json.loads((folder / "sums.json").read_text())
    sizes = {name: (folder / name).stat().st_size for name in _FILES}
    if any(sums[name]["bytes"] != size for name, size in sizes.items()):
        raise ValueError(f"{folder}: not whole")
    small = sum(sizes.values()) <= _READ_THROUGH
    if damaged := _damage(folder, _FILES if small else _SMALL):
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


def _in_memory(numbers: np.ndarray, kind: tuple[int, Precision], rows: Rows) -> Part:
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
