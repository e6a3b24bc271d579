"""Index in RAM: an Arrow table, without extra dependencies."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from recollect.index.rows import Record, schema
from recollect.index.stores.local import LocalStore
from recollect.index.stores.matrix import ROW


class RamStore(LocalStore):
    """In-memory implementation of `Store`.

    Args:
        record: record of the index.
    """

    def __init__(self, record: Record) -> None:
        self.record, self.address = record, "index in RAM"
        self._table = schema(record).empty_table()
        self._numbers = np.empty(0, dtype=np.int64)
        self._next, self._version = 0, 1
        self._one_writer = threading.Lock()

    def version(self, newest: bool = False) -> int:
        """Return the number of changes so far plus 1."""
        return self._version

    def lock(self) -> AbstractContextManager[Any]:
        """Return the writer lock."""
        return self._one_writer

    def upsert(self, rows: Any) -> None:
        """Create a new table; concurrent readers keep the old one."""
        import pyarrow as pa

        with self.writing():
            self._drop(rows["id"])
            numbers = np.arange(self._next, self._next + rows.num_rows)
            self._table = pa.concat_tables(
                [self._table, rows.select(self._table.column_names).cast(self._table.schema)]
            )
            self._numbers = np.concatenate([self._numbers, numbers])
            self._next += rows.num_rows
            self._version += 1

    def delete(self, ids: Sequence[str]) -> None:
        """Create a new table without these rows."""
        import pyarrow as pa

        with self.writing():
            self._drop(pa.array(ids, pa.string()))
            self._version += 1

    def _drop(self, ids: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        keep = ~pc.is_in(self._table["id"], value_set=pa.array(ids.to_pylist(), pa.string())).to_numpy()
        if not keep.all():
            self._table, self._numbers = self._table.filter(pa.array(keep)), self._numbers[keep]

    def rows(self, ids: Sequence[str], columns: Sequence[str]) -> Any:
        """Return rows in the order of ``ids``."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found = pc.index_in(pa.array(ids, pa.string()), value_set=self._table["id"]).drop_null()
        return self._table.select(list(dict.fromkeys(["id", *columns]))).take(found)

    def batches(self, columns: Sequence[str], first: int = 0, removed: bool | None = False) -> Iterator[Any]:
        """Yield all rows as one table."""
        import pyarrow as pa

        table, numbers = self._table, self._numbers
        keep = numbers >= first
        if removed is not None:
            keep &= table["removed"].to_numpy().astype(bool) == removed
        chosen = table.select(list(columns) or ["removed"]).filter(pa.array(keep))
        yield chosen.append_column(ROW, pa.array(numbers[keep])).select([*columns, ROW])
