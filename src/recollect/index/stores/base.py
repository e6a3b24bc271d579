"""Interface of the storage backends of an index."""

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
from recollect.core.places import public_place
from recollect.core.plugins import Table
from recollect.index.arrow import caption_matrix, vector_matrix
from recollect.index.filters import Filter, FilterColumns
from recollect.index.rows import By, Record, unit_vectors

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Nearest:
    """The vectors nearest to each query, best first; a row may occur once per caption.

    Attributes:
        rows: row of each vector, as a position in ``ids``; -1 as padding.
        entries: position of the caption within the row; 0 for images.
        scores: cosines; -inf as padding.
        ids: Arrow array of ids.
        read: returns unit-norm vectors of rows; for text, of the given captions, or the mean of all captions if None.
    """

    rows: Int64[np.ndarray, "queries k"]
    entries: Int64[np.ndarray, "queries k"]
    scores: Float32[np.ndarray, "queries k"]
    ids: Any
    read: Callable[[np.ndarray, By, np.ndarray | None], Float32[np.ndarray, "some width"]]


class Store(ABC):
    """Rows in RAM, on disk or on a server. All methods raise `UserError` for failures of the backend.

    Rows that the user removed stay in the store with ``removed`` set; by default they are omitted from results.
    Subclasses implement the seven abstract methods; all other methods have defaults that work for any store. If all
    vectors fit on this machine, subclass `recollect.index.stores.local.LocalStore`, which implements two of the seven.

    Attributes:
        address: folder or URL as given by the user.
        record: settings of the index.
        folder: folder of an index on disk, else None.
    """

    address: str
    record: Record
    folder: Path | None = None
    _writer: int | None = None

    @abstractmethod
    def version(self, newest: bool = False) -> int:
        """Return the version, which grows with every change; ``newest`` first switches all reads to the newest one."""

    @abstractmethod
    def lock(self) -> AbstractContextManager[None]:
        """Return the writer lock, exclusive across threads and processes; not reentrant."""

    @abstractmethod
    def upsert(self, rows: "pa.Table") -> None:
        """Insert rows, replacing rows with the same ids; atomic on disk."""

    @abstractmethod
    def delete(self, ids: Sequence[str]) -> None:
        """Delete rows; unknown ids are ignored."""

    @abstractmethod
    def rows(self, ids: Sequence[str], columns: Sequence[str]) -> "pa.Table":
        """Return ``id`` and the given columns in the order of ``ids``, including removed rows; skip unknown ids."""

    @abstractmethod
    def scan(
        self, columns: Sequence[str], where: Filter | None = None, removed: bool | None = False
    ) -> "Iterator[pa.Table]":
        """Yield columns in batches, always in the same order.

        Args:
            removed: False for visible rows, True for removed rows, None for all rows.
        """

    @abstractmethod
    def nearest(
        self,
        queries: Float32[np.ndarray, "queries width"],
        k: int,
        by: By,
        where: Filter | None = None,
        captioned: bool = False,
        exact: bool = False,
    ) -> Nearest:
        """Return the k nearest image or caption vectors of visible rows.

        Args:
            captioned: search only rows with a caption.
            exact: do not use an approximate index.
        """

    @property
    def is_writing(self) -> bool:
        """Whether this thread holds the writer lock."""
        return self._writer == threading.get_ident()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the writer lock and switch to the newest version; reentrant."""
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
        """Return unit-norm vectors in the order of ``ids``, or of `scan`.

        Several captions are averaged and normalized; a missing vector is zero.
        """
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
        """Yield the rows of `scan` as dictionaries."""
        for table in self.scan(columns, where, removed):
            yield from table.to_pylist()

    def ids(self, where: Filter | None = None, removed: bool | None = False) -> list[str]:
        """Return the ids of `scan`, in its order."""
        return [id for table in self.scan(["id"], where, removed) for id in table["id"].to_pylist()]

    def count(self, captioned: bool = False, where: Filter | None = None) -> int:
        """Return the number of visible rows; with ``captioned`` only rows with a caption."""
        return sum(bool(row["captions"]) or not captioned for row in self.dicts(["captions"], where))

    def filter_keys(self) -> dict[str, str]:
        """Return the metadata keys with the type of their values."""
        values = (json.loads(row["metadata"]) for row in self.dicts(["metadata"]))
        return FilterColumns(0, lambda _: values).keys()

    def snapshot(self) -> "Store":
        """Return a store pinned to this version; the store itself if it has no versions."""
        return self

    def compact(self, keep_days: float) -> int | None:
        """Free the space of deleted rows and old versions; see `Index.compact`."""
        return None

    def accelerate(self, target: float) -> list[Any]:
        """Build approximate indexes; see `Index.accelerate`."""
        raise UserError(f"{self.address}: only an index on disk can be accelerated")

    def accelerators(self) -> tuple[Any, ...]:
        """Return the measurements of approximate indexes (see `recollect.index.stores.ivf.Accelerator`)."""
        return ()

    def verify(self) -> list[str]:
        """Return one line per damaged file or row; by default per row with vectors that are not unit norm."""
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
    """Convert the errors of a library to a one-line `UserError`.

    Args:
        address: address of the index.
        message: message with ``{reason}`` for the first line of the original error.
    """
    try:
        with full_disk_errors(address):
            yield
    except (UserError, GeneratorExit):
        raise
    except BaseException as error:  # the same fault raises OSError, ValueError, RuntimeError or PanicException
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        lines = str(getattr(error, "message", error)).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{address}: {message.format(reason=lines[0][:200])}") from error


def mean_of_captions(
    vectors: Float32[np.ndarray, "captions width"], counts: Int64[np.ndarray, " rows"]
) -> Float32[np.ndarray, "rows width"]:
    """Return one unit-norm vector per row: a single caption unchanged, the normalized mean of several, zeros for none.

    Args:
        vectors: caption vectors of all rows, concatenated.
        counts: number of captions per row.
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
"""Store classes by URL scheme, e.g. ``milvus``; an address without a scheme is the folder of a `LanceStore`.

In addition to the methods of `Store`, a class has ``create(address, record)`` and ``exists(address)``, and its
constructor takes an address and a version (None for the newest).
"""


TABLE_FOLDER = "pictures.lance"
"""Subfolder with the table of an index in a folder."""


def is_index_folder(folder: Path) -> bool:
    """Whether a folder contains an index."""
    return (folder / TABLE_FOLDER).is_dir()


def is_index(address: str) -> bool:
    """Whether an address is the URL of a store, or a folder that contains an index."""
    scheme, mark, _ = address.partition("://")
    return scheme in STORES if mark else is_index_folder(Path(address))


def store_class(address: str) -> Any:
    """Return the store class for an address."""
    scheme, mark, _ = address.partition("://")
    if not mark:
        return resolve_name("recollect.index.stores.lance:LanceStore")
    if scheme not in STORES:
        known = ", ".join(f"{name}://" for name in STORES)
        shown = public_place(address)
        raise UserError(f"{shown}: not an index address. Use a folder, or a URL that starts with {known}.")
    return resolve_name(STORES[scheme])
