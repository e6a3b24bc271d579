"""Base classes of synthetic sources: generated on access, or stored in memory."""

import hashlib
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.core.seeding import derive_seed
from recollect.core.types import NO_LABEL, Kind, Sample, Source

ENDLESS = 2**31 - 1
"""Length of an endless stream: the maximum of a 32-bit index."""


@dataclass(eq=False)
class GeneratedSource(Source):
    """Generated source: subclasses define `batch` and `example_texts`, and a sample is a batch of one.

    Attributes:
        world: settings of pictures and texts.
        size: number of samples.
    """

    world: Any
    size: int = ENDLESS
    name: str = ""
    kind: Kind = "caption"
    class_names: tuple[str, ...] = ()

    @cached_property
    def fingerprint(self) -> str:
        """Digest of all settings."""
        return f"{derive_seed(*(repr(getattr(self, each.name)) for each in fields(self))):016x}"

    @property
    def endless(self) -> bool:
        return len(self) >= ENDLESS

    @property
    def makes_batches(self) -> bool:
        return True

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """All words that texts may contain."""
        return self.world.vocabulary()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name}: no sample {index} of {len(self)}")
        images, texts, labels = self.batch(np.array([index]), 0)
        captions = tuple(texts) if self.kind == "caption" else ()
        image = images[0] if images[0].ndim == 1 else images[0].permute(1, 2, 0).contiguous()
        return Sample(image.numpy(), captions, int(labels[0]), self.name, self.kind, str(index), self.extra(index))

    def texts(self, index: int) -> tuple[str, ...]:
        return tuple(self.example_texts(np.array([index]))) if self.kind == "caption" else ()

    def extra(self, index: int) -> dict[str, Any]:
        """Return further values of a sample by name."""
        return {}

    def values(self, key: str) -> list[Any]:
        return [self.extra(index).get(key) for index in range(len(self))]


def no_labels(count: int) -> Tensor:
    """Return the labels of a batch of captioned pictures."""
    return torch.full((count,), NO_LABEL)


def as_pictures(images: Tensor) -> np.ndarray:
    """Convert (n, 3, edge, edge) to (n, edge, edge, 3)."""
    return images.permute(0, 2, 3, 1).contiguous().numpy()


@dataclass(eq=False)
class ArraySource(Source):
    """Labeled vectors or pictures in memory.

    Attributes:
        images: float32 vectors (n, width), or uint8 pictures (n, height, width, 3).
        labels: int64 (n,), indices of ``class_names``.
        domain: domain of all images.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray = field()
    class_names: tuple[str, ...] = field()
    domain: str = ""
    kind: Kind = field(default="label", init=False)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of all images and labels."""
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
        """Return several samples."""
        extra = {"domain": self.domain} if self.domain else {}
        return [
            Sample(self.images[index], (), label, self.name, "label", str(index), extra)
            for index, label in zip(indices.tolist(), self.labels[indices].tolist(), strict=True)
        ]
