"""``recollect index …``: build, update, check and export an index of pictures."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from recollect.cli.defaults import column_options, split_for
from recollect.cli.parser import Arg, say, show_table, warn_unused
from recollect.core.files import write_json
from recollect.core.paths import check_writable
from recollect.core.places import public_place
from recollect.core.validation import check_number, refuse
from recollect.core.words import counted
from recollect.data.sources.columns import Columns
from recollect.index.options import IngestOptions

if TYPE_CHECKING:
    from recollect.core.types import Source
    from recollect.index import Duplicates, Index
    from recollect.index.stores.ivf import Accelerator

_MAX_LISTED = 10
_SHOWN = {name: name for name in ("limit", "captions", "pictures", "near", "engine")}


@dataclass(frozen=True)
class OnIndex:
    """A command on an index."""

    index: Annotated[str, Arg(place="INDEX")]
    """Folder of the index, or milvus://host:port/collection."""

    def open(self, model: str | None = None) -> "Index":
        """Open the index."""
        from recollect.index import Index

        return Index.open(self.index, model)


@dataclass(frozen=True)
class SourceOptions:
    """Reading the source."""

    name: str = ""
    """Name of the source in the index (default: the name of its file or folder)."""
    split: str | None = None
    """Split of the source (default: all splits)."""
    ingest: Annotated[IngestOptions, Arg(flat=True, shown=_SHOWN)] = field(default_factory=IngestOptions)
    device: str | None = None
    """Device to embed on (default: the fastest available)."""
    columns: Annotated[Columns, column_options("image", "caption", "label")] = field(default_factory=Columns)

    def open(self, source: str) -> "Source":
        """Open the source."""
        from recollect.index.ingest import open_pictures

        if self.ingest.engine == "ray":
            warn_unused(self, "device", why="with --engine ray, each worker uses its fastest device.")
        opened = open_pictures(source, split_for(source, self.split), self.columns)
        unlimited = opened.endless and self.ingest.limit is None
        refuse((unlimited, f"{source}: is infinite. Add --limit N, or write {source}?size=N."))
        return opened


@dataclass(frozen=True)
class Build:
    """Index the pictures of a source: a folder, a table, shards or a hub id.

    Run the same command again to continue an interrupted build, or to update the index; existing pictures are not
    embedded again. Identical pictures share one row, whatever their file names.
    """

    source: Annotated[str, Arg(place="SOURCE")]
    """Folder of pictures; or a table, shards or a hub id, with captions or classes."""
    out: str
    """Index to write: a folder, or milvus://host:port/collection."""
    model: str | None = None
    """Model to embed with: RUN/model, the folder of a checkpoint, or a hub id (default: the starter)."""
    precision: Literal["float16", "float32"] = "float16"
    """Precision of the stored vectors; float16 changes a cosine by about 1e-5 and takes half the space."""
    source_options: Annotated[SourceOptions, Arg(flat=True)] = field(default_factory=SourceOptions)

    def run(self) -> None:
        """Build, and print what was added."""
        from recollect.index import Index
        from recollect.index.model import encoder_and_name

        check_writable(None if "://" in self.out else self.out, "--out", "folder")
        source = self.source_options.open(self.source)
        encoder, model = encoder_and_name(self.model, self.source_options.device)
        index = Index.build(
            source, encoder, out=self.out, name=self.source_options.name, options=self.source_options.ingest,
            precision=self.precision, model_name=model,
        )  # fmt: skip
        if index.record.precision != self.precision:
            warn_unused(self, "precision", why=f"{index.address} exists and stores {index.record.precision}.")
        _print_report(index)


@dataclass(frozen=True)
class Add(OnIndex):
    """Add the pictures of a source to an index, or update a source that is in the index already.

    The index can be searched meanwhile.
    """

    source: Annotated[str, Arg(place="SOURCE")]
    """Folder of pictures; or a table, shards or a hub id, with captions or classes."""
    model: str | None = None
    """Path or hub id of the index's model, if it has moved (default: as recorded in the index)."""
    source_options: Annotated[SourceOptions, Arg(flat=True)] = field(default_factory=SourceOptions)

    def run(self) -> None:
        """Add, and print what was added."""
        options, index = self.source_options, self.open()
        source = options.open(self.source)
        index.model.open(self.model, options.device)
        index.add(source, name=options.name, options=options.ingest)
        _print_report(index)


@dataclass(frozen=True)
class Watch(OnIndex):
    """Keep an index up to date with a folder: add new pictures, replace changed ones, remove deleted ones.

    Stop with Ctrl-C. If the folder disappears or is empty, nothing is removed.
    """

    folder: Annotated[Path, Arg(place="FOLDER")]
    """Folder of pictures, including its subfolders."""
    model: str | None = None
    """Path or hub id of the index's model, if it has moved (default: as recorded in the index)."""
    name: str = ""
    """Name of the folder in the index (default: the folder's name)."""
    every: float = 2.0
    """Polling interval in seconds; changes are read once the folder is the same in two polls."""

    def run(self) -> None:
        """Watch until interrupted."""
        from recollect.index.watch import FolderWatch

        check_number("--every", self.every, above=0)
        index = self.open(self.model)
        watch = FolderWatch(index, self.folder, self.name)
        say(f"watching {self.folder}; stop with Ctrl-C")
        watch.follow(self.every, lambda report: _print_report(index))


@dataclass(frozen=True)
class Remove(OnIndex):
    """Show which pictures would be removed from an index; with --yes, remove them.

    Files are not touched. Removed pictures stay removed when their source is read again; `recollect index restore`
    restores them. A removed source (--source) comes back when it is added again.
    """

    ids: tuple[str, ...] = ()
    """Pictures to remove, by id or file."""
    where: Annotated[str | None, Arg(metavar="SQL")] = None
    """Remove pictures that match a filter, e.g. "folder = 'Norway' and taken < '2015'"."""
    source: str | None = None
    """Source to remove, by its name in `recollect index info`."""
    yes: bool = False
    """Remove them instead of showing a preview."""

    def run(self) -> None:
        """Preview or remove."""
        chosen = [bool(self.ids), self.where is not None, self.source is not None]
        refuse((sum(chosen) != 1, "give exactly one of --ids, --where and --source"))
        index = self.open()
        if self.source is not None:
            if self.yes:
                deleted = index.forget(self.source)
                say(f"{index.address}: source {self.source} removed with {deleted:,} pictures; {len(index):,} left")
                return
            sources = index.values("source")
            unknown = not any(self.source in own for own in sources)
            refuse((unknown, f"{index.address}: no source called {self.source!r}"))
            ids = [id for id, own in zip(index.ids, sources, strict=True) if set(own) == {self.source}]
        elif self.where is not None:
            ids = index.ids_where(self.where)
        else:
            ids = index.find(list(dict.fromkeys(self.ids)))
        _remove_pictures(index, ids, self.yes)


@dataclass(frozen=True)
class Restore(OnIndex):
    """Restore removed pictures of an index: all of them, or only --ids."""

    ids: tuple[str, ...] = ()
    """Pictures to restore, by id or file."""
    show: bool = False
    """Only list the removed pictures."""

    def run(self) -> None:
        """List or restore."""
        index = self.open()
        removed = index.removed()
        if self.show:
            for each in removed:
                say(f"{each.id}  {each.path or each.caption}")
            return
        count = index.restore(index.find(self.ids, removed=True) if self.ids else None)
        say(f"{index.address}: {count:,} of {len(removed):,} removed pictures restored; {len(index):,} pictures")


@dataclass(frozen=True)
class Info(OnIndex):
    """Show the contents of an index: pictures, sources, columns for filters, model and measured recall."""

    out: Path | None = None
    """Also write the information to this JSON file."""

    def run(self) -> None:
        """Print, and write to --out."""
        check_writable(self.out, "--out", "new file")
        info = self.open().info()
        rows = [("index", info.address), ("pictures", f"{info.pictures:,} ({info.texts:,} with a caption)")]
        rows.append(("captions", f"{info.captions:,}"))
        for source, count in sorted(info.sources.items()):
            places = ", ".join(info.places.get(source, ()))
            label = f"source {source}" if source else "no source"
            rows.append((label, f"{count:,} ({places})" if places else f"{count:,}"))
        if info.removed:
            rows.append(("removed", f"{info.removed:,} (`recollect index restore` restores them)"))
        rows.append(("columns", ", ".join(info.columns)))
        rows.append(("vectors", f"{info.record.width} dimensions, {info.record.precision}"))
        rows.append(("model", f"{info.record.model_name} ({info.record.model})"))
        if info.record.prefix:
            rows.append(("text prefix", info.record.prefix))
        rows.append(("version", str(info.version)))
        show_table((), rows)
        if info.accelerators:
            _show_accelerators(info.accelerators)
        if self.out:
            write_json(self.out, asdict(info))


@dataclass(frozen=True)
class Verify(OnIndex):
    """Check every file of an index against its checksum; exit status 2 if any file is damaged."""

    def run(self) -> None:
        """Print damaged files."""
        from recollect.index import Index

        damaged, address = Index.examine(self.index), public_place(self.index) if "://" in self.index else self.index
        for line in damaged[: 2 * _MAX_LISTED]:
            say(line)
        advice = "Delete damaged caches (they are rebuilt); restore other files from a copy, or rebuild the index."
        refuse((damaged, f"{address}: {counted(len(damaged), 'damaged file')}. {advice}"))
        say(f"{address}: no damaged files")


@dataclass(frozen=True)
class FindDuplicates(OnIndex):
    """Find identical files, near-identical pictures and similar pictures, and optionally remove near-identical ones.

    Near-identical pictures are the same shot re-encoded, resized, converted to gray or slightly cropped; the pixels of
    each are compared with the picture that is kept. Similar pictures are found by embedding and never removed. Files
    are not touched, and `recollect index restore` restores removed pictures.
    """

    threshold: float = 0.94
    """Minimum cosine of similar pictures."""
    remove: bool = False
    """Show which pictures would be removed: all but the first of each near-identical group."""
    yes: bool = False
    """With --remove: remove them."""
    out: Path | None = None
    """JSON file for all groups."""

    def run(self) -> None:
        """Find and print duplicates, and remove them if requested."""
        if not self.remove:
            warn_unused(self, "yes", why="it confirms --remove.")
        check_writable(self.out, "--out", "new file")
        index = self.open()
        found = index.duplicates(self.threshold)
        paths = _print_duplicates(index, found)
        if self.out is not None:
            groups: dict[str, Any] = {
                "identical": [[{"path": path} for path in group] for group in found.identical.values()]
            }
            for level, some in (("near-identical", found.near_identical), ("similar", found.similar)):
                groups[level] = [[{"id": id, "path": paths[id]} for id in group] for group in some]
            write_json(self.out, groups)
            say(f"groups: {self.out}")
        if self.remove:
            _remove_pictures(index, found.spare, self.yes)


@dataclass(frozen=True)
class ExportIndex(OnIndex):
    """Write an index to a file: .parquet (with vectors), .csv, or .json in COCO format."""

    out: Path
    """Output file, ending in .parquet, .csv or .json."""
    coco: Literal["captions", "labels"] = "captions"
    """Annotations of a .json file."""

    def run(self) -> None:
        """Write."""
        from recollect.index.export import export_index

        check_writable(self.out, "--out", "new file")
        if self.out.suffix != ".json":
            warn_unused(self, "coco", why="only used for .json files.")
        count = export_index(self.open(), self.out, self.coco)
        say(f"{counted(count, 'picture')}: {self.out}")


@dataclass(frozen=True)
class Accelerate(OnIndex):
    """Speed up searches of a large index with faiss, and print the recall measured on the index's own pictures.

    Pictures added later are included. Searches with filters or exclusions remain exact.
    """

    recall: float = 0.999
    """Target recall of the ten nearest pictures."""
    out: Path | None = None
    """JSON file for the measurements."""

    def run(self) -> None:
        """Build, measure, print."""
        check_writable(self.out, "--out", "new file")
        index = self.open()
        accelerators = index.accelerate(self.recall)
        refuse((not accelerators, f"{index.address}: {len(index):,} pictures are too few to need an accelerator"))
        _show_accelerators(accelerators)
        for each in accelerators:
            if each.recall < self.recall:
                line = f"{each.by}: recall {each.recall:.4f} is below {self.recall:g}; search with --exact if needed"
                say(line, "yellow")
        if self.out is not None:
            write_json(self.out, [asdict(each) for each in accelerators])


@dataclass(frozen=True)
class Compact(OnIndex):
    """Merge small files, and free the space of deleted rows and old versions."""

    keep_days: float = 1.0
    """Keep versions newer than this many days for processes that still read them; 0 keeps only the current version."""

    def run(self) -> None:
        """Compact, and print the space freed."""
        index = self.open()
        freed = index.compact(self.keep_days)
        refuse((freed is None, f"{index.address}: Milvus compacts its collections itself"))
        assert freed is not None
        say(f"{index.address}: {freed / 1e6:,.1f} MB freed")


def _remove_pictures(index: "Index", ids: list[str], yes: bool) -> None:
    """Remove pictures, or print what would be removed."""
    total = len(index)
    share = f"{len(ids):,} of {total:,} pictures ({len(ids) / max(1, total):.1%})"
    if not yes:
        say(f"{share} would be removed{' (add --yes to remove them)' if ids else ''}")
        for each in index.pictures(ids[:_MAX_LISTED]):
            say(f"  {each.path or each.id}")
        if len(ids) > _MAX_LISTED:
            say("  …")
        return
    removed = index.remove(ids) if ids else 0
    say(f"{share} removed, {total - removed:,} left. To restore them: `recollect index restore {index.address}`")


def _print_duplicates(index: "Index", found: "Duplicates") -> dict[str, str]:
    ids = sorted({id for groups in (found.near_identical, found.similar) for group in groups for id in group})
    paths = {each.id: str(each.path or each.id) for each in index.pictures(ids)} if ids else {}
    levels = {
        "identical files (one picture in the index)": tuple(found.identical.values()),
        "near-identical pictures (re-encoded, resized, gray or slightly cropped)": found.near_identical,
        "similar pictures (never removed)": found.similar,
    }
    for level, groups in levels.items():
        say(f"{level}: {counted(len(groups), 'group')}")
        for group in groups[:_MAX_LISTED]:
            say("  " + "  ".join(paths.get(each, each) for each in group))
        if len(groups) > _MAX_LISTED:
            say(f"  … and {len(groups) - _MAX_LISTED:,} more (--out FILE.json lists all)")
    if found.unread:
        say(f"{counted(found.unread, 'picture')} could not be read, so their pixels were not compared")
    for sentence in found.skipped:
        say(sentence)
    return paths


def _show_accelerators(accelerators: "Sequence[Accelerator]") -> None:
    rows = [
        (f"{each.by}s", f"{each.recall:.4f}", f"{each.probes:,} of {each.cells:,}",
         f"{each.exact_milliseconds:.2f} ms", f"{each.milliseconds:.2f} ms", f"{each.rows:,} vectors")
        for each in accelerators
    ]  # fmt: skip
    show_table(("vectors", "recall@10", "cells read", "time per lookup, exact", "accelerated", "measured with"), rows)


def _print_report(index: "Index") -> None:
    assert index.report is not None
    say(f"{index.address}: {index.report.summary()}; {counted(len(index), 'picture')}")
