"""A source whose images are already in memory, for the tasks of the built-in worlds."""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from recollect.core.types import Kind, Sample


@dataclass(eq=False)
class ArraySource:
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
    labels: np.ndarray
    class_names: tuple[str, ...]
    domain: str = ""
    kind: Kind = field(default="label", init=False)

    @cached_property
    def fingerprint(self) -> str:
        """Of every image and label."""
        digest = hashlib.blake2b(f"{self.name} {self.images.dtype} {self.images.shape}".encode(), digest_size=16)
        for array in (self.images, self.labels):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

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


def as_batch(images: np.ndarray, texts: list[str], labels: np.ndarray) -> tuple[Tensor, list[str], Tensor]:
    """What a source's ``batch`` returns, from arrays."""
    return torch.from_numpy(images), texts, torch.from_numpy(labels)
