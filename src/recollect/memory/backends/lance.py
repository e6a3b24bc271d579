"""A memory on disk: one Lance table, versioned, every change of it whole or absent."""

import shutil
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from recollect.core.errors import UserError
from recollect.core.files import FullDiskError, fresh_folder, locked, reason, told_if_full
from recollect.core.nearest import ExactNeighbours
from recollect.memory.backends.arrow import as_item, vectors_of
from recollect.memory.backends.base import Compaction, DamagedMemoryError, Hits
from recollect.memory.backends.cells import Cells, CellSearch, IndexRecord, damaged_cells, milliseconds, train_cells
from recollect.memory.backends.matrix import Matrices
from recollect.memory.backends.parts import within
from recollect.memory.backends.removals import Removal, read_removals, removals_damage, write_removals
from recollect.memory.backends.sums import damaged_table, damaged_version, note_sums
from recollect.memory.filters import Filter
from recollect.memory.rows import COLUMNS, Item, Modality, Pairs, Record, VectorPrecision, schema, unit_norm

TABLE = "pairs"
_RECORD = "recollect"
_LOCK = ".writers"

_SCAN = 8_192
_MOST_COSINE = 1.02


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
        if damaged := damaged_version(path, path / f"{TABLE}.lance", version):
            raise DamagedMemoryError(f"{damaged[0]}. Copy the memory again, or restore the file from a backup.")
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
        with told_if_full(address), fresh_folder(address, "memory") as unfinished:
            made = schema(record.width, record.precision, {_RECORD: record.text()})
            _database(unfinished).create_table(TABLE, schema=made)
        return cls(address)

    @staticmethod
    def exists(address: str) -> bool:
        """Whether something is in the folder."""
        path = Path(address)
        return path.exists() and (not path.is_dir() or any(path.iterdir()))

    @property
    def stored_precision(self) -> VectorPrecision:
        """That of the memory."""
        return self.record.precision

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
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(Path(self.address) / _LOCK))
            except OSError as error:
                raise self._unwritable(error) from error
            self.refresh()
            yield
            note_sums(Path(self.address), Path(self.address) / f"{TABLE}.lance")

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

    def removals(self) -> list[Removal]:
        """From a file of their own, of which a damaged line costs itself alone."""
        with self._told():
            return read_removals(Path(self.address))[0]

    def keep_removals(self, removals: Collection[Removal]) -> None:
        """The file anew, whole or not at all; none where there is nothing to keep."""
        self._check_writable()
        try:
            with told_if_full(self.address):
                write_removals(Path(self.address), removals)
        except FullDiskError:
            raise
        except OSError as error:
            raise self._unwritable(error) from error

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those of the ids that are there."""
        places = self._places(ids)
        if places is not None:
            return {id for id, place in zip(ids, places.tolist(), strict=True) if place >= 0}
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
            name: unit_norm(vectors_of(found[name].chunk(0))) if name.endswith("_vector") else found[name].to_pylist()
            for name in COLUMNS
        }
        return Pairs.of_columns(columns, self.record.model)

    def fetch(self, ids: Sequence[str], pictures: bool) -> list[Item]:
        """Rows in the order of their ids."""
        names = ["id", "caption", "source", "metadata", "path", "stamp", "digest", *(("image",) if pictures else ())]
        places = self._places(ids)
        with self._told():
            if self._loaded is None or places is None:
                found = [row for batch in self._scan(names, _among(ids)) for row in batch.to_pylist()]
            else:  # by number, which reads these rows alone
                numbers = self._loaded.numbers_of(places).tolist()
                found = self.table.take_row_ids(numbers).select(names).to_list()
        rows = {row["id"]: row for row in found}
        return [as_item(rows[id], self.address) for id in ids]

    def _places(self, ids: Sequence[str]) -> Int64[np.ndarray, " some"] | None:
        """Positions of ids in the matrices, −1 for what is not there; None where those of this version are not open."""
        matrices = self._loaded
        if not ids or matrices is None or matrices.version != self.version or not matrices.parts:
            return None
        return matrices.positions(ids)

    def vectors(self, ids: Sequence[str], modality: Modality) -> Float32[np.ndarray, "rows width"]:
        """Vectors in the order of their ids."""
        matrices = self._trusted(modality)
        return matrices.take(matrices.positions(ids), modality)

    def matrix(self, modality: Modality) -> tuple[list[str], Float32[np.ndarray, "rows width"]]:
        """The ids of all rows, and their unit-norm vectors, which are mapped where they are kept so."""
        matrices = self._trusted(modality)
        if not matrices.parts:
            return [], np.empty((0, self.record.width), dtype=np.float32)
        ids = matrices.ids if matrices.alive is None else matrices.ids.filter(matrices.alive)
        return ids.to_numpy(zero_copy_only=False).tolist(), matrices.whole(modality)

    def prepare(self) -> None:
        """Write what the first search would write."""
        self._matrices  # noqa: B018

    def columns(self, names: Sequence[str], where: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Columns of all rows whose columns in ``where`` have these values."""
        clause = " AND ".join(f"{name} = {_quoted(value)}" for name, value in where.items())
        for batch in self._scan(list(names), clause or None):
            yield {
                name: unit_norm(vectors_of(batch[name])) if name.endswith("_vector") else batch[name].to_pylist()
                for name in names
            }

    def search(
        self,
        vectors: Float32[np.ndarray, "queries width"],
        k: int,
        modality: Modality,
        where: Filter | None,
        has_text: bool = False,
        exact: bool = False,
    ) -> Hits:
        """Exact, but where an index was made, is faster for so many queries, and no filter is set."""
        spoken = has_text and modality == "image" and self.count_texts() < len(self)
        if not (exact or where or spoken) and (search := self._cell_search(modality, len(vectors))) is not None:
            hits = search.search(vectors, k, search.cells.record.probes)
            if hits is not None and _sound(hits.scores):
                return Hits(self._matrices.ids_at(hits.rows), hits.scores)
        found = self._search(vectors, k, modality, where, has_text)
        if not _sound(found.scores):
            self._forget()  # a part was damaged after it was read; NaN included
            found = self._search(vectors, k, modality, where, has_text)
        return found

    def _search(self, vectors: np.ndarray, k: int, modality: Modality, where: Filter | None, has_text: bool) -> Hits:
        matrices = self._trusted(modality)
        among = matrices.searchable(has_text or modality == "text")
        if where is not None:
            some = matrices.positions_of(self._numbers_where(where.sql()))
            among = some if among is None else some[within(some, among)]
        count = sum(len(part.numbers) for part in matrices.parts) if among is None else len(among)
        if count == 0:
            return Hits(np.empty((len(vectors), 0), dtype=object), np.empty((len(vectors), 0), dtype=np.float32))
        found = matrices.search(vectors, modality, min(k, count), among)
        return Hits(matrices.ids_at(found.rows), found.scores)

    def index(self, modality: Modality, target: float, train: bool = True) -> IndexRecord:
        """Cells around centres, of which so many are read as reach the target; the centres stay when rows are added."""
        with self.writing():  # refused now rather than after the work, during which others may write
            pass
        old = None if train else self._cells(modality)
        exact = partial(self._exact_rows, modality=modality)
        matrices = self._trusted("image", "text")
        try:
            cells = train_cells(matrices, modality, target, exact, self._index_path(modality), old)
        except OSError as error:
            raise UserError(
                f"{self.address}: the index of {modality}s cannot be written ({reason(error)}); searches stay as "
                "they were"
            ) from error
        self._indexes[modality] = (self.version, cells, None)
        if cells.record.probes:
            cells = replace(cells, record=self._timed(cells.record, modality, matrices))
            cells.save(self._index_path(modality))
            self._indexes[modality] = (self.version, cells, None)
        return cells.record

    def _timed(self, record: IndexRecord, modality: Modality, matrices: Matrices) -> IndexRecord:
        """With the times that a caller of `search` waits, names of rows included, in place of those of the kernel."""
        positions = np.linspace(0, record.rows - 1, min(256, record.rows)).astype(np.int64)
        queries = matrices.take(positions, modality)
        queries = queries[queries.any(axis=1)]

        def times(together: int) -> tuple[float, float]:
            ask = partial(self.search, k=10, modality=modality, where=None)
            return milliseconds(partial(ask, exact=True), queries, together), milliseconds(ask, queries, together)

        return replace(record, single_ms=times(1), block_ms=times(len(queries)))

    def indexes(self) -> list[IndexRecord]:
        """What the indexes say of themselves."""
        found = (self._cells(modality) for modality in ("image", "text"))
        return [cells.record for cells in found if cells is not None]

    def drop_index(self) -> None:
        """Search exactly from now on."""
        with self.writing():
            for modality in ("image", "text"):
                self._index_path(modality).unlink(missing_ok=True)
        self._indexes.clear()

    def _index_path(self, modality: str) -> Path:
        return Path(self.address) / "index" / f"{modality}.safetensors"

    def _cells(self, modality: Modality) -> Cells | None:
        return Cells.open(self._index_path(modality))

    def _cell_search(self, modality: Modality, queries: int) -> CellSearch | None:
        """The index over this version, where there is one that is faster than exact search for so many queries."""
        version, cells, search = self._indexes.get(modality, (-1, None, None))
        if version != self.version:
            cells, search = self._cells(modality), None
        if cells is not None and search is None and cells.faster(queries):
            search = CellSearch(cells, self._trusted(modality), modality)
        self._indexes[modality] = (self.version, cells, search)
        return search if cells is not None and cells.faster(queries) else None

    def _exact_rows(self, vectors: np.ndarray, k: int, modality: Modality) -> ExactNeighbours:
        matrices = self._trusted(modality)
        return matrices.search(vectors, modality, k, matrices.searchable(modality == "text"))

    def optimize(self, keep_days: float) -> Compaction:
        """Few large files, without deleted rows; the cache is written anew by the next search."""
        with self.writing():
            before = self._size()
            with self._told(), warnings.catch_warnings(action="ignore"):  # that readers of old versions fail is said
                self.table.optimize(cleanup_older_than=timedelta(days=keep_days))
            shutil.rmtree(Path(self.address) / "cache", ignore_errors=True)  # rows have other numbers now
            self._loaded = None
            self._indexes.clear()
            files, sizes, versions = zip(before, self._size(), strict=True)
            return Compaction(files, sizes, versions)

    def _size(self) -> tuple[int, int, int]:
        on_disk = sum(file.stat().st_size for file in Path(self.address).rglob("*") if file.is_file())
        with self._told():
            return self.table.stats()["fragment_stats"]["num_fragments"], on_disk, len(self.table.list_versions())

    def refresh(self) -> None:
        """See what others have changed."""
        if not self.pinned:
            with self._told():
                self.table.checkout_latest()

    def snapshot(self) -> "LanceBackend":
        """The version that this one reads."""
        return LanceBackend(self.address, self.version)

    def _trusted(self, *modalities: Modality) -> Matrices:
        """The matrices; where vectors of these modalities are not as they were written, they are made again."""
        if not all(self._matrices.sound(modality) for modality in modalities):
            self._forget()
        return self._matrices

    def _forget(self) -> None:
        """Remove the matrices, and what was made of them."""
        self._matrices.drop()
        self._loaded = None
        self._indexes.clear()

    @property
    def _matrices(self) -> Matrices:
        if self._loaded is None or self._loaded.version != self.version:
            kind = (self.record.width, self.record.precision)
            cache = Path(self.address) / "cache"
            self._loaded = Matrices.open(
                cache, self.version, self._there(), kind, self._rows, self._loaded, not self.pinned
            )
        return self._loaded

    _loaded: Matrices | None = None

    @cached_property
    def _indexes(self) -> dict[str, tuple[int, Cells | None, CellSearch | None]]:
        return {}

    def _there(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of all rows, and whether each has a text, in one scan."""
        numbers, texts = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=bool)]
        for batch in self._scan(["has_text"], numbers=True):
            numbers.append(batch["_rowid"].to_numpy().astype(np.int64))
            texts.append(batch["has_text"].to_numpy(zero_copy_only=False))
        order = np.argsort(together := np.concatenate(numbers), kind="stable")
        return together[order], np.concatenate(texts)[order]

    def _rows(self, first: int) -> Iterator[tuple[list[str], np.ndarray, np.ndarray, np.ndarray]]:
        """Ids, row numbers and both vectors, in one scan, so that they cannot fall apart."""
        names = ["id", "image_vector", "text_vector"]
        for batch in self._scan(names, f"_rowid >= {first}" if first else None, numbers=True):
            vectors = (vectors_of(batch[f"{modality}_vector"]) for modality in ("image", "text"))
            yield batch["id"].to_pylist(), batch["_rowid"].to_numpy().astype(np.int64), *vectors

    def _numbers_where(self, where: str) -> Int64[np.ndarray, " some"]:
        numbers = [batch["_rowid"].to_numpy() for batch in self._scan(["id"], where, numbers=True)]
        return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *numbers]).astype(np.int64))

    def damage(self) -> list[str]:
        """What cannot be trusted, a line each: rows that cannot be read or are no unit vectors, the cache."""
        found = self.file_damage(self.address)
        if found:
            return found
        try:
            for batch in self._scan(["id", "image_vector", "text_vector", "has_text"]):
                images, texts = (vectors_of(batch[f"{modality}_vector"]) for modality in ("image", "text"))
                spoken = batch["has_text"].to_numpy(zero_copy_only=False)
                wrong = ~(np.abs(np.linalg.norm(images, axis=1) - 1) < 1e-2)
                wrong |= ~(np.abs(np.linalg.norm(texts, axis=1) - spoken) < 1e-2)
                found += [f"row '{batch['id'][row].as_py()}': its vectors are damaged" for row in np.flatnonzero(wrong)]
        except UserError as error:
            found.append(str(error))
            return found
        return found + self._matrices.damage()

    @staticmethod
    def file_damage(address: str) -> list[str]:
        """Files that differ from their checksums, a line each, without opening the memory, which repairs its cache."""
        folder = Path(address)
        found = damaged_table(folder, folder / f"{TABLE}.lance") + removals_damage(folder)
        for part in sorted((folder / "cache").glob("*/")):
            found += damaged_cells(part)
        for modality in ("image", "text"):
            path = folder / "index" / f"{modality}.safetensors"
            if path.exists() and Cells.open(path) is None:
                found.append(
                    f"{path}: is damaged; searches among {modality}s are exact until `recollect memory index` makes it "
                    "again"
                )
        return found

    def _scan(self, names: list[str], where: str | None = None, numbers: bool = False) -> Iterator[Any]:
        query = self.table.search().select(names)
        query = query.with_row_id(True) if numbers else query
        with self._told():
            yield from (query.where(where) if where else query).to_batches(_SCAN)

    def _check_writable(self) -> None:
        if self.pinned:
            raise UserError(f"{self.address}: version {self.version} of it is a snapshot, which cannot be changed")

    def _unwritable(self, error: OSError) -> UserError:
        return UserError(f"{self.address}: cannot be written to ({error.strerror}); it can be searched")

    def _told(self) -> AbstractContextManager[None]:
        return _told(self.address)


@contextmanager
def _told(address: str) -> Iterator[None]:
    """Say in our own words what the library says of a memory."""
    try:
        with told_if_full(address):
            yield
    except (UserError, GeneratorExit):
        raise
    except BaseException as error:  # OSError, ValueError, RuntimeError and a panic, for one and the same fault
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise DamagedMemoryError(
            f"{address}: the memory cannot be used ({reason}). Was it copied whole? "
            "`recollect memory info --check` says what is damaged."
        ) from error


def _sound(scores: np.ndarray) -> bool:
    """Whether these can be cosines; NaN cannot."""
    return not scores.size or bool((np.abs(scores) <= _MOST_COSINE).all())


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
