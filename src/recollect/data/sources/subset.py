"""Sources made of other sources, and the texts of any source."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recollect.core.types import NO_LABEL, BatchRead, Kind, Sample, Source
from recollect.data.prompts import GENERAL_TEMPLATES, fill


def first_text(source: Source, index: int) -> str:
    """A sample's first text, else the name of its class, else an empty string."""
    if texts := source.texts(index):
        return texts[0]
    label = int(source.labels[index])
    return source.class_names[label] if label != NO_LABEL else ""


class _View(Source):
    """Samples of other sources: a subclass says where each of them is, and what the view changes in it."""

    @abstractmethod
    def _place(self, index: int) -> tuple[Source, int]:
        """The source of a sample, and its index in there."""

    @abstractmethod
    def _seen(self, sample: Sample) -> Sample:
        """A sample of a source as a sample of this view."""

    def __getitem__(self, index: int) -> Sample:
        return self.read(index)

    def read(self, index: int, *, needed: int = 0, extra: bool = True) -> Sample:
        source, inner = self._place(index)
        return self._seen(source.read(inner, needed=needed, extra=extra))

    def texts(self, index: int) -> tuple[str, ...]:
        source, inner = self._place(index)
        return source.texts(inner)

    def original(self, index: int) -> bytes | Path | None:
        source, inner = self._place(index)
        return source.original(inner)

    def picture_key(self, index: int, original: bytes | Path | None) -> str | None:
        source, inner = self._place(index)
        return source.picture_key(inner, original)

    def facts(self, index: int, sample: Sample | None = None) -> str:
        source, inner = self._place(index)
        return source.facts(inner) if sample is None else super().facts(index, sample)


@dataclass(eq=False)
class Subset(_View):
    """Some samples of a source in a given order, with labels renumbered if asked.

    Attributes:
        source: of the samples.
        indices: int64, which of its samples.
        name: by default the source's.
        class_names: in the new numbering; by default the source's.
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
        return self._renumbered(self.source.labels[self.indices])

    def __len__(self) -> int:
        return len(self.indices)

    def _place(self, index: int) -> tuple[Source, int]:
        return self.source, int(self.indices[index])

    def _seen(self, sample: Sample) -> Sample:
        return replace(sample, source=self.name, label=int(self._renumbered(np.array([sample.label]))[0]))

    @property
    def reads_blocks(self) -> bool:
        return self.source.reads_blocks

    @property
    def makes_batches(self) -> bool:
        return self.source.makes_batches

    def read_block(self, indices: np.ndarray) -> list[Sample]:
        return [self._seen(sample) for sample in self.source.read_block(self.indices[indices])]

    def values(self, key: str) -> list[Any]:
        everything = self.source.values(key)
        return [everything[index] for index in self.indices]

    def example_texts(self, indices: np.ndarray) -> list[str]:
        return self.source.example_texts(self.indices[indices])

    @property
    def place(self) -> str:
        return self.source.place

    def batch(self, indices: np.ndarray, seed: int) -> BatchRead:
        images, texts, labels = self.source.batch(self.indices[indices], seed)
        return images, texts, torch.from_numpy(self._renumbered(labels.numpy()))

    def _renumbered(self, labels: np.ndarray) -> np.ndarray:
        if self.renumber is None:
            return labels
        return np.where(labels == NO_LABEL, NO_LABEL, self.renumber[labels])


@dataclass(eq=False)
class Joined(_View):
    """Several sources as one pool, in their order; ids carry the source's name, labels are dropped.

    Attributes:
        sources: at least one.
        name: of the pool.
    """

    sources: tuple[Source, ...]
    name: str = ""

    def __post_init__(self) -> None:
        self.name = self.name or "+".join(source.name for source in self.sources)
        self.kind: Kind = self.sources[0].kind
        self._ends = np.cumsum([len(source) for source in self.sources])

    @cached_property
    def fingerprint(self) -> str:
        prints = "\n".join(source.fingerprint for source in self.sources)
        return hashlib.blake2b(prints.encode(), digest_size=16).hexdigest()

    @cached_property
    def labels(self) -> np.ndarray:
        """No labels, int64."""
        return np.full(len(self), NO_LABEL, dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def _place(self, index: int) -> tuple[Source, int]:
        index = self.position(index)
        number = int(np.searchsorted(self._ends, index, side="right"))
        return self.sources[number], index - int(self._ends[number] - len(self.sources[number]))

    def _seen(self, sample: Sample) -> Sample:
        return replace(sample, source=self.name, label=NO_LABEL, id=f"{sample.source}:{sample.id}")

    def picture_key(self, index: int, original: bytes | Path | None) -> str | None:
        key = super().picture_key(index, original)
        return None if key is None else f"{self._place(index)[0].name}:{key}"

    @property
    def source_names(self) -> list[str]:
        return [name for source in self.sources for name in source.source_names]

    def values(self, key: str) -> list[Any]:
        return [value for source in self.sources for value in source.values(key)]


_MADE_TEXTS = 5_000
"""Captions of a generated source to read; its vocabulary is known."""


def corpus(source: Source, limit: int | None = None) -> Iterator[str]:
    """Every text of a source, for training a tokenizer: captions, class names, synonyms, templates.

    Args:
        limit: read the texts of at most this many samples, spread evenly over the source.
    """
    if source.kind == "label":
        yield from source.class_names
        yield from (fill(template, "") for template in GENERAL_TEMPLATES)
    elif source.vocabulary:  # a generated source, which may be endless
        yield from source.vocabulary
        yield from source.example_texts(np.arange(min(limit or _MADE_TEXTS, _MADE_TEXTS, len(source))))
        return
    for index in _spread(source, limit):
        yield from source.texts(index)


def _spread(source: Source, limit: int | None) -> Iterable[int]:
    """About ``limit`` samples spread over a source; whole blocks if it is read in blocks, to open few of them."""
    step = max(1, len(source) // limit) if limit else 1
    if step == 1 or source.block_sizes is None:
        return range(0, len(source), step)
    starts = np.cumsum([0, *source.block_sizes])
    return (index for block in range(0, len(starts) - 1, step) for index in range(starts[block], starts[block + 1]))
