"""Sources made of sources, and what can be asked of any source without opening its images."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.core.types import NO_LABEL, Kind, Sample, Source
from recollect.data.prompts import GENERAL_TEMPLATES, fill

BatchRead = Callable[[np.ndarray, int], tuple[Tensor, list[str], Tensor]]
"""How a source that makes whole batches does it: from indices and a seed to final images, texts and labels."""


@dataclass(eq=False)
class Subset:
    """Some samples of a source in a given order, with labels renumbered if asked.

    Attributes:
        source: where the samples come from.
        indices: int64, which of its samples.
        name: of the subset; by default the source's.
        class_names: names in the new numbering; by default the source's.
        renumber: int64, for each of the source's classes its new label (`NO_LABEL` drops the label); None keeps them.
    """

    source: Source
    indices: np.ndarray
    name: str = ""
    class_names: tuple[str, ...] = ()
    renumber: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.indices = np.asarray(self.indices, dtype=np.int64)
        self.name = self.name or self.source.name
        self.class_names = self.class_names or self.source.class_names
        self.kind: Kind = self.source.kind

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b(self.source.fingerprint.encode(), digest_size=16)
        digest.update(repr(self.class_names).encode())
        digest.update(self.indices.tobytes())
        digest.update(b"" if self.renumber is None else self.renumber.tobytes())
        return digest.hexdigest()

    @cached_property
    def labels(self) -> np.ndarray:
        """The label of every sample, int64."""
        return self._renumbered(source_labels(self.source)[self.indices])

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Sample:
        return self.read(index)

    def read(self, index: int, *, needed: int = 0, extra: bool = True) -> Sample:
        """Read one sample (see `TableSource.read`)."""
        sample = read_sample(self.source, int(self.indices[index]), needed=needed, extra=extra)
        return replace(sample, source=self.name, label=int(self._renumbered(np.array([sample.label]))[0]))

    @property
    def read_block(self) -> Callable[[np.ndarray], list[Sample]] | None:
        """Reads many samples at once, where the source can."""
        inner = getattr(self.source, "read_block", None)
        if inner is None:
            return None

        def read(indices: np.ndarray) -> list[Sample]:
            samples = inner(self.indices[indices])
            labels = self._renumbered(np.array([sample.label for sample in samples])).tolist()
            return [
                replace(sample, source=self.name, label=label) for sample, label in zip(samples, labels, strict=True)
            ]

        return read

    def texts(self, index: int) -> tuple[str, ...]:
        """The texts of one sample, without opening its image."""
        return sample_texts(self.source, int(self.indices[index]))

    def values(self, key: str) -> list[Any]:
        """``extra[key]`` of every sample."""
        everything = source_values(self.source, key)
        return [everything[index] for index in self.indices]

    @property
    def batch(self) -> BatchRead | None:
        """The vectorised read of a source that has one, else None."""
        inner = getattr(self.source, "batch", None)
        if inner is None:
            return None

        def read(indices: np.ndarray, seed: int) -> tuple[Tensor, list[str], Tensor]:
            images, texts, labels = inner(self.indices[indices], seed)
            return images, texts, torch.from_numpy(self._renumbered(labels.numpy()))

        return read

    def _renumbered(self, labels: np.ndarray) -> np.ndarray:
        if self.renumber is None:
            return labels
        return np.where(labels == NO_LABEL, NO_LABEL, self.renumber[labels])


@dataclass(eq=False)
class Joined:
    """Several sources as one pool, in their order; ids carry the source's name, labels are dropped.

    Attributes:
        sources: at least one.
        name: of the pool.
    """

    sources: tuple[Source, ...]
    name: str = ""
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.name = self.name or "+".join(source.name for source in self.sources)
        self.kind: Kind = self.sources[0].kind
        self._ends = np.cumsum([len(source) for source in self.sources])

    @property
    def fingerprint(self) -> str:
        prints = "\n".join(source.fingerprint for source in self.sources)
        return hashlib.blake2b(prints.encode(), digest_size=16).hexdigest()

    @property
    def labels(self) -> np.ndarray:
        """No labels, int64."""
        return np.full(len(self), NO_LABEL, dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Sample:
        return self.read(index)

    def read(self, index: int, *, needed: int = 0, extra: bool = True) -> Sample:
        """Read one sample (see `TableSource.read`)."""
        source, inner = self._place(index)
        sample = read_sample(source, inner, needed=needed, extra=extra)
        return replace(sample, source=self.name, label=NO_LABEL, id=f"{source.name}:{sample.id}")

    def texts(self, index: int) -> tuple[str, ...]:
        """The texts of one sample, without opening its image."""
        return sample_texts(*self._place(index))

    def values(self, key: str) -> list[Any]:
        """``extra[key]`` of every sample."""
        return [value for source in self.sources for value in source_values(source, key)]

    def _place(self, index: int) -> tuple[Source, int]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name}: sample {index} of {len(self)}")
        index %= len(self)
        number = int(np.searchsorted(self._ends, index, side="right"))
        return self.sources[number], index - int(self._ends[number] - len(self.sources[number]))


def read_sample(source: Source, index: int, *, needed: int = 0, extra: bool = True) -> Sample:
    """``source[index]``, decoding and reading no more than is needed where the source knows how."""
    read = getattr(source, "read", None)
    return read(index, needed=needed, extra=extra) if read else source[index]


def sample_texts(source: Source, index: int) -> tuple[str, ...]:
    """The texts of one sample; without opening its image where the source knows how."""
    texts = getattr(source, "texts", None)
    return texts(index) if callable(texts) else source[index].texts


def source_labels(source: Source) -> np.ndarray:
    """The label of every sample, int64; without opening an image where the source knows them."""
    labels = getattr(source, "labels", None)
    if labels is None:
        labels = [source[index].label for index in range(len(source))]
    return np.asarray(labels, dtype=np.int64)


def source_values(source: Source, key: str) -> list[Any]:
    """``extra[key]`` of every sample, None where absent; without opening an image where the source knows how."""
    values = getattr(source, "values", None)
    return values(key) if values else [source[index].extra.get(key) for index in range(len(source))]


_MADE_TEXTS = 5_000
"""Captions of a made world to read; every word of it is known beforehand."""


def corpus(source: Source, limit: int | None = None) -> Iterator[str]:
    """Every text a model may meet in a source, for training a tokenizer: captions, class names, synonyms, templates.

    Args:
        limit: read the texts of at most this many samples, spread evenly over the source.
    """
    if source.kind == "label":
        yield from source.class_names
        yield from (fill(template, "") for template in GENERAL_TEMPLATES)
        if not hasattr(source, "texts"):
            return
    if hasattr(source, "vocabulary"):  # a made world knows its words, and has no end to read through
        yield from source.vocabulary
        rows = np.arange(min(limit or _MADE_TEXTS, _MADE_TEXTS, len(source)))
        yield from source.told(rows) if hasattr(source, "told") else source.batch(rows, 0)[1]  # type: ignore[attr-defined]
        return
    step = max(1, len(source) // limit) if limit else 1
    for index in range(0, len(source), step):
        yield from sample_texts(source, index)
