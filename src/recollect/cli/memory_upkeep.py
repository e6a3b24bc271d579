"""``recollect memory info|export|duplicates|index|optimize``: what a memory holds, and keeping it in order and fast."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from recollect.cli.positionals import MemoryPlace
from recollect.core.errors import UserError
from recollect.core.files import check_writable, write_json
from recollect.core.progress import output, printable
from recollect.data.sources.images import note
from recollect.memory.backends.cells import IndexRecord
from recollect.memory.duplicates import Level
from recollect.memory.store import Memory

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
