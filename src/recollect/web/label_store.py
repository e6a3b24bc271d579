"""Labels, marks and saved searches in SQLite, with undo and redo; every change is on disk before the call returns."""

import json
import os
import sqlite3
import threading
import unicodedata
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from recollect.core.errors import UserError
from recollect.core.files import atomic_path, move_file
from recollect.core.words import normalized_name
from recollect.index.annotations import LABELED

FAVORITES = "Favorites"
"""Label of the page's key F. It is not a kind of picture, so classifiers do not learn it."""

_MAX_NAME_LENGTH = 200
_MAX_CLASSES = 200
_MAX_SEARCHES = 100
_MAX_GAP = 1_000  # consecutive unreadable changes after which reading a damaged file stops

_TABLES = """
CREATE TABLE IF NOT EXISTS changes (number INTEGER PRIMARY KEY, entry TEXT NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS labels (name TEXT NOT NULL, id TEXT NOT NULL, value TEXT NOT NULL, class INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS labels_of_class ON labels (class, id);
"""
"""``changes`` is the ordered log and source of truth; ``labels`` is derived from it for filters."""

LabelEntry = dict[str, Any]


@dataclass(eq=False)
class ClickedClass:
    """A label taught by marks.

    Attributes:
        name: display name.
        text: description; ranks the pictures before any are marked.
        marks: +1 or -1 by picture id, in click order; other threads may change it.
    """

    key: int
    name: str
    text: str
    marks: dict[str, int] = field(default_factory=dict)

    def count(self, mark: int) -> int:
        """Return the number of pictures with this mark."""
        return list(self.marks.values()).count(mark)  # copied first, because other threads may add marks


class LabelStore:
    """Labels and saved searches in a SQLite file that several threads and processes may change concurrently.

    A change is one row of the table ``changes``, written in one transaction, so a kill or a full disk leaves all of it
    or nothing. Every row has a checksum; damaged rows are skipped and counted. A file that SQLite cannot read is moved
    aside, and a new one is created from its readable rows and those of the backup made when it was last opened.

    Attributes:
        damaged: number of changes that could not be read.

    Raises:
        UserError: the file cannot be written, or is not a label file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.damaged = path, 0
        self._lock = threading.RLock()
        self._bad: set[int] = set()  # numbers of damaged changes
        self._seen = 0  # number of the last change read
        self._forget()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not _sound(path):
                self.damaged = _salvage(path)
            self._database = _connect(path)
            self._database.executescript(_TABLES)
            self._file = os.stat(path)
        except (OSError, sqlite3.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"{path}: labels cannot be saved there ({reason}). Name a file with --labels.") from None
        _ = self.revision
        with suppress(OSError, sqlite3.Error):  # the backup is optional, for example on a full disk
            _back_up(self._database, path)

    @property
    def classes(self) -> dict[int, ClickedClass]:
        """All classes by key."""
        with self._lock:
            self._catch_up()
            return self._classes

    @property
    def revision(self) -> int:
        """Number that grows with every change by any process."""
        with self._lock:
            self._catch_up()
            return self._seen

    @property
    def latest(self) -> int:
        """Number of the latest change that is not undone; 0 if there is none."""
        with self._lock:
            self._catch_up()
            return self._done[-1] if self._done else 0

    def create(self, name: str, text: str = "") -> ClickedClass:
        """Add a class.

        Raises:
            UserError: the name is empty, too long or taken, or there are too many classes.
        """
        name, text = _clean(name), _clean(text, empty=True)
        with self._change() as write:
            self._check_free(name)
            if len(self._classes) >= _MAX_CLASSES:
                raise UserError(f"at most {_MAX_CLASSES} labels are possible. Remove one first.")
            key = 1 + max((entry["class"] for entry in self._entries.values() if entry["do"] == "class"), default=0)
            write({"do": "class", "class": key, "name": name, "text": text})
        return self._classes[key]

    def rename(self, key: int, name: str) -> None:
        """Change the name of a class; its marks stay.

        Raises:
            UserError: no such class, or the name is empty, too long or taken.
        """
        name = _clean(name)
        with self._change() as write:
            found = self.get(key)
            self._check_free(name, but=key)
            if name != found.name:
                write({"do": "rename", "class": key, "name": name})

    def _check_free(self, name: str, but: int | None = None) -> None:
        for each in self._classes.values():
            if each.key != but and normalized_name(each.name) == normalized_name(name):  # same in a filter
                raise UserError(f"the label {each.name!r} already exists")

    def mark(self, key: int, ids: list[str], mark: int) -> ClickedClass:
        """Mark pictures as belonging (+1) or not belonging (-1) to a class, or remove their mark (0).

        Pictures that already have this mark are skipped, so every undo has an effect.

        Raises:
            UserError: no such class or mark, or the change could not be saved.
        """
        if mark not in (-1, 0, 1):
            raise UserError(f"{mark!r}: a mark must be 1, -1 or 0 (none)")
        with self._change() as write:
            found = self.get(key)
            if ids := [id for id in ids if found.marks.get(id, 0) != mark]:
                write({"do": "mark", "class": key, "ids": ids, "mark": mark})
        return found

    def drop(self, key: int) -> None:
        """Remove a class."""
        with self._change() as write:
            self.get(key)
            write({"do": "drop", "class": key})

    def undo(self) -> LabelEntry | None:
        """Undo the last change and return it; None if there is none."""
        with self._change() as write:
            if not self._done:
                return None
            write({"do": "undo", "of": self._done[-1]})
            return self._entries[self._undone[-1]]

    def redo(self) -> LabelEntry | None:
        """Redo the change that was undone last and return it; None if there is none."""
        with self._change() as write:
            if not self._undone:
                return None
            write({"do": "redo", "of": self._undone[-1]})
            return self._entries[self._done[-1]]

    def pending(self) -> dict[str, LabelEntry | None]:
        """Describe what `undo` and `redo` would change: the kind of change, the label and the mark."""
        with self._lock:
            self._catch_up()
            return {"undo": self._described(self._done), "redo": self._described(self._undone)}

    def _described(self, entries: list[int]) -> LabelEntry | None:
        if not entries:
            return None
        entry = self._entries[entries[-1]]
        name = entry.get("name") or self._names.get(entry["class"], "")
        about = {"do": entry["do"], "class": entry["class"], "name": name}
        return about | ({"mark": entry["mark"], "pictures": len(entry["ids"])} if entry["do"] == "mark" else {})

    def get(self, key: int) -> ClickedClass:
        """Return a class.

        Raises:
            UserError: the class was removed.
        """
        if (found := self.classes.get(key)) is None:
            raise UserError("this label was removed")
        return found

    def labels_of(self, id: str) -> list[str]:
        """Return the names of the classes that a picture belongs to."""
        return sorted(each.name for each in list(self.classes.values()) if each.marks.get(id, 0) > 0)

    @property
    def searches(self) -> dict[str, str]:
        """Page address of each saved search by name, in the order of saving."""
        with self._lock:
            self._catch_up()
            return dict(self._searches)

    def save_search(self, name: str, address: str | None) -> dict[str, str]:
        """Save a search, or remove it if the address is None; return all searches.

        Raises:
            UserError: there are too many searches, or the file cannot be written.
        """
        with self._change() as write:
            if address is not None and len({*self._searches, name}) > _MAX_SEARCHES:
                raise UserError(f"at most {_MAX_SEARCHES} searches can be saved. Remove one first.")
            write({"do": "search", "name": name, "address": address})
        return self.searches

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    # ------------------------------------------------------------------ the file

    @contextmanager
    def _change(self) -> Iterator[Any]:
        """Open a transaction: read the latest state, yield a function that adds entries, and commit all or nothing."""
        with self._lock:
            self._check_file()
            try:
                self._database.execute("BEGIN IMMEDIATE")
                try:
                    self._catch_up()
                    yield self._write
                    self._database.execute("COMMIT")
                except BaseException:
                    with suppress(sqlite3.Error):
                        self._database.execute("ROLLBACK")
                    self._forget()
                    raise
            except sqlite3.Error as error:
                raise UserError(f"{self.path}: the change could not be saved ({error})") from None

    def _write(self, entry: LabelEntry) -> None:
        number, text = self._seen + 1, json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
        self._database.execute("INSERT INTO changes VALUES (?, ?, ?)", (number, text, _crc(number, text)))
        self._replay(number, entry)
        change = self._entries[entry["of"]] if entry["do"] in ("undo", "redo") else entry
        if "class" in change:
            self._write_labels(change)

    def _write_labels(self, change: LabelEntry) -> None:
        """Update the table ``labels`` after a change."""
        key = change["class"]
        marks = self._classes[key].marks if key in self._classes else {}
        if change["do"] == "mark":
            ids = set(change["ids"])
            self._database.executemany("DELETE FROM labels WHERE class = ? AND id = ?", [(key, id) for id in ids])
        else:
            ids = set(marks)
            self._database.execute("DELETE FROM labels WHERE class = ?", (key,))
        rows = [(LABELED, id, self._classes[key].name, key) for id in sorted(ids) if marks.get(id, 0) > 0]
        self._database.executemany("INSERT INTO labels VALUES (?, ?, ?, ?)", rows)

    def _catch_up(self) -> None:
        """Replay changes that this or another process has added."""
        try:
            query = "SELECT number, entry, crc FROM changes WHERE number > ? ORDER BY number"
            for number, text, crc in self._database.execute(query, (self._seen,)).fetchall():
                if crc == _crc(number, text):
                    self._replay(number, json.loads(text))
                else:
                    self.damaged += number not in self._bad
                    self._bad.add(number)
                    self._seen = number
        except sqlite3.Error as error:
            raise UserError(f"{self.path}: the labels cannot be read ({error})") from None

    def _check_file(self) -> None:
        """Refuse to write into a file that was removed or replaced."""
        with suppress(OSError):
            if os.path.samestat(os.stat(self.path), self._file):
                return
        raise UserError(
            f"{self.path}: was removed or replaced while the page is open; labels cannot be saved. Restart the server."
        )

    # ------------------------------------------------------------------ the state

    def _forget(self) -> None:
        self._seen = 0
        self._entries: dict[int, LabelEntry] = {}
        self._done: list[int] = []
        self._undone: list[int] = []
        self._classes: dict[int, ClickedClass] = {}
        self._names: dict[int, str] = {}  # including removed classes
        self._searches: dict[str, str] = {}

    def _replay(self, number: int, entry: LabelEntry) -> None:
        self._seen, self._entries[number] = number, entry
        if entry["do"] == "undo" and entry["of"] in self._done:
            self._done.remove(entry["of"])
            self._undone.append(entry["of"])
            self._classes = {}
            for each in self._done:
                self._apply(self._entries[each])
        elif entry["do"] == "redo" and entry["of"] in self._undone:
            self._undone.remove(entry["of"])
            self._done.append(entry["of"])
            self._apply(self._entries[entry["of"]])
        elif entry["do"] == "search":
            self._searches.pop(entry["name"], None)
            if entry["address"] is not None:
                self._searches[entry["name"]] = entry["address"]
        elif entry["do"] in ("class", "rename", "mark", "drop"):
            self._undone.clear()
            self._done.append(number)
            self._apply(entry)

    def _apply(self, entry: LabelEntry) -> None:
        key = entry["class"]
        if entry["do"] == "class":
            self._classes[key] = ClickedClass(key, entry["name"], entry["text"])
            self._names[key] = entry["name"]
        elif entry["do"] == "drop":
            self._classes.pop(key, None)
        elif entry["do"] == "rename" and key in self._classes:
            self._classes[key].name = self._names[key] = entry["name"]
        elif key in self._classes:
            marks = self._classes[key].marks
            for id in entry["ids"]:
                marks.pop(id, None)
                if entry["mark"]:
                    marks[id] = entry["mark"]


def _clean(words: str, empty: bool = False) -> str:
    words = " ".join(unicodedata.normalize("NFC", words).split())
    if not empty and not any(each.isprintable() for each in words.replace(" ", "")):
        raise UserError("missing: name of the label")
    if len(words) > _MAX_NAME_LENGTH:
        raise UserError(f"the name or text is longer than {_MAX_NAME_LENGTH} characters")
    return words


def _crc(number: int, text: str) -> int:
    """Return the checksum of a row, as `recollect.index` checks it."""
    return zlib.crc32(repr((number, text)).encode())


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("PRAGMA wal_autocheckpoint = 1")  # a flipped bit in the write-ahead log hides all later changes
    return database


def _sound(path: Path) -> bool:
    """Whether SQLite can read the file, or the file is missing or empty."""
    if not path.exists() or not path.stat().st_size:
        return True
    try:
        with closing(sqlite3.connect(path, timeout=30)) as database:
            return bool(database.execute("PRAGMA quick_check").fetchone() == ("ok",))
    except sqlite3.OperationalError:  # locked or read-only, not damaged
        raise
    except sqlite3.DatabaseError:
        return False


def _backup_of(path: Path) -> Path:
    return path.with_name(f"{path.stem}.backup{path.suffix}")


def _back_up(database: sqlite3.Connection, path: Path) -> None:
    """Back up a file that was just read without errors."""
    with atomic_path(_backup_of(path)) as new, closing(sqlite3.connect(new)) as copy:
        database.backup(copy)


def _salvage(path: Path) -> int:
    """Move a damaged file aside, recover changes from it and its backup, and return the number of lost changes."""
    rows = {**_readable(_backup_of(path)), **_readable(path)}
    move_file(path, path.with_name(f"{path.stem}.damaged{path.suffix}"))
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    with closing(_connect(path)) as database:
        database.executescript(_TABLES)
        database.execute("BEGIN")
        database.executemany("INSERT INTO changes VALUES (?, ?, ?)", [(n, *row) for n, row in sorted(rows.items())])
        database.execute("COMMIT")
    return max(1, max(rows, default=0) - len(rows))


def _readable(path: Path) -> dict[int, tuple[str, int]]:
    """Read the intact changes of a damaged file one by one."""
    rows: dict[int, tuple[str, int]] = {}
    if not path.exists():
        return rows
    with closing(sqlite3.connect(path, timeout=30)) as database:
        missed = 0
        for number in count(1):
            row = None
            with suppress(sqlite3.Error, UnicodeDecodeError):
                row = database.execute("SELECT entry, crc FROM changes WHERE number = ?", (number,)).fetchone()
            if row is not None and row[1] == _crc(number, row[0]):
                rows[number], missed = row, 0
            else:
                missed += 1
            if missed > _MAX_GAP:
                return rows
    return rows
