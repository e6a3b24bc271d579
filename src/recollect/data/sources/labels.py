"""Class ids and their readable names, in any form that a table may have them."""

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
from recollect.data.sources.table import Origin


@dataclass(frozen=True)
class Labels:
    """The classes of a table, the same in all its splits.

    Attributes:
        names: readable class names; a label indexes them. Empty if labels are bare numbers.
        ids: int64, the label of each row, or `NO_LABEL`.
    """

    names: tuple[str, ...]
    ids: np.ndarray


def find_labels(table: datasets.Dataset, columns: Columns, origin: Origin) -> Labels:
    """Read the label of every row.

    Names come, in this order, from the class-name column (the first entry if it holds lists), the label's own
    ``ClassLabel``, the labels themselves if they are words, or the ``classnames.txt`` of the shards. A row whose class
    name is empty has no label, nor has a row with a list of labels, which the sample's ``extra["labels"]`` holds.
    """
    name = columns.label or columns.class_name
    if name is None:
        return Labels((), _unlabeled(len(table)))
    column, own_names = table.data.column(name), _own_names(table.features[name])
    if is_list(column.type):
        return Labels(own_names, _unlabeled(len(table)))
    if is_text(column.type) or pa.types.is_boolean(column.type):
        column = pc.utf8_trim_whitespace(column.cast(pa.string()))  # "cat " is a cat
        words = sorted({word for word in pc.unique(column).to_pylist() if word})
        ids = _positions(column, words)
        names = tuple(words)
    else:
        number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        refuse((not number, f"{origin.where}: labels in column '{name}' are {column.type}, not numbers or words"))
        ids, names = _integers(column, origin.where), own_names or origin.class_names
    if columns.class_name and columns.class_name != name:
        return _with_names(table.data.column(columns.class_name), ids, origin.where)
    highest = int(ids.max(initial=NO_LABEL))
    unnamed = names and highest >= len(names)
    refuse((unnamed, f"{origin.where}: label {highest}, but there are names for only {len(names)} classes"))
    return Labels(tuple(map(readable, names)), ids)


def _own_names(feature: datasets.features.features.FeatureType) -> tuple[str, ...]:
    """Names of a ``ClassLabel``, also inside a list."""
    feature = getattr(feature, "feature", feature)
    return tuple(feature.names) if isinstance(feature, datasets.ClassLabel) else ()


def _unlabeled(count: int) -> np.ndarray:
    return np.full(count, NO_LABEL, dtype=np.int64)


def _positions(column: pa.ChunkedArray, words: list[str]) -> np.ndarray:
    places = pc.index_in(column, value_set=pa.array(words, pa.string()))
    return pc.fill_null(places, NO_LABEL).to_numpy().astype(np.int64)


def _integers(column: pa.ChunkedArray, where: str) -> np.ndarray:
    """Whole numbers of any type; a CSV with an empty cell arrives as floating point, and NaN is no label."""
    if pa.types.is_floating(column.type):
        values = np.nan_to_num(column.to_numpy(), nan=NO_LABEL)
    else:
        values = pc.fill_null(column.cast(pa.int64()), NO_LABEL).to_numpy()
    ids = values.astype(np.int64)
    for value in values[ids != values][:1]:
        raise UserError(f"{where}: label {value} is not a whole number")
    return np.maximum(ids, NO_LABEL)


def _with_names(column: pa.ChunkedArray, ids: np.ndarray, where: str) -> Labels:
    """Labels with a column of names; label numbers with gaps are renumbered in order."""
    if is_list(column.type):
        column = pa.array([texts[0] if texts else None for texts in column.to_pylist()], pa.string())
    named: dict[int, str] = {}
    for row in pa.table({"id": ids, "name": column}).group_by(["id", "name"]).aggregate([]).to_pylist():
        if row["id"] != NO_LABEL and row["name"]:
            first = named.setdefault(row["id"], row["name"])
            twice = f"{where}: label {row['id']} is called both '{first}' and '{row['name']}'"
            refuse((first != row["name"], twice))
    known = np.array(sorted(named), dtype=np.int64)
    places = np.searchsorted(known, ids)
    found = np.append(known, NO_LABEL - 1)[places] == ids
    return Labels(tuple(readable(named[number]) for number in known.tolist()), np.where(found, places, NO_LABEL))
