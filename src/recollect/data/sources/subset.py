"""Sources composed of other sources, and the text corpus of a source."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recollect.core.content import hash_of
from recollect.core.types import NO_LABEL, BatchRead, Kind, Sample, Source
from recollect.data.prompts import GENERAL_TEMPLATES, fill


def first_text(source: Source, index: int) -> str:
    """Return a sample's first text, else its class name, else an empty string."""
    if texts := source.texts(index):
        return texts[0]
    label = int(source.labels[index])
    return source.class_names[label] if label != NO_LABEL else ""


class _View(Source):
    """View of samples from other sources; subclasses map indices and convert samples."""

    @abstractmethod
    def _locate(self, index: int) -> tuple[Source, int]:
        """Return the source of a sample, and its index in that source."""

    @abstractmethod
    def _convert(self, sample: Sample) -> Sample:
        """Convert a sample of a source to a sample of this view."""

    def __getitem__(self, index: int) -> Sample:
        return self.read(index)

    def read(self, index: int, *, needed: int = 0, extra: bool = True) -> Sample:
        source, inner = self._locate(index)
        return self._convert(source.read(inner, needed=needed, extra=extra))

    def texts(self, index: int) -> tuple[str, ...]:
        source, inner = self._locate(index)
        return source.texts(inner)

    def original(self, index: int) -> bytes | Path | None:
        source, inner = self._locate(index)
        return source.original(inner)

    def picture_key(self, index: int, original: bytes | Path | None) -> str | None:
        source, inner = self._locate(index)
        return source.picture_key(inner, original)

    def facts(self, index: int, sample: Sample | None = None) -> str:
        source, inner = self._locate(index)
        return source.facts(inner) if sample is None else super().facts(index, sample)


@dataclass(eq=False)
class Subset(_View):
    """Some samples of a source in a given order, optionally with labels renumbered.

    Attributes:
        source: the source of the samples.
        indices: indices of the samples in ``source``, int64.
        name: by default the source's name.
        class_names: names of the renumbered classes; by default the source's names.
        renumber: new label of each class of the source, int64 (`NO_LABEL` drops the label); None keeps labels.
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
        return self._map_labels(self.source.labels[self.indices])

    def __len__(self) -> int:
        return len(self.indices)

    def _locate(self, index: int) -> tuple[Source, int]:
        return self.source, int(self.indices[index])

    def _convert(self, sample: Sample) -> Sample:
        return replace(sample, source=self.name, label=int(self._map_labels(np.array([sample.label]))[0]))

    @property
    def reads_blocks(self) -> bool:
        return self.source.reads_blocks

    @property
    def makes_batches(self) -> bool:
        return self.source.makes_batches

    def read_block(self, indices: np.ndarray) -> list[Sample]:
        return [self._convert(sample) for sample in self.source.read_block(self.indices[indices])]

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
        return images, texts, torch.from_numpy(self._map_labels(labels.numpy()))

    def _map_labels(self, labels: np.ndarray) -> np.ndarray:
        if self.renumber is None:
            return labels
        return np.where(labels == NO_LABEL, NO_LABEL, self.renumber[labels])


@dataclass(eq=False)
class Joined(_View):
    """Concatenation of several sources; ids are prefixed with the source's name, and labels are dropped.

    Attributes:
        sources: at least one.
        name: by default the names of the sources, joined by "+".
    """

    sources: tuple[Source, ...]
    name: str = ""

    def __post_init__(self) -> None:
        self.name = self.name or "+".join(source.name for source in self.sources)
        self.kind: Kind = self.sources[0].kind
        self._ends = np.cumsum([len(source) for source in self.sources])

    @cached_property
    def fingerprint(self) -> str:
        return hash_of("\n".join(source.fingerprint for source in self.sources))

    @cached_property
    def labels(self) -> np.ndarray:
        """`NO_LABEL` for every sample, int64."""
        return np.full(len(self), NO_LABEL, dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def _locate(self, index: int) -> tuple[Source, int]:
        index = self.position(index)
        number = int(np.searchsorted(self._ends, index, side="right"))
        return self.sources[number], index - int(self._ends[number] - len(self.sources[number]))

    def _convert(self, sample: Sample) -> Sample:
        return replace(sample, source=self.name, label=NO_LABEL, id=f"{sample.source}:{sample.id}")

    def picture_key(self, index: int, original: bytes | Path | None) -> str | None:
        key = super().picture_key(index, original)
        return None if key is None else f"{self._locate(index)[0].name}:{key}"

    @property
    def source_names(self) -> list[str]:
        return [name for source in self.sources for name in source.source_names]

    def values(self, key: str) -> list[Any]:
        return [value for source in self.sources for value in source.values(key)]


_MAX_GENERATED_TEXTS = 5_000
"""Maximum number of captions read from a generated source, whose vocabulary is known."""


def corpus(source: Source, limit: int | None = None) -> Iterator[str]:
    """Yield all texts of a source for training a tokenizer: captions, class names, synonyms and templates.

    Args:
        limit: maximum number of samples to read, spread evenly over the source.
    """
    if source.kind == "label":
        yield from source.class_names
        yield from (fill(template, "") for template in GENERAL_TEMPLATES)
    elif source.vocabulary:  # a generated source, which may be endless
        yield from source.vocabulary
        yield from source.example_texts(
            np.arange(min(limit or _MAX_GENERATED_TEXTS, _MAX_GENERATED_TEXTS, len(source)))
        )
        return
    for index in _spread(source, limit):
        yield from source.texts(index)


def _spread(source: Source, limit: int | None) -> Iterable[int]:
    """Return about ``limit`` evenly spread indices; for sources stored in blocks, those of a few whole blocks."""
    step = max(1, len(source) // limit) if limit else 1
    if step == 1 or source.block_sizes is None:
        return range(0, len(source), step)
    starts = np.cumsum([0, *source.block_sizes])
    return (index for block in range(0, len(starts) - 1, step) for index in range(starts[block], starts[block + 1]))
