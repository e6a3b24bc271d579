"""What stores on this machine share: exact look-up in mapped matrices, and filters on the facts of the rows."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any, get_args

import numpy as np
from jaxtyping import Float32, Int64

from recollect.core.nearest import ExactNeighbors
from recollect.index.arrow import integer_array, integer_values
from recollect.index.filters import Filter
from recollect.index.rows import FACTS, By
from recollect.index.stores.base import Nearest, Store
from recollect.index.stores.ivf import Accelerator, InvertedFile, open_inverted_file
from recollect.index.stores.matrix import ROW, Matrix, filter_columns, open_matrix, within

_MOST_APPROXIMATE = 128  # more pictures are looked up exactly
_FEW_QUERIES = 64  # more queries at a time are faster as one matrix product
_MOST_COSINE = 1.02


class LocalStore(Store):
    """Rows that a scan reads batch by batch, with a row number each that never gets another content.

    A store of this kind is six methods long: `version`, `lock`, `upsert`, `delete` and `rows` of `Store`, and
    `batches`; `recollect.index.stores.ram.RamStore` is the shortest. A row that is replaced gets a new number, larger
    than all before it, and no number is used twice.

    Attributes:
        cache: folder for what can be derived from the rows; None keeps it in this process's memory.
        tidy: whether parts of the matrix may be joined; not for readers of an old version.
    """

    cache: Path | None = None
    tidy = True
    _matrix: Matrix | None = None

    @abstractmethod
    def batches(self, columns: Sequence[str], first: int = 0, removed: bool | None = False) -> Iterator[Any]:
        """Arrow tables with these columns and `ROW`, of rows from a number on, in the order of their numbers.

        Args:
            removed: whether rows that the user removed are read: None for both kinds, True for these alone.
        """

    @cached_property
    def _lock(self) -> RLock:
        return RLock()

    @cached_property
    def _inverted_files(self) -> dict[By, InvertedFile]:
        return {}

    def matrix(self) -> Matrix:
        """The rows of this version."""
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
                    self._inverted_files.clear()  # compacted: the rows have other numbers, also in those on disk
            return self._matrix

    def row_numbers(self) -> Int64[np.ndarray, " rows"]:
        """Rising row numbers of the visible rows."""
        numbers = [integer_values(batch[ROW]) for batch in self.batches([])]
        return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *numbers]))

    def forget_matrix(self) -> None:
        """Delete what was derived from the rows; it is made again when needed."""
        with self._lock:
            if self._matrix is not None:
                self._matrix.drop()
            self._matrix = None

    def filter_keys(self) -> dict[str, str]:
        """Keys of the metadata with the type of their values."""
        return self.matrix().columns.keys()

    def scan(self, columns: Sequence[str], where: Filter | None = None, removed: bool | None = False) -> Iterator[Any]:
        """Columns in batches, in the order of row numbers."""
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
        spoken: bool = False,
        exact: bool = False,
    ) -> Nearest:
        """By exact products, or by faiss where `accelerate` made an index of this version."""
        matrix = self.matrix()
        found = self._search(matrix, queries, k, by, where, spoken, exact)
        if not _plausible(found.scores):  # a part was damaged after it was mapped
            self.forget_matrix()
            matrix = self.matrix()
            found = self._search(matrix, queries, k, by, where, spoken, True)
        return matrix.hits(found, by)

    def _search(
        self, matrix: Matrix, queries: np.ndarray, k: int, by: By, where: Filter | None, spoken: bool, exact: bool
    ) -> ExactNeighbors:
        among = matrix.searchable(by, where, spoken)
        few = k <= _MOST_APPROXIMATE and len(queries) <= _FEW_QUERIES
        every = by == "text" or among is None or len(among) == len(matrix)
        made = self.inverted_file(by) if few and every and not exact and where is None else None
        found = None if made is None else made.search(matrix, queries, k)
        return matrix.nearest(queries, k, by, among) if found is None else found

    def inverted_file(self, by: By) -> InvertedFile | None:
        """The approximate index of images or captions; None if it was not made."""
        made = self._inverted_files.get(by)
        if made is None and (made := open_inverted_file(self.cache, by)) is not None:
            self._inverted_files[by] = made  # one that is not there may come: a compaction fills it last
        return made

    def accelerators(self) -> tuple[Accelerator, ...]:
        """What was measured of the approximate indexes."""
        return tuple(made.about for by in get_args(By) if (made := self.inverted_file(by)) is not None)

    def use_inverted_files(self, *made: InvertedFile) -> None:
        """Use these approximate indexes; others are opened again when they are needed."""
        self._inverted_files.clear()
        self._inverted_files.update({each.about.by: each for each in made})

    def vectors(self, by: By, ids: Sequence[str] | None = None) -> Float32[np.ndarray, "rows width"]:
        """Unit-norm vectors in the order of ``ids``, or of all visible rows in the order of `ids`."""
        matrix = self.matrix()
        if ids is None:
            return matrix.whole(by)
        slots = matrix.slots_of(list(ids))
        return super().vectors(by, ids) if (slots < 0).any() else matrix.read(slots, by)  # it has no removed rows

    def count(self, spoken: bool = False, where: Filter | None = None) -> int:
        """How many rows are visible; only those with a caption, or those that satisfy a filter."""
        return self.matrix().count(spoken, where)


def _plausible(scores: np.ndarray) -> bool:
    """Whether these can be cosines; NaN cannot."""
    return not scores.size or bool((np.abs(scores) <= _MOST_COSINE).all())
