"""Read access to manual labels, which the web page stores in SQLite next to the index."""

import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from recollect.core.files import atomic_path

ANNOTATIONS = "annotations.sqlite"
"""File name in the index folder. Filters read its table or view ``labels(name, id, value)``."""

LABELED = "clicked"
"""Label column written by the web page: ``clicked = 'cat'``."""


def labels_in_column(path: Path | None, name: str) -> Mapping[str, list[str]] | None:
    """Return the labels per id in one label column; None if the column does not exist."""
    found: dict[str, list[str]] = {}
    for id, value in _selected(path, "SELECT id, value FROM labels WHERE name = ? ORDER BY id, value", name):
        found.setdefault(str(id), []).append(str(value))
    return found or None


def label_names(path: Path | None) -> list[str]:
    """Return the names of all label columns."""
    return [str(name) for (name,) in _selected(path, "SELECT DISTINCT name FROM labels ORDER BY name")]


def labeled_ids(path: Path | None) -> set[str]:
    """Return the ids of all pictures with a label."""
    return {str(id) for (id,) in _selected(path, "SELECT DISTINCT id FROM labels")}


def annotation_damage(path: Path | None) -> list[str]:
    """Return one line per fault that SQLite reports, and one per table with rows that do not match their ``crc``.

    ``crc`` is the CRC-32 of ``repr(row)``, where row is the tuple of all other columns in order.
    """
    if path is None or not path.exists():
        return []
    found = list[str]()
    try:
        with _read_only(path) as database:
            for (line,) in database.execute("PRAGMA integrity_check"):
                found += [f"{path}: {line}"] if line != "ok" else []
            for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                found += _rows_damaged(database, path, table)
    except sqlite3.Error as error:
        found.append(f"{path}: cannot be read ({error})")
    return found


def copy_annotations(path: Path | None, target: Path | None) -> None:
    """Copy the clicks and labels of one index to another; do nothing if there is no source file or no target."""
    if path is None or target is None or not path.is_file():
        return
    with atomic_path(target) as temporary, _read_only(path) as old, closing(sqlite3.connect(temporary)) as new:
        old.backup(new)


def _rows_damaged(database: sqlite3.Connection, path: Path, table: str) -> list[str]:
    names = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
    if "crc" not in names:
        return []
    column = names.index("crc")
    rows = database.execute(f'SELECT * FROM "{table}"').fetchall()
    wrong = sum(zlib.crc32(repr((*row[:column], *row[column + 1 :])).encode()) != row[column] for row in rows)
    return [f"{path}: {wrong} of {len(rows)} rows of {table} differ from their checksum"] if wrong else []


def _selected(path: Path | None, query: str, *values: str) -> list[tuple[Any, ...]]:
    """Return the result rows of a query; empty if the file or its ``labels`` table is missing."""
    if path is None or not path.exists():
        return []
    with _read_only(path) as database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'labels'").fetchall():
            return []
        return database.execute(query, values).fetchall()


@contextmanager
def _read_only(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=10)) as database:
        yield database
