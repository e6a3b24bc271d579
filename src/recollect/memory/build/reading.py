"""From a source to rows of a memory: reading, embedding and packing one block of samples."""

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from recollect.core.errors import UserError
from recollect.core.types import NO_LABEL, Encoder, ImageLike, Sample, Source, caption_prefix
from recollect.data.prompts import fill
from recollect.data.sources.images import BrokenImageError, pixel_digest
from recollect.data.sources.reading import blocks_ahead
from recollect.index.phash import phash_of
from recollect.memory.removals import KeptAway
from recollect.memory.rows import Pairs, content_digest, plain

ROWS_AT_ONCE = 256
"""Samples embedded at a time. Commits are of whole blocks, so a resumed build has the blocks of an unbroken one."""

_LONGEST = 500  # bytes of an id, of which 512 fit with the number of a further caption

KeepPictures = Literal["source", "bytes", "path", "none"]
"""What a memory keeps of a picture: bytes or path as the source has it, always one of both, or nothing."""


@dataclass(frozen=True)
class ReadOptions:
    """How samples become rows.

    Attributes:
        captions: the first caption of a sample, or a row for each.
        template: the text of a sample that has a label and no caption; None gives it no text, since a label is none.
        pictures: what to keep of them.
    """

    captions: Literal["first", "each"] = "first"
    template: str | None = None
    pictures: KeepPictures = "source"


@dataclass(frozen=True)
class RowBlock:
    """Embedded samples of one block.

    Attributes:
        pairs: rows; their ids are those of their pictures, which several rows may share.
        failures: what was wrong with the pictures that could not be read.
        failed: which pictures those are, where that is known.
        unchanged: samples that were known as they are, and not embedded again: picture, stamp, number and the
            file that it lies in today.
        away: samples that stay away, since somebody has removed their picture: picture, number, and by which digest.
    """

    pairs: Pairs
    failures: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    unchanged: list[tuple[str, str, int, str | None]] = field(default_factory=list)
    away: list[tuple[str, int, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Reader:
    """Makes rows of a source's samples with one encoder.

    Attributes:
        encoder: embeds images and texts.
        source: where samples come from.
        model: the encoder's fingerprint, computed once.
        options: how samples become rows.
        name: what the memory calls the source; by default its own name.
        known: stamps of pictures that need not be embedded again.
        away: pictures that somebody has removed, and that stay away.
    """

    encoder: Encoder
    source: Source
    model: str
    options: ReadOptions = ReadOptions()
    name: str = ""
    known: Mapping[str, frozenset[str]] = field(default_factory=dict)
    away: KeptAway = field(default_factory=KeptAway)

    @property
    def called(self) -> str:
        """What the memory calls the source."""
        return self.name or self.source.name

    @cached_property
    def origin(self) -> str:
        """Names the edition of the source that is read; rows with one origin are numbered by ``ordinal``."""
        return f"{self.source.fingerprint}-{_hash(repr(self.options).encode())[:8]}"

    @cached_property
    def place(self) -> str:
        """Where the source lies."""
        return self.source.place

    def blocks(self, start: int, stop: int) -> Iterator[RowBlock]:
        """Embedded blocks in order; samples are decoded in threads while the encoder has the block before.

        Args:
            start: first sample, a multiple of `ROWS_AT_ONCE`.
            stop: the one to stop before.
        """
        read = blocks_ahead(self._read, range(start, stop), ROWS_AT_ONCE)
        for first, outcomes in zip(range(start, stop, ROWS_AT_ONCE), read, strict=True):
            yield self._embed(outcomes, first)

    def _read(self, index: int) -> "_Read | _Unchanged | _Away | _Failed":
        picture = ""
        try:
            original = self.source.original(index)
            key = self.source.picture_key(index, original)
            picture = "" if key is None else self._id(key)
            encoded = _bytes_of(original)
            if key is not None and encoded is not None:
                content = content_digest(encoded)
                stamp = self._stamp(content, self.source.facts(index))
                if stamp in self.known.get(picture, ()):
                    return _Unchanged(picture, stamp, index, self._path(original))
                if self.away.has(picture, content):
                    return _Away(picture, index, content)
            sample = self.source.read(index)
            pixels = pixel_digest(sample.image)
            if key is None or encoded is None:
                picture = self._id(sample.id)
                stamp = self._stamp(pixels, self.source.facts(index, sample))
                if stamp in self.known.get(picture, ()):
                    return _Unchanged(picture, stamp, index, self._path(original))
            if self.away.has(picture, pixels):
                return _Away(picture, index, pixels)
            image, path = self._kept(original, encoded, sample.image)
        except BrokenImageError as error:
            return _Failed(str(error), picture)
        return _Read(sample, picture, image, path, stamp, pixels, phash_of(sample.image))

    def _id(self, key: str) -> str:
        """Of a picture: the source's name and what tells pictures apart in it, or a digest of that where it is long."""
        id = f"{self.called}:{key}"
        return id if len(id.encode()) <= _LONGEST else f"{self.called}:{_hash(key.encode())}"

    def _stamp(self, content: str, facts: str) -> str:
        """Another one whenever the sample's rows would be others."""
        return f"{content}-{_hash(f'{self.options} {facts}'.encode())}"

    def _path(self, original: bytes | Path | None) -> str | None:
        """The file that a row names."""
        return str(original) if isinstance(original, Path) and self.options.pictures != "none" else None

    def _kept(
        self, original: bytes | Path | None, encoded: bytes | None, image: ImageLike
    ) -> tuple[bytes | None, str | None]:
        """What the memory keeps of a picture: its encoded bytes, the file it came from, both or neither."""
        keep = self.options.pictures
        path = self._path(original)
        if keep == "none" or (isinstance(image, np.ndarray) and image.ndim == 1):
            return None, None
        if keep == "path" and path is None:
            raise UserError(
                f"{self.source.name}: its pictures are no files. Keep their bytes (--pictures bytes) or none."
            )
        if path is not None:
            return (encoded if keep == "bytes" else None), path
        return encoded or _png(image), None

    def _embed(self, read: Sequence["_Read | _Unchanged | _Away | _Failed"], first: int) -> RowBlock:
        there = [(first + place, each) for place, each in enumerate(read) if isinstance(each, _Read)]
        rows = [(place, text) for place, (_, each) in enumerate(there) for text in self._texts(each.sample)]
        nothing = np.empty((0, self.encoder.width), dtype=np.float32)
        images = self.encoder.embed_images([each.sample.image for _, each in there]).numpy() if there else nothing
        texts = np.zeros((len(rows), self.encoder.width), dtype=np.float32)
        if spoken := [place for place, (_, text) in enumerate(rows) if text]:
            prefix = caption_prefix(self.encoder)
            texts[spoken] = self.encoder.embed_texts([rows[place][1] for place in spoken], prefix).numpy()
        owners = [there[place] for place, _ in rows]
        pairs = Pairs(
            ids=[each.id for _, each in owners],
            image_vectors=images[[place for place, _ in rows]],
            text_vectors=texts,
            captions=[text for _, text in rows],
            model=self.model,
            sources=[self.called] * len(rows),
            metadata=[self._metadata(each.sample) for _, each in owners],
            images=[each.image for _, each in owners],
            paths=[each.path for _, each in owners],
            origins=[self.origin] * len(rows),
            ordinals=np.array([index for index, _ in owners], dtype=np.int64),
            digests=[each.digest for _, each in owners],
            places=[self.place] * len(rows),
            stamps=[each.stamp for _, each in owners],
            looks=[each.look for _, each in owners],
        )
        failed = [each for each in read if isinstance(each, _Failed)]
        return RowBlock(
            pairs,
            [each.message for each in failed],
            [each.id for each in failed if each.id],
            [(each.id, each.stamp, each.index, each.path) for each in read if isinstance(each, _Unchanged)],
            [(each.id, each.index, each.mark) for each in read if isinstance(each, _Away)],
        )

    def _texts(self, sample: Sample) -> tuple[str, ...]:
        """The texts of a sample; one that is empty, where it has none."""
        texts = tuple(text for text in sample.texts if text.strip())
        if sample.kind == "label" or not texts:
            if self.options.template is None or sample.label == NO_LABEL or not self.source.class_names:
                return ("",) if sample.kind == "label" else texts[:1] or ("",)
            return (fill(self.options.template, self.source.class_names[sample.label]),)
        return texts if self.options.captions == "each" else texts[:1]

    def _metadata(self, sample: Sample) -> dict[str, Any]:
        known = {key: plain(value) for key, value in sample.extra.items() if value is not None}
        if sample.label != NO_LABEL and self.source.class_names:
            known["label"] = self.source.class_names[sample.label]
        return known


@dataclass(frozen=True)
class _Read:
    sample: Sample
    id: str
    image: bytes | None
    path: str | None
    stamp: str
    digest: str
    look: str


@dataclass(frozen=True)
class _Unchanged:
    id: str
    stamp: str
    index: int
    path: str | None


@dataclass(frozen=True)
class _Away:
    id: str
    index: int
    mark: str


@dataclass(frozen=True)
class _Failed:
    message: str
    id: str


def _bytes_of(original: bytes | Path | None) -> bytes | None:
    try:
        return original.read_bytes() if isinstance(original, Path) else original
    except OSError as error:
        raise BrokenImageError(f"{error.filename}: cannot be read ({error.strerror})") from None


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _png(image: ImageLike) -> bytes:
    picture = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()
