"""Sources of samples: opened from a path or the hub, filtered, split, and read row by row."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recollect.core.errors import user_errors
from recollect.core.types import NO_LABEL, Kind, Source
from recollect.core.validation import refuse
from recollect.data.sources.address import Address, choose_split, filter_mask, in_parts, parse_address
from recollect.data.sources.columns import Columns, is_list, is_text
from recollect.data.sources.derived import first_text
from recollect.data.sources.files import OpenedTables, open_tables
from recollect.data.sources.generated import is_generated, open_generated
from recollect.data.sources.images import BROKEN_SHARE, note
from recollect.data.sources.labels import find_labels
from recollect.data.sources.places import stream_files
from recollect.data.sources.streamed import open_stream
from recollect.data.sources.table import Origin, TableSource


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
        spec: a Parquet, CSV, TSV or JSON-lines file; WebDataset shards (``shard-{000..099}.tar``); a folder of these
            or of images; or a hub id. Filters and options may follow a ``?``:
            ``emoji.parquet?domain=twemoji,noto&ambiguous=false``, ``pairs.parquet?without=0/5``. ``?stream=yes`` reads
            local or remote Parquet files and WebDataset shards in place, without a converted copy.
        split: such as ``train``, ``test[:1000]``, ``train+validation``, ``all``; by default the training split, or
            the only one.
        kind: whether texts are captions or class names; by default captions where there is a caption column.
        columns: which column is which, where the names are unusual.
        lost_share: largest share of the files in WebDataset shards that may be lost to damage.
        keep_textless: also keep rows of a table that have no caption and no class.

    Raises:
        UserError: no such source, split or column, no rows left, or a damaged file.
    """
    if is_generated(spec):
        return open_generated(spec, split, kind)
    if (address := parse_address(spec)).stream:
        return _open_streamed(spec, address, split, kind, columns, lost_share)
    return _rows_of(spec, split, columns, lost_share).source(kind, keep_textless)


def split_of(spec: str) -> str | None:
    """The split that an address names, ``photos.parquet?split=test[:100]``; None where it names none."""
    return None if is_generated(spec) else parse_address(spec).split


def split_names(spec: str, columns: Columns | None = None) -> tuple[str, ...]:
    """The splits that a source has.

    Raises:
        UserError: there is no such source.
    """
    if is_generated(spec):
        return ("train", "test")
    return _rows_of(spec, None, columns).split_names()


def _rows_of(spec: str, split: str | None, columns: Columns | None, lost_share: float = BROKEN_SHARE) -> "_RowsOf":
    address = parse_address(spec)
    if split is not None:
        address = replace(address, split=split)
    opened = open_tables(address.place, address.config, address.revision, lost_share)
    table = next(iter(opened.splits.values()))

    def first(name: str) -> Any:
        values = table.data.column(name).slice(0, _LOOKED_AT)
        return next((value for value in values.to_pylist() if value is not None), None)

    return _RowsOf(opened, address, (columns or Columns()).resolve(table.column_names, opened.where, first))


def _open_streamed(
    spec: str, address: Address, split: str | None, kind: Kind | None, columns: Columns | None, lost_share: float
) -> Source:
    filtered = address.keep or address.drop or address.only or address.without or address.shuffle is not None
    refuse(
        (filtered, f"{spec}: a stream cannot be filtered or shuffled. Remove stream=yes."),
        (kind == "label", f"{spec}: a stream has captions, no classes. Remove stream=yes."),
    )
    files = stream_files(address.place, address.revision, split or address.split, address.config)
    return open_stream(Path(address.place.rstrip("/")).name, files, columns, lost_share)


_NO_SPLIT = -1
_LOOKED_AT = 16
"""Rows, for the first that has a value."""


@dataclass(frozen=True)
class _RowsOf:
    """The steps from opened tables to a source."""

    opened: OpenedTables
    address: Address
    columns: Columns

    def source(self, kind: Kind | None, keep_textless: bool = False) -> "TableSource":
        where, columns = self.opened.where, self.columns
        labels = find_labels(self.opened, columns)
        ids = np.concatenate([labels.ids[split] for split in self.opened.splits])
        table = self._table()
        labelled = ids.max(initial=NO_LABEL) > NO_LABEL or _is_list(table, columns.label)
        kind = kind or ("label" if labelled and not columns.caption else "caption")
        mask = filter_mask(table, self.address, where)
        if not keep_textless:
            mask &= self._usable(table, kind, ids)
        names, choices = self._splits(table)
        rows = choose_split(names, choices, mask, self.address.split, where, self.address.shuffle)
        if (nowhere := int((mask & (names == _NO_SPLIT)).sum())) and not (names[rows] == _NO_SPLIT).any():
            note(f"{where}: {nowhere:,} of {len(table):,} rows say no split and are in none; `all` takes them too")
        refuse((len(rows) == 0, f"{where}: empty source; no row is left in split '{self.address.split or 'train'}'"))
        parts = [Path(where).stem if self.opened.files else where, self.address.split, self.address.filters]
        name = ":".join(part for part in parts if part)
        origin = Origin(where, self.opened.files, self.opened.base, self.address.paths == "anywhere")
        source = TableSource(name, kind, labels.names, table, rows, ids[rows], columns, origin)
        return self._parted(source) if self.address.only or self.address.without else source

    def _parted(self, source: "TableSource") -> "TableSource":
        """The source without the rows that `Address.only` and `Address.without` leave out."""
        kept = in_parts(self.address, (first_text(source, index) for index in range(len(source))))
        refuse((not kept.any(), f"{self.opened.where}: empty source; no text is in this part"))
        return replace(source, rows=source.rows[kept], labels=source.labels[kept])

    def split_names(self) -> tuple[str, ...]:
        return self._splits(self._table())[1]

    def _table(self) -> datasets.Dataset:
        splits = list(self.opened.splits.values())
        with user_errors(f"{self.opened.where}: its splits have different columns", ValueError):
            table = datasets.concatenate_datasets(splits) if len(splits) > 1 else splits[0]
        return table.flatten_indices() if table._indices is not None else table

    def _splits(self, table: datasets.Dataset) -> tuple[np.ndarray, tuple[str, ...]]:
        """For each row the number of its split, if it has one, and the splits' names: tables, or values of a column."""
        if len(self.opened.splits) == 1 and self.columns.split is not None:
            column = pc.fill_null(table.data.column(self.columns.split).cast(pa.string()), "")
            said = tuple(sorted(pc.unique(column).to_pylist()))
            choices = tuple(filter(None, said)) or said
            numbers = pc.index_in(column, value_set=pa.array(choices, pa.string()))
            return pc.fill_null(numbers, _NO_SPLIT).to_numpy(), choices
        sizes = [len(rows) for rows in self.opened.splits.values()]
        return np.repeat(np.arange(len(sizes)), sizes), tuple(self.opened.splits)

    def _usable(self, table: datasets.Dataset, kind: Kind, ids: np.ndarray) -> np.ndarray:
        """Rows that have what their kind of text is made from; the others are left out, and their number said."""
        where, caption = self.opened.where, self.columns.caption
        if kind == "label":
            unlabelled = self.columns.label is None and self.columns.class_name is None
            shown = ", ".join(repr(column) for column in table.column_names)
            refuse((unlabelled, f"{where}: no column 'label'; it has {shown}. Name it with --label-column NAME."))
            usable = (ids != NO_LABEL) | _is_list(table, self.columns.label)
        elif caption is not None and caption in table.column_names:
            usable = _has_text(table.data.column(caption))
        else:
            return np.ones(len(table), dtype=bool)
        if missing := int((~usable).sum()):
            note(f"{where}: {missing:,} of {len(table):,} rows have no {kind} and are left out")
        return usable


def _is_list(table: datasets.Dataset, name: str | None) -> bool:
    return name is not None and pa.types.is_nested(table.data.column(name).type)


def _has_text(column: pa.ChunkedArray) -> np.ndarray:
    if is_list(column.type):
        return pc.fill_null(pc.greater(pc.list_value_length(column), 0), False).to_numpy()
    if is_text(column.type):
        return pc.fill_null(pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(column)), 0), False).to_numpy()
    return pc.is_valid(column).to_numpy()
