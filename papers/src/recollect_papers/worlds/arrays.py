"""A source whose images are already in memory, for the tasks of the built-in worlds."""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from recollect.core.types import BatchRead, Kind, Sample, Source

ENDLESS = 2**31 - 1
"""Length of a stream without an end: as many samples as an index of 32 bits can name."""


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


def as_batch(images: np.ndarray, texts: list[str], labels: np.ndarray) -> BatchRead:
    """What a source's ``batch`` returns, from arrays."""
    return torch.from_numpy(images), texts, torch.from_numpy(labels)
