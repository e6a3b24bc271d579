"""Read and embed the samples of a source for an index."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from recollect.core.content import hash_of
from recollect.core.errors import UserError
from recollect.core.types import NO_LABEL, Encoder, ImageLike, Sample, Source
from recollect.data.prompts import fill
from recollect.data.sources.images import BrokenImageError, pixel_digest, prepare_image
from recollect.data.sources.reader import blocks_ahead
from recollect.index.exif import picture_facts
from recollect.index.options import IngestOptions
from recollect.index.picture import File, as_png, phash_of
from recollect.index.rows import plain

BLOCK = 256
"""Samples per batch."""


@dataclass(frozen=True)
class ReadPicture:
    """A sample with a decoded picture.

    Attributes:
        facts: values of `PICTURE_FACTS`.
        stored: encoded picture to store in the index, or None.
        image: input of the image tower, until it is embedded.
        vector: None if the picture is already in the index.
    """

    id: str
    file: File
    facts: Mapping[str, Any]
    stored: bytes | None
    image: Any = None
    vector: np.ndarray | None = None


@dataclass(frozen=True)
class Unchanged:
    """An unchanged sample; ``file`` has its current path and times."""

    file: File


@dataclass(frozen=True)
class Failed:
    """An unreadable sample.

    Attributes:
        key: key of the sample in its source; None if reading failed before it was known.
    """

    message: str
    key: str | None


IngestOutcome = ReadPicture | Unchanged | Failed


@dataclass(frozen=True)
class SampleReader:
    """Reads and embeds the samples of a source; can be pickled.

    Attributes:
        encoder: embeds pictures.
        source: source of the samples.
        source_name: name of the source in the index.
        options: how samples become rows.
        known: files of the source in the index, with their picture's id, by key and stamp.
        ids: ids of pictures that are not embedded again.
    """

    encoder: Encoder
    source: Source
    source_name: str
    options: IngestOptions
    known: Mapping[str, Mapping[str, tuple[str, File]]] = field(default_factory=dict)
    ids: frozenset[str] = frozenset()

    def blocks(self, indices: Sequence[int]) -> Iterator[list[IngestOutcome]]:
        """Yield embedded blocks in order; threads decode the next block while the encoder runs."""
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
                content, sample = hash_of(encoded), None
            else:
                sample = self.source.read(index)
                name, content = sample.id, pixel_digest(sample.image)
            key = name
            file = self._file(index, name, original, content, sample)
            if file.stamp in self.known.get(name, ()):
                return Unchanged(replace(file, said=self.known[name][file.stamp][1].said))
            sample = sample or self.source.read(index)
            return self._read_picture(sample, file, original, encoded)
        except BrokenImageError as error:
            return Failed(str(error), key)

    def _read_picture(
        self, sample: Sample, file: File, original: bytes | Path | None, encoded: bytes | None
    ) -> ReadPicture:
        id = pixel_digest(sample.image)
        stored = self._stored(original, encoded, sample.image)
        image = None if id in self.ids else prepare_image(self.encoder, sample.image)
        facts = {**picture_facts(sample.image, encoded), "phash": phash_of(sample.image), "folder": file.folder}
        said = {**self._said(sample), "exif": [facts["taken"], facts["camera"]]}
        return ReadPicture(id, replace(file, said=json.dumps(said, ensure_ascii=False)), facts, stored, image)

    def _by_stat(self, index: int, key: str, path: Path) -> Unchanged | None:
        """Return the indexed file if its size, times, path and annotations are unchanged, else None."""
        with _broken_if_unreadable():
            now = path.stat()
        for _, file in self.known.get(key, {}).values():
            same = (file.size, file.mtime, file.ctime) == (now.st_size, now.st_mtime_ns, now.st_ctime_ns)
            same = same and file.path == self._path(path)
            if same and file.stamp.endswith(f"-{self._facts(index, None)}"):
                return Unchanged(file)
        return None

    def _facts(self, index: int, sample: Sample | None) -> str:
        """Return a hash of the sample's annotations in the source and of the options applied to them."""
        options = (self.options.captions, self.options.template, self.options.pictures)
        return hash_of(f"{options} {self.source.facts(index, sample)}")

    def _file(self, index: int, key: str, original: bytes | Path | None, content: str, sample: Sample | None) -> File:
        file = File(self.source_name, key, place=self.source.place, stamp=f"{content}-{self._facts(index, sample)}")
        if not isinstance(original, Path):
            return file
        with _broken_if_unreadable():
            now = original.stat()
        return replace(file, path=self._path(original), size=now.st_size, mtime=now.st_mtime_ns, ctime=now.st_ctime_ns)

    def _path(self, path: Path) -> str:
        return "" if self.options.pictures == "none" else str(path)

    def _stored(self, original: bytes | Path | None, encoded: bytes | None, image: ImageLike) -> bytes | None:
        """Return the encoded picture to store in the index; None if it is in a file or not stored."""
        keep, is_file = self.options.pictures, isinstance(original, Path)
        if keep == "none" or (isinstance(image, np.ndarray) and image.ndim == 1):
            return None
        if keep == "path" and not is_file:
            raise UserError(f"{self.source.name}: its pictures are not files. Use --pictures bytes or none.")
        if is_file:
            return encoded if keep == "bytes" else None
        return encoded or as_png(image)

    def _said(self, sample: Sample) -> dict[str, Any]:
        """Return captions, label and metadata of a sample, without empty values."""
        texts = tuple(text.strip() for text in sample.texts if text.strip())
        names, labeled = self.source.class_names, sample.label != NO_LABEL
        label = (names[sample.label] if names else str(sample.label)) if labeled else ""
        if sample.kind == "label" or not texts:
            filled = labeled and names and self.options.template is not None
            texts = (fill(str(self.options.template), label),) if filled else () if sample.kind == "label" else texts
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
