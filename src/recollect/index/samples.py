"""Reads and embeds the samples of a source for an index."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from recollect.core.errors import UserError
from recollect.core.types import NO_LABEL, Encoder, ImageLike, Sample, Source
from recollect.data.prompts import fill
from recollect.data.sources.images import BrokenImageError, pixel_digest, prepared, reduced
from recollect.data.sources.reader import blocks_ahead
from recollect.index.exif import picture_facts
from recollect.index.picture import File, as_png, phash_of
from recollect.index.rows import plain

BLOCK = 256
"""Samples that are embedded together."""

_BROKEN_SHARE = 0.5
"""A folder of photos may have any number of damaged files; where most cannot be read, a disk failed or a column is
wrong."""

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
    broken_share: float = _BROKEN_SHARE
    engine: Literal["local", "ray"] = "local"
    early: bool = False


@dataclass(frozen=True)
class ReadPicture:
    """A sample whose picture was decoded; ``facts`` are `PICTURE_FACTS`, and ``vector`` is None if it is known."""

    id: str
    file: File
    facts: Mapping[str, Any]
    stored: bytes | None
    image: Any = None
    vector: np.ndarray | None = None


@dataclass(frozen=True)
class Unchanged:
    """A sample that is as it was; ``file`` says where it is now."""

    file: File


@dataclass(frozen=True)
class Failed:
    """A sample that cannot be read.

    Attributes:
        key: what its source calls the picture; None where only reading would have told.
    """

    message: str
    key: str | None


IngestOutcome = ReadPicture | Unchanged | Failed


@dataclass(frozen=True)
class SampleReader:
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

    def blocks(self, indices: Sequence[int]) -> Iterator[list[IngestOutcome]]:
        """Embedded blocks in order; pictures are decoded in threads while the encoder has the block before."""
        for block in blocks_ahead(self._read, indices, BLOCK):
            yield self._embedded(block)

    def _embedded(self, block: list[IngestOutcome]) -> list[IngestOutcome]:
        new = {each.id: each.image for each in block if isinstance(each, ReadPicture) and each.id not in self.ids}
        vectors = dict(zip(new, self.encoder.embed_images(list(new.values())).numpy(), strict=True)) if new else {}
        return [
            replace(each, image=None, vector=vectors.get(each.id)) if isinstance(each, ReadPicture) else each
            for each in block
        ]

    def _read(self, index: int) -> IngestOutcome:
        key = None
        try:
            original = self.source.original(index)
            key = name = self.source.picture_key(index, original)
            if isinstance(original, Path) and name and (same := self._by_stat(index, name, original)) is not None:
                return same
            with _broken_if_unreadable():
                encoded = original.read_bytes() if isinstance(original, Path) else original
            if name is not None and encoded is not None:
                content, sample = _hash(encoded), None
            else:
                sample = self.source.read(index)
                name, content = sample.id, pixel_digest(sample.image)
            key = name
            file = self._file(index, name, original, content, sample)
            if file.stamp in self.known.get(name, ()):
                return Unchanged(replace(file, said=self.known[name][file.stamp][1].said))
            sample = sample or self.source.read(index)
            return self._taken(sample, file, original, encoded)
        except BrokenImageError as error:
            return Failed(str(error), key)

    def _taken(self, sample: Sample, file: File, original: bytes | Path | None, encoded: bytes | None) -> ReadPicture:
        id = pixel_digest(sample.image)
        stored = self._stored(original, encoded, sample.image)
        small = reduced(self.encoder, sample.image)
        image = None if id in self.ids else prepared(self.encoder, small)
        facts = {**picture_facts(sample.image, encoded), "phash": phash_of(small), "folder": file.folder}
        said = {**self._said(sample), "exif": [facts["taken"], facts["camera"]]}
        return ReadPicture(id, replace(file, said=json.dumps(said, ensure_ascii=False)), facts, stored, image)

    def _by_stat(self, index: int, key: str, path: Path) -> Unchanged | None:
        """The file as the index knows it, where neither it nor what the source says about it has changed."""
        with _broken_if_unreadable():
            now = path.stat()
        for _, file in self.known.get(key, {}).values():
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
        with _broken_if_unreadable():
            now = original.stat()
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
        labeled = sample.label != NO_LABEL and bool(self.source.class_names)
        label = self.source.class_names[sample.label] if labeled else ""
        if sample.kind == "label" or not texts:
            made = labeled and self.options.template is not None
            texts = (fill(str(self.options.template), label),) if made else () if sample.kind == "label" else texts
        if self.options.captions == "first":
            texts = texts[:1]
        metadata = {key: plain(value) for key, value in sample.extra.items() if value is not None}
        said = {"captions": texts, "labels": [label] if label else [], "metadata": metadata}
        return {key: value for key, value in said.items() if value}


@contextmanager
def _broken_if_unreadable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BrokenImageError(f"{error.filename}: cannot be read ({error.strerror})") from None


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
