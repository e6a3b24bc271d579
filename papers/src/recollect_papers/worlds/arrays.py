"""What the sources of the built-in worlds share: those drawn by code, and those whose images are in memory."""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from recollect.core.types import Kind, Sample, Source

ENDLESS = 2**31 - 1
"""Length of a stream without an end: as many samples as an index of 32 bits can name."""


class MadeSource(Source):
    """A source drawn by code: a subclass defines `batch` and `example_texts`, and a sample is a batch of one."""

    @property
    def endless(self) -> bool:
        return len(self) >= ENDLESS

    @property
    def makes_batches(self) -> bool:
        return True

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name}: no sample {index} of {len(self)}")
        images, texts, labels = self.batch(np.array([index]), 0)
        said = tuple(texts) if self.kind == "caption" else ()
        return Sample(as_array(images[0]), said, int(labels[0]), self.name, self.kind, str(index), self.extra(index))

    def texts(self, index: int) -> tuple[str, ...]:
        return tuple(self.example_texts(np.array([index]))) if self.kind == "caption" else ()

    def extra(self, index: int) -> dict[str, Any]:
        """What is known of a sample besides its texts and label."""
        return {}

    def values(self, key: str) -> list[Any]:
        return [self.extra(index).get(key) for index in range(len(self))]


def as_array(image: Tensor) -> np.ndarray:
    """A vector as it is, or a picture (3, height, width) as (height, width, 3)."""
    return (image if image.ndim == 1 else image.permute(1, 2, 0).contiguous()).numpy()


@dataclass(eq=False)
class ArraySource(Source):
    """Labelled vectors or finished pictures.

    Attributes:
        name: of the source.
        images: float32 vectors (n, width), or uint8 pictures (n, height, width, 3).
        labels: int64 (n,), indices of ``class_names``.
        class_names: readable names.
        domain: of all images.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray = field()
    class_names: tuple[str, ...] = field()
    domain: str = ""
    kind: Kind = field(default="label", init=False)

    @cached_property
    def fingerprint(self) -> str:
        """Of every image and label."""
        digest = hashlib.blake2b(f"{self.name} {self.images.dtype} {self.images.shape}".encode(), digest_size=16)
        for array in (self.images, self.labels):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    @property
    def reads_blocks(self) -> bool:
        return True

    def texts(self, index: int) -> tuple[str, ...]:
        return ()

    def values(self, key: str) -> list[Any]:
        return [self.domain if key == "domain" and self.domain else None] * len(self)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name}: no sample {index} of {len(self)}")
        return self.read_block(np.array([index]))[0]

    def read_block(self, indices: np.ndarray) -> list[Sample]:
        """Many samples at once: nothing has to be decoded, so there is nothing to read side by side."""
        extra = {"domain": self.domain} if self.domain else {}
        return [
            Sample(self.images[index], (), label, self.name, "label", str(index), extra)
            for index, label in zip(indices.tolist(), self.labels[indices].tolist(), strict=True)
        ]
