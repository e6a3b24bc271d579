"""Class ids and their readable names, in any form that a table may have them."""

from collections.abc import Mapping
from dataclasses import dataclass

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recollect.core.errors import UserError
from recollect.core.types import NO_LABEL
from recollect.core.validation import refuse
from recollect.data.prompts import readable
from recollect.data.sources.columns import Columns, is_list, is_text
from recollect.data.sources.files import OpenedTables


@dataclass(frozen=True)
class Labels:
    """The classes of a source, the same in all its splits.

    Attributes:
        names: readable class names; a label indexes them. Empty if labels are bare numbers.
        ids: for each split, the label of each row, or `NO_LABEL`.
    """

    names: tuple[str, ...]
    ids: Mapping[str, np.ndarray]


def find_labels(opened: OpenedTables, columns: Columns) -> Labels:
    """Read the label of every row of every split, so that a class has the same id in each.

    Names come, in this order, from the class-name column (the first entry if it holds lists), the label's own
    ``ClassLabel``, the labels themselves if they are words, or the ``classnames.txt`` of the shards. A row whose class
    name is empty has no label, nor has a row with a list of labels, which the sample's ``extra["labels"]`` holds.
    """
    if columns.label is None and columns.class_name is None:
        return Labels((), {split: _unlabeled(len(rows)) for split, rows in opened.splits.items()})
    raw = {split: rows.data.column(columns.label or columns.class_name) for split, rows in opened.splits.items()}
    types = {column.type for column in raw.values()}
    if all(is_list(type) for type in types):
        names = _own_names(opened, columns.label)
        return Labels(names, {split: _unlabeled(len(column)) for split, column in raw.items()})
    if all(is_text(type) for type in types):
        words = _from_words(raw)
        named = columns.class_name and columns.class_name != columns.label
        return _with_names(opened, columns, words.ids) if named else words
    numbers = all(pa.types.is_integer(type) or pa.types.is_floating(type) for type in types)
    shown = ", ".join(sorted(str(type) for type in types))
    refuse((not numbers, f"{opened.where}: labels in column '{columns.label}' are {shown}, not numbers or words"))
    ids = {split: _integers(column, opened.where) for split, column in raw.items()}
    if columns.class_name and columns.class_name != columns.label:
        return _with_names(opened, columns, ids)
    names = _own_names(opened, columns.label) or opened.class_names
    highest = max((int(part.max(initial=NO_LABEL)) for part in ids.values()), default=NO_LABEL)
    unnamed = names and highest >= len(names)
    refuse((unnamed, f"{opened.where}: label {highest}, but there are names for only {len(names)} classes"))
    return Labels(tuple(map(readable, names)), ids)


def _first_texts(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """The column itself; of a column of lists the first entries."""
    if not is_list(column.type):
        return column
    return pa.array([texts[0] if texts else None for texts in column.to_pylist()], pa.string())


def _own_names(opened: OpenedTables, label: str | None) -> tuple[str, ...]:
    """Names of a ``ClassLabel``, also inside a list."""
    for rows in opened.splits.values():
        feature = rows.features[label]
        feature = getattr(feature, "feature", feature)
        if isinstance(feature, datasets.ClassLabel):
            return tuple(feature.names)
    return ()


def _unlabeled(count: int) -> np.ndarray:
    return np.full(count, NO_LABEL, dtype=np.int64)


def _integers(column: pa.ChunkedArray, where: str) -> np.ndarray:
    """Whole numbers; a CSV with an empty cell arrives as floating point."""
    values = pc.fill_null(column, NO_LABEL).to_numpy()
    ids = values.astype(np.int64)
    for value in values[ids != values][:1]:
        raise UserError(f"{where}: label {value} is not a whole number")
    return np.maximum(ids, NO_LABEL)


def _from_words(raw: Mapping[str, pa.ChunkedArray]) -> Labels:
    words = sorted({word for column in raw.values() for word in pc.unique(column).to_pylist() if word})
    values = pa.array(words, pa.string())
    ids = {
        split: pc.fill_null(pc.index_in(column.cast(pa.string()), value_set=values), NO_LABEL)
        .to_numpy()
        .astype(np.int64)
        for split, column in raw.items()
    }
    return Labels(tuple(map(readable, words)), ids)


def _with_names(opened: OpenedTables, columns: Columns, ids: Mapping[str, np.ndarray]) -> Labels:
    """Labels with a column of names; label numbers with gaps are renumbered in order."""
    named: dict[int, str] = {}
    for split, rows in opened.splits.items():
        table = pa.table({"id": ids[split], "name": _first_texts(rows.data.column(columns.class_name))})
        for row in table.group_by(["id", "name"]).aggregate([]).to_pylist():
            if row["id"] == NO_LABEL or not row["name"]:
                continue
            first = named.setdefault(row["id"], row["name"])
            twice = f"{opened.where}: label {row['id']} is called both '{first}' and '{row['name']}'"
            refuse((first != row["name"], twice))
    known = np.array(sorted(named), dtype=np.int64)
    compact = {split: _renumber(part, known) for split, part in ids.items()}
    return Labels(tuple(readable(named[number]) for number in known.tolist()), compact)


def _renumber(ids: np.ndarray, known: np.ndarray) -> np.ndarray:
    if len(known) == 0:
        return _unlabeled(len(ids))
    places = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    return np.where(known[places] == ids, places, NO_LABEL)
