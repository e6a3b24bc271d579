"""From a source to rows: an upsert by the digest of the pixels, and by the set of (source, key).

`Index.build`, `Index.add` and `Index.watch` all come here. A picture that is there already, under any name and from any
source, gets another file and is not embedded again; a file that holds another picture now leaves its old row. Rows are
written in commits of whole blocks, so that a call that was killed continues where it was when it is made again.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image

from recollect.core.errors import UserError
from recollect.core.files import may_be_there
from recollect.core.progress import progress
from recollect.core.types import NO_LABEL, Encoder, ImageLike, Sample, Source
from recollect.data.prompts import fill
from recollect.data.sources.images import BrokenImageError, note
from recollect.data.sources.reading import BROKEN_SHARE, BrokenCounter, blocks_ahead
from recollect.index.exif import PictureFacts, picture_facts
from recollect.index.phash import phash_of
from recollect.index.rows import COLUMNS, ROUNDING, File, Rows, as_png, picture_id, plain

if TYPE_CHECKING:
    from recollect.data.sources.columns import Columns
    from recollect.index.index import Index

BLOCK = 256
"""Samples that are embedded together."""

_COMMIT = 16 * BLOCK  # rows of a commit, at most: what a kill can lose
_EARLY, _LATER = 1.0, 0.1  # seconds between early commits, at least, and as a share of the time so far

KeptPictures = Literal["source", "bytes", "path", "none"]
"""What an index stores of a picture: bytes or path as the source has it, always one of them, or nothing."""


@dataclass(frozen=True)
class IngestOptions:
    """How samples become rows.

    Attributes:
        captions: all captions of a sample, or only the first.
        template: makes a caption of a class name, for samples with a label and no caption; None makes none.
        pictures: what to store of them.
        limit: read only so many samples; then nothing is dropped because the source lacks it.
        near: leave out pictures with at least this cosine to one that is there (RECO: 0.94); None keeps them.
        broken_share: stop when more than this share of the pictures cannot be read.
        engine: embed in this process, or on a Ray cluster.
        early: commit within seconds at first, so that pictures can be searched while others are still read.
    """

    captions: Literal["all", "first"] = "all"
    template: str | None = None
    pictures: KeptPictures = "source"
    limit: int | None = None
    near: float | None = None
    broken_share: float = BROKEN_SHARE
    engine: Literal["local", "ray"] = "local"
    early: bool = False


@dataclass
class IngestReport:
    """What became of the samples of one call.

    Attributes:
        read: samples.
        added: new pictures.
        updated: pictures that were there and changed: another file, caption, label or value.
        unchanged: samples that are as they were.
        copies: samples whose picture was there already, under another name or from another source.
        gone: pictures that no source has any more.
        kept_out: samples whose picture the user removed.
        near: pictures left out because a near-duplicate was there.
        broken: what was wrong with pictures that could not be read.
        wordless: new pictures without a caption.
    """

    read: int = 0
    added: int = 0
    updated: int = 0
    unchanged: int = 0
    copies: int = 0
    gone: int = 0
    kept_out: int = 0
    near: int = 0
    broken: list[str] = field(default_factory=list)
    wordless: int = 0

    def summary(self) -> str:
        """One line for a reader."""
        parts = {
            "added": self.added, "updated": self.updated, "unchanged": self.unchanged, "copies": self.copies,
            "gone": self.gone, "removed by you and kept out": self.kept_out, "near-duplicates left out": self.near,
            "unreadable": len(self.broken),
        }  # fmt: skip
        return f"{self.read:,} read: " + ", ".join(f"{count:,} {what}" for what, count in parts.items() if count)


def ingest(
    index: "Index",
    source: str | Path | Source,
    name: str = "",
    options: IngestOptions | None = None,
    on_block: Callable[[IngestReport, int], None] | None = None,
) -> IngestReport:
    """Bring an index up to date with a source; see `Index.add`.

    Pictures that the source no longer has leave the index once the source was read to its end. A file in a folder that
    may not be read now is not a file that is gone. Pictures that the user removed stay removed under any name.

    Raises:
        UserError: the source cannot be read, its name belongs to another source, or too many pictures are broken.
    """
    options = options or IngestOptions()
    if not isinstance(source, Source):
        source = open_pictures(str(source))
    called = name or source.name.removesuffix(":all")
    known = _Known.read(index, called)
    _check_name(index, known, source, called, bool(name))
    stop = len(source) if options.limit is None else min(options.limit, len(source))
    reader = Reader(index.encoder, source, called, options, known.files, frozenset(known.ids))
    writer = _Writer(index, options, known, IngestReport())
    counted = BrokenCounter(options.broken_share, "--broken-share")
    with progress(f"embed {source.name}", stop, "pictures") as counter:
        for block in _blocks(reader, stop, options.engine):
            failures = [each.message for each in block if isinstance(each, Failed)]
            for each in block:
                writer.take(each)
            counted.add(source, len(block), failures)
            counter.advance(len(block))
            if on_block is not None:
                on_block(writer.report, stop)
        writer.commit()
    writer.drop_unseen(whole=stop == len(source))
    return writer.report


def open_pictures(spec: str, split: str | None = None, columns: "Columns | None" = None) -> Source:
    """Open a source for an index: all its splits where none is named, pictures without texts included.

    Raises:
        UserError: the source, split or column does not exist.
    """
    from recollect.data.sources import open_source  # loads datasets, which a search does not need
    from recollect.data.sources.generated import is_generated
    from recollect.data.sources.opening import split_of

    if split is None and not is_generated(spec):
        split = split_of(spec) or "all"
    return open_source(spec, split=split, columns=columns, keep_textless=True)


def _blocks(reader: "Reader", stop: int, engine: str) -> "Iterator[list[Outcome]]":
    if engine == "ray":
        from recollect.index.ray import ray_blocks

        return ray_blocks(reader, stop)
    return reader.blocks(range(stop))


def _check_name(index: "Index", known: "_Known", source: Source, called: str, given: bool) -> None:
    """Reject a source whose name belongs to another one, unless the user gave it that name."""
    if given or not known.places or source.place in known.places:
        return
    other = next(iter(known.places)) or "an earlier source"
    raise UserError(
        f"{index.address}: another source is called '{called}' already, read from {other}. Give this one another name "
        f"with --name NAME; if it is a newer version of that one, say so with --name '{called}'."
    )


@dataclass
class _Known:
    """What an index holds before a source is read.

    Attributes:
        files: of this source, by key, with the id of their picture.
        ids: of all pictures; True for those that the user removed.
        places: of this source.
    """

    files: dict[str, dict[str, tuple[str, File]]] = field(default_factory=dict)
    ids: dict[str, bool] = field(default_factory=dict)
    places: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, index: "Index", called: str) -> "_Known":
        found = cls()
        for table in index.store.scan(["id", "files", "removed"], removed=None):
            columns = (table[name].to_pylist() for name in ("id", "files", "removed"))
            for id, files, removed in zip(*columns, strict=True):
                found.ids[id] = removed
                for each in files:
                    if each["source"] == called:
                        file = File(**each)
                        found.files.setdefault(file.key, {})[file.stamp] = (id, file)
                        found.places.add(file.place)
        return found


@dataclass(frozen=True)
class Read:
    """A sample whose picture was decoded; ``vector`` is None where its picture is known."""

    id: str
    file: File
    facts: PictureFacts
    phash: str
    folder: str
    stored: bytes | None
    image: Any = None
    vector: np.ndarray | None = None


@dataclass(frozen=True)
class Unchanged:
    """A sample that is as it was; ``file`` says where it is now."""

    file: File


@dataclass(frozen=True)
class Failed:
    """A sample that cannot be read."""

    message: str
    key: str


Outcome = Read | Unchanged | Failed


@dataclass(frozen=True)
class Reader:
    """Reads and embeds the samples of a source; it can be sent to another process.

    Attributes:
        encoder: embeds pictures.
        source: where samples come from.
        called: what the index calls it.
        options: how samples become rows.
        known: files of the source that the index has, by key and stamp.
        ids: of all pictures that need not be embedded.
    """

    encoder: Encoder
    source: Source
    called: str
    options: IngestOptions
    known: Mapping[str, Mapping[str, tuple[str, File]]] = field(default_factory=dict)
    ids: frozenset[str] = frozenset()

    def blocks(self, indices: Sequence[int]) -> Iterator[list[Outcome]]:
        """Embedded blocks in order; pictures are decoded in threads while the encoder has the block before."""
        for block in blocks_ahead(self._read, indices, BLOCK):
            yield self._embedded(block)

    def _embedded(self, block: list[Outcome]) -> list[Outcome]:
        new = {each.id: each.image for each in block if isinstance(each, Read) and each.id not in self.ids}
        vectors = (
            dict(zip(new, self.encoder.embed_images(_stacked(list(new.values()))).numpy(), strict=True)) if new else {}
        )
        return [
            replace(each, image=None, vector=vectors.get(each.id)) if isinstance(each, Read) else each for each in block
        ]

    def _read(self, index: int) -> Outcome:
        key = ""
        try:
            original = self.source.original(index)
            name = self.source.picture_key(index, original)
            key = name or ""
            if isinstance(original, Path) and name is not None:
                same = self._by_stat(index, name, original)
                if same is not None:
                    return same
            encoded = _bytes_of(original)
            if name is not None and encoded is not None:
                content, sample = _hash(encoded), None
            else:
                sample = self.source.read(index)
                name, content = sample.id, picture_id(sample.image)
            key = name
            file = self._file(index, name, original, content, sample)
            if file.stamp in self.known.get(name, ()):
                return Unchanged(replace(file, said=self.known[name][file.stamp][1].said))
            sample = sample or self.source.read(index)
            file = replace(file, said=json.dumps(self._said(sample), ensure_ascii=False))
            return self._taken(sample, file, original, encoded)
        except BrokenImageError as error:
            return Failed(str(error), key)

    def _taken(self, sample: Sample, file: File, original: bytes | Path | None, encoded: bytes | None) -> Read:
        id = picture_id(sample.image)
        stored = self._stored(original, encoded, sample.image)
        facts = picture_facts(sample.image, encoded)
        folder = Path(file.key).parent.as_posix() if file.path else "."
        folder = Path(file.place).name if file.path and folder == "." else "" if folder == "." else folder
        image = None if id in self.ids else _prepared(self.encoder, sample.image)
        return Read(id, file, facts, phash_of(sample.image), folder, stored, image)

    def _by_stat(self, index: int, key: str, path: Path) -> Unchanged | None:
        """The file as the index knows it, where neither it nor what the source says about it has changed."""
        entries = self.known.get(key, {})
        try:
            now = path.stat()
        except OSError:
            return None
        for _, file in entries.values():
            same = (file.size, file.mtime, file.ctime) == (now.st_size, now.st_mtime_ns, now.st_ctime_ns)
            same = same and file.path == self._path(path)
            if same and file.stamp.endswith(f"-{self._facts(index, None)}"):
                return Unchanged(file)
        return None

    def _facts(self, index: int, sample: Sample | None) -> str:
        """Changes whenever what the source says about a sample, or what is made of it, does."""
        made = (self.options.captions, self.options.template, self.options.pictures)
        return _hash(f"{made} {self.source.facts(index, sample)}".encode())

    def _file(self, index: int, key: str, original: bytes | Path | None, content: str, sample: Sample | None) -> File:
        file = File(self.called, key, place=self.source.place, stamp=f"{content}-{self._facts(index, sample)}")
        if not isinstance(original, Path):
            return file
        try:
            now = os.stat(original)
        except OSError as error:
            raise BrokenImageError(f"{original}: cannot be read ({error.strerror})") from None
        return replace(file, path=self._path(original), size=now.st_size, mtime=now.st_mtime_ns, ctime=now.st_ctime_ns)

    def _path(self, path: Path) -> str:
        return "" if self.options.pictures == "none" else str(path)

    def _stored(self, original: bytes | Path | None, encoded: bytes | None, image: ImageLike) -> bytes | None:
        """The encoded picture that the index stores; None where a file has it, or none is wanted."""
        keep, named = self.options.pictures, isinstance(original, Path)
        if keep == "none" or (isinstance(image, np.ndarray) and image.ndim == 1):
            return None
        if keep == "path" and not named:
            raise UserError(f"{self.source.name}: its pictures are not files. Use --pictures bytes or none.")
        if named:
            return encoded if keep == "bytes" else None
        return encoded or as_png(image)

    def _said(self, sample: Sample) -> dict[str, Any]:
        """What a sample says: captions, label and other columns."""
        texts = tuple(text.strip() for text in sample.texts if text.strip())
        labelled = sample.label != NO_LABEL and bool(self.source.class_names)
        label = self.source.class_names[sample.label] if labelled else ""
        if sample.kind == "label" or not texts:
            made = labelled and self.options.template is not None
            texts = (fill(str(self.options.template), label),) if made else () if sample.kind == "label" else texts
        if self.options.captions == "first":
            texts = texts[:1]
        metadata = {key: plain(value) for key, value in sample.extra.items() if value is not None}
        said = {"captions": texts, "labels": [label] if label else [], "metadata": metadata}
        return {key: value for key, value in said.items() if value}


class _Writer:
    """Writes what was read in commits.

    Args:
        index: to write to.
        options: of the call.
        known: what the index held before.
        report: counts.
    """

    def __init__(self, index: "Index", options: IngestOptions, known: _Known, report: IngestReport) -> None:
        self.index, self.options, self.known, self.report = index, options, known, report
        self.seen: set[tuple[str, str]] = set()
        self.keys: set[str] = set()
        self._waiting: dict[str, list[Read]] = {}
        self._moved: dict[str, list[File]] = {}
        self._count = 0
        self._began = self._committed = time.monotonic()

    def take(self, outcome: Outcome) -> None:
        """Count a sample, and write when enough are waiting."""
        self.report.read += 1
        if isinstance(outcome, Failed):
            self.report.broken.append(outcome.message)
            self.seen |= {(outcome.key, stamp) for stamp in self.known.files.get(outcome.key, ())}
            return
        file = outcome.file
        self.seen.add((file.key, file.stamp))
        self.keys.add(file.key)
        if isinstance(outcome, Unchanged):
            self._unchanged(file)
        elif outcome.id in self._waiting or outcome.id in self.known.ids or not self._near(outcome):
            self._waiting.setdefault(outcome.id, []).append(outcome)
            self._count += 1
            if self._count >= _COMMIT or (self.options.early and self._due()):
                self.commit()

    def _due(self) -> bool:
        """Whether the next early commit is due; fewer come as time goes by, since each costs a new part."""
        now = time.monotonic()
        return now - self._committed > max(_EARLY, _LATER * (now - self._began))

    def _unchanged(self, file: File) -> None:
        self.report.unchanged += 1
        id, before = self.known.files[file.key][file.stamp]
        self.report.kept_out += self.known.ids[id]
        if before != file:  # the same picture in another place, or written again
            self._moved.setdefault(id, []).append(file)

    def _near(self, read: Read) -> bool:
        """Whether a near-duplicate is there or waiting; then the picture is left out."""
        if self.options.near is None or read.vector is None:
            return False
        limit, vector = self.options.near - ROUNDING, read.vector.astype(np.float64)
        waiting = [each[0].vector for each in self._waiting.values() if each[0].vector is not None]
        near = any(float(vector @ each.astype(np.float64)) >= limit for each in waiting)
        near = near or (bool(len(self.index)) and bool(self.index.near(read.vector[None], self.options.near)))
        self.report.near += near
        return near

    def commit(self) -> None:
        """Write what is waiting, all of it or nothing."""
        ids = list(dict.fromkeys((*self._waiting, *self._moved)))
        if not ids:
            return
        with self.index.store.writing():
            there = Rows.of_table(self.index.store.rows(ids, COLUMNS))
            old = {id: row for row, id in enumerate(there.ids)}
            changed = self._changed(there, old)
            new = [self._row(self._waiting[id]) for id in self._waiting if id not in old]
            rows = _joined([changed, *new], self.index.width)
            if len(rows):
                self.index.upsert_merged(rows)
        self.report.updated += len(changed)
        self.report.added += len(new)
        self.report.wordless += sum(not any("captions" in json.loads(f.said) for f in row.files[0]) for row in new)
        self.known.ids |= {id: self.known.ids.get(id, False) for id in self._waiting}
        self._waiting, self._moved, self._count = {}, {}, 0
        self._committed = time.monotonic()

    def _changed(self, there: Rows, old: Mapping[str, int]) -> Rows:
        """Rows that are there, with the files that were read."""
        files, images = [list(each) for each in there.files], list(there.images)
        for id, row in old.items():
            reads = self._waiting.get(id, [])
            mine = [each.file for each in reads] + self._moved.get(id, [])
            replaced = {(file.source, file.key, file.stamp) for file in mine}
            known = {(file.source, file.key) for file in files[row]}
            files[row] = [each for each in files[row] if (each.source, each.key, each.stamp) not in replaced]
            files[row] += dict.fromkeys(mine)
            images[row] = images[row] or next((each.stored for each in reads if each.stored), None)
            copies = sum((each.file.source, each.file.key) not in known for each in reads)
            self.report.copies += copies if not there.removed[row] else 0
            self.report.kept_out += len(reads) if there.removed[row] else 0
        return replace(there, files=files, images=images)

    def _row(self, reads: list[Read]) -> Rows:
        """A new picture."""
        first = reads[0]
        self.report.copies += len(reads) - 1
        vector = first.vector
        if vector is None:  # another process deleted the row after we saw that it was there
            raise UserError(f"{self.index.address}: picture {first.id} was deleted meanwhile. Run the command again.")
        return Rows(
            image_vectors=vector[None], captions=[()], caption_vectors=[np.zeros((0, len(vector)), dtype=np.float32)],
            ids=[first.id], files=[tuple(dict.fromkeys(each.file for each in reads))], folder=[first.folder],
            phash=[first.phash], images=[first.stored], own=[{}], removed=[False], labels=[()], metadata=[{}],
            **{name: [value] for name, value in asdict(first.facts).items()},
        )  # fmt: skip

    def drop_unseen(self, whole: bool) -> None:
        """Drop files that changed, and after a whole reading those that the source no longer has."""
        gone: dict[str, set[tuple[str, str]]] = {}
        hidden = 0
        for key, entries in self.known.files.items():
            for stamp, (id, file) in entries.items():
                if (key, stamp) in self.seen or not (whole or key in self.keys):
                    continue
                if key not in self.keys and file.path and may_be_there(Path(file.path)):
                    hidden += 1
                    continue
                gone.setdefault(id, set()).add((key, stamp))
        if hidden:
            note(f"{self.index.address}: {hidden:,} files are in folders that cannot be read now; their pictures stay")
        if gone:
            called = next(iter(self.known.files.values()))
            source = next(iter(called.values()))[1].source
            unwanted = set().union(*gone.values())
            self.report.gone += self.index.drop_files(
                list(gone), lambda file: file.source == source and (file.key, file.stamp) in unwanted
            )


def _joined(parts: Sequence[Rows], width: int) -> Rows:
    filled = [part for part in parts if len(part)]
    if not filled:
        return Rows(image_vectors=np.zeros((0, width), dtype=np.float32))
    vectors = np.concatenate([part.image_vectors for part in filled if part.image_vectors is not None])
    names = [name for name in Rows.__dataclass_fields__ if name != "image_vectors"]
    return Rows(vectors, **{name: [each for part in filled for each in getattr(part, name)] for name in names})


def _prepared(encoder: Encoder, image: ImageLike) -> Any:
    """What the image tower reads, made in the reading thread so that large pictures are not kept."""
    transform = getattr(encoder, "transform", None)
    if transform is None or transform.packs or (isinstance(image, np.ndarray) and image.ndim == 1):
        return image
    return transform(_reduced(image, transform.needed))


def _reduced(image: ImageLike, needed: int) -> ImageLike:
    """A large picture averaged over squares of pixels, with sides of at least twice what is needed.

    Bicubic resizing of a whole photograph takes longer than decoding it.
    """
    if not isinstance(image, Image.Image) or (factor := min(image.size) // (2 * needed)) < 2:
        return image
    return image.reduce(factor)


def _stacked(images: list[Any]) -> Any:
    import torch

    return torch.stack(images) if all(isinstance(each, torch.Tensor) for each in images) else images


def _bytes_of(original: bytes | Path | None) -> bytes | None:
    try:
        return original.read_bytes() if isinstance(original, Path) else original
    except OSError as error:
        raise BrokenImageError(f"{error.filename}: cannot be read ({error.strerror})") from None


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
