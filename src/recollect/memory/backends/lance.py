"""A memory on disk: one Lance table, versioned, every change of it whole or absent."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from recollect.core.errors import UserError
from recollect.core.files import fresh_folder, locked
from recollect.core.nearest import exact_neighbours
from recollect.memory.backends.base import Hits
from recollect.memory.backends.matrix import Matrices
from recollect.memory.filters import Filter
from recollect.memory.rows import COLUMNS, Item, Modality, Pairs, Record, schema

TABLE = "pairs"
_RECORD = "recollect"
_LOCK = ".writers"

EXACT_ROWS = 1_000_000
"""Up to so many rows are searched exactly; beyond, by an index if there is one."""

# The index proposes so many times k rows, which exact vectors then rank, from so many of its cells. With 200,000 rows
# around a thousand centres, recall@10 was 0.892 with 10 and 20, 0.991 with 20 and 20, and 0.999 with 20 and 40.
_REFINE, _PROBES = 20, 40
_SCAN = 8_192


class LanceBackend:
    """See `recollect.memory.backends.base.Backend`.

    Args:
        address: the memory's folder.
        version: read this version, and write nothing; the newest by default.

    Raises:
        UserError: it is no memory, or a part of it is missing.
    """

    whole_commits = True

    def __init__(self, address: str, version: int | None = None) -> None:
        self.address, self.pinned = address, version is not None
        path = Path(address)
        if not path.is_dir():
            raise UserError(
                f"{address}: no such memory. Make one with `recollect memory build MODEL SOURCE --out {address}`."
            )
        if not (path / f"{TABLE}.lance").is_dir():
            held = ", ".join(sorted(entry.name for entry in path.iterdir())[:5]) or "nothing"
            raise UserError(f"{address}: no memory (it holds {held}). Name the folder that holds {TABLE}.lance.")
        with self._told():
            self.table = _database(path).open_table(TABLE)
            if version is not None:
                self.table.checkout(version)
            record = (self.table.schema.metadata or {}).get(_RECORD.encode())
            # A file that is missing or cut short shows here, not in the middle of a search.
            rows = sum(batch.num_rows for batch in self._scan(["id"]))
        if record is None or rows != len(self):
            raise UserError(f"{address}: no memory of recollect, though it holds a Lance table")
        self.record = Record.read(record.decode(), address)

    @classmethod
    def create(cls, address: str, record: Record) -> "LanceBackend":
        """Make an empty memory.

        Raises:
            UserError: something is there already.
        """
        with fresh_folder(address, "memory") as unfinished:
            made = schema(record.width, record.precision, {_RECORD: record.text()})
            _database(unfinished).create_table(TABLE, schema=made)
        return cls(address)

    @staticmethod
    def exists(address: str) -> bool:
        """Whether something is in the folder."""
        path = Path(address)
        return path.exists() and (not path.is_dir() or any(path.iterdir()))

    @property
    def version(self) -> int:
        """Lance's own."""
        return self.table.version

    def __len__(self) -> int:
        with self._told():
            return self.table.count_rows()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Other writers of this machine wait."""
        self._check_writable()
        with locked(Path(self.address) / _LOCK):
            self.refresh()
            yield

    def append(self, pairs: Pairs) -> None:
        """One commit."""
        self._check_writable()
        with self._told():
            self.table.add(pairs.table(self.record.precision))

    def upsert(self, pairs: Pairs) -> None:
        """One commit."""
        self._check_writable()
        with self._told():
            merge = self.table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            merge.execute(pairs.table(self.record.precision))

    def delete(self, ids: Sequence[str]) -> None:
        """One commit."""
        self._check_writable()
        with self._told():
            self.table.delete(_among(ids))

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those of the ids that are there."""
        found = self._scan(["id"], _among(ids)) if ids else ()
        return {id for batch in found for id in batch["id"].to_pylist()}

    def ids_where(self, where: Filter) -> list[str]:
        """The ids of all rows that satisfy a filter."""
        return [id for batch in self._scan(["id"], where.sql()) for id in batch["id"].to_pylist()]

    def count_texts(self) -> int:
        """How many rows have a text."""
        with self._told():
            return self.table.count_rows("has_text")

    def rows(self, ids: Sequence[str]) -> Pairs:
        """Whole rows in the order of their ids."""
        import pyarrow as pa

        with self._told():
            found = pa.Table.from_batches(list(self._scan(list(COLUMNS), _among(ids)))).combine_chunks()
        place = {id: row for row, id in enumerate(found["id"].to_pylist())}
        found = found.take([place[id] for id in ids]).combine_chunks()
        columns = {
            name: vectors_of(found[name].chunk(0)) if name.endswith("_vector") else found[name].to_pylist()
            for name in COLUMNS
        }
        return Pairs.of_columns(columns, self.record.model)

    def fetch(self, ids: Sequence[str], pictures: bool) -> list[Item]:
        """Rows in the order of their ids."""
        names = ["id", "caption", "source", "metadata", "path", *(("image",) if pictures else ())]
        with self._told():
            rows = {row["id"]: row for batch in self._scan(names, _among(ids)) for row in batch.to_pylist()}
        return [as_item(rows[id], self.address) for id in ids]

    def vectors(self, ids: Sequence[str], modality: Modality) -> Float32[np.ndarray, "rows width"]:
        """Vectors in the order of their ids."""
        matrices = self._matrices
        return np.array(matrices.modality(modality)[matrices.positions(ids)])

    def columns(self, names: Sequence[str], where: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Columns of all rows whose columns in ``where`` have these values."""
        clause = " AND ".join(f"{name} = {_quoted(value)}" for name, value in where.items())
        for batch in self._scan(list(names), clause or None):
            yield {
                name: vectors_of(batch[name]) if name.endswith("_vector") else batch[name].to_pylist() for name in names
            }

    def search(
        self,
        vectors: Float32[np.ndarray, "queries width"],
        k: int,
        modality: Modality,
        where: Filter | None,
        has_text: bool = False,
    ) -> Hits:
        """Exact up to `EXACT_ROWS` rows, and wherever there is no index."""
        clause = None if where is None else where.sql()
        if (has_text or modality == "text") and self.count_texts() < len(self):
            clause = f"has_text AND ({clause})" if clause else "has_text"
        if len(self) <= EXACT_ROWS or not self._indexed(modality):
            return self._exact(vectors, k, modality, clause)
        found = self._approximate(vectors, k, modality, clause)
        return self._exact(vectors, k, modality, clause) if found is None else found

    def index(self, modality: Modality) -> None:
        """An inverted file of vectors quantised to a few bits an entry (IVF_RQ), whose proposals are scored exactly."""
        from lancedb.index import IvfRq

        self._check_writable()
        with self._told():
            self.table.create_index(f"{modality}_vector", config=IvfRq(distance_type="dot"))

    def refresh(self) -> None:
        """See what others have changed."""
        if not self.pinned:
            with self._told():
                self.table.checkout_latest()

    def snapshot(self) -> "LanceBackend":
        """The version that this one reads."""
        return LanceBackend(self.address, self.version)

    def _exact(self, vectors: np.ndarray, k: int, modality: Modality, where: str | None) -> Hits:
        matrices = self._matrices
        among = None if where is None else self._positions_where(where)
        count = len(self) if among is None else len(among)
        if count == 0:
            return Hits(np.empty((len(vectors), 0), dtype=object), np.empty((len(vectors), 0), dtype=np.float32))
        found = exact_neighbours(vectors, matrices.modality(modality), min(k, count), among)
        return Hits(matrices.ids_at(found.rows), found.scores)

    def _approximate(self, vectors: np.ndarray, k: int, modality: Modality, where: str | None) -> Hits | None:
        """What the index finds; None where it finds fewer rows for some query than for another."""
        query = self.table.search(vectors, vector_column_name=f"{modality}_vector").distance_type("dot")
        query = query.limit(k).nprobes(_PROBES).refine_factor(_REFINE).select(["id", "_distance"])
        with self._told():
            result = (query.where(where) if where else query).to_arrow()
        if result.num_rows == 0 or result.num_rows % len(vectors):
            return None
        single = "query_index" not in result.column_names  # Lance leaves it out where there is one query
        owners = np.zeros(result.num_rows, dtype=np.int64) if single else result["query_index"].to_numpy()
        owners = owners.reshape(len(vectors), -1)
        if owners.shape[1] < k or (owners != np.arange(len(vectors))[:, None]).any():
            return None
        ids = np.array(result["id"].to_pylist(), dtype=object).reshape(owners.shape)
        return Hits(ids, (1 - result["_distance"].to_numpy()).astype(np.float32).reshape(owners.shape))

    def _indexed(self, modality: Modality) -> bool:
        return any(index.columns == [f"{modality}_vector"] for index in self.table.list_indices())

    @property
    def _matrices(self) -> Matrices:
        if self._loaded is None or self._loaded.version != self.version:
            self._loaded = Matrices.open(
                Path(self.address) / "cache", self.version, len(self), self.record.width, self._rows
            )
        return self._loaded

    _loaded: Matrices | None = None

    def _rows(self) -> Iterator[tuple[list[str], np.ndarray, np.ndarray, np.ndarray]]:
        """Ids, row numbers and both vectors, in one scan, so that they cannot fall apart."""
        for batch in self._scan(["id", "image_vector", "text_vector"], numbers=True):
            vectors = (vectors_of(batch[f"{modality}_vector"]) for modality in ("image", "text"))
            yield batch["id"].to_pylist(), batch["_rowid"].to_numpy().astype(np.int64), *vectors

    def _positions_where(self, where: str) -> Int64[np.ndarray, " some"]:
        numbers = [batch["_rowid"].to_numpy() for batch in self._scan(["id"], where, numbers=True)]
        wanted = np.concatenate([np.empty(0, dtype=np.int64), *numbers]).astype(np.int64)
        return np.sort(np.searchsorted(self._matrices.numbers, wanted))

    def _scan(self, names: list[str], where: str | None = None, numbers: bool = False) -> Iterator[Any]:
        query = self.table.search().select(names)
        query = query.with_row_id(True) if numbers else query
        with self._told():
            yield from (query.where(where) if where else query).to_batches(_SCAN)

    def _check_writable(self) -> None:
        if self.pinned:
            raise UserError(f"{self.address}: version {self.version} of it is a snapshot, which cannot be changed")

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (UserError, GeneratorExit):
            raise
        except Exception as error:  # Lance raises OSError, ValueError and RuntimeError for one and the same fault
            reason = str(error).strip().splitlines()[0][:200]
            raise UserError(f"{self.address}: the memory cannot be used ({reason}). Was it copied whole?") from error


def as_item(row: Mapping[str, Any], address: str) -> Item:
    """A row of columns as a reader sees it."""
    path = Path(row["path"]) if row.get("path") else None
    image = row.get("image") or path
    metadata = row["metadata"]
    if not isinstance(metadata, Mapping):
        metadata = json.loads(metadata)
    return Item(row["id"], row["caption"], row["source"], metadata, image, f"{address}, row '{row['id']}'", path)


def vectors_of(column: Any) -> Float32[np.ndarray, "rows width"]:
    """A fixed-size list column as an array; one of float32 without copying."""
    values = column.flatten().to_numpy(zero_copy_only=False)
    return values.astype(np.float32, copy=False).reshape(len(column), -1)


def _database(path: Path) -> Any:
    try:
        import lancedb
    except ImportError:
        raise UserError("a memory needs lancedb: pip install 'recollect[memory]'") from None
    return lancedb.connect(str(path))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _among(ids: Sequence[str]) -> str:
    return f"id IN ({', '.join(map(_quoted, ids))})"
