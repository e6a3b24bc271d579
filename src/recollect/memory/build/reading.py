"""From a source to rows of a memory: reading, embedding and packing one block of samples."""

import hashlib
import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from recollect.core.errors import UserError
from recollect.core.types import NO_LABEL, Encoder, ImageLike, Sample, Source
from recollect.data.prompts import fill
from recollect.data.sources.images import BrokenImageError
from recollect.memory.rows import Pairs, plain

ROWS_AT_ONCE = 256
"""Samples embedded at a time. Commits are of whole blocks, so a resumed build has the blocks of an unbroken one."""

KeepPictures = Literal["source", "bytes", "path", "none"]
"""What a memory keeps of a picture: bytes or path as the source has it, always one of both, or nothing."""


@dataclass(frozen=True)
class ReadOptions:
    """How samples become rows.

    Attributes:
        captions: the first caption of a sample, or a row for each.
        template: the text of a sample that has a label and no caption.
        pictures: what to keep of them.
    """

    captions: Literal["first", "each"] = "first"
    template: str = "a photo of a {}."
    pictures: KeepPictures = "source"


@dataclass(frozen=True)
class RowBlock:
    """Embedded samples of one block, and what was wrong with those that are missing."""

    pairs: Pairs
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Reader:
    """Makes rows of a source's samples with one encoder.

    Attributes:
        encoder: embeds images and texts.
        source: where samples come from.
        model: the encoder's fingerprint, computed once.
        options: how samples become rows.
    """

    encoder: Encoder
    source: Source
    model: str
    options: ReadOptions = ReadOptions()

    @property
    def origin(self) -> str:
        """Names the source as it was read; rows with one origin are numbered by ``ordinal``."""
        return f"{self.source.fingerprint}-{self.options.captions}"

    def blocks(self, start: int, stop: int) -> Iterator[RowBlock]:
        """Embedded blocks in order; samples are decoded in threads while the encoder has the block before.

        Args:
            start: first sample, a multiple of `ROWS_AT_ONCE`.
            stop: the one to stop before.
        """
        with ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(self._read, index) for index in range(start, min(start + ROWS_AT_ONCE, stop))]
            for first in range(start, stop, ROWS_AT_ONCE):
                coming = range(first + ROWS_AT_ONCE, min(first + 2 * ROWS_AT_ONCE, stop))
                following = [pool.submit(self._read, index) for index in coming]
                yield self._embed([item.result() for item in waiting], first)
                waiting = following

    def _read(self, index: int) -> "_Read | BrokenImageError":
        try:
            sample = self.source.read(index)
            image, path = stored_picture(self.source, index, sample.image, self.options.pictures)
        except BrokenImageError as error:
            return error
        return _Read(sample, image, path)

    def _embed(self, read: Sequence["_Read | BrokenImageError"], first: int) -> RowBlock:
        failures = [str(each) for each in read if isinstance(each, BrokenImageError)]
        there = [(first + place, each) for place, each in enumerate(read) if isinstance(each, _Read)]
        rows = [
            (place, number, text)
            for place, (_, each) in enumerate(there)
            for number, text in enumerate(self._texts(each.sample))
        ]
        nothing = np.empty((0, self.encoder.width), dtype=np.float32)
        images = self.encoder.embed_images([each.sample.image for _, each in there]).numpy() if there else nothing
        texts = self.encoder.embed_texts([text for _, _, text in rows]).numpy() if rows else nothing
        owners = [there[place] for place, _, _ in rows]
        return RowBlock(
            Pairs(
                ids=[
                    f"{each.sample.source}:{each.sample.id}{f'#{number}' if number else ''}"
                    for (_, each), (_, number, _) in zip(owners, rows, strict=True)
                ],
                image_vectors=images[[place for place, _, _ in rows]],
                text_vectors=texts,
                captions=[text for _, _, text in rows],
                model=self.model,
                sources=[each.sample.source for _, each in owners],
                metadata=[self._metadata(each.sample) for _, each in owners],
                images=[each.image for _, each in owners],
                paths=[each.path for _, each in owners],
                origins=[self.origin] * len(rows),
                ordinals=np.array([index for index, _ in owners], dtype=np.int64),
                digests=[digest(each, text) for (_, each), (_, _, text) in zip(owners, rows, strict=True)],
            ),
            failures,
        )

    def _texts(self, sample: Sample) -> tuple[str, ...]:
        texts = tuple(text for text in sample.texts if text.strip())
        if sample.kind == "label" or not texts:
            if sample.label == NO_LABEL or not self.source.class_names:
                return texts[:1]
            return (fill(self.options.template, self.source.class_names[sample.label]),)
        return texts if self.options.captions == "each" else texts[:1]

    def _metadata(self, sample: Sample) -> dict[str, Any]:
        known = {key: plain(value) for key, value in sample.extra.items() if value is not None}
        if sample.label != NO_LABEL and self.source.class_names:
            known["class"] = self.source.class_names[sample.label]
        return known


@dataclass(frozen=True)
class _Read:
    sample: Sample
    image: bytes | None
    path: str | None


def digest(read: _Read, text: str) -> str:
    """Equal for the same pixels with the same text."""
    image = read.sample.image
    pixels = np.asarray(image)
    made = hashlib.blake2b(f"{pixels.shape} {pixels.dtype}".encode(), digest_size=16)
    made.update(np.ascontiguousarray(pixels).data)
    made.update(text.encode())
    return made.hexdigest()


def stored_picture(source: Source, index: int, image: ImageLike, keep: KeepPictures) -> tuple[bytes | None, str | None]:
    """What a memory keeps of a picture: its encoded bytes, or its path, or neither (a vector has neither).

    Raises:
        UserError: paths are wanted, but the source has none.
    """
    if keep == "none" or (isinstance(image, np.ndarray) and image.ndim == 1):
        return None, None
    found = source.original(index)
    if keep == "path":
        if not isinstance(found, Path):
            raise UserError(f"{source.name}: its pictures are no files. Keep their bytes (--pictures bytes) or none.")
        return None, str(found)
    if isinstance(found, Path):
        return (found.read_bytes(), None) if keep == "bytes" else (None, str(found))
    return found or _png(image), None


def _png(image: ImageLike) -> bytes:
    picture = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()
