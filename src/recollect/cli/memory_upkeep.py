"""``recollect memory info|export|duplicates|index|optimize``: what a memory holds, and keeping it in order and fast."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.table import Table

from recollect.cli.positionals import MemoryPlace
from recollect.cli.unread import refuse_unread
from recollect.core.errors import UserError
from recollect.core.files import check_writable, write_json
from recollect.core.progress import output, printable
from recollect.core.words import counted
from recollect.data.sources.images import note
from recollect.memory.backends.cells import IndexRecord
from recollect.memory.duplicates import LEVELS, Duplicates, Level, find_duplicates
from recollect.memory.export import MapMethod, export_memory
from recollect.memory.store import NEAR, Memory

_SHOWN, _DAMAGES = 10, 20
_WORDS: dict[Level, str] = {
    "identical": "identical pixels",
    "near-identical": "near-identical: the same picture re-encoded, resized, gray or slightly cropped",
    "similar": "similar pictures (never removed automatically)",
}


@dataclass(frozen=True)
class Info:
    """Say what a memory holds: rows, sources, metadata, model, version, and the recall of its indexes."""

    memory: MemoryPlace
    """Its folder, or milvus://host:port/collection."""
    check: bool = False
    """Read everything: rows, vectors and checksums; what is damaged is named, and the status is 2."""
    out: Path | None = None
    """JSON file for the same."""

    def run(self) -> None:
        """Print."""
        check_writable(self.out, "--out")
        if self.check:
            self._check()
        memory = Memory.open(self.memory)
        info, keys = memory.info(), memory.metadata_keys()
        table = Table(show_header=False)
        table.add_row("memory", info.address)
        table.add_row("rows", f"{info.rows:,}" + ("" if info.texts == info.rows else f", {info.texts:,} with a text"))
        for source, rows in sorted(info.sources.items()):
            where = ", ".join(info.places[source])
            where = f" ({where})" if where else ""
            table.add_row(printable(f"  of {source or 'no source'}"), printable(f"{rows:,}{where}"))
        if info.removed:
            away = (f"{count:,} of {source}" for source, count in sorted(info.removed.items()))
            table.add_row("removed, and stay away", printable(", ".join(away)))
        table.add_row("metadata", printable(", ".join(keys) or "none"))
        stored = "" if info.stored == info.precision else f" (this store keeps them as {info.stored})"
        table.add_row("width", f"{info.width}, {info.precision}{stored}")
        table.add_row("model", printable(f"{info.model_name} ({info.model})"))
        if info.prefix:
            table.add_row("texts are read", f"as {info.prefix}s")
        table.add_row("version", str(info.version))
        console = output()
        console.print(table)
        if info.indexes:
            console.print(index_table(list(info.indexes), info.rows))
            warn_below(info.indexes)
        if self.out:
            write_json(self.out, asdict(info) | {"metadata": list(keys)})
        if self.check:
            console.print("nothing is damaged", highlight=False)

    def _check(self) -> None:
        damaged = Memory.examine(self.memory)
        for line in damaged[:_DAMAGES]:
            output().print(printable(line), highlight=False, soft_wrap=True)
        if damaged:
            raise UserError(
                f"{self.memory}: {len(damaged):,} damages found. A damaged cache is made again once it is removed; "
                "rows are restored from a copy, or by building the memory again."
            )


@dataclass(frozen=True)
class ExportMemory:
    """Write a memory to a Parquet file with vectors, a map (x, y) and neighbours, e.g. for embedding-atlas."""

    memory: MemoryPlace
    """Its folder, or milvus://host:port/collection."""
    out: Path
    """The .parquet file."""
    map: MapMethod = "pca"
    """How images are laid out in the plane: principal components, or t-SNE (up to 50,000 rows)."""
    k: int = 10
    """Neighbours of each row."""

    def run(self) -> None:
        """Write."""
        check_writable(self.out, "--out")
        rows = export_memory(Memory.open(self.memory), self.out, self.map, self.k)
        output().print(printable(f"{counted(rows, 'row')}: {self.out}"), highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class FindDuplicates:
    """Find identical, near-identical and similar pictures, and remove spare copies with --remove LEVEL --yes.

    Identical and near-identical pictures are decided on decoded pixels; similar ones by embedding. All embeddings are
    compared with all: minutes for a hundred thousand, hours for millions (--approximate). Files are never deleted.
    """

    memory: MemoryPlace
    """Its folder, or milvus://host:port/collection."""
    threshold: float = NEAR
    """Cosine from which two pictures are similar."""
    approximate: bool = False
    """Look for similar pictures among neighbors only: faster, and a few are missed."""
    remove: Literal["identical", "near-identical"] | None = None
    """Show what would be removed: all but the first of each group of this level and of stricter ones. Add --yes to
    remove it."""
    yes: bool = False
    """With --remove: remove, instead of showing a preview."""
    out: Path | None = None
    """JSON file for all groups."""

    def run(self) -> None:
        """Find, print, and remove where that was asked for."""
        if self.remove is None:
            refuse_unread(self, "yes", why="confirms --remove LEVEL. Add that, or leave this out.")
        check_writable(self.out, "--out")
        memory = Memory.open(self.memory)
        found = find_duplicates(memory, self.threshold, everything=not self.approximate)
        paths = self._show(memory, found)
        console = output()
        if self.out is not None:
            write_json(self.out, {level: [[{"id": id, "path": paths[id]} for id in group] for group in groups]
                                  for level, groups in found.groups.items()})  # fmt: skip
            console.print(printable(f"groups: {self.out}"), highlight=False, soft_wrap=True)
        if self.remove is not None:
            remove_rows(memory, found.spare(self.remove), dry_run=not self.yes, confirm=" (add --yes to remove them)")

    def _show(self, memory: Memory, found: Duplicates) -> dict[str, str | None]:
        ids = sorted({id for groups in found.groups.values() for group in groups for id in group})
        items = memory.fetch(ids, pictures=False) if ids else []
        paths = {item.id: None if item.path is None else str(item.path) for item in items}
        console = output()
        for level in LEVELS:
            groups = found.groups[level]
            line = f"{_WORDS[level]}: {counted(len(groups), 'group')}"
            if level != "similar":
                line += f", {counted(sum(len(group) - 1 for group in groups), 'picture')} to spare"
            console.print(line, highlight=False)
            for group in groups[:_SHOWN]:
                console.print(printable("  " + "  ".join(paths[id] or id for id in group)), soft_wrap=True)
            if len(groups) > _SHOWN:
                console.print(f"  … and {len(groups) - _SHOWN:,} more (--out FILE.json has all)", highlight=False)
        if found.unread:
            console.print(f"{counted(found.unread, 'picture')} could not be read: pixels not compared", highlight=False)
        for sentence in found.left_out:
            console.print(sentence, highlight=False)
        return paths


@dataclass(frozen=True)
class Index:
    """Make searches of a large memory fast, at a recall that is measured on its own rows; rows added later are in it.

    Searches with filters or exclusions, and everything where exact search was faster, stay exact.
    """

    memory: MemoryPlace
    """Its folder."""
    recall: float = 0.99
    """Share of the ten nearest rows that is to be found."""
    drop: bool = False
    """Remove the index: every search is exact again."""
    out: Path | None = None
    """JSON file for what was measured."""

    def run(self) -> None:
        """Build, measure and say."""
        if self.drop:
            refuse_unread(self, "recall", "out", why="is of an index that is made, and --drop takes it away.")
        check_writable(self.out, "--out")
        memory = Memory.open(self.memory)
        if self.drop:
            memory.backend.drop_index()
            output().print("no index: every search is exact", highlight=False)
            return
        records = memory.index(self.recall)
        if not records:
            raise UserError(f"{self.memory}: Milvus chooses its index at creation: milvus://…/collection?index=HNSW")
        output().print(index_table(records, len(memory)))
        warn_below(records)
        if self.out is not None:
            write_json(self.out, [asdict(record) for record in records])


@dataclass(frozen=True)
class Optimize:
    """Join the small files of many additions, and free what deleted rows and older versions take up on disk.

    Rows, ids and indexes stay as they are; a reader of a version that is removed has to open the memory again.
    """

    memory: MemoryPlace
    """Its folder."""
    keep_days: float = 1.0
    """Versions younger than so many days stay, for those who still read them; 0 keeps the newest alone."""

    def run(self) -> None:
        """Join, free, and say what was there before and is now."""
        done = Memory.open(self.memory).optimize(self.keep_days)
        if done is None:
            raise UserError(f"{self.memory}: Milvus joins and frees by itself; there is nothing to do")
        parts = [f"{done.files[0]:,} → {done.files[1]:,} files of rows"]
        parts.append(f"{done.bytes[0] / 1e6:,.1f} → {done.bytes[1] / 1e6:,.1f} MB on disk")
        parts.append(f"{done.versions[0]:,} → {done.versions[1]:,} versions")
        if self.keep_days and done.versions[1] > 1:
            parts.append(f"what older versions take up is freed after {self.keep_days:g} days, or by --keep-days 0")
        output().print(printable(f"{self.memory}: {', '.join(parts)}"), highlight=False, soft_wrap=True)


def index_table(records: list[IndexRecord], rows: int) -> Table:
    """What indexes say of themselves, with what is no longer so."""
    table = Table("index of", "recall@10", "asked for", "measured at", "cells read", "one query", "of 256 at once")
    for record in records:
        single, block = (f"{exact:.2f} → {index:.2f} ms" for exact, index in (record.single_ms, record.block_ms))
        read = f"{record.probes:,} of {record.cells:,}" if record.probes else "none: exact search is as fast"
        reached = f"{record.reached:.4f}" + (" (below)" if record.reached < record.target else "")
        measured = f"{record.rows:,} rows" + (", which have doubled since" if rows >= 2 * record.rows else "")
        table.add_row(f"{record.modality}s", reached, f"{record.target:g}", measured, read, single, block)
    return table


def warn_below(records: Sequence[IndexRecord]) -> None:
    """Say which indexes do not reach the recall that was asked for."""
    for record in records:
        if record.probes and record.reached < record.target:
            note(
                f"the index of {record.modality}s reaches a recall of {record.reached:.4f}, below {record.target:g}: "
                "many rows are equally near. Search with --exact where that matters."
            )


def remove_rows(memory: Memory, ids: list[str], dry_run: bool, confirm: str = "") -> None:
    """Remove rows, or only say what would go and what share of all that is."""
    rows = len(memory)
    share = f"{len(ids):,} of {rows:,} rows ({len(ids) / max(1, rows):.1%})"
    if dry_run:
        shown = "".join(f"\n  {id}" for id in ids[:_SHOWN]) + ("\n  …" if len(ids) > _SHOWN else "")
        lines = [printable(line) for line in f"{share} would be removed{confirm if ids else ''}{shown}".split("\n")]
        for line in lines:
            output().print(line, highlight=False, soft_wrap=True)
        return
    before = set(memory.removals())
    removed = memory.delete(ids) if ids else 0
    said = [f"{share} removed, {rows - removed:,} left"]
    if noted := set(memory.removals()) - before:
        places = memory.info().places
        said[0] += "; they stay out when their source is read again. To bring them back:"
        for source in sorted({each.source for each in noted}):
            place = places.get(source, ("SOURCE",))[0]
            said.append(f"  recollect memory add {shlex.join([str(memory.address), place])} --bring-back all")
    for sentence in said:
        output().print(printable(sentence), highlight=False, soft_wrap=True)
