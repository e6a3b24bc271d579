"""Shards read where they lie: no copy is made of them, and each position of a run is known beforehand.

A stream is a `Source` like any other: its samples have numbers, so a batch stays a function of (seed, step), every
sample comes once a pass on any number of ranks and workers, and a run resumes at its very place. What is different is
the order (`recollect.data.batches.order.BlockOrder`): samples that lie together are read in one stretch of a run.
"""

import hashlib
import json
import tarfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recollect.core.errors import UserError
from recollect.core.files import atomic_path, cache_folder, read_json, write_json
from recollect.core.progress import progress
from recollect.core.types import NO_LABEL, Sample, Source
from recollect.data.sources.columns import Columns, texts_in
from recollect.data.sources.images import BrokenImageError, decode

_OPEN = 64
"""Row groups or tars that a process keeps open: what one stretch of a run reads, and the next one's beginning."""

AT_ONCE = 16
"""Files behind an address that are asked at the same time how many samples they hold."""

_SIZES = "sizes.json"
"""What WebDataset calls the file beside shards that says how many samples each holds."""

Row = Callable[[int], dict[str, Any]]
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
    """

    name: str
    blocks: Sequence[Block]
    columns: Columns

    def __post_init__(self) -> None:
        self._starts = np.cumsum([0, *(block.rows for block in self.blocks)])
        self._open: OrderedDict[int, Row] = OrderedDict()
        self.opened = 0

    @property
    def block_sizes(self) -> np.ndarray:
        return np.diff(self._starts)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> Sample:
        return self.read(index)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_open"} | {"_open": OrderedDict()}

    def read(self, index: int, *, needed: int = 0, extra: bool = True) -> Sample:
        """Read one sample.

        Raises:
            IndexError: outside the source.
            BrokenImageError: the picture, or the block that it lies in, cannot be read; the message names it.
        """
        row, where = self._row(index)
        image = row.get(self.columns.image or "")
        image = image.get("bytes") if isinstance(image, Mapping) else image
        if not isinstance(image, bytes):
            raise BrokenImageError(f"{where}: no picture's bytes in column '{self.columns.image}'")
        texts = texts_in(row, self.columns.caption) if self.columns.caption else ()
        id = str(row.get("__key__", "")) or where
        return Sample(decode(image, where, needed=needed), texts, NO_LABEL, self.name, "caption", id)

    def texts(self, index: int) -> tuple[str, ...]:
        return texts_in(self._row(index)[0], self.columns.caption) if self.columns.caption else ()

    def original(self, index: int) -> bytes | Path | None:
        image = self._row(index)[0].get(self.columns.image or "")
        return image.get("bytes") if isinstance(image, Mapping) else image

    @cached_property
    def fingerprint(self) -> str:
        """Of names, sizes and times: nobody reads a terabyte to know it."""
        digest = hashlib.blake2b(repr(self.columns).encode(), digest_size=16)
        for block in self.blocks:
            digest.update(repr((block.file, block.group, block.rows, _stamp(block.file))).encode())
        return digest.hexdigest()

    def _row(self, index: int) -> tuple[dict[str, Any], str]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name}: sample {index} of {len(self)}")
        index %= len(self)
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        block, place = self.blocks[number], index - int(self._starts[number])
        where = f"{block.file}" + (f", row group {block.group}" if block.group >= 0 else "") + f", sample {place}"
        if number not in self._open:
            try:
                self._open[number] = _open_block(block)
            except (OSError, pa.ArrowException, tarfile.TarError) as error:
                raise BrokenImageError(f"{where}: cannot be read ({error})") from error
            self.opened += 1
            if len(self._open) > _OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(number)
        return self._open[number](place), where


def open_stream(name: str, files: Sequence[str], columns: Columns | None = None) -> StreamedSource:
    """Open Parquet files or WebDataset tars as a stream.

    Args:
        name: what to call the source.
        files: paths or addresses that fsspec knows (``https://…``, ``s3://…``, ``hf://datasets/…``), all of one kind.
        columns: which column is which, where the names are unusual.

    Raises:
        UserError: not files of these kinds, or of tars behind an address nobody says how many samples they hold.
    """
    kinds = {Path(file.partition("?")[0]).suffix.lower() for file in files}
    if kinds == {".parquet"}:
        with ThreadPoolExecutor(AT_ONCE if "://" in files[0] else 1) as pool:
            blocks = [block for found in pool.map(_row_groups, files) for block in found]
        present = _parquet(files[0]).schema_arrow.names
    elif kinds == {".tar"}:
        blocks = [Block(file, -1, rows) for file, rows in zip(files, _tar_sizes(files), strict=True)]
        present = list(_open_block(blocks[0])(0))
    else:
        raise UserError(f"{name}: streams are Parquet files or WebDataset tars, not {', '.join(sorted(kinds))}")
    blocks = [block for block in blocks if block.rows]
    if not blocks:
        raise UserError(f"{name}: an empty source")
    resolved = (columns or Columns()).resolve(present, name)
    if resolved.caption is None:
        raise UserError(
            f"{name}: a stream holds captions, and it has no column of them. Name one with --caption-column."
        )
    if resolved.split is not None:
        raise UserError(
            f"{name}: column '{resolved.split}' says which split a row belongs to, which a stream does not look up. "
            "Leave stream=yes out, or keep each split in files of its own."
        )
    return StreamedSource(name, blocks, resolved)


def _parquet(file: str) -> pq.ParquetFile:
    import fsspec

    try:
        return pq.ParquetFile(fsspec.open(file, "rb").open() if "://" in file else file)
    except (OSError, pa.ArrowException, ImportError, ValueError) as error:
        raise UserError(f"{file}: cannot be read as Parquet ({' '.join(str(error).split())[:200]})") from error


def _row_groups(file: str) -> list[Block]:
    about = _parquet(file).metadata
    return [Block(file, group, about.row_group(group).num_rows) for group in range(about.num_row_groups)]


def _open_block(block: Block) -> Row:
    if block.group >= 0:
        table = _parquet(block.file).read_row_group(block.group)
        return lambda row: table.slice(row, 1).to_pylist()[0]
    members = _samples_of(_local(block.file))
    return lambda row: _read_members(members[row])


@dataclass(frozen=True)
class Member:
    """A file within a tar: what its name ends with, and where its bytes are."""

    tar: Path
    key: str
    column: str
    offset: int
    size: int


def _samples_of(tar: Path) -> list[list[Member]]:
    """The members of each sample: files that stand behind each other and share their name up to its first dot."""
    samples: list[list[Member]] = []
    with tarfile.open(tar, "r:") as archive:
        for member in archive:
            folder, _, base = member.name.rpartition("/")
            stem, dot, column = base.partition(".")
            if not member.isfile() or not dot or not stem:
                continue
            key = f"{folder}/{stem}" if folder else stem
            if not samples or samples[-1][0].key != key:
                samples.append([])
            samples[-1].append(Member(tar, key, column, member.offset_data, member.size))
            archive.members = []  # type: ignore[attr-defined]  # tarfile would keep every header it has seen
    return samples


def _read_members(members: Sequence[Member]) -> dict[str, Any]:
    row: dict[str, Any] = {"__key__": members[0].key}
    with members[0].tar.open("rb") as opened:
        for member in members:
            opened.seek(member.offset)
            data = opened.read(member.size)
            ending = member.column.rpartition(".")[2].lower()
            row[member.column] = data.decode("utf-8", "replace") if ending in ("txt", "text", "json", "cls") else data
    return row


def _tar_sizes(files: Sequence[str]) -> list[int]:
    """How many samples each tar holds: as `_SIZES` beside it says, else counted once and kept."""
    found = []
    with progress("count samples", len(files), "shards", shown=len(files) > 8) as counter:
        for file in files:
            found.append(_said(file) if "://" in file else _counted(Path(file)))
            counter.advance(1)
    return found


def _said(file: str) -> int:
    import fsspec

    place = f"{file.rpartition('/')[0]}/{_SIZES}"
    try:
        with fsspec.open(place, "rb") as opened:
            return int(json.loads(opened.read())[file.rpartition("/")[2]])
    except (OSError, KeyError, ValueError, ImportError) as error:
        raise UserError(
            f"{file}: how many samples it holds is not said by {place} ({error}). Put that file there (name of each "
            "tar: its samples), or copy the tars here."
        ) from error


def _counted(tar: Path) -> int:
    kept = (
        cache_folder()
        / "streams"
        / f"{hashlib.blake2b(repr(_stamp(str(tar))).encode(), digest_size=12).hexdigest()}.json"
    )
    if kept.exists():
        try:
            return int(read_json(kept)["samples"])
        except (UserError, KeyError, TypeError, ValueError):
            pass  # damaged: it is counted again
    try:
        count = len(_samples_of(tar))
    except (OSError, tarfile.TarError) as error:
        raise UserError(f"{tar}: damaged, or no tar ({error})") from error
    write_json(kept, {"samples": count})
    return count


def _stamp(file: str) -> tuple[str, int, int] | str:
    if "://" in file:
        return file
    about = Path(file).stat()
    return str(Path(file).resolve()), about.st_size, about.st_mtime_ns


def _local(file: str) -> Path:
    """A tar behind an address, fetched to the user's cache folder; those not read for longest make room."""
    if "://" not in file:
        return Path(file)
    import fsspec

    folder = cache_folder() / "streams"
    path = folder / f"{hashlib.blake2b(file.encode(), digest_size=12).hexdigest()}.tar"
    if not path.exists():
        with atomic_path(path) as unfinished, fsspec.open(file, "rb") as source, unfinished.open("wb") as target:
            for data in iter(lambda: source.read(2**22), b""):
                target.write(data)
        for old in sorted(folder.glob("*.tar"), key=lambda each: each.stat().st_atime_ns)[: -2 * _OPEN]:
            old.unlink(missing_ok=True)
    return path


def hub_files(name: str, revision: str | None) -> Iterator[str]:
    """Addresses of a hub set's Parquet files or tars, training ones where names say so.

    Raises:
        UserError: no such set, or none of these files in it.
    """
    from huggingface_hub import HfApi

    try:
        about = HfApi().dataset_info(name, revision=revision, timeout=5.0)
    except Exception as error:  # whatever the network's libraries raise
        raise UserError(f"{name}: the hub did not give us this set ({' '.join(str(error).split())[:200]})") from error
    names = sorted(each.rfilename for each in about.siblings or [])
    for ending in (".parquet", ".tar"):
        chosen = [each for each in names if each.endswith(ending)]
        training = [each for each in chosen if "train" in each.lower()]
        if chosen:
            yield from (f"hf://datasets/{name}@{about.sha}/{each}" for each in training or chosen)
            return
    raise UserError(f"{name}: holds no Parquet files or tars to stream")
