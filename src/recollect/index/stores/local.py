"""What stores on this machine share: exact look-up in mapped matrices, and filters on columns in RAM."""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any, get_args

import numpy as np
from jaxtyping import Bool, Float32, Int64

from recollect.core.nearest import ExactNeighbours
from recollect.index.arrow import caption_matrix, vector_matrix
from recollect.index.filters import PHYSICAL, Filter, FilterColumns, asked_value
from recollect.index.rows import FACTS, By
from recollect.index.stores.base import Nearest, Store
from recollect.index.stores.ivf import Accelerator, InvertedFile, open_inverted_file
from recollect.index.stores.matrix import Matrix, open_matrix
from recollect.index.stores.parts import MatrixBatch, within

ROW = "_rowid"
"""Column of a batch with the store's row numbers."""

_MOST_APPROXIMATE = 128  # more pictures are looked up exactly
_FEW_QUERIES = 64  # more queries at a time are faster as one matrix product
_FILTERS = 16  # filters whose rows are kept
_MOST_COSINE = 1.02


class LocalStore(Store):
    """Rows that a scan reads batch by batch, with a row number each that never gets another content.

    A store of this kind is six methods long: `version`, `writing`, `upsert`, `delete` and `rows` of `Store`, and
    `batches`; `recollect.index.stores.ram.RamStore` is the shortest. A row that is replaced gets a new number, larger
    than all before it, and no number is used twice.

    Attributes:
        cache: folder for what can be derived from the rows; None keeps it in this process's memory.
        tidy: whether parts of the matrix may be joined; not for readers of an old version.
    """

    cache: Path | None = None
    tidy = True

    @abstractmethod
    def batches(self, columns: Sequence[str], first: int = 0, removed: bool | None = False) -> Iterator[Any]:
        """Arrow tables with these columns and `ROW`, of rows from a number on, in the order of their numbers.

        Args:
            removed: whether rows that the user removed are read: None for both kinds, True for these alone.
        """

    @cached_property
    def _lock(self) -> RLock:
        return RLock()

    _matrix: Matrix | None = None
    _columns: tuple[int, FilterColumns] | None = None

    @cached_property
    def _masks(self) -> "OrderedDict[tuple[int, Filter], np.ndarray]":
        return OrderedDict()

    def matrix(self) -> Matrix:
        """The vectors of this version."""
        with self._lock:
            version = self.version()
            if self._matrix is None or self._matrix.version != version:
                self._matrix = open_matrix(
                    self.cache, version, self.row_numbers(), self.record, self._read, self._matrix, self.tidy
                )
            return self._matrix

    def row_numbers(self) -> Int64[np.ndarray, " rows"]:
        """Rising row numbers of the visible rows."""
        numbers = [batch[ROW].to_numpy().astype(np.int64) for batch in self.batches([])]
        return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *numbers]))

    def forget_matrix(self) -> None:
        """Delete what was derived from the rows; it is made again when needed."""
        with self._lock:
            if self._matrix is not None:
                self._matrix.drop()
            self._matrix = None

    def _read(self, first: int) -> Iterator[MatrixBatch]:
        import pyarrow as pa

        for table in self.batches([*FACTS, "image_vector", "caption_vectors"], first):
            text, counts = caption_matrix(table["caption_vectors"])
            ids = pa.concat_arrays(table["id"].chunks) if table.num_rows else pa.array([], pa.string())
            numbers = table[ROW].to_numpy().astype(np.int64)
            yield MatrixBatch(numbers, ids, vector_matrix(table["image_vector"]), text, counts, table.select(FACTS))

    def columns(self) -> FilterColumns:
        """What filters ask about, in the order of the matrix's slots."""
        with self._lock:
            matrix = self.matrix()
            if self._columns is None or self._columns[0] != matrix.version:
                self._columns = (
                    matrix.version,
                    FilterColumns(len(matrix.numbers), lambda name: self._column(matrix, name)),
                )
                self._masks.clear()
            return self._columns[1]

    def _column(self, matrix: Matrix, name: str) -> Iterable[Any]:
        physical = PHYSICAL.get(name, name)
        found: list[Any] = [{} if name == "metadata" else None] * len(matrix.numbers)
        for table in self.batches([physical]):
            slots = matrix.slots_of_numbers(table[ROW].to_numpy().astype(np.int64))
            values = table[physical].to_pylist()
            for slot, value in zip(slots.tolist(), values, strict=True):
                if slot >= 0:
                    found[slot] = asked_value(name, value)
        return found

    def filter_keys(self) -> dict[str, str]:
        """Keys of the metadata with the type of their values."""
        return self.columns().keys()

    def mask(self, where: Filter) -> Bool[np.ndarray, " slots"]:
        """Which slots of the matrix satisfy a filter."""
        with self._lock:
            columns = self.columns()
            key = (self.matrix().version, where)
            if key not in self._masks:
                self._masks[key] = where.mask(columns)
                while len(self._masks) > _FILTERS:
                    self._masks.popitem(last=False)
            self._masks.move_to_end(key)
            return self._masks[key]

    def scan(self, columns: Sequence[str], where: Filter | None = None, removed: bool | None = False) -> Iterator[Any]:
        """Columns in batches, in the order of row numbers."""
        chosen = None
        if where is not None:
            matrix = self.matrix()
            mask = self.mask(where) if matrix.alive is None else self.mask(where) & matrix.alive
            chosen = np.sort(matrix.numbers[mask])
        for table in self.batches(columns, removed=False if where is not None else removed):
            kept = table
            if chosen is not None:
                import pyarrow as pa

                kept = table.filter(pa.array(within(table[ROW].to_numpy().astype(np.int64), chosen)))
            if kept.num_rows:
                yield kept.drop_columns([ROW]).select(list(columns))

    def nearest(
        self,
        queries: Float32[np.ndarray, "queries width"],
        k: int,
        by: By,
        where: Filter | None = None,
        spoken: bool = False,
        exact: bool = False,
    ) -> Nearest:
        """By exact products, or by faiss where `recollect.index.acceleration` made an index of this version."""
        matrix = self.matrix()
        found = self._search(matrix, queries, k, by, where, spoken, exact)
        if not _plausible(found.scores):  # a part was damaged after it was mapped
            self.forget_matrix()
            matrix = self.matrix()
            found = self._search(matrix, queries, k, by, where, spoken, True)
        return matrix.hits(found, by)

    def _search(
        self, matrix: Matrix, queries: np.ndarray, k: int, by: By, where: Filter | None, spoken: bool, exact: bool
    ) -> ExactNeighbours:
        among = matrix.searchable(by, None if where is None else self.mask(where), spoken)
        if not exact and where is None and (found := self.approximate(matrix, queries, k, by, among)) is not None:
            return found
        return matrix.nearest(queries, k, by, among)

    def approximate(
        self, matrix: Matrix, queries: np.ndarray, k: int, by: By, among: Int64[np.ndarray, " some"] | None
    ) -> ExactNeighbours | None:
        """What an approximate index finds; None where there is none, or exact look-up is faster."""
        made = self.inverted_file(by)
        spoken = among is None or len(among) == len(matrix) or by == "text"
        if made is None or k > _MOST_APPROXIMATE or len(queries) > _FEW_QUERIES or not spoken:
            return None
        return made.search(matrix, queries, k)

    @cached_property
    def _inverted_files(self) -> dict[By, InvertedFile | None]:
        return {}

    def inverted_file(self, by: By) -> InvertedFile | None:
        """The approximate index of images or captions; None where there is none."""
        if by not in self._inverted_files:
            self._inverted_files[by] = open_inverted_file(self.cache, by)
        return self._inverted_files[by]

    def accelerators(self) -> tuple[Accelerator, ...]:
        """What was measured of the approximate indexes."""
        return tuple(made.about for by in get_args(By) if (made := self.inverted_file(by)) is not None)

    def keep_accelerator(self, made: InvertedFile) -> None:
        """Use an approximate index from now on."""
        self._inverted_files[made.about.by] = made

    def forget_accelerators(self) -> None:
        """Open them again when they are needed."""
        self._inverted_files.clear()

    def vectors(self, by: By, ids: Sequence[str] | None = None) -> Float32[np.ndarray, "rows width"]:
        """Unit-norm vectors in the order of ``ids``, or of all visible rows in the order of `ids`."""
        matrix = self.matrix()
        if ids is None:
            return matrix.whole(by)
        return matrix.read(matrix.slots_of(list(ids)), by)

    def count(self, spoken: bool = False) -> int:
        """From the matrix."""
        matrix = self.matrix()
        if not spoken:
            return len(matrix)
        has = matrix.counts > 0
        return int(has.sum() if matrix.alive is None else (has & matrix.alive).sum())

    def ids(self) -> list[str]:
        """From the matrix."""
        import pyarrow as pa

        matrix = self.matrix()
        visible = matrix.ids if matrix.alive is None else matrix.ids.filter(pa.array(matrix.alive))
        return list(visible.to_pylist())

    def warm(self) -> None:
        """Write and map the matrix of the vectors."""
        self.matrix()


def _plausible(scores: np.ndarray) -> bool:
    """Whether these can be cosines; NaN cannot."""
    return not scores.size or bool((np.abs(scores) <= _MOST_COSINE).all())
