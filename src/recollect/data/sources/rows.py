"""Selecting the rows of a source by filters, split and text."""

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
from recollect.core.seeding import fold_of_text, numpy_generator
from recollect.core.types import NO_LABEL, Kind
from recollect.core.validation import check_choice, refuse
from recollect.data.sources.address import Address, parse_part
from recollect.data.sources.columns import SPLITS, Columns, is_bytes, is_list, is_text
from recollect.data.sources.tars import DAMAGE_KEY

_SLICE = re.compile(r"(?P<name>[^\[\]+]+)(\[(?P<start>[\d_]+%?)?:(?P<stop>[\d_]+%?)?\])?")


def part_mask(address: Address, first_texts: Iterable[str]) -> np.ndarray:
    """Return a mask of the rows that ``only`` and ``without`` of an address keep.

    A text belongs to the same part in every file and on every machine, ignoring case and spaces. A model trained
    without a part can therefore be tested on that part of any other source.
    """
    texts = list(first_texts)
    mask = np.ones(len(texts), dtype=bool)
    for text_part, inside in ((address.only, True), (address.without, False)):
        if text_part is not None:
            part, parts = parse_part(text_part, "part")
            mask &= np.array([(fold_of_text(text, parts) == part) == inside for text in texts], dtype=bool)
    return mask


def filter_mask(table: datasets.Dataset, address: Address, where: str) -> np.ndarray:
    """Return a mask of the rows that pass the address's filters."""
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
    unsupported = pa.types.is_nested(column.type) or pa.types.is_binary(column.type)
    refuse((unsupported, f"{where}: column '{name}' contains {column.type}; filter by a column of text or numbers"))
    words = column.cast(pa.string())
    known = pc.unique(words).to_pylist()
    for value in values:
        if value not in known:
            check_choice(value, sorted(map(str, known))[:20], f"{where}: in column '{name}', value")
    return pc.fill_null(pc.is_in(words, value_set=pa.array(values, pa.string())), False).to_numpy()


def choose_split(
    names: np.ndarray, choices: tuple[str, ...], mask: np.ndarray, wanted: str | None, where: str, shuffle: int | None
) -> np.ndarray:
    """Return the row numbers of a split, a slice, or several of them in the given order.

    Args:
        names: position of each row's split in ``choices``.
        choices: names of the splits.
        mask: rows that pass the filters; slices count only these.
        wanted: for example ``train``, ``train[:2000]``, ``train[80%:]``, ``train+validation`` or ``all``. None selects
            the only split, or else the training split, so nobody trains on test rows by mistake.
        where: the source, for messages.
        shuffle: seed for shuffling rows before slicing, for data sorted by class.

    Raises:
        UserError: the split does not exist, is ambiguous, or selects rows twice.
    """
    if wanted is None:
        ambiguous = len(choices) > 1 and "train" not in choices
        refuse((ambiguous, f"{where}: name a split; it has {', '.join(choices)}"))
        wanted = choices[0] if len(choices) == 1 else "train"
        if SPLITS.get(wanted, "train") != "train":
            note(f"{where}: reads its only split, {wanted}")
    parts = []
    for word in wanted.split("+"):
        match = _SLICE.fullmatch(word.strip())
        if not match:
            raise UserError(f"{where}: '{word}' is not a valid split. Write train, train[:2000] or train[80%:].")
        chosen = _in_split(names, choices, match["name"], where)
        if match["name"] == "train" and "restval" in choices and "restval" not in wanted:
            # Karpathy's splits of COCO: everybody trains on both.
            chosen |= _in_split(names, choices, "restval", where)
        rows = np.flatnonzero(mask & chosen)
        if shuffle is not None:
            rows = numpy_generator("split", shuffle).permutation(rows)
        start, stop = (_edge(match[edge], len(rows)) for edge in ("start", "stop"))
        parts.append(rows[start:stop])
    rows = np.concatenate(parts)
    refuse((len(np.unique(rows)) < len(rows), f"{where}: '{wanted}' selects some rows twice"))
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


def text_mask(table: datasets.Dataset, columns: Columns, kind: Kind, labels: np.ndarray, where: str) -> np.ndarray:
    """Return a mask of the rows with a caption or class, and print the number of other rows.

    Raises:
        UserError: ``kind`` is "label", but there is no label column.
    """
    if kind == "label":
        unlabeled = columns.label is None and columns.class_name is None
        shown = ", ".join(map(repr, table.column_names))
        refuse((unlabeled, f"{where}: no column 'label'; it has {shown}. Name it with --label-column NAME."))
        mask = (labels != NO_LABEL) | holds_lists(table, columns.label)
    elif columns.caption in table.column_names:
        mask = _has_text(table.data.column(columns.caption))
        if DAMAGE_KEY in table.column_names:  # keep damaged rows, which are reported as unreadable samples
            mask |= pc.is_valid(table.data.column(DAMAGE_KEY)).to_numpy()
    else:
        return np.ones(len(table), dtype=bool)
    if missing := int((~mask).sum()):
        note(f"{where}: skipped {missing:,} of {len(table):,} rows that have no {kind}")
    return mask


def rows_of_a_picture(table: datasets.Dataset, columns: Columns, rows: np.ndarray) -> dict[int, list[int]]:
    """Return all rows of each picture with several rows, by its first row; many tables have one row per caption.

    Rows belong to the same picture if they name the same file, or if they have one caption each and equal bytes. Bytes
    are compared only between adjacent rows of equal size: rows of a picture are usually adjacent, and reading every
    picture would take minutes. Samples of shards are never merged.
    """
    if columns.image not in table.column_names or "__key__" in table.column_names:
        return {}
    column, wanted = table.data.column(columns.image), pa.array(rows)
    fields = column.type if pa.types.is_struct(column.type) else ()
    parts = {field.name: pc.struct_field(column, field.name) for field in fields}
    names = column if is_text(column.type) else parts.get("path")
    content = column if is_bytes(column.type) else parts.get("bytes")
    keys: list[str | None] = [None] * len(rows) if names is None else names.take(wanted).to_pylist()
    if content is not None and is_bytes(content.type):
        sizes = pc.fill_null(pc.binary_length(content), -1).take(wanted).to_numpy()
        keys = [key if size < 0 else None for key, size in zip(keys, sizes.tolist(), strict=True)]
        same = np.r_[False, (sizes[1:] == sizes[:-1]) & (sizes[1:] >= 0), False]
        if columns.caption in table.column_names and is_text(table.data.column(columns.caption).type):
            for position in np.flatnonzero(same[1:] | same[:-1]).tolist():
                keys[position] = hashlib.blake2b(content[int(rows[position])].as_py()).hexdigest()
    counts, groups = Counter(keys), dict[str, list[int]]()
    for row, key in zip(rows.tolist(), keys, strict=True):
        if key and counts[key] > 1:
            groups.setdefault(key, []).append(row)
    return {group[0]: group for group in groups.values()}


def holds_lists(table: datasets.Dataset, name: str | None) -> bool:
    """Whether a column contains several values per row."""
    return name is not None and pa.types.is_nested(table.data.column(name).type)


def _has_text(column: pa.ChunkedArray) -> np.ndarray:
    if is_list(column.type):
        mask, rows = np.zeros(len(column), dtype=bool), pc.list_parent_indices(column).to_numpy()
        mask[rows[_has_text(pc.list_flatten(column))]] = True
        return mask
    if is_text(column.type):
        return pc.fill_null(pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(column)), 0), False).to_numpy()
    return pc.is_valid(column).to_numpy()
