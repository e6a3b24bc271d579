"""What an index asks of the place that keeps its rows."""

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32, Int64

from recollect.core.errors import UserError
from recollect.core.files import full_disk_errors
from recollect.core.plugins import Table
from recollect.index.arrow import caption_matrix, vector_matrix
from recollect.index.filters import Filter, FilterColumns
from recollect.index.rows import By, Record, unit_vectors

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Nearest:
    """The vectors nearest to each query, best first; captions of one picture are not folded yet.

    Attributes:
        rows: whose vector it is: a place in ``ids``; -1 where nothing more was found.
        entries: which caption of the row, from 0; 0 for images.
        scores: cosines, -inf where nothing more was found.
        ids: Arrow array of ids.
        read: unit-norm vectors of some rows; for texts of the given captions, or the mean of all where None.
    """

    rows: Int64[np.ndarray, "queries k"]
    entries: Int64[np.ndarray, "queries k"]
    scores: Float32[np.ndarray, "queries k"]
    ids: Any
    read: Callable[[np.ndarray, By, np.ndarray | None], Float32[np.ndarray, "some width"]]


class Store(ABC):
    """Rows in RAM, on disk or on a server. Every method raises `UserError` where the place itself is at fault.

    Rows that the user removed stay in the store with ``removed`` set; `scan`, `nearest` and `vectors` leave them out.
    A new store has the seven abstract methods; those after them have defaults that are right for any store. Where all
    vectors fit on this machine, `recollect.index.stores.local.LocalStore` has two of the seven already.

    Attributes:
        address: what the user calls it.
        record: what the index says about itself.
        folder: of an index on disk.
    """

    address: str
    record: Record
    folder: Path | None = None
    _writer: int | None = None

    @abstractmethod
    def version(self, newest: bool = False) -> int:
        """Grows with every change. Reads are of one version until ``newest`` moves on to what others wrote."""

    @abstractmethod
    def lock(self) -> AbstractContextManager[None]:
        """Held by one writer at a time, of all threads and processes; it is not entered twice."""

    @abstractmethod
    def upsert(self, rows: "pa.Table") -> None:
        """Insert rows, or replace those with the same ids; on disk all of them or none."""

    @abstractmethod
    def delete(self, ids: Sequence[str]) -> None:
        """Delete rows; ids that do not exist are ignored."""

    @abstractmethod
    def rows(self, ids: Sequence[str], columns: Sequence[str]) -> "pa.Table":
        """Columns of the rows that exist, in the order of ``ids``, with ``id`` first; removed rows included."""

    @abstractmethod
    def scan(
        self, columns: Sequence[str], where: Filter | None = None, removed: bool | None = False
    ) -> "Iterator[pa.Table]":
        """Columns of all rows in batches, always in the same order; ``removed`` None includes removed rows, True only
        these."""

    @abstractmethod
    def nearest(
        self,
        queries: Float32[np.ndarray, "queries width"],
        k: int,
        by: By,
        where: Filter | None = None,
        spoken: bool = False,
        exact: bool = False,
    ) -> Nearest:
        """The k nearest image vectors or captions.

        Args:
            spoken: only rows with a caption.
            exact: use no approximate index.
        """

    @property
    def is_writing(self) -> bool:
        """Whether this thread holds the lock."""
        return self._writer == threading.get_ident()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Held while rows are looked up and changed: one writer at a time, who sees the newest version.

        A writer may enter it again.
        """
        if self.is_writing:
            yield
            return
        with self.lock():
            self._writer = threading.get_ident()
            try:
                self.version(newest=True)
                yield
            finally:
                self._writer = None

    def vectors(self, by: By, ids: Sequence[str] | None = None) -> Float32[np.ndarray, "rows width"]:
        """Unit-norm vectors in the order of ``ids``, or of `scan`; a mean where a row has several captions, zeros where
        it has none."""
        name = "image_vector" if by == "image" else "caption_vectors"
        found = [np.zeros((0, self.record.width), dtype=np.float32)]
        for table in self.scan([name]) if ids is None else [self.rows(ids, [name])]:
            if by == "image":
                found.append(unit_vectors(vector_matrix(table[name]), self.record.width, self.address))
            else:
                flat, counts = caption_matrix(table[name])
                found.append(mean_of_captions(unit_vectors(flat, self.record.width, self.address), counts))
        return np.concatenate(found)

    def dicts(
        self, columns: Sequence[str], where: Filter | None = None, removed: bool | None = False
    ) -> Iterator[dict[str, Any]]:
        """What `scan` reads, row by row."""
        for table in self.scan(columns, where, removed):
            yield from table.to_pylist()

    def ids(self, where: Filter | None = None, removed: bool | None = False) -> list[str]:
        """The ids of what `scan` reads, in its order."""
        return [id for table in self.scan(["id"], where, removed) for id in table["id"].to_pylist()]

    def count(self, spoken: bool = False, where: Filter | None = None) -> int:
        """How many rows are visible; only those with a caption, or those that satisfy a filter."""
        return sum(bool(row["captions"]) or not spoken for row in self.dicts(["captions"], where))

    def filter_keys(self) -> dict[str, str]:
        """Keys of the metadata with the type of their values."""
        values = (json.loads(row["metadata"]) for row in self.dicts(["metadata"]))
        return FilterColumns(0, lambda _: values).keys()

    def snapshot(self) -> "Store":
        """A store that keeps reading this version while others write; itself where there are no versions."""
        return self

    def compact(self, keep_days: float) -> int | None:
        """Free what deleted rows and old versions take up; see `Index.compact`."""
        return None

    def accelerators(self) -> tuple[Any, ...]:
        """What was measured of approximate indexes (see `recollect.index.stores.ivf.Accelerator`)."""
        return ()

    def verify(self) -> list[str]:
        """One line for each damaged file or row; by default for rows whose vectors cannot be right."""
        found = list[str]()
        try:
            for table in self.scan(["id", "image_vector", "caption_vectors"], removed=None):
                image = np.linalg.norm(vector_matrix(table["image_vector"]).astype(np.float64), axis=1)
                flat, counts = caption_matrix(table["caption_vectors"])
                text = np.linalg.norm(flat.astype(np.float64), axis=1)
                wrong = ~((np.abs(image - 1) < 1e-2) | (image == 0))
                wrong[np.repeat(np.arange(len(counts)), counts)[~(np.abs(text - 1) < 1e-2)]] = True
                ids = [table["id"][row] for row in np.flatnonzero(wrong).tolist()]
                found += [f"{self.address}: the vectors of picture {id} are damaged" for id in ids]
        except UserError as error:
            found.append(str(error))
        return found


@contextmanager
def library_errors(address: str, message: str) -> Iterator[None]:
    """Turn the errors of a library into one line.

    Args:
        address: of the index.
        message: has ``{reason}`` for the first line of the error.
    """
    try:
        with full_disk_errors(address):
            yield
    except (UserError, GeneratorExit):
        raise
    except BaseException as error:  # OSError, ValueError, RuntimeError or a panic, for the same fault
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        lines = str(getattr(error, "message", error)).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{address}: {message.format(reason=lines[0][:200])}") from error


def mean_of_captions(
    vectors: Float32[np.ndarray, "captions width"], counts: Int64[np.ndarray, " rows"]
) -> Float32[np.ndarray, "rows width"]:
    """One unit-norm vector per row: its only caption as it is, the normalized mean of several, zeros for none.

    Args:
        vectors: captions of the rows, one row after the other.
        counts: captions of each row.
    """
    out = np.zeros((len(counts), vectors.shape[1]), dtype=np.float32)
    first = np.cumsum(counts) - counts
    out[counts == 1] = vectors[first[counts == 1]]
    for row in np.flatnonzero(counts > 1).tolist():
        mean = vectors[first[row] : first[row] + counts[row]].astype(np.float64).mean(axis=0)
        norm = np.linalg.norm(mean)
        out[row] = mean / norm if norm > 0 else 0
    return out


STORES: Table[str] = Table("stores", {"milvus": "recollect.index.stores.milvus:MilvusStore"})
"""The class of the store behind an address such as ``milvus://...``; any other address is the folder of a `LanceStore`.

Besides the methods of `Store` such a class has ``create(address, record)`` and ``exists(address)``, and is made from
an address and a version (None for the newest).
"""


def store_class(address: str) -> Any:
    """The class of the store that an address names."""
    scheme, mark, _ = address.partition("://")
    if not mark:
        return resolve_name("recollect.index.stores.lance:LanceStore")
    if scheme not in STORES:
        known = ", ".join(f"{name}://" for name in STORES)
        raise UserError(
            f"{address}: not the address of an index. Use a folder, or an address that starts with {known}."
        )
    return resolve_name(STORES[scheme])
