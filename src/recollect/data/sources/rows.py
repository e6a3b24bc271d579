"""Which rows of a table belong to a source: its filters, its split, and whether they have a text."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recollect.core.errors import UserError
from recollect.core.progress import note
from recollect.core.seeding import numpy_generator, text_fold
from recollect.core.types import NO_LABEL, Kind
from recollect.core.validation import check_choice, refuse
from recollect.data.sources.address import Address, part_of
from recollect.data.sources.columns import SPLITS, Columns, is_bytes, is_list, is_text
from recollect.data.sources.tars import DAMAGE

_SLICE = re.compile(r"(?P<name>[^\[\]+]+)(\[(?P<start>[\d_]+%?)?:(?P<stop>[\d_]+%?)?\])?")


def in_parts(address: Address, first_texts: Iterable[str]) -> np.ndarray:
    """True for each row that ``only`` and ``without`` of an address keep.

    All rows of a text belong to the same part, whatever their case and spaces, in every file and on every machine. So
    a model can be tested on texts of another source that it was trained without.
    """
    texts = list(first_texts)
    mask = np.ones(len(texts), dtype=bool)
    for wanted, inside in ((address.only, True), (address.without, False)):
        if wanted is not None:
            part, parts = part_of(wanted, "part")
            mask &= np.array([(text_fold(text, parts) == part) == inside for text in texts], dtype=bool)
    return mask


def filter_mask(table: datasets.Dataset, address: Address, where: str) -> np.ndarray:
    """True for each row that passes the address's filters."""
    mask = np.ones(len(table), dtype=bool)
    for column, values in address.keep.items():
        mask &= _matches(table, column, values, where)
    for column, values in address.drop.items():
        mask &= ~_matches(table, column, values, where)
    return mask


def _matches(table: datasets.Dataset, name: str, values: tuple[str, ...], where: str) -> np.ndarray:
    check_choice(name, table.column_names, f"{where}: column")
    column = table.data.column(name)
    feature = table.features[name]
    if isinstance(feature, datasets.ClassLabel):
        values = tuple(str(feature.str2int(value)) if value in feature.names else value for value in values)
    other = pa.types.is_nested(column.type) or pa.types.is_binary(column.type)
    refuse((other, f"{where}: column '{name}' holds {column.type}; filter by a column of words or numbers"))
    words = column.cast(pa.string())
    known = pc.unique(words).to_pylist()
    for value in values:
        if value not in known:
            check_choice(value, sorted(map(str, known))[:20], f"{where}: in column '{name}', value")
    return pc.fill_null(pc.is_in(words, value_set=pa.array(values, pa.string())), False).to_numpy()


def choose_split(
    names: np.ndarray, choices: tuple[str, ...], mask: np.ndarray, wanted: str | None, where: str, shuffle: int | None
) -> np.ndarray:
    """Row numbers of a split, of a slice, or of several in their order.

    Args:
        names: for each row the position of its split in ``choices``.
        choices: the splits there are.
        mask: rows that passed the filters; slices count these only.
        wanted: such as ``train``, ``train[:2000]``, ``train[80%:]``, ``train+validation`` or ``all``; None takes the
            only split there is, else the training split, so that nobody trains on test rows by mistake.
        shuffle: seed of a fixed random order for slices, for data sorted by class.

    Raises:
        UserError: there is no such split.
    """
    if wanted is None:
        several = len(choices) > 1 and "train" not in choices
        refuse((several, f"{where}: name a split; it has {', '.join(choices)}"))
        wanted = choices[0] if len(choices) == 1 else "train"
    parts = []
    for word in wanted.split("+"):
        match = _SLICE.fullmatch(word.strip())
        if not match:
            raise UserError(f"{where}: '{word}' is not a split such as train, train[:2000] or train[80%:]")
        rows = np.flatnonzero(mask & _in_split(names, choices, match["name"], where))
        if shuffle is not None:
            rows = numpy_generator("split", shuffle).permutation(rows)
        start, stop = (_edge(match[edge], len(rows)) for edge in ("start", "stop"))
        parts.append(rows[start:stop])
    rows = np.concatenate(parts)
    refuse((len(np.unique(rows)) < len(rows), f"{where}: '{wanted}' contains some rows twice"))
    return rows.astype(np.int64)


def _in_split(names: np.ndarray, choices: tuple[str, ...], wanted: str, where: str) -> np.ndarray:
    if wanted == "all":
        return np.ones(len(names), dtype=bool)
    exact = [position for position, name in enumerate(choices) if name == wanted]
    alike = [position for position, name in enumerate(choices) if SPLITS.get(name, name) == SPLITS.get(wanted, wanted)]
    if not (exact or alike):
        check_choice(wanted, (*choices, "all"), f"{where}: split")
    return np.isin(names, exact or alike)


def _edge(text: str | None, count: int) -> int | None:
    if text is None:
        return None
    return round(count * int(text[:-1]) / 100) if text.endswith("%") else int(text)


def with_text(table: datasets.Dataset, columns: Columns, kind: Kind, labels: np.ndarray, where: str) -> np.ndarray:
    """True for each row that has a caption, or a class; the number of the others is printed.

    Raises:
        UserError: classes are wanted and there is no column of them.
    """
    if kind == "label":
        unlabeled = columns.label is None and columns.class_name is None
        shown = ", ".join(map(repr, table.column_names))
        refuse((unlabeled, f"{where}: no column 'label'; it has {shown}. Name it with --label-column NAME."))
        found = (labels != NO_LABEL) | holds_lists(table, columns.label)
    elif columns.caption in table.column_names:
        found = _has_text(table.data.column(columns.caption))
        if DAMAGE in table.column_names:  # reported as a sample that cannot be read
            found |= pc.is_valid(table.data.column(DAMAGE)).to_numpy()
    else:
        return np.ones(len(table), dtype=bool)
    if missing := int((~found).sum()):
        note(f"{where}: {missing:,} of {len(table):,} rows have no {kind} and are left out")
    return found


def rows_of_a_picture(table: datasets.Dataset, columns: Columns, rows: np.ndarray) -> dict[int, list[int]]:
    """All rows of each picture that has several, by the first of them: many tables have a row for each caption.

    Such rows name the same file, or have one caption each and hold the same bytes. Bytes are compared only between
    neighbors of equal size: rows of one picture come together, and reading every picture would take minutes. Samples of
    shards are never merged.
    """
    if columns.image not in table.column_names or "__key__" in table.column_names:
        return {}
    column, wanted = table.data.column(columns.image), pa.array(rows)
    parts = {field.name: pc.struct_field(column, field.name) for field in column.type} if _is_struct(column) else {}
    names = column if is_text(column.type) else parts.get("path")
    content = column if is_bytes(column.type) else parts.get("bytes")
    keys: list[str | None] = [None] * len(rows) if names is None else names.take(wanted).to_pylist()
    if content is not None and is_bytes(content.type):
        sizes = pc.fill_null(pc.binary_length(content), -1).take(wanted).to_numpy()
        keys = [key if size < 0 else None for key, size in zip(keys, sizes.tolist(), strict=True)]
        same = np.r_[False, (sizes[1:] == sizes[:-1]) & (sizes[1:] >= 0), False]
        if columns.caption in table.column_names and is_text(table.data.column(columns.caption).type):
            for place in np.flatnonzero(same[1:] | same[:-1]).tolist():
                keys[place] = hashlib.blake2b(content[int(rows[place])].as_py()).hexdigest()
    counts, found = Counter(keys), dict[str, list[int]]()
    for row, key in zip(rows.tolist(), keys, strict=True):
        if key and counts[key] > 1:
            found.setdefault(key, []).append(row)
    return {each[0]: each for each in found.values()}


def _is_struct(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_struct(column.type))


def holds_lists(table: datasets.Dataset, name: str | None) -> bool:
    """Whether a column holds several values in a row."""
    return name is not None and pa.types.is_nested(table.data.column(name).type)


def _has_text(column: pa.ChunkedArray) -> np.ndarray:
    if is_list(column.type):
        found, rows = np.zeros(len(column), dtype=bool), pc.list_parent_indices(column).to_numpy()
        found[rows[_has_text(pc.list_flatten(column))]] = True
        return found
    if is_text(column.type):
        return pc.fill_null(pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(column)), 0), False).to_numpy()
    return pc.is_valid(column).to_numpy()
