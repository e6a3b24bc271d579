"""``recollect index build|add|watch``: pictures of a source become an index, and the index follows the source."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from recollect.cli.index import OnIndex
from recollect.cli.parser import Arg, say, warn_unused
from recollect.core.paths import check_writable
from recollect.core.validation import check_number, refuse

if TYPE_CHECKING:
    from recollect.core.types import Encoder, Source
    from recollect.index import Index, IngestOptions


@dataclass(frozen=True)
class SourceOptions:
    """How the samples of a source become pictures of an index."""

    name: str = ""
    """What the index calls the source (default: the name of its file or folder)."""
    split: str | None = None
    """Split of the source (default: all splits)."""
    limit: int | None = None
    """Read only this many samples; needed for sources without an end."""
    captions: Literal["all", "first"] = "all"
    """Captions of a sample to keep."""
    pictures: Literal["source", "bytes", "path", "none"] = "source"
    """What to store of a picture: bytes or path as the source has it, always one of them, or nothing."""
    near: float | None = None
    """Leave out pictures with at least this cosine to one in the index (RECO: 0.94)."""
    engine: Literal["local", "ray"] = "local"
    """Embed in this process, or on the Ray cluster named by RAY_ADDRESS (default: on this machine)."""
    device: str | None = None
    """Device to embed on (default: the best one)."""
    template: Annotated[str | None, Arg(rare=True)] = None
    """Make a caption of the class of a picture without captions, e.g. "a photo of a {}."."""
    broken_share: Annotated[float, Arg(rare=True)] = 0.01
    """Share of unreadable pictures above which reading stops."""
    image_column: Annotated[str | None, Arg(rare=True)] = None
    """Column of a table with the pictures, if it has an unusual name."""
    caption_column: Annotated[str | None, Arg(rare=True)] = None
    """Column of a table with the captions."""
    label_column: Annotated[str | None, Arg(rare=True)] = None
    """Column of a table with the classes."""

    def check(self) -> None:
        """Reject impossible values before anything is opened."""
        unfilled = self.template is not None and "{}" not in self.template
        refuse((unfilled, f"--template {self.template}: needs {{}} for the class name"))
        if self.near is not None:
            check_number("--near", self.near, above=0, most=1)
        if self.limit is not None:
            check_number("--limit", self.limit, least=1)
        check_number("--broken-share", self.broken_share, least=0, most=1)
        if self.engine == "ray":
            warn_unused(self, "device", why="with --engine ray each worker uses its best device.")

    def open(self, source: str) -> "Source":
        """Open the source."""
        from recollect.data.sources.columns import Columns
        from recollect.index.ingest import open_pictures

        columns = Columns(image=self.image_column, caption=self.caption_column, label=self.label_column)
        opened = open_pictures(source, self.split, columns)
        unlimited = opened.endless and self.limit is None
        refuse((unlimited, f"{source}: is endless. Add --limit N, or write {source}?size=N."))
        return opened

    def ingest(self) -> "IngestOptions":
        """For `Index.add`."""
        from recollect.index import IngestOptions

        return IngestOptions(
            self.captions, self.template, self.pictures, self.limit, self.near, self.broken_share, self.engine
        )


@dataclass(frozen=True)
class Build:
    """Index the pictures of a source: a folder, a table, shards or a hub id.

    The same command again continues a build that was interrupted, or brings the index up to date: pictures that are
    there already are not embedded again. Identical pictures become one row, whatever their files are called.
    """

    source: Annotated[str, Arg(place="SOURCE")]
    """A folder of pictures; or a table, shards or a hub id with captions or classes."""
    out: str
    """The index: a folder, or milvus://host:port/collection."""
    model: str | None = None
    """Model to embed with: RUN/model, the folder of a checkpoint, or a hub id."""
    precision: Literal["float16", "float32"] = "float16"
    """Precision of the stored vectors; float16 changes a cosine by about 1e-5 and takes half the space."""
    reading: Annotated[SourceOptions, Arg(flat=True)] = field(default_factory=SourceOptions)

    def run(self) -> None:
        """Build, and print what was added."""
        from recollect.index import Index

        check_writable(None if "://" in self.out else self.out, "--out")
        self.reading.check()
        source = self.reading.open(self.source)
        model = _model(self.model, self.reading.device)
        index = Index.build(source, model, out=self.out, name=self.reading.name, options=self.reading.ingest(),
                            precision=self.precision, model_name=self.model or "")  # fmt: skip
        _print_report(index)


@dataclass(frozen=True)
class Add(OnIndex):
    """Add the pictures of a source to an index, or bring it up to date with a source that it has already.

    The index can be used meanwhile.
    """

    source: Annotated[str, Arg(place="SOURCE")]
    """A folder of pictures; or a table, shards or a hub id with captions or classes."""
    model: str | None = None
    """Model of the index (default: where it was when the index was built)."""
    reading: Annotated[SourceOptions, Arg(flat=True)] = field(default_factory=SourceOptions)

    def run(self) -> None:
        """Add, and print what was added."""
        self.reading.check()
        index = self.open(_model(self.model, self.reading.device))
        index.add(self.reading.open(self.source), name=self.reading.name, options=self.reading.ingest())
        _print_report(index)


@dataclass(frozen=True)
class Watch(OnIndex):
    """Keep an index up to date with a folder: new pictures are added, changed ones replaced, deleted ones dropped.

    Stop with Ctrl-C; the next call continues. If the folder disappears or is empty, nothing is dropped.
    """

    folder: Annotated[Path, Arg(place="FOLDER")]
    """The folder of pictures, with its subfolders."""
    model: str | None = None
    """Model of the index (default: where it was when the index was built)."""
    name: str = ""
    """What the index calls the folder (default: its own name)."""
    every: float = 2.0
    """Polling interval in seconds; a change is read once nothing has changed between two polls."""

    def run(self) -> None:
        """Watch until interrupted."""
        from recollect.index.watch import FolderWatch

        check_number("--every", self.every, above=0)
        index = self.open(self.model)
        watch = FolderWatch(index, self.folder, self.name)
        say(f"watching {self.folder}; stop with Ctrl-C")
        watch.follow(self.every, lambda report: _print_report(index))


def _model(name: str | None, device: str | None) -> "Encoder | None":
    if name is None:
        return None
    from recollect.models import load_model

    return load_model(name, device)


def _print_report(index: "Index") -> None:
    assert index.report is not None
    say(f"{index.address}: {index.report.summary()}; {len(index):,} pictures")
