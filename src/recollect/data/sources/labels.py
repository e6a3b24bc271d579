"""Reading class labels and class names from a table."""

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
    """Classes of a table, shared by all its splits.

    Attributes:
        names: readable class names, indexed by label; empty if classes have no names.
        ids: label of each row, int64; `NO_LABEL` if unlabeled.
    """

    names: tuple[str, ...]
    ids: np.ndarray


def find_labels(table: datasets.Dataset, columns: Columns, origin: Origin) -> Labels:
    """Read the label of each row.

    Class names are taken from the class-name column (the first entry of lists), the column's ``ClassLabel``, the labels
    themselves if they are text, or the shards' ``classnames.txt``, in this order. Rows with an empty class name are
    unlabeled, and so are rows with a list of labels, which samples have as ``extra["labels"]``.
    """
    name = columns.label or columns.class_name
    if name is None:
        return Labels((), _unlabeled(len(table)))
    column, own_names = table.data.column(name), _own_names(table.features[name])
    if is_list(column.type):
        return Labels(own_names, _unlabeled(len(table)))
    if is_text(column.type) or pa.types.is_boolean(column.type):
        texts = pc.utf8_trim_whitespace(column.cast(pa.string())).to_pandas()
        column = pa.array(texts.str.normalize("NFC"), pa.string(), from_pandas=True)  # PyArrow 21 decomposes instead
        words = sorted({word for word in pc.unique(column).to_pylist() if word})
        ids = _indices(column, words)
        names = tuple(words)
    else:
        number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        refuse((not number, f"{origin.where}: labels in column '{name}' are {column.type}, not numbers or text"))
        ids, names = _integers(column, origin.where), own_names or origin.class_names
    if columns.class_name and columns.class_name != name:
        return _named_by_column(table.data.column(columns.class_name), ids, origin.where)
    highest = int(ids.max(initial=NO_LABEL))
    unnamed = names and highest >= len(names)
    refuse((unnamed, f"{origin.where}: label {highest} has no name; only {len(names)} classes have names"))
    return Labels(tuple(map(readable, names)), ids)


def _own_names(feature: datasets.features.features.FeatureType) -> tuple[str, ...]:
    """Return the names of a ``ClassLabel`` or a list of them."""
    feature = getattr(feature, "feature", feature)
    return tuple(feature.names) if isinstance(feature, datasets.ClassLabel) else ()


def _unlabeled(count: int) -> np.ndarray:
    return np.full(count, NO_LABEL, dtype=np.int64)


def _indices(column: pa.Array | pa.ChunkedArray, words: list[str]) -> np.ndarray:
    indices = pc.index_in(column, value_set=pa.array(words, pa.string()))
    return pc.fill_null(indices, NO_LABEL).to_numpy().astype(np.int64)


def _integers(column: pa.ChunkedArray, where: str) -> np.ndarray:
    """Return labels as int64; in CSVs with empty cells they are floats, with NaN for unlabeled rows."""
    if pa.types.is_floating(column.type):
        values = np.nan_to_num(column.to_numpy(), nan=NO_LABEL)
    else:
        values = pc.fill_null(column.cast(pa.int64()), NO_LABEL).to_numpy()
    ids = values.astype(np.int64)
    for value in values[ids != values][:1]:
        raise UserError(f"{where}: label {value} is not a whole number")
    return np.maximum(ids, NO_LABEL)


def _named_by_column(column: pa.ChunkedArray, ids: np.ndarray, where: str) -> Labels:
    """Return labels named by a class-name column; the class numbers are made consecutive."""
    if is_list(column.type):
        column = pa.array([texts[0] if texts else None for texts in column.to_pylist()], pa.string())
    names: dict[int, str] = {}
    for row in pa.table({"id": ids, "name": column}).group_by(["id", "name"]).aggregate([]).to_pylist():
        if row["id"] != NO_LABEL and row["name"]:
            first = names.setdefault(row["id"], row["name"])
            ambiguous = f"{where}: label {row['id']} has two names, '{first}' and '{row['name']}'"
            refuse((first != row["name"], ambiguous))
    known = np.array(sorted(names), dtype=np.int64)
    indices = np.searchsorted(known, ids)
    named = np.append(known, NO_LABEL - 1)[indices] == ids
    return Labels(tuple(readable(names[number]) for number in known.tolist()), np.where(named, indices, NO_LABEL))
