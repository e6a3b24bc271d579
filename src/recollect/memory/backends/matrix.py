"""The vectors of a memory as memory-mapped matrices: written once, in parts that grow with it, shared by every process.

What stands at one row number of the store never changes, so a part stays right whatever is added or deleted later: a
new version needs a part for its new rows and a note of which old ones are gone.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64, Shaped

from recollect.core.nearest import ExactNeighbours, best_of_all, exact_neighbours
from recollect.memory.backends.parts import Part, Rows, new_part, part_damage, part_in_memory, stored_parts, within
from recollect.memory.rows import Modality, VectorPrecision

_SCAN = 16  # times as many rows as are looked for, from which one pass over all of them is faster than a table
_PARTS = 8  # more are joined to one
_DEAD = 0.3  # share of deleted rows from which a part is written anew


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
        kind: tuple[int, VectorPrecision],
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
        parts = list(known.parts) if known is not None else stored_parts(cache, kind)
        covered = _covered(parts)
        if np.array_equal(covered, numbers) and len(parts) <= _PARTS:  # nothing has changed
            return cls(version, tuple(parts), None, None if texts.all() else texts)
        parts = [part for part in parts if within(part.numbers, numbers).any()]
        dead = 1 - len(numbers) / max(1, sum(len(part.numbers) for part in parts))
        missing = numbers[~within(numbers, np.sort(covered))]
        if not tidy and len(missing):  # rows that were rewritten since; nobody else will ask for them
            parts, missing = [part_in_memory(numbers, kind, rows)], missing[:0]
        lost = len(missing) > 0 and covered.size > 0 and bool(missing[0] <= covered.max())
        if tidy and (lost or len(parts) > _PARTS or dead > _DEAD):
            old = [part.folder for part in stored_parts(cache, kind) if part.folder]
            parts = [new_part(cache, numbers, kind, rows)] if len(numbers) else []
            for folder in old:  # complete, and of no more use; whoever has them open keeps them
                if all(folder != part.folder for part in parts):
                    shutil.rmtree(folder, ignore_errors=True)
        elif len(missing):
            parts.append(new_part(cache, missing, kind, rows))
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
        return best_of_all(found, k)

    def searchable(self, with_text: bool) -> Int64[np.ndarray, " some"] | None:
        """Positions of the rows of this version, or of those with a text; None if that is all of them."""
        mask = self.with_text if with_text and self.with_text is not None else self.alive
        return None if mask is None else np.flatnonzero(mask)

    def take(self, positions: Int64[np.ndarray, " some"], modality: Modality) -> Float[np.ndarray, "some width"]:
        """Unit-norm vectors of positions, as float32."""
        vectors = self.as_kept(positions, modality)
        return vectors if self._exact(modality) else vectors / self.norms(positions, modality)[:, None]

    def as_kept(self, positions: Int64[np.ndarray, " some"], modality: Modality) -> Float[np.ndarray, "some width"]:
        """Vectors of positions as float32, of the norms that rounding has left them with (`norms`)."""
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

    def _exact(self, modality: Modality) -> bool:
        return all(part.norms_of(modality) is None for part in self.parts)

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
        return [line for part in self.parts if part.folder for line in part_damage(part.folder)]

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
