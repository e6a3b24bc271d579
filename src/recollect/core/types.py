"""Types shared by all packages: samples, sources, batches and encoders."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image

from recollect.core.errors import UserError
from recollect.core.options import Kind

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ImageLike = Image.Image | np.ndarray
"""One image: a PIL image, a (height, width, 3) uint8 array, or a 1-d float32 vector of the latent world."""

NO_LABEL = -1
"""The label of a sample that has no class."""

TEXT_SCALE = 100.0
"""What cosines with a text are multiplied by where a model has no scale of its own: CLIP's learned one."""

Metric = Literal["top-1", "mean per class"]
"""What classification is judged by."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One image with its texts.

    Attributes:
        image: the picture, or the vector in the latent world.
        texts: every text that describes it; may be empty for a labeled image, whose text is then made from
            the class name and a prompt template.
        label: index into the source's ``class_names``, or `NO_LABEL`.
        source: name of the source it comes from.
        kind: whether its texts are captions or wordings of a label.
        id: unique within the source and the same in every run.
        extra: what else the source knows (``domain``, ``ambiguous``, ...).
    """

    image: ImageLike
    texts: tuple[str, ...]
    label: int
    source: str
    kind: Kind
    id: str
    extra: Mapping[str, Any] = field(default_factory=dict)


BatchRead = tuple["Tensor", list[str], "Tensor"]
"""What `Source.batch` returns: final images, one text each, int64 labels."""


class Source(ABC):
    """A finite, indexable, deterministic set of samples.

    A new source is a ``name`` and two methods, ``__len__`` and ``__getitem__``; everything else has a default,
    right for any source, and is overridden where a source can do it faster, such as `texts` without opening pictures.
    `recollect.testing.check_source` checks the result.

    Attributes:
        name: unique within a run; appears in logs, reports and cache keys.
        kind: the kind of all its samples.
        class_names: readable class names in label order; empty where samples have no label.
    """

    name: str
    kind: Kind = "caption"
    class_names: tuple[str, ...] = ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Sample: ...

    @property
    def endless(self) -> bool:
        """True for generated sources without an end; their length has no meaning."""
        return False

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Every word that its texts may contain, if known; else empty."""
        return ()

    @property
    def reads_blocks(self) -> bool:
        """Whether `read_block` is faster than reading samples one by one."""
        return False

    @property
    def makes_batches(self) -> bool:
        """Whether it implements `batch`, which training then uses."""
        return False

    @property
    def block_sizes(self) -> np.ndarray | None:
        """Lengths of blocks of consecutive samples that should be read together; None if any order is as fast."""
        return None

    @cached_property
    def labels(self) -> np.ndarray:
        """The label of every sample, int64 (n,)."""
        if not self.class_names and self.kind == "caption":
            return np.full(len(self), NO_LABEL, dtype=np.int64)
        return np.array([self[index].label for index in range(len(self))], dtype=np.int64)

    @property
    def content(self) -> str | None:
        """A digest of the files behind it, cheap to take, which a copy of them shares; None for other sources.

        A checkpoint keeps it, so that a run goes on with the same data only.
        """
        return None

    @property
    def sampled_files(self) -> Sequence[Path]:
        """All files behind it where `content` is of parts of them only, since they are large; else none."""
        return ()

    @cached_property
    def fingerprint(self) -> str:
        """Changes whenever any sample would; the part of the feature cache's key that names the data.

        The default reads every sample, pictures included: right for any source, and slow for a large one.
        """
        digest = hashlib.blake2b(repr((self.name, self.kind, self.class_names, len(self))).encode(), digest_size=16)
        for index in range(len(self)):
            sample = self[index]
            digest.update(repr((sample.texts, sample.label, sample.id, sorted(sample.extra.items()))).encode())
            pixels = np.ascontiguousarray(sample.image)
            digest.update(f"{pixels.shape} {pixels.dtype}".encode())
            digest.update(pixels.data)
        return digest.hexdigest()

    def position(self, index: int) -> int:
        """``index`` from the start; a negative one counts from the end.

        Raises:
            IndexError: outside the source.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name}: sample {index} of {len(self)}")
        return index % len(self)

    def read(self, index: int, *, needed: int = 0, extra: bool = True) -> Sample:
        """``self[index]``, decoding and reading no more than is needed.

        Args:
            needed: shorter side in pixels above which detail is of no use; 0 decodes all of it.
            extra: also read what only evaluation needs.
        """
        return self[index]

    def read_block(self, indices: np.ndarray) -> list[Sample]:
        """Many samples at once, in the order of ``indices``."""
        return [self[index] for index in indices.tolist()]

    def texts(self, index: int) -> tuple[str, ...]:
        """The texts of one sample, without opening its image where that can be."""
        return self[index].texts

    def example_texts(self, indices: np.ndarray) -> list[str]:
        """One text of each of these samples as training may draw it, without making pictures."""
        return [text for index in indices.tolist() for text in self.texts(index)[:1]]

    def values(self, key: str) -> list[Any]:
        """``extra[key]`` of every sample, None where absent."""
        return [self[index].extra.get(key) for index in range(len(self))]

    def original(self, index: int) -> bytes | Path | None:
        """The picture as it is stored, encoded bytes or its file, not decoded; None where it is made or a vector."""
        return None

    def picture_key(self, index: int, original: bytes | Path | None) -> str | None:
        """A name that a picture keeps when samples are added, removed or sorted, and when the source is moved; two
        samples of one file share it. None where the sample's id is as stable, as where the source makes its pictures;
        empty where there is no picture.

        Args:
            original: what `original` returned.
        """
        return None

    def facts(self, index: int, sample: Sample | None = None) -> str:
        """All that it says of a picture (texts, class, other columns), as a text that changes when any of it does.

        Args:
            sample: as it was read; without it a source that knows its facts need not make the picture.
        """
        sample = self[index] if sample is None else sample
        return repr((sample.texts, sample.label, dict(sample.extra)))

    @property
    def place(self) -> str:
        """Path or hub id; the name of sources without one."""
        return self.name

    @property
    def source_names(self) -> list[str]:
        """The name of the source that each sample comes from: of several in a pool."""
        return [self.name] * len(self)

    def batch(self, indices: np.ndarray, seed: int) -> BatchRead:
        """A whole batch by the source itself, where `makes_batches`: final images, texts and labels.

        Args:
            seed: decides the view of each sample.
        """
        raise NotImplementedError(f"{self.name} makes no batches by itself")


@dataclass(frozen=True, slots=True)
class Batch:
    """``n`` samples, ready for a model and a loss; every field has ``n`` entries in the same order.

    Attributes:
        images: float32 pixels (n, 3, height, width), transformed; or vectors (n, width) in the latent world.
        texts: one text drawn for each sample.
        labels: int64 (n,), class ids that are unique across all sources of the run; `NO_LABEL` without one.
        kinds: caption or label, per sample; chooses the prefix token.
        sources: name of each sample's source.
        ids: each sample's id within its source.
        tokens: of the texts, where who made the batch was given a tokenizer.
    """

    images: Tensor
    texts: tuple[str, ...]
    labels: Tensor
    kinds: tuple[Kind, ...]
    sources: tuple[str, ...]
    ids: tuple[str, ...]
    tokens: dict[str, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows: slice) -> Batch:
        tokens = None if self.tokens is None else {name: column[rows] for name, column in self.tokens.items()}
        return Batch(
            self.images[rows], self.texts[rows], self.labels[rows], self.kinds[rows], self.sources[rows],
            self.ids[rows], tokens,
        )  # fmt: skip


class Encoder(ABC):
    """Anything that embeds: a plain model, a retrieval-enhanced one, an episode-adapted one.

    A new encoder has a width, a fingerprint and the two ways of embedding; everything else has a default.
    `recollect.testing.check_encoder` checks the result.

    Attributes:
        width: number of entries of an embedding.
        prefixes: for each kind of text that has prefix tokens, those tokens.
    """

    width: int
    prefixes: Mapping[Kind, tuple[str, ...]] = {}

    @property
    def scale(self) -> float | None:
        """The factor of the cosines that the model learned; None if it stores none."""
        return None

    @property
    def base(self) -> Encoder | None:
        """The encoder whose image embeddings this one refines, so that no image is embedded twice; else None."""
        return None

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Changes whenever an embedding would: weights, image transform and dtype."""

    @abstractmethod
    def embed_images(self, images: Tensor | Sequence[ImageLike]) -> Tensor:
        """Embed transformed pixels (n, 3, height, width), vectors (n, width), or untransformed images.

        Returns:
            (n, width), unit-norm float32, on the CPU, without graph.
        """

    @abstractmethod
    def embed_texts(self, texts: Sequence[str], prefix: Kind | None = None) -> Tensor:
        """Embed texts, read as ``prefix`` says by a model that has prefix tokens (others ignore it).

        Returns:
            (n, width), unit-norm float32, on the CPU, without graph.
        """

    def refine_images(self, embeddings: Tensor) -> Tensor:
        """What this encoder makes of its ``base``'s image embeddings (n, width); the same ones where it has no base."""
        return embeddings


def caption_prefix(encoder: Any) -> Kind | None:
    """How captions, queries and an index's texts are read: as captions, by a model that has a prefix for them.

    One rule, because texts that are compared must have been read alike.
    """
    return "caption" if "caption" in encoder.prefixes else None


def best_device() -> torch.device:
    """CUDA if there is one, then Apple's MPS, then the CPU."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def chosen_device(device: torch.device | str | None) -> torch.device:
    """The named device, or the best one by default.

    Raises:
        UserError: this machine, or this build of torch, has no such device.
    """
    if device is None:
        return best_device()
    import torch

    try:
        torch.empty(1, device=device).cpu()
        return torch.device(device)
    except (RuntimeError, AssertionError, ImportError, NotImplementedError) as error:
        raise UserError(f"--device {device}: cannot be used here. This machine has {best_device().type}.") from error
