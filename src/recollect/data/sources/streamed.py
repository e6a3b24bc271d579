"""Shards read where they lie: no copy is made of them, and each position of a run is known beforehand.

A stream is a `Source` like any other: its samples have numbers, so a batch stays a function of (seed, step), every
sample comes once a pass on any number of ranks and workers, and a run resumes at its very place. What is different is
the order (`recollect.data.batches.order.BlockOrder`): samples that lie together are read in one stretch of a run.
"""

import hashlib
import os
import re
import tarfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recollect.core.content import portable_hash, reads_whole
from recollect.core.errors import UserError
from recollect.core.types import NO_LABEL, Sample, Source
from recollect.data.sources.columns import SPLITS, Columns, texts_in
from recollect.data.sources.images import BROKEN_SHARE, BrokenImageError, decode
from recollect.data.sources.remote import is_address, open_remote, version_of
from recollect.data.sources.tars import MOST_OPEN, open_tar, stamp, tar_sizes

AT_ONCE = 16
"""Files behind an address that are asked at the same time how many samples they hold."""

_MOST_TEXTS = 512
"""Row groups whose texts alone a process keeps."""

_Row = Callable[[int], dict[str, Any]]
"""From the number of a sample within its block to its columns."""


@dataclass(frozen=True)
class Block:
    """Samples that are read together: a row group of a Parquet file, or a tar.

    Attributes:
        file: path or address.
        group: which row group of the file; -1 for the whole of a tar.
        rows: samples in it.
    """

    file: str
    group: int
    rows: int


@dataclass(eq=False)
class StreamedSource(Source):
    """Captioned pictures of Parquet files or WebDataset tars, on this machine or behind an address.

    Attributes:
        name: unique within a run.
        blocks: in the order in which samples are numbered.
        columns: which column is which.
        since: of a tar that was fetched before this time, its store is asked whether it is still the same.
    """

    name: str
    blocks: Sequence[Block]
    columns: Columns
    since: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self._starts = np.cumsum([0, *(block.rows for block in self.blocks)])
        folders = [file.split("/")[:-1] for file in dict.fromkeys(block.file for block in self.blocks)]
        shared = takewhile(lambda names: len(set(names)) == 1, zip(*folders, strict=False))
        self._folder = "".join(f"{names[0]}/" for names in shared)
        self._open: OrderedDict[int, _Row] = OrderedDict()
        self._texts: OrderedDict[int, _Row] = OrderedDict()
        self._opening = threading.Lock()
        self.opened = 0

    @property
    def block_sizes(self) -> np.ndarray:
        return np.diff(self._starts)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> Sample:
        return self.read(index)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_open", "_texts", "_opening")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _open=OrderedDict(), _texts=OrderedDict(), _opening=threading.Lock())

    def read(self, index: int, *, needed: int = 0, extra: bool = True) -> Sample:
        """Read one sample.

        Raises:
            IndexError: outside the source.
            BrokenImageError: the picture, or the block that it lies in, cannot be read; the message names it.
            UserError: what is behind an address cannot be reached. Another sample in its stead would be chance: the run
                would no longer be a function of its seed.
        """
        row, where = self._row(index)
        image = row.get(self.columns.image or "")
        image = image.get("bytes") if isinstance(image, Mapping) else image
        if not isinstance(image, bytes):
            raise BrokenImageError(f"{where}: no picture's bytes in column '{self.columns.image}'")
        texts = texts_in(row, self.columns.caption) if self.columns.caption else ()
        # Keys are often counted anew in each shard; the same ids would make different pictures copies of each other.
        key, file = row.get("__key__"), self._block(index)[1].file.removeprefix(self._folder)
        id = f"{file}/{key}" if key else where
        return Sample(decode(image, where, needed=needed), texts, NO_LABEL, self.name, "caption", id)

    def texts(self, index: int) -> tuple[str, ...]:
        """The texts of one sample; of Parquet files no picture is fetched for them."""
        return texts_in(self._row(index, texts_only=True)[0], self.columns.caption) if self.columns.caption else ()

    def original(self, index: int) -> bytes | Path | None:
        image = self._row(index)[0].get(self.columns.image or "")
        return image.get("bytes") if isinstance(image, Mapping) else image

    @cached_property
    def fingerprint(self) -> str:
        """Of names, sizes and times, and behind an address of some files' versions: nobody reads a terabyte for it."""
        digest = hashlib.blake2b(repr(self.columns).encode(), digest_size=16)
        if is_address(self.blocks[0].file):
            digest.update(self.content.encode())
        for block in self.blocks:
            digest.update(repr((block.file, block.group, block.rows, stamp(block.file))).encode())
        return digest.hexdigest()

    @property
    def content(self) -> str:
        files = list(dict.fromkeys(block.file for block in self.blocks))
        if not is_address(files[0]):
            return portable_hash([Path(file) for file in files])
        asked = files[:: max(1, len(files) // AT_ONCE)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            versions = list(pool.map(version_of, asked))
        digest = hashlib.blake2b(repr([(block.file, block.rows) for block in self.blocks]).encode(), digest_size=16)
        digest.update(repr(versions).encode())
        return digest.hexdigest()

    @property
    def sampled_files(self) -> list[Path]:
        files = list(dict.fromkeys(block.file for block in self.blocks))
        if is_address(files[0]) or reads_whole(paths := [Path(file) for file in files]):
            return []
        return paths

    def _block(self, index: int) -> tuple[int, Block, int]:
        """The block that a sample lies in, its number, and the sample's place in it."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name}: sample {index} of {len(self)}")
        index %= len(self)
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return number, self.blocks[number], index - int(self._starts[number])

    def _row(self, index: int, texts_only: bool = False) -> tuple[dict[str, Any], str]:
        number, block, place = self._block(index)
        where = f"{block.file}" + (f", row group {block.group}" if block.group >= 0 else "") + f", sample {place}"
        columns = self.columns
        with self._opening:  # several threads read ahead
            kept, most = self._open, MOST_OPEN
            if texts_only and block.group >= 0 and number not in kept:
                kept, most, columns = self._texts, _MOST_TEXTS, Columns(caption=columns.caption)
            if number not in kept:
                kept[number] = _opened(block, where, columns, self.since)
                self.opened += 1
                if len(kept) > most:
                    kept.popitem(last=False)
            kept.move_to_end(number)
            row = kept[number]
        try:
            return row(place), where
        except (OSError, IndexError) as error:
            raise BrokenImageError(f"{where}: cannot be read ({error})") from error


def open_stream(
    name: str, files: Sequence[str], columns: Columns | None = None, lost_share: float = BROKEN_SHARE
) -> StreamedSource:
    """Open Parquet files or WebDataset tars as a stream.

    Args:
        name: what to call the source.
        files: paths or addresses that fsspec knows (``https://…``, ``s3://…``, ``hf://datasets/…``), all of one kind.
        columns: which column is which, where the names are unusual.
        lost_share: share of the files in tars that may lie behind damage, where they cannot be reached.

    Raises:
        UserError: not files of these kinds, damaged tars, or of those behind an address nobody says how many samples
            they hold.
    """
    began = time.time()
    kinds = {Path(file.partition("?")[0]).suffix.lower() for file in files}
    if kinds == {".parquet"}:
        with ThreadPoolExecutor(AT_ONCE if is_address(files[0]) else 1) as pool:
            blocks = [block for found in pool.map(_row_groups, files) for block in found]
        row: Mapping[str, Any] = dict.fromkeys(_parquet(files[0]).schema_arrow.names)
    elif kinds == {".tar"}:
        blocks = [Block(file, -1, rows) for file, rows in zip(files, tar_sizes(files, lost_share), strict=True) if rows]
        row = _first_row(blocks[0], began) if blocks else {}
    else:
        raise UserError(f"{name}: streams are Parquet files or WebDataset tars, not {', '.join(sorted(kinds))}")
    blocks = [block for block in blocks if block.rows]
    if not blocks:
        raise UserError(f"{name}: an empty source")
    resolved = (columns or Columns()).resolve(row, name, row.get)
    if resolved.caption is None:
        raise UserError(
            f"{name}: a stream holds captions, and it has no column of them. Name one with --caption-column."
        )
    if resolved.split is not None:
        raise UserError(
            f"{name}: column '{resolved.split}' says which split a row belongs to, which a stream does not look up. "
            "Leave stream=yes out, or keep each split in files of its own."
        )
    return StreamedSource(name, blocks, resolved, began)


def _parquet(file: str) -> pq.ParquetFile:
    try:
        return _remote_parquet(file, os.getpid()) if is_address(file) else pq.ParquetFile(file)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise UserError(f"{file}: cannot be read as Parquet ({' '.join(str(error).split())[:200]})") from error


@lru_cache(AT_ONCE)
def _remote_parquet(file: str, process: int) -> pq.ParquetFile:
    """Kept, since to read the end of a file, where its groups are listed, takes two answers of its store.

    Not across a fork, as a worker's is: fsspec's file systems of stores (s3://, gs://) refuse to work behind one.
    """
    return pq.ParquetFile(open_remote(file))


def _row_groups(file: str) -> list[Block]:
    about = _parquet(file).metadata
    return [Block(file, group, about.row_group(group).num_rows) for group in range(about.num_row_groups)]


def _first_row(tar: Block, since: float) -> dict[str, Any]:
    try:
        return _opened(tar, tar.file, Columns(), since)(0)
    except (BrokenImageError, IndexError) as error:
        raise UserError(str(error)) from error


def _opened(block: Block, where: str, columns: Columns, since: float) -> _Row:
    """A block, for one of its samples.

    Raises:
        BrokenImageError: it is damaged, or a file of this machine that cannot be read.
        UserError: it cannot be reached.
    """
    try:
        return _open_block(block, columns, since)
    except UserError:
        raise
    except (pa.ArrowException, tarfile.TarError) as error:
        raise BrokenImageError(f"{where}: cannot be read ({error})") from error
    except Exception as error:  # of a store's own library, whatever it raises
        if is_address(block.file):
            raise UserError(f"{where}: cannot be reached ({' '.join(str(error).split())[:200]})") from error
        if isinstance(error, OSError):
            raise BrokenImageError(f"{where}: cannot be read ({error})") from error
        raise


def _open_block(block: Block, columns: Columns, since: float) -> _Row:
    if block.group >= 0:
        file = _parquet(block.file)
        table = file.read_row_group(block.group, _needed(columns, file.schema_arrow.names))
        return lambda row: table.slice(row, 1).to_pylist()[0]
    return open_tar(block.file, block.rows, since)


def _needed(columns: Columns, present: Sequence[str]) -> list[str]:
    """Which columns of a Parquet file a sample is made of."""
    captions = (columns.caption or "").split(",")
    names = {columns.image, "__key__", *(name if name in present else name.partition(".")[0] for name in captions)}
    return [name for name in present if name in names]


def hub_files(name: str, revision: str | None, split: str | None, config: str | None) -> list[str]:
    """Addresses of a hub set's Parquet files or tars.

    Args:
        revision: branch or commit.
        split: a word of the files' or folders' names; by default training, where names say so.
        config: a folder that they lie in.

    Raises:
        UserError: no such set, or none of these files in it.
    """
    from huggingface_hub import HfApi

    try:
        about = HfApi().dataset_info(name, revision=revision, timeout=5.0)
    except Exception as error:  # whatever the network's libraries raise
        raise UserError(f"{name}: the hub did not give us this set ({' '.join(str(error).split())[:200]})") from error
    names = sorted(each.rfilename for each in about.siblings or [])
    names = [each for each in names if config is None or config in each.split("/")[:-1]]
    chosen = next((found for end in (".parquet", ".tar") if (found := [n for n in names if n.endswith(end)])), [])
    if not chosen:
        where = "" if config is None else f" in a folder '{config}'"
        raise UserError(f"{name}: holds no Parquet files or tars to stream{where}")
    if split is None:
        chosen = [each for each in chosen if "train" in each.lower()] or chosen
    elif not (chosen := [each for each in chosen if _is_of(each, split)]):
        raise UserError(f"{name}: no file is named after a split '{split}'")
    return [f"hf://datasets/{name}@{about.sha}/{each}" for each in chosen]


def _is_of(name: str, split: str) -> bool:
    words = re.split(r"[^a-z]+", name.lower())
    return any(SPLITS.get(word, word) == SPLITS.get(split, split) for word in words)
