"""Base class of stores on this machine: exact lookup in memory-mapped matrices, and filters on facts."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any, get_args

import numpy as np
from jaxtyping import Float32, Int64

from recollect.core.nearest import ExactNeighbors
from recollect.core.validation import check_number
from recollect.index.arrow import integer_array, integer_values
from recollect.index.filters import Filter
from recollect.index.rows import FACTS, By
from recollect.index.stores.base import Nearest, Store
from recollect.index.stores.ivf import MIN_VECTORS, Accelerator, InvertedFile, build_inverted_file, open_inverted_file
from recollect.index.stores.matrix import ROW, Matrix, filter_columns, open_matrix, within

_MAX_APPROXIMATE_K = 128  # larger k are looked up exactly
_MAX_APPROXIMATE_QUERIES = 64  # larger batches are faster as one matrix product
_MAX_COSINE = 1.02


class LocalStore(Store):
    """Base class of stores with row numbers that are scanned in batches.

    Subclasses implement six methods: `version`, `lock`, `upsert`, `delete` and `rows` of `Store`, and `batches`; see
    `recollect.index.stores.ram.RamStore` for an example. Row numbers are never reused: a replaced row gets a new
    number, larger than all previous ones.

    Attributes:
        cache: folder for data derived from the rows; None keeps it in memory.
        tidy: whether parts of the matrix may be merged; False for readers of an old version.
    """

    cache: Path | None = None
    tidy = True
    _matrix: Matrix | None = None

    @abstractmethod
    def batches(self, columns: Sequence[str], first: int = 0, removed: bool | None = False) -> Iterator[Any]:
        """Yield Arrow tables with these columns and `ROW`, in the order of row numbers.

        Args:
            first: smallest row number to read.
            removed: False for visible rows, True for removed rows, None for all rows.
        """

    @cached_property
    def _lock(self) -> RLock:
        return RLock()

    @cached_property
    def _inverted_files(self) -> dict[By, InvertedFile]:
        return {}

    def matrix(self) -> Matrix:
        """Return the matrix of the current version."""
        with self._lock:
            version = self.version()
            if self._matrix is None or self._matrix.version != version:
                before, numbers = self._matrix, self.row_numbers()
                columns = [*FACTS, "image_vector", "caption_vectors"]
                self._matrix = open_matrix(
                    self.cache, version, numbers, self.record, lambda first: self.batches(columns, first),
                    before, self.tidy,
                )  # fmt: skip
                if before is not None and not within(numbers[:1], before.numbers).any():
                    self._inverted_files.clear()  # compaction has renumbered the rows
            return self._matrix

    def row_numbers(self) -> Int64[np.ndarray, " rows"]:
        """Return the sorted row numbers of the visible rows."""
        numbers = [integer_values(batch[ROW]) for batch in self.batches([])]
        return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *numbers]))

    def forget_matrix(self) -> None:
        """Delete the matrix, which is rebuilt on next use."""
        with self._lock:
            if self._matrix is not None:
                self._matrix.drop()
            self._matrix = None

    def filter_keys(self) -> dict[str, str]:
        """Return the metadata keys with the type of their values."""
        return self.matrix().columns.keys()

    def scan(self, columns: Sequence[str], where: Filter | None = None, removed: bool | None = False) -> Iterator[Any]:
        """Yield columns in batches, in the order of row numbers."""
        if removed is False and set(columns) <= {*FACTS}:
            yield from self.matrix().scan(list(columns), where)
            return
        read = list(dict.fromkeys([*columns, *(() if where is None else FACTS)]))
        for table in self.batches(read, removed=removed):
            if where is not None:
                table = table.take(integer_array(np.flatnonzero(where.mask(filter_columns(table)))))
            if len(table):
                yield table.select(list(columns))

    def nearest(
        self,
        queries: Float32[np.ndarray, "queries width"],
        k: int,
        by: By,
        where: Filter | None = None,
        captioned: bool = False,
        exact: bool = False,
    ) -> Nearest:
        """Return the nearest vectors by exact products, or by the approximate index from `Index.accelerate`."""
        matrix = self.matrix()
        found = self._search(matrix, queries, k, by, where, captioned, exact)
        if not (np.abs(found.scores) <= _MAX_COSINE).all():  # or NaN: a file was damaged after it was mapped
            self.forget_matrix()
            matrix = self.matrix()
            found = self._search(matrix, queries, k, by, where, captioned, True)
        return matrix.hits(found, by)

    def _search(
        self, matrix: Matrix, queries: np.ndarray, k: int, by: By, where: Filter | None, captioned: bool, exact: bool
    ) -> ExactNeighbors:
        among = matrix.searchable(by, where, captioned)
        small = k <= _MAX_APPROXIMATE_K and len(queries) <= _MAX_APPROXIMATE_QUERIES
        unrestricted = by == "text" or among is None or len(among) == len(matrix)
        inverted = self.inverted_file(by) if small and unrestricted and not exact and where is None else None
        found = None if inverted is None else inverted.search(matrix, queries, k)
        return matrix.nearest(queries, k, by, among) if found is None else found

    def inverted_file(self, by: By) -> InvertedFile | None:
        """Return the approximate index of images or captions; None if missing."""
        found = self._inverted_files.get(by)
        if found is None and (found := open_inverted_file(self.cache, by)) is not None:
            self._inverted_files[by] = found  # a missing one is not cached: compaction writes it last
        return found

    def accelerate(self, target: float) -> list[Accelerator]:
        """Build an approximate index of images and of captions, if there are enough."""
        if self.cache is None:
            return super().accelerate(target)
        check_number("recall", target, above=0, most=1)
        parts = self.matrix().parts
        large = [by for by in get_args(By) if sum(len(part.stored[by]) for part in parts) >= MIN_VECTORS]
        built = [build_inverted_file(self, self.cache, by, target) for by in large]
        self.use_inverted_files(*built)
        return [each.about for each in built]

    def accelerators(self) -> tuple[Accelerator, ...]:
        """Return the measurements of the approximate indexes."""
        return tuple(found.about for by in get_args(By) if (found := self.inverted_file(by)) is not None)

    def use_inverted_files(self, *inverted: InvertedFile) -> None:
        """Use these approximate indexes; all others are reopened on next use."""
        self._inverted_files.clear()
        self._inverted_files.update({each.about.by: each for each in inverted})

    def vectors(self, by: By, ids: Sequence[str] | None = None) -> Float32[np.ndarray, "rows width"]:
        """Return unit-norm vectors in the order of ``ids``; default: all visible rows."""
        matrix = self.matrix()
        if ids is None:
            return matrix.whole(by)
        slots = matrix.slots_of(list(ids))  # -1 for removed rows, which are not in the matrix
        return super().vectors(by, ids) if (slots < 0).any() else matrix.read(slots, by)

    def count(self, captioned: bool = False, where: Filter | None = None) -> int:
        """Return the number of visible rows; with ``captioned`` only rows with a caption."""
        return self.matrix().count(captioned, where)
