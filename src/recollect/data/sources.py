"""Sources of samples: opened from a path or the hub, filtered, split, and read row by row."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.types import NO_LABEL, Kind, Sample, Source
from recollect.data.columns import Columns
from recollect.data.images import note
from recollect.data.labels import find_labels
from recollect.data.opening import Opened, open_tables
from recollect.data.rows import Address, choose_split, filter_mask, parse_address
from recollect.data.table import Origin, TableSource, is_text

_WORLDS = ("glyphs:", "latents:")


def open_source(
    spec: str, *, split: str | None = None, kind: Kind | None = None, columns: Columns | None = None
) -> Source:
    """Open a source of samples.

    Args:
        spec: ``glyphs:NAME`` or ``latents:NAME``; a Parquet, CSV, TSV or JSON-lines file; WebDataset shards
            (``shard-{000..099}.tar``); a folder of these or of images; or a hub id. Behind a ``?`` may follow filters
            and options: ``emoji.parquet?domain=twemoji,noto&ambiguous=false``.
        split: such as ``train``, ``test[:1000]``, ``train+validation``, ``all``; by default the training split, or
            the only one.
        kind: whether texts are captions or class names; by default captions where there is a caption column.
        columns: which column is which, where the names are unusual.

    Raises:
        UserError: there is no such source, split or column, nothing is left, or a file is damaged.
    """
    if spec.startswith(_WORLDS):
        return _open_world(spec, split, kind)
    address = parse_address(spec)
    if split is not None:
        address = replace(address, split=split)
    opened = open_tables(address.place, address.config)
    present = next(iter(opened.splits.values())).column_names
    resolved = (columns or Columns()).resolve(present, opened.where)
    return _RowsOf(opened, address, resolved).source(kind)


def _open_world(spec: str, split: str | None, kind: Kind | None) -> Source:
    from recollect.data.worlds import open_world_source

    source = open_world_source(spec, split)
    if kind is not None and source.kind != kind:
        raise UserError(f"{spec}: holds {source.kind}s, not {kind}s")
    return source


@dataclass(frozen=True)
class _RowsOf:
    """The steps from opened tables to a source."""

    opened: Opened
    address: Address
    columns: Columns

    def source(self, kind: Kind | None) -> "TableSource":
        where, columns = self.opened.where, self.columns
        labels = find_labels(self.opened, columns)
        ids = np.concatenate([labels.ids[split] for split in self.opened.splits])
        table = self._table()
        labelled = ids.max(initial=NO_LABEL) > NO_LABEL or _is_list(table, columns.label)
        kind = kind or ("label" if labelled and not columns.caption else "caption")
        mask = filter_mask(table, self.address, where) & self._usable(table, kind, ids)
        names, choices = self._splits(table)
        rows = choose_split(names, choices, mask, self.address.split, where, self.address.shuffle)
        if len(rows) == 0:
            raise UserError(f"{where}: an empty source; no row is left in split '{self.address.split or 'train'}'")
        parts = [Path(where).stem if self.opened.files else where, self.address.split, self.address.filters]
        name = ":".join(part for part in parts if part)
        origin = Origin(where, self.opened.files, self.opened.base)
        return TableSource(name, kind, labels.names, table, rows, ids[rows], columns, origin)

    def _table(self) -> datasets.Dataset:
        splits = list(self.opened.splits.values())
        try:
            table = datasets.concatenate_datasets(splits) if len(splits) > 1 else splits[0]
        except ValueError as error:
            raise UserError(f"{self.opened.where}: its splits have different columns ({error})") from error
        return table.flatten_indices() if table._indices is not None else table

    def _splits(self, table: datasets.Dataset) -> tuple[np.ndarray, tuple[str, ...]]:
        """For each row the number of its split, and the splits' names: tables, or values of the split column."""
        if len(self.opened.splits) == 1 and self.columns.split is not None:
            column = pc.fill_null(table.data.column(self.columns.split).cast(pa.string()), "")
            choices = tuple(sorted(pc.unique(column).to_pylist()))
            return pc.index_in(column, value_set=pa.array(choices, pa.string())).to_numpy(), choices
        sizes = [len(rows) for rows in self.opened.splits.values()]
        return np.repeat(np.arange(len(sizes)), sizes), tuple(self.opened.splits)

    def _usable(self, table: datasets.Dataset, kind: Kind, ids: np.ndarray) -> np.ndarray:
        """Rows that have what their kind of text is made from; the others are left out, and their number said."""
        where, caption = self.opened.where, self.columns.caption
        if kind == "label":
            if self.columns.label is None and self.columns.class_name is None:
                shown = ", ".join(repr(column) for column in table.column_names)
                raise UserError(f"{where}: no column 'label'; it has {shown}. Name it with --data.label-column NAME.")
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
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return pc.fill_null(pc.greater(pc.list_value_length(column), 0), False).to_numpy()
    if is_text(column.type):
        return pc.fill_null(pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(column)), 0), False).to_numpy()
    return pc.is_valid(column).to_numpy()


@dataclass(eq=False)
class Subset:
    """Some samples of a source in a given order, with labels renumbered if asked.

    Attributes:
        source: where the samples come from.
        indices: int64, which of its samples.
        name: of the subset; by default the source's.
        class_names: names in the new numbering; by default the source's.
        renumber: int64, for each of the source's classes its new label (`NO_LABEL` drops the label); None keeps them.
    """

    source: Source
    indices: np.ndarray
    name: str = ""
    class_names: tuple[str, ...] = ()
    renumber: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.indices = np.asarray(self.indices, dtype=np.int64)
        self.name = self.name or self.source.name
        self.class_names = self.class_names or self.source.class_names

    @property
    def kind(self) -> Kind:
        return self.source.kind

    @property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b(self.source.fingerprint.encode(), digest_size=16)
        digest.update(repr(self.class_names).encode())
        digest.update(self.indices.tobytes())
        digest.update(b"" if self.renumber is None else self.renumber.tobytes())
        return digest.hexdigest()

    @cached_property
    def labels(self) -> np.ndarray:
        """The label of every sample, int64."""
        return self._renumbered(source_labels(self.source)[self.indices])

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Sample:
        return self.read(index)

    def read(self, index: int, *, needed: int = 0, extra: bool = True) -> Sample:
        """Read one sample (see `TableSource.read`)."""
        sample = read_sample(self.source, int(self.indices[index]), needed=needed, extra=extra)
        return replace(sample, source=self.name, label=int(self._renumbered(np.array([sample.label]))[0]))

    def texts(self, index: int) -> tuple[str, ...]:
        """The texts of one sample, without opening its image."""
        return sample_texts(self.source, int(self.indices[index]))

    @property
    def batch(self) -> Callable[[np.ndarray, int], tuple[Tensor, list[str], Tensor]] | None:
        """The vectorised read of a source that has one, else None."""
        inner = getattr(self.source, "batch", None)
        if inner is None:
            return None

        def read(indices: np.ndarray, seed: int) -> tuple[Tensor, list[str], Tensor]:
            images, texts, labels = inner(self.indices[indices], seed)
            return images, texts, torch.from_numpy(self._renumbered(labels.numpy()))

        return read

    def _renumbered(self, labels: np.ndarray) -> np.ndarray:
        if self.renumber is None:
            return labels
        return np.where(labels == NO_LABEL, NO_LABEL, self.renumber[labels])


def read_sample(source: Source, index: int, *, needed: int = 0, extra: bool = True) -> Sample:
    """``source[index]``, decoding and reading no more than is needed where the source knows how."""
    read = getattr(source, "read", None)
    return read(index, needed=needed, extra=extra) if read else source[index]


def sample_texts(source: Source, index: int) -> tuple[str, ...]:
    """The texts of one sample; without opening its image where the source knows how."""
    texts = getattr(source, "texts", None)
    return texts(index) if callable(texts) else source[index].texts


def source_labels(source: Source) -> np.ndarray:
    """The label of every sample, int64; without opening an image where the source knows them."""
    labels = getattr(source, "labels", None)
    if labels is None:
        labels = [source[index].label for index in range(len(source))]
    return np.asarray(labels, dtype=np.int64)


def corpus(source: Source, limit: int | None = None) -> Iterator[str]:
    """Every text a model may meet in a source, for training a tokenizer: captions, class names and their synonyms.

    Args:
        limit: read the texts of at most this many samples, spread evenly over the source.
    """
    if source.kind == "label":
        yield from source.class_names
        if not hasattr(source, "texts"):
            return
    step = max(1, len(source) // limit) if limit else 1
    for index in range(0, len(source), step):
        yield from sample_texts(source, index)
