"""Streams: Parquet files and tars read in place, without a converted copy.

A stream is a `Source` like any other: samples are numbered, so a batch is a function of (seed, step), each sample is
visited once per pass on any number of ranks and workers, and runs resume exactly. Only the order differs
(`recollect.data.batches.order.BlockOrder`): samples of the same block are read close together.
"""

import hashlib
import os
import tarfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recollect.core.content import modification_hash, portable_hash, reads_every_byte
from recollect.core.errors import UserError, user_errors
from recollect.core.recent import LruCache
from recollect.core.types import NO_LABEL, Sample, Source
from recollect.core.validation import refuse
from recollect.data.sources.columns import Columns, texts_in
from recollect.data.sources.images import BROKEN_SHARE, BrokenImageError, decode
from recollect.data.sources.remote import is_address, open_remote, version_of
from recollect.data.sources.tars import DAMAGE_KEY, MAX_OPEN, open_tar, tar_columns, tar_sizes

MAX_OPEN_SHARDS = 16
"""Number of remote files opened concurrently."""

_MAX_TEXT_BLOCKS = 512
"""Maximum number of row groups whose text columns a process keeps open."""

_Row = Callable[[int], dict[str, Any]]
"""Maps a sample's position in its block to its columns."""


@dataclass(frozen=True)
class Block:
    """Samples read together: a row group of a Parquet file, or a tar.

    Attributes:
        file: path or URL.
        group: number of the row group; -1 for a tar.
        rows: number of samples.
    """

    file: str
    group: int
    rows: int


@dataclass(eq=False)
class StreamedSource(Source):
    """Captioned pictures in local or remote Parquet files or WebDataset tars.

    Attributes:
        name: unique within a run.
        blocks: blocks in the order of the sample numbers.
        columns: the columns to use.
        opened: number of blocks opened so far.
    """

    name: str
    blocks: Sequence[Block]
    columns: Columns

    def __post_init__(self) -> None:
        self._starts = np.cumsum([0, *(block.rows for block in self.blocks)])
        folders = [file.split("/")[:-1] for file in self._files]
        shared = takewhile(lambda names: len(set(names)) == 1, zip(*folders, strict=False))
        self._folder = "".join(f"{names[0]}/" for names in shared)
        self.opened = 0
        self.__setstate__({})

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
        self.__dict__.update(state)
        self._open: LruCache[int, _Row] = LruCache(MAX_OPEN)
        self._texts: LruCache[int, _Row] = LruCache(_MAX_TEXT_BLOCKS)
        self._opening = threading.Lock()

    def read(self, index: int, *, needed: int = 0, extra: bool = True) -> Sample:
        """Read one sample.

        Raises:
            IndexError: the index is out of range.
            BrokenImageError: the picture or its block cannot be read; the message names it.
            UserError: a remote file cannot be reached. This stops a run, because replacing the sample would make the
                run depend on more than its seed.
        """
        row, where = self._row(index)
        used = f"{self.columns.image},{self.columns.caption}".split(",")
        used += [name.partition(".")[0] for name in used]
        if damage := [why for name, why in row.get(DAMAGE_KEY, {}).items() if name in used]:
            raise BrokenImageError(f"{where}: {'; '.join(damage)}")
        image = self._image_bytes(row)
        if not isinstance(image, bytes):
            raise BrokenImageError(f"{where}: no image bytes in column '{self.columns.image}'")
        texts = texts_in(row, self.columns.caption) if self.columns.caption else ()
        # Keys often start from 0 in each shard, so the id includes the file.
        key, file = row.get("__key__"), self._block(index)[1].file.removeprefix(self._folder)
        id = f"{file}/{key}" if key else where
        return Sample(decode(image, where, needed=needed), texts, NO_LABEL, self.name, "caption", id)

    def texts(self, index: int) -> tuple[str, ...]:
        """Return the texts of one sample; from Parquet, only the text columns are read."""
        return texts_in(self._row(index, texts_only=True)[0], self.columns.caption) if self.columns.caption else ()

    def original(self, index: int) -> bytes | Path | None:
        return self._image_bytes(self._row(index)[0])

    def _image_bytes(self, row: Mapping[str, Any]) -> Any:
        images = (row.get(name) for name in (self.columns.image or "").split(","))
        image = next((image for image in images if image is not None), None)
        return image.get("bytes") if isinstance(image, Mapping) else image

    @cached_property
    def fingerprint(self) -> str:
        files = self._files
        content = self.content if is_address(files[0]) else modification_hash([Path(file) for file in files])
        digest = hashlib.blake2b(content.encode(), digest_size=16)
        digest.update(repr((self.columns, self.blocks)).encode())
        return digest.hexdigest()

    @property
    def _files(self) -> list[str]:
        return list(dict.fromkeys(block.file for block in self.blocks))

    @property
    def content(self) -> str:
        files = self._files
        if not is_address(files[0]):
            return portable_hash([Path(file) for file in files])
        with ThreadPoolExecutor(MAX_OPEN_SHARDS) as pool:
            versions = list(pool.map(version_of, files[:: max(1, len(files) // MAX_OPEN_SHARDS)]))
        digest = hashlib.blake2b(repr([(block.file, block.rows) for block in self.blocks]).encode(), digest_size=16)
        digest.update(repr(versions).encode())
        return digest.hexdigest()

    @property
    def sampled_files(self) -> list[Path]:
        files = self._files
        return [] if is_address(files[0]) or reads_every_byte(paths := [Path(file) for file in files]) else paths

    def _block(self, index: int) -> tuple[int, Block, int]:
        """Return the number of a sample's block, the block, and the sample's position in it."""
        index = self.position(index)
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return number, self.blocks[number], index - int(self._starts[number])

    def _row(self, index: int, texts_only: bool = False) -> tuple[dict[str, Any], str]:
        number, block, position = self._block(index)
        where = f"{block.file}" + (f", row group {block.group}" if block.group >= 0 else "") + f", sample {position}"
        cache, columns = self._open, self.columns
        with self._opening:  # several threads read ahead
            if texts_only and block.group >= 0 and number not in cache:
                cache, columns = self._texts, Columns(caption=columns.caption)
            if (row := cache.get(number)) is None:
                row = cache.put(number, _open_block(block, where, columns))
                self.opened += 1
        with user_errors(f"{where}: cannot be read", OSError, IndexError, raises=BrokenImageError):
            return row(position), where


def open_stream(
    name: str, files: Sequence[str], columns: Columns | None = None, lost_share: float = BROKEN_SHARE
) -> StreamedSource:
    """Open Parquet files or WebDataset tars as a stream.

    Args:
        name: name of the source.
        files: paths or URLs (``https://…``, ``s3://…``, ``hf://datasets/…``), all Parquet or all tars.
        columns: the columns to use, if they do not have the usual names.
        lost_share: maximum fraction of the files in tars that may be lost to damage.

    Raises:
        UserError: files have other or mixed formats, tars are damaged, or the size of a remote tar is unknown.
    """
    kinds = {Path(file.partition("?")[0]).suffix.lower() for file in files}
    if kinds == {".parquet"}:
        with ThreadPoolExecutor(MAX_OPEN_SHARDS if is_address(files[0]) else 1) as pool:
            blocks = [block for found in pool.map(_row_groups, files) for block in found]
        row: Mapping[str, Any] = dict.fromkeys(_parquet(files[0]).schema_arrow.names)
    elif kinds == {".tar"}:
        blocks = [Block(file, -1, rows) for file, rows in zip(files, tar_sizes(files, lost_share), strict=True) if rows]
        with user_errors(files[0], IndexError):
            row = _open_block(blocks[0], blocks[0].file, Columns())(0) if blocks else {}
        row = {name: value for name, value in row.items() if name != DAMAGE_KEY}
        row |= dict.fromkeys(sorted(tar_columns(files) - row.keys()))  # files that the first sample does not have
    else:
        raise UserError(f"{name}: streams are Parquet files or WebDataset tars, not {', '.join(sorted(kinds))}")
    blocks = [block for block in blocks if block.rows]
    refuse((not blocks, f"{name}: no samples"))
    resolved = (columns or Columns()).resolve(row, name, row.get)
    refuse(
        (resolved.caption is None, f"{name}: a stream needs a caption column. Name it with --caption-column."),
        (
            resolved.split is not None,
            f"{name}: a stream cannot select rows by column '{resolved.split}'. Remove stream=yes, or store each split "
            "in a separate file.",
        ),
    )
    return StreamedSource(name, blocks, resolved)


def _parquet(file: str) -> pq.ParquetFile:
    with user_errors(f"{file}: cannot be read as Parquet", OSError, pa.ArrowException, ValueError):
        return _remote_parquet(file, os.getpid()) if is_address(file) else pq.ParquetFile(file)


@lru_cache(MAX_OPEN_SHARDS)
def _remote_parquet(file: str, process: int) -> pq.ParquetFile:
    """Open a remote Parquet file, cached because reading its metadata takes two requests.

    ``process`` is part of the cache key because fsspec's file systems (s3://, gs://) do not survive a fork.
    """
    return pq.ParquetFile(open_remote(file))


def _row_groups(file: str) -> list[Block]:
    about = _parquet(file).metadata
    return [Block(file, group, about.row_group(group).num_rows) for group in range(about.num_row_groups)]


def _open_block(block: Block, where: str, columns: Columns) -> _Row:
    """Open a block.

    Raises:
        BrokenImageError: the block is damaged, or its local file cannot be read.
        UserError: the remote file cannot be reached.
    """
    remote = is_address(block.file)
    damaged = (pa.ArrowException, tarfile.TarError, *(() if remote else (OSError,)))
    network = user_errors(f"{where}: cannot be reached") if remote else nullcontext()
    with network, user_errors(f"{where}: cannot be read", *damaged, raises=BrokenImageError):
        if block.group < 0:
            return open_tar(block.file, block.rows)
        file = _parquet(block.file)
        table = file.read_row_group(block.group, _needed(columns, file.schema_arrow.names))
        return lambda row: table.slice(row, 1).to_pylist()[0]


def _needed(columns: Columns, present: Sequence[str]) -> list[str]:
    """Return the columns of a Parquet file that samples need."""
    captions = (columns.caption or "").split(",")
    names = {
        *(columns.image or "").split(","),
        "__key__",
        *(name if name in present else name.partition(".")[0] for name in captions),
    }
    return [name for name in present if name in names]
