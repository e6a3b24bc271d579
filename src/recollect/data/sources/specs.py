"""Opening sources from addresses: a path or hub id, optionally with filters and a split."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recollect.core.errors import user_errors
from recollect.core.progress import note
from recollect.core.types import NO_LABEL, Kind, Source
from recollect.core.validation import refuse
from recollect.data.sources.address import Address, parse_address
from recollect.data.sources.columns import Columns
from recollect.data.sources.file_lists import stream_files
from recollect.data.sources.files import open_tables
from recollect.data.sources.generated import is_generated, open_generated
from recollect.data.sources.images import BROKEN_SHARE
from recollect.data.sources.labels import find_labels
from recollect.data.sources.rows import (
    choose_split,
    filter_mask,
    holds_lists,
    part_mask,
    rows_of_a_picture,
    text_mask,
)
from recollect.data.sources.stream import open_stream
from recollect.data.sources.subset import first_text
from recollect.data.sources.table import Origin, TableSource, unique

_NO_SPLIT = -1
_PEEK_ROWS = 16  # rows searched for a nonempty first value


def open_source(
    spec: str,
    *,
    split: str | None = None,
    kind: Kind | None = None,
    columns: Columns | None = None,
    lost_share: float = BROKEN_SHARE,
    keep_textless: bool = False,
) -> Source:
    """Open a source of samples.

    Args:
        spec: a Parquet, CSV, TSV, JSON or JSON-lines file; WebDataset shards (``shard-{000..099}.tar``); a folder of
            these or of images; or a hub id. Filters and options may follow a ``?``:
            ``emoji.parquet?domain=twemoji,noto&ambiguous=false``, ``pairs.parquet?without=0/5``. ``?stream=yes``
            reads local or remote Parquet files and WebDataset shards in place, without a converted copy.
        split: for example ``train``, ``test[:1000]``, ``train+validation`` or ``all``; by default the training split,
            or the only split.
        kind: whether texts are captions or class names; by default class names if there are labels but no caption
            column.
        columns: the columns to use, if they do not have the usual names.
        lost_share: maximum fraction of the files in WebDataset shards that may be lost to damage.
        keep_textless: also keep rows without caption and class.

    Raises:
        UserError: the source, split or column does not exist, a file is damaged, or no rows are left.
    """
    if is_generated(spec):
        return open_generated(spec, split, kind)
    address = parse_address(spec)
    address = address if split is None else replace(address, split=split)
    if address.stream:
        return _open_streamed(spec, address, kind, columns, lost_share)
    table, sizes, origin, columns = _load(address, columns, lost_share)
    labels = find_labels(table, columns, origin)
    where, labeled = origin.where, labels.ids.max(initial=NO_LABEL) > NO_LABEL or holds_lists(table, columns.label)
    kind = kind or ("label" if labeled and not columns.caption else "caption")
    mask = filter_mask(table, address, where)
    if not keep_textless:
        mask &= text_mask(table, columns, kind, labels.ids, where)
    names, choices = _splits(table, sizes, columns)
    rows = choose_split(names, choices, mask, address.split, where, address.shuffle)
    if (splitless := int((mask & (names == _NO_SPLIT)).sum())) and not (names[rows] == _NO_SPLIT).any():
        note(f"{where}: skipped {splitless:,} of {len(table):,} rows that have no split; split `all` includes them")
    refuse((len(rows) == 0, f"{where}: empty source; no rows left in split '{address.split or 'train'}'"))
    parts = [Path(where).stem if origin.files else where, address.split, address.filters]
    name = ":".join(part for part in parts if part)
    origin = replace(origin, anywhere=address.paths == "anywhere")
    repeats = dict[int, list[int]]()
    if kind == "caption" and columns.caption:
        repeats = rows_of_a_picture(table, columns, rows)
        rows = rows[~np.isin(rows, [row for same in repeats.values() for row in same[1:]])]
    source = TableSource(name, kind, labels.names, table, rows, labels.ids[rows], columns, origin, repeats)
    if not (address.only or address.without):
        return source
    kept = part_mask(address, (first_text(source, index) for index in range(len(source))))
    refuse((not kept.any(), f"{where}: empty source; this part has no texts"))
    return replace(source, rows=rows[kept], labels=source.labels[kept])


def split_names(spec: str, columns: Columns | None = None) -> tuple[str, ...]:
    """Return the names of a source's splits.

    Raises:
        UserError: the source does not exist.
    """
    if is_generated(spec):
        return ("train", "test")
    table, sizes, _, columns = _load(parse_address(spec), columns)
    return _splits(table, sizes, columns)[1]


def _open_streamed(
    spec: str, address: Address, kind: Kind | None, columns: Columns | None, lost_share: float
) -> Source:
    filtered = address.keep or address.drop or address.only or address.without or address.shuffle is not None
    refuse(
        (filtered, f"{spec}: a stream cannot be filtered or shuffled. Remove stream=yes."),
        (kind == "label", f"{spec}: a stream has captions but no classes. Remove stream=yes."),
    )
    files = stream_files(address.place, address.revision, address.split, address.config)
    return open_stream(Path(address.place.rstrip("/")).name, files, columns, lost_share)


def _load(
    address: Address, columns: Columns | None, lost_share: float = BROKEN_SHARE
) -> tuple[datasets.Dataset, dict[str, int], Origin, Columns]:
    """Return all rows of a place, the number of rows per split, their origin and the detected columns."""
    splits, origin = open_tables(address.place, address.config, address.revision, lost_share)
    with user_errors(f"{origin.where}: its splits have different columns", ValueError):
        table = datasets.concatenate_datasets(list(splits.values()))
    table = table.flatten_indices() if table._indices is not None else table

    def first(name: str) -> Any:
        values = table.data.column(name).slice(0, _PEEK_ROWS)
        return next((value for value in values.to_pylist() if value is not None), None)

    given = columns or Columns()
    resolved = given.resolve(table.column_names, origin.where, first)
    if resolved.id and not given.id and not unique(table, resolved.id):
        resolved = replace(resolved, id=None)  # e.g. a picture's number, repeated for each caption
    image = resolved.image or ""
    picture = first(image) if image in table.column_names else None
    if origin.base is not None and isinstance(picture, str):
        origin = replace(origin, base=_picture_folder(origin.base, picture))
    return table, {name: len(rows) for name, rows in splits.items()}, origin, resolved


def _picture_folder(folder: Path, name: str) -> Path:
    """Return the table's own folder, or as in COCO and Flickr8k the one nearby folder that has the first picture."""
    if os.path.exists(folder / name):
        return folder
    parent = folder.parent if folder.name == "annotations" else folder
    matches = [each for each in parent.iterdir() if os.path.isfile(each / name)]
    return matches[0] if len(matches) == 1 else folder


def _splits(table: datasets.Dataset, sizes: dict[str, int], columns: Columns) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return each row's split number or `_NO_SPLIT`, and the names of splits: tables, or values of the split column."""
    if len(sizes) == 1 and columns.split is not None:
        column = pc.fill_null(table.data.column(columns.split).cast(pa.string()), "")
        names = tuple(sorted(pc.unique(column).to_pylist()))
        choices = tuple(filter(None, names)) or names
        numbers = pc.index_in(column, value_set=pa.array(choices, pa.string()))
        return pc.fill_null(numbers, _NO_SPLIT).to_numpy(), choices
    return np.repeat(np.arange(len(sizes)), list(sizes.values())), tuple(sizes)
