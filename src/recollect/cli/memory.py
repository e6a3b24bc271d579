"""``recollect memory build|add|remove|watch``: image–text pairs of sources, kept, and in step with them."""

from dataclasses import dataclass, field, replace
from typing import Literal

import tyro

from recollect.cli.memory_upkeep import remove_rows
from recollect.cli.positionals import MemoryPlace, ModelPlace, SourcePlace
from recollect.cli.unread import refuse_unread, split_for
from recollect.core.errors import UserError
from recollect.core.files import check_writable
from recollect.core.progress import output, printable
from recollect.core.types import Source
from recollect.core.words import counted
from recollect.data.sources import open_source
from recollect.data.sources.columns import Columns
from recollect.data.sources.generated import is_generated
from recollect.data.sources.opening import left_by_default, split_of
from recollect.evaluation.features import image_features
from recollect.memory.build.building import (
    BuildOptions,
    BuildReport,
    check_alone,
    check_name,
    fill_memory,
    open_for_build,
)
from recollect.memory.build.reading import KeepPictures, Reader, ReadOptions
from recollect.memory.opening import open_model_of
from recollect.memory.rows import VectorPrecision
from recollect.memory.store import NEAR, Memory
from recollect.models import DualEncoder, load_model


@dataclass(frozen=True)
class PairOptions:
    """Which pairs to read, and what to leave out."""

    split: str | None = None
    """Split of the source; its training split by default."""
    limit: int | None = None
    """Read only so many samples; the built-in streams need it, since they never end."""
    captions: Literal["first", "each"] = "first"
    """The first caption of an image, or a row for each."""
    name: str = ""
    """What the memory calls the source; by default its file's or folder's name. A source of a name that is there
    already counts as a newer edition: its rows replace those."""
    template: str | None = None
    """Make a text of the class of an image that has no caption, e.g. "a photo of a {}."; by default a class is a label
    (metadata `label`), and no text."""
    pictures: KeepPictures = "source"
    """What to keep of a picture: bytes or path as the source has it, or always one of both, or nothing."""
    keep_same: bool = False
    """Also add rows whose picture and caption are there already."""
    near: float | None = None
    """Leave out rows whose image has at least this cosine with one that is there; 0.94 in RECO."""
    broken_share: float = 0.01
    """Share of pictures that may be unreadable before the build stops."""
    device: str | None = None
    """Where to compute; the best there is by default."""
    image_column: str | None = None
    """Where its name is unusual, as for the next two."""
    caption_column: str | None = None
    label_column: str | None = None

    def check(self, spec: str) -> None:
        """Refuse options that say nothing of this source, or beside the others.

        Raises:
            UserError: one was given.
        """
        if is_generated(spec):
            columns = ("image_column", "caption_column", "label_column")
            refuse_unread(self, *columns, why=f"is for files with columns; {spec} has none. Leave it out.")
        split_for(spec, self.split)

    def source(self, spec: str) -> Source:
        """Open the source."""
        columns = Columns(image=self.image_column, caption=self.caption_column, label=self.label_column)
        source = open_source(spec, split=self.split, columns=columns, keep_textless=True)
        if source.endless and self.limit is None:
            raise UserError(
                f"{spec}: has no end. Say how many pairs to take with --limit N, or in its address: ?size=N."
            )
        if self.split is None and (others := left_by_default(spec, source)):
            read = f"{spec}: {len(source):,} samples, those of its training split, and not {others:,} of its others"
            output().print(printable(f"{read}; --split all takes all"), highlight=False, soft_wrap=True)
        return source

    def reader(self, spec: str, encoder: DualEncoder) -> Reader:
        """Makes rows of the source."""
        if self.template is not None and "{}" not in self.template:
            raise UserError(f"--template {self.template}: needs {{}} for the class name")
        read = ReadOptions(self.captions, self.template, self.pictures)
        return Reader(encoder, self.source(spec), encoder.fingerprint, read, self.name)

    def build(self) -> BuildOptions:
        """What to leave out."""
        if self.near is not None and not 0 < self.near <= 1:
            raise UserError(f"--near {self.near}: a cosine lies above 0 and at most at 1")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"--limit {self.limit}: must be at least 1")
        if not 0 <= self.broken_share <= 1:
            raise UserError(f"--broken-share {self.broken_share:g}: a share lies between 0 and 1")
        return BuildOptions(limit=self.limit, same=not self.keep_same, near=self.near, broken_share=self.broken_share)


@dataclass(frozen=True)
class Build:
    """Embed pictures, with their texts where they have some, and keep them in a new memory.

    A build that was stopped or killed goes on with the same command: the memory opens at its last whole commit, and no
    pair is lost or added twice.
    """

    model: ModelPlace
    """RUN/model, any folder of a CLIP-type checkpoint, or a hub id."""
    data: SourcePlace
    """A folder of pictures; a table, shards or hub id with captions or classes; glyphs:captions or latents:captions."""
    out: str
    """The memory: a folder, or milvus://host:port/collection."""
    precision: VectorPrecision = "float16"
    """Of the vectors that are kept: half precision changes a cosine by about 1e-5 and takes half the space."""
    pairs: tyro.conf.OmitArgPrefixes[PairOptions] = field(default_factory=PairOptions)

    def run(self) -> None:
        """Build, and say what was added."""
        check_writable(None if "://" in self.out else self.out, "--out")
        self.pairs.check(self.data)
        encoder = load_model(self.model, self.pairs.device)
        reader, options = self.pairs.reader(self.data, encoder), self.pairs.build()
        memory = open_for_build(self.out, encoder, self.model, self.precision)
        check_alone(memory, reader)
        _say(memory, fill_memory(memory, reader, options), reader.called)
        memory.prepare()  # now, rather than when somebody waits for a first answer


@dataclass(frozen=True)
class Add:
    """Embed the pairs of a source and add them to a memory, which may be in use meanwhile."""

    memory: MemoryPlace
    """Its folder, or milvus://host:port/collection."""
    data: SourcePlace
    """A source of pairs; one that is there already is a newer edition of itself."""
    model: str | None = None
    """The model that embedded the memory; by default where it was then."""
    bring_back: tuple[str, ...] = ()
    """Pictures of this source that were removed and are to come in again: ids, files, or all."""
    pairs: tyro.conf.OmitArgPrefixes[PairOptions] = field(default_factory=PairOptions)

    def run(self) -> None:
        """Add, and say what was added."""
        self.pairs.check(self.data)
        memory = Memory.open(self.memory)
        encoder, _ = open_model_of(memory, self.model, self.pairs.device)
        reader = self.pairs.reader(self.data, encoder)
        options = replace(self.pairs.build(), bring_back=self.bring_back)
        check_name(memory, reader)
        _say(memory, fill_memory(memory, reader, options), reader.called)


@dataclass(frozen=True)
class Remove:
    """Remove rows by id, by filter, or because they are near-duplicates of images that will be tested.

    Their pictures stay away when their source is read again: `memory add MEMORY SOURCE --bring-back all` takes it back.
    """

    memory: MemoryPlace
    """Its folder, or milvus://host:port/collection."""
    ids: tuple[str, ...] = ()
    """Ids of rows, or the files of their pictures."""
    where: str | None = None
    """A filter, e.g. "source = 'emoji' and year < 2015"."""
    near: str | None = None
    """A source: remove every row whose image is a near-duplicate of one of its images."""
    model: str | None = None
    """For --near, the model that embedded the memory; by default where it was then."""
    split: str | None = None
    """For --near, the source's split; by default test, or all of a source that has none of that name."""
    threshold: float = NEAR
    """For --near, the cosine from which two images count as one."""
    dry_run: bool = False
    """Only say what would go, and what share of all rows that is."""
    device: str | None = None
    """For --near, where to compute."""

    def run(self) -> None:
        """Remove, and say how many are left."""
        if sum((bool(self.ids), self.where is not None, self.near is not None)) != 1:
            raise UserError("say what to remove: one of --ids, --where and --near")
        if self.near is not None:
            split_for(self.near, self.split)
        else:
            refuse_unread(self, "model", "split", "threshold", "device", why="is for --near SOURCE. Leave it out.")
        if not -1 <= self.threshold <= 1:
            raise UserError(f"--threshold {self.threshold:g}: a cosine lies between -1 and 1")
        memory = Memory.open(self.memory)
        if self.where is not None:
            ids = memory.ids_where(self.where)
        else:
            ids = self._near_ids(memory) if self.near else memory.ids_of(list(dict.fromkeys(self.ids)))
        remove_rows(memory, ids, self.dry_run)

    def _near_ids(self, memory: Memory) -> list[str]:
        assert self.near is not None
        encoder, _ = open_model_of(memory, self.model, self.device)
        features = image_features(encoder, self._compared(self.near))
        return memory.near_duplicates(features.images, self.threshold)

    def _compared(self, near: str) -> Source:
        if self.split is not None or split_of(near) is not None:
            return open_source(near, split=split_for(near, self.split))
        try:
            return open_source(near, split="test")
        except UserError:
            source = open_source(near, split="all")
        output().print(printable(f"{near}: has no split 'test'; all of it is compared"), highlight=False)
        return source


def _say(memory: Memory, report: BuildReport, name: str) -> None:
    console = output()
    parts = [f"{counted(report.added, 'row')} added"]
    if report.replaced:
        parts.append(f"{report.replaced:,} replaced")
    if report.wordless:
        parts[-1] += f" ({report.wordless:,} without a text)"
    if report.removed:
        parts.append(f"{report.removed:,} removed that this edition of {name} has no more")
    if report.unchanged:
        parts.append(f"{report.unchanged:,} there already as they are")
    if report.moved:
        parts[-1] += f" ({report.moved:,} of them in another place now)"
    left_out = {"the same as others": report.same, "near-duplicates": report.near, "broken": report.broken}
    parts += [f"{count:,} left out as {why}" for why, count in left_out.items() if count]
    if report.away:
        parts.append(f"{report.away:,} left out as removed earlier (--bring-back all brings them back)")
    if report.earlier:
        parts.append(f"{counted(report.earlier, 'sample')} read before")
    line = f"{memory.address}: {'; '.join(parts)}; {counted(len(memory), 'row')} now"
    console.print(printable(line), highlight=False, soft_wrap=True)
