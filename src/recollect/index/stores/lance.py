"""Index on disk: one Lance table in a folder. Every change is an atomic commit that creates a new version."""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
from jaxtyping import Int64

from recollect.core.checksums import CHECKSUMS, damaged_files, read_checksums, write_checksums
from recollect.core.errors import UserError, user_errors
from recollect.core.files import atomic_folder, fresh_folder, full_disk_errors, held, write_json
from recollect.index.arrow import string_array
from recollect.index.rows import COLUMNS, FACTS, By, Record, schema
from recollect.index.stores.base import TABLE_FOLDER, is_index_folder, library_errors
from recollect.index.stores.local import LocalStore
from recollect.index.stores.matrix import ROW

TABLE = "pictures"
_CACHE = "cache"
_HINT = "_versions/latest_version_hint.json"
_VIEW = "view-"
_LOCK = ".writers"
_BATCH_ROWS = 8_192
_MAX_IDS = 2_048  # ids per SQL condition


class LanceStore(LocalStore):
    """Lance implementation of `Store`.

    Args:
        address: folder of the index.
        version: open this version read-only; default: the newest, for reading and writing.

    Raises:
        UserError: not an index, or damaged.
    """

    folder: Path

    def __init__(self, address: str, version: int | None = None) -> None:
        self.address, self.folder, self.pinned = address, Path(address), version is not None
        self._requested = version
        self.cache, self.tidy = self.folder / _CACHE, not self.pinned
        if not self.folder.is_dir():
            raise UserError(f"{address}: no such index. Build one with `recollect index build SOURCE --out {address}`.")
        if not is_index_folder(self.folder):
            entries = ", ".join(sorted(entry.name for entry in self.folder.iterdir())[:5]) or "nothing"
            raise UserError(f"{address}: not an index (it holds {entries}). Name the folder that holds {TABLE_FOLDER}.")
        self._view = None if self.pinned else TableView.read(self.folder)
        if self._view is not None:
            self.record = self._view.record
        else:
            self.record = Record.from_json(self.table.schema.metadata[b"recollect"].decode(), address)

    @cached_property
    def table(self) -> Any:
        """Lance table, opened when the `TableView` is not enough."""
        with self._reported():
            table = _open_database(self.folder).open_table(TABLE)
            if self._requested is not None:
                table.checkout(self._requested)
            elif self._view is not None and self._view.version != table.version:  # another process has written since
                with suppress(Exception):  # the version was compacted away
                    table.checkout(self._view.version)
            count = sum(batch.num_rows for batch in _batches(table, ["id"]))  # detects missing files early
        if b"recollect" not in (table.schema.metadata or {}) or count != table.count_rows():
            raise UserError(f"{self.address}: contains a Lance table, but not an index of recollect")
        return table

    def _current_view(self) -> "TableView | None":
        """Return the view unless the table is open."""
        return None if "table" in self.__dict__ else self._view

    @classmethod
    def create(cls, address: str, record: Record) -> "LanceStore":
        """Create an empty index; the folder must be empty or missing."""
        with full_disk_errors(address), fresh_folder(address, "index") as unfinished:
            _open_database(unfinished).create_table(TABLE, schema=schema(record))
        return cls(address)

    def snapshot(self) -> "LanceStore":
        """Open the current version read-only."""
        return LanceStore(self.address, self.version())

    @staticmethod
    def exists(address: str) -> bool:
        """Return whether the address exists, other than as an empty folder."""
        path = Path(address)
        return path.exists() and (not path.is_dir() or any(path.iterdir()))

    def version(self, newest: bool = False) -> int:
        """Return the version number of the Lance table."""
        if (view := self._current_view()) is not None:
            if newest and view.files != _files_digest(self.folder):
                view = self._view = TableView.read(self.folder)
            if view is not None:
                return view.version
        if newest and not self.pinned:
            with self._reported():
                self.table.checkout_latest()
        return int(self.table.version)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock out other writers on this machine; record checksums of new files at the end."""
        if self.pinned:
            raise UserError(f"{self.address}: version {self.version()} is a snapshot and cannot be changed")
        with user_errors(f"{self.address}: cannot be written to", OSError, then="; it can be searched"):
            lock = (self.folder / _LOCK).open("a+b")
        with lock, held(lock):
            try:
                yield
            finally:
                self._note_checksums()

    def _note_checksums(self) -> None:
        """Record checksums of new files; if the disk is full, the next change records them."""
        table = self.folder / TABLE_FOLDER
        hint, files = table / _HINT, (file for file in sorted(table.rglob("*")) if file.is_file())
        with suppress(OSError):
            write_checksums(self.folder, [file for file in files if file != hint and ".tmp" not in file.name], [hint])

    def upsert(self, rows: Any) -> None:
        """Insert or replace rows in one commit."""
        with self.writing(), self._reported():
            table = rows.select(list(COLUMNS))
            conditions = _conditions(rows["id"].to_pylist())
            if any(batch.num_rows for condition in conditions for batch in self._scan(["id"], condition)):
                merge = self.table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
                merge.execute(table)
            else:
                self.table.add(table)

    def delete(self, ids: Sequence[str]) -> None:
        """Delete rows, one commit per 2,048 ids."""
        with self.writing(), self._reported():
            for condition in _conditions(ids):
                self.table.delete(condition)

    def rows(self, ids: Sequence[str], columns: Sequence[str]) -> Any:
        """Return rows: facts from the matrix, other columns by row number if the matrix is current, else by id."""
        import pyarrow as pa
        import pyarrow.compute as pc

        names, distinct = list(dict.fromkeys(["id", *columns])), list(dict.fromkeys(ids))
        matrix = self.matrix() if self._current_view() is not None else self._matrix
        tables, unknown = list[Any](), distinct
        if matrix is not None and matrix.version == self.version() and matrix.parts and distinct:
            slots = matrix.slots_of(distinct)
            known = slots[slots >= 0]
            unknown = [id for id, slot in zip(distinct, slots.tolist(), strict=True) if slot < 0]
            if set(names) <= {*FACTS}:
                tables.append(matrix.facts(known, names))
            elif len(known):
                with self._reported():
                    tables.append(self.table.take_row_ids(matrix.numbers[known].tolist()).select(names).to_arrow())
        for condition in _conditions(unknown):
            tables += [pa.Table.from_batches([batch]) for batch in self._scan(names, condition)]
        if not tables:
            return pa.schema([(name, schema(self.record).field(name).type) for name in names]).empty_table()
        found = pa.concat_tables([table.select(names).replace_schema_metadata() for table in tables])
        positions = pc.index_in(string_array(ids), value_set=found["id"].combine_chunks()).drop_null()
        return found.take(positions)

    def row_numbers(self) -> Int64[np.ndarray, " rows"]:
        """Return sorted row numbers from the view; without one, read them and write a view for other processes."""
        if (view := self._current_view()) is not None:
            return view.numbers
        numbers = super().row_numbers()
        if not self.pinned and not self.is_writing:
            TableView(self.version(), self.record, numbers).write(self.folder)
        return numbers

    def batches(self, columns: Sequence[str], first: int = 0, removed: bool | None = False) -> Iterator[Any]:
        """Yield batches in the order of row numbers."""
        import pyarrow as pa

        conditions = [f"_rowid >= {first}"] if first else []
        if removed is not None:
            conditions.append("removed" if removed else "NOT removed")
        names = list(columns) or ["removed"]
        for batch in self._scan(names, " AND ".join(conditions) or None):
            yield pa.Table.from_batches([batch]).select([*columns, ROW])

    def _scan(self, names: Sequence[str], where: str | None = None) -> Iterator[Any]:
        with self._reported():
            yield from _batches(self.table, names, where)

    def compact(self, keep_days: float) -> int:
        """Merge small files and drop deleted rows and old versions; return the number of bytes freed."""
        with self.writing():
            before, approximate = self._size(), [self.inverted_file(by) for by in get_args(By)]
            with (
                self._reported(),
                warnings.catch_warnings(action="ignore"),
            ):  # about readers of old versions
                self.table.optimize(cleanup_older_than=timedelta(days=keep_days), delete_unverified=False)
            shutil.rmtree(self.folder / _CACHE, ignore_errors=True)  # the rows have new numbers
            self._matrix = None
            for each in approximate:
                if each is not None:
                    each.fill(self.matrix())
            self._note_checksums()
            return before - self._size()

    def _size(self) -> int:
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())

    def verify(self) -> list[str]:
        """Return one line per file that does not match its checksum; if there is none, one per invalid row."""
        return verify_folder(self.folder) or super().verify()

    def _reported(self) -> AbstractContextManager[None]:
        return library_errors(
            self.address,
            "cannot be used ({reason}). Was it copied completely? `recollect index verify` names the damaged files.",
        )


@dataclass(frozen=True)
class TableView:
    """Cached facts about the newest version that let a search run without importing lancedb, which takes seconds.

    Stored in the cache, in a folder named after a digest of the table's files.

    Attributes:
        version: version of the table.
        record: record of the index.
        numbers: sorted row numbers of the visible rows.
        files: digest of the table's files.
    """

    version: int
    record: Record
    numbers: Int64[np.ndarray, " rows"]
    files: str = ""

    @classmethod
    def read(cls, folder: Path) -> "TableView | None":
        """Read the view of the newest version; None if missing or damaged."""
        files = _files_digest(folder)
        view = folder / _CACHE / f"{_VIEW}{files}"
        if not (view / CHECKSUMS).exists() or damaged_files(view):
            return None
        about = json.loads((view / "about.json").read_text())
        record = Record.from_json(json.dumps(about["record"]), str(folder))
        return cls(about["version"], record, np.load(view / "numbers.npy"), files)

    def write(self, folder: Path) -> None:
        """Write the view, unless a newer version exists or the folder is not writable."""
        view = folder / _CACHE / f"{_VIEW}{_files_digest(folder)}"
        versions = (int(file.stem) for file in (folder / TABLE_FOLDER / "_versions").glob("*.manifest"))
        if max((each if each < 2**63 else 2**64 - 1 - each for each in versions), default=-1) != self.version:
            return
        for old in (folder / _CACHE).glob(f"{_VIEW}*"):
            shutil.rmtree(old, ignore_errors=True)
        with suppress(OSError, UserError), atomic_folder(view) as unfinished:
            write_json(unfinished / "about.json", {"version": self.version, "record": asdict(self.record)})
            np.save(unfinished / "numbers.npy", self.numbers)
            write_checksums(unfinished, sorted(unfinished.iterdir()))


def _files_digest(folder: Path) -> str:
    """Return a digest of the table's file names, sizes and times, which changes with every commit."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted((folder / TABLE_FOLDER).rglob("*")):
        if file.name != Path(_HINT).name and file.is_file():
            stat = file.stat()
            digest.update(f"{file.relative_to(folder)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def verify_folder(folder: Path) -> list[str]:
    """Return one line per file of an index that does not match its checksum; the index need not be readable.

    Files without a checksum, left by a killed writer, are skipped. Lance overwrites its version hint with every commit:
    if there are such files, it is only checked to name an existing version.
    """
    table, known = folder / TABLE_FOLDER, read_checksums(folder)
    hint = f"{TABLE_FOLDER}/{_HINT}"
    existing = {file.relative_to(folder).as_posix() for file in table.rglob("*") if file.is_file()}
    found = damaged_files(folder, [name for name in known if name != hint and name in existing])
    if not known and (folder / CHECKSUMS).exists():
        found = damaged_files(folder)
    if hint in known and not existing - known.keys():
        found += damaged_files(folder, [hint])
    elif (table / _HINT).exists() and not _names_a_version(table / _HINT):
        found.append(f"{table / _HINT}: does not name an existing version of the table")
    if not (folder / CHECKSUMS).exists():
        found.append(f"{folder / CHECKSUMS}: missing, so the table's files were not verified")
    for part in sorted((folder / _CACHE).glob("*")) if (folder / _CACHE).is_dir() else []:
        if part.is_dir() and not part.name.startswith("."):
            missing = not (part / CHECKSUMS).exists()
            found += [f"{part / CHECKSUMS}: missing"] if missing else damaged_files(part)
    return found


def _names_a_version(hint: Path) -> bool:
    try:
        version = json.loads(hint.read_text())["version"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    names = {file.stem for file in hint.parent.glob("*.manifest")}
    return bool({str(version), str(2**64 - 1 - version)} & names) if isinstance(version, int) else False


def _open_database(path: Path) -> Any:
    """Connect to a LanceDB folder."""
    try:
        import lancedb
    except ImportError:
        raise UserError("an index on disk needs lancedb: pip install 'recollect[index]'") from None
    os.environ.setdefault("LANCE_LOG", "error")
    return lancedb.connect(str(path))


def _batches(table: Any, names: Sequence[str], where: str | None = None) -> Iterator[Any]:
    query = table.search().select(list(names)).with_row_id(True)
    yield from (query.where(where) if where else query).to_batches(_BATCH_ROWS)


def _conditions(ids: Sequence[str]) -> Iterator[str]:
    for start in range(0, len(ids), _MAX_IDS):
        quoted = ("'" + id.replace("'", "''") + "'" for id in ids[start : start + _MAX_IDS])
        yield f"id IN ({', '.join(quoted)})"
