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
"""Default factor of image–text cosines for models without a learned scale: CLIP's learned value."""

Metric = Literal["top-1", "mean per class"]
"""Metric of a classification task."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One image with its texts.

    Attributes:
        image: the picture, or the vector in the latent world.
        texts: every text that describes it; may be empty for a labeled image, whose text is then generated from
            the class name and a prompt template.
        label: index into the source's ``class_names``, or `NO_LABEL`.
        source: name of its source.
        kind: whether its texts are captions or wordings of a label.
        id: unique within the source and the same in every run.
        extra: additional values from the source (``domain``, ``ambiguous``, ...).
    """

    image: ImageLike
    texts: tuple[str, ...]
    label: int
    source: str
    kind: Kind
    id: str
    extra: Mapping[str, Any] = field(default_factory=dict)


BatchRead = tuple["Tensor", list[str], "Tensor"]
"""Result of `Source.batch`: transformed images, one text per image, int64 labels."""


class Source(ABC):
    """A finite, indexable, deterministic set of samples.

    A new source needs a ``name`` and two methods, ``__len__`` and ``__getitem__``. The defaults of all other members
    are correct for any source; override them where the source can be faster, for example `texts` without opening
    images. `recollect.testing.check_source` checks the result.

    Attributes:
        name: unique within a run; appears in logs, reports and cache keys.
        kind: the kind of all its samples.
        class_names: readable class names in label order; empty if samples have no label.
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
        """True for infinite generated sources, whose length has no meaning."""
        return False

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Every word that the texts may contain; empty if unknown."""
        return ()

    @property
    def reads_blocks(self) -> bool:
        """Whether `read_block` is faster than reading samples one by one."""
        return False

    @property
    def makes_batches(self) -> bool:
        """Whether the source implements `batch`, which training then uses."""
        return False

    @property
    def block_sizes(self) -> np.ndarray | None:
        """Lengths of blocks of consecutive samples to read together; None if any order is equally fast."""
        return None

    @cached_property
    def labels(self) -> np.ndarray:
        """The label of every sample, int64 (n,)."""
        if not self.class_names and self.kind == "caption":
            return np.full(len(self), NO_LABEL, dtype=np.int64)
        return np.array([self[index].label for index in range(len(self))], dtype=np.int64)

    @property
    def content(self) -> str | None:
        """A quick digest of the underlying files, equal for copies; None for sources without files.

        Checkpoints store it, so a run resumes only with the same data.
        """
        return None

    @property
    def sampled_files(self) -> Sequence[Path]:
        """All underlying files if they are so large that `content` covers only parts of them; else empty."""
        return ()

    @cached_property
    def fingerprint(self) -> str:
        """Digest that changes whenever any sample changes; identifies the data in the key of the feature cache.

        The default reads every sample including its image: correct for any source, but slow for large ones.
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
        """Return ``index`` as a non-negative position; negative indices count from the end.

        Raises:
            IndexError: the index is out of range.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name}: sample {index} of {len(self)}")
        return index % len(self)

    def read(self, index: int, *, needed: int = 0, extra: bool = True) -> Sample:
        """Return ``self[index]``, reading and decoding only what the caller needs.

        Args:
            needed: shorter side in pixels that the caller needs; larger images may be decoded at reduced size. 0 means
                full size.
            extra: also read the values that only evaluation needs.
        """
        return self[index]

    def read_block(self, indices: np.ndarray) -> list[Sample]:
        """Read several samples, in the order of ``indices``."""
        return [self[index] for index in indices.tolist()]

    def texts(self, index: int) -> tuple[str, ...]:
        """Return the texts of a sample, without opening its image if possible."""
        return self[index].texts

    def example_texts(self, indices: np.ndarray) -> list[str]:
        """Return one text per sample as training may draw it, without creating images."""
        return [text for index in indices.tolist() for text in self.texts(index)[:1]]

    def values(self, key: str) -> list[Any]:
        """Return ``extra[key]`` of every sample, None where missing."""
        return [self[index].extra.get(key) for index in range(len(self))]

    def original(self, index: int) -> bytes | Path | None:
        """Return the stored image as encoded bytes or a file; None if images are generated or vectors."""
        return None

    def picture_key(self, index: int, original: bytes | Path | None) -> str | None:
        """Return a key that identifies an image even if samples are added, removed or sorted, or the source is moved.

        Samples of the same file share it.

        Args:
            original: result of `original` for this sample.

        Returns:
            The key; None if the sample's id is just as stable (generated images); empty if there is no image.
        """
        return None

    def facts(self, index: int, sample: Sample | None = None) -> str:
        """Return a string that changes whenever the texts, class or other values of a sample change.

        Args:
            sample: the sample, if the caller has already read it; else a source may build the string without the image.
        """
        sample = self[index] if sample is None else sample
        return repr((sample.texts, sample.label, dict(sample.extra)))

    @property
    def place(self) -> str:
        """Path or hub id; the name for sources that have neither."""
        return self.name

    @property
    def source_names(self) -> list[str]:
        """Name of the source of each sample; a pool has several."""
        return [self.name] * len(self)

    def batch(self, indices: np.ndarray, seed: int) -> BatchRead:
        """Return a complete batch; only for sources with `makes_batches`.

        Args:
            seed: determines the augmented view of each sample.
        """
        raise NotImplementedError(f"{self.name} does not build batches")


@dataclass(frozen=True, slots=True)
class Batch:
    """``n`` samples, ready for a model and a loss; every field has ``n`` entries in the same order.

    Attributes:
        images: float32 pixels (n, 3, height, width), transformed; or vectors (n, width) in the latent world.
        texts: one text drawn for each sample.
        labels: int64 (n,), class ids unique across all sources of the run, or `NO_LABEL`.
        kinds: caption or label, per sample; selects the prefix token.
        sources: name of each sample's source.
        ids: id of each sample within its source.
        tokens: tokenized texts, if the batch was built with a tokenizer.
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
    """Embeds images and texts: a plain, a retrieval-enhanced or an episode-adapted model.

    A new encoder needs a width, a fingerprint, `embed_images` and `embed_texts`; everything else has a default.
    `recollect.testing.check_encoder` checks the result.

    Attributes:
        width: dimension of an embedding.
        prefixes: prefix tokens of each kind of text that has any.
    """

    width: int
    prefixes: Mapping[Kind, tuple[str, ...]] = {}

    @property
    def scale(self) -> float | None:
        """Learned factor of the cosines (logit scale); None if the model has none."""
        return None

    @property
    def base(self) -> Encoder | None:
        """Encoder whose image embeddings this one refines (see `refine_images`); None if there is none."""
        return None

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Digest that changes whenever embeddings change: of weights, image transform and dtype."""

    @abstractmethod
    def embed_images(self, images: Tensor | Sequence[ImageLike]) -> Tensor:
        """Embed transformed pixels (n, 3, height, width), vectors (n, width), or untransformed images.

        Returns:
            (n, width), unit-norm float32, on the CPU, without graph.
        """

    @abstractmethod
    def embed_texts(self, texts: Sequence[str], prefix: Kind | None = None) -> Tensor:
        """Embed texts.

        Args:
            prefix: kind whose prefix tokens are prepended; ignored by models without prefix tokens.

        Returns:
            (n, width), unit-norm float32, on the CPU, without graph.
        """

    def refine_images(self, embeddings: Tensor) -> Tensor:
        """Refine image embeddings (n, width) of the `base`; returned unchanged if there is no base."""
        return embeddings


def caption_prefix(encoder: Any) -> Kind | None:
    """Return the prefix for captions, queries and index texts: "caption" if the model has that prefix, else None.

    All texts that are compared must use the same prefix.
    """
    return "caption" if "caption" in encoder.prefixes else None


def best_device() -> torch.device:
    """Return CUDA if available, else Apple's MPS, else the CPU."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def chosen_device(device: torch.device | str | None) -> torch.device:
    """Return the given device, or the best one by default.

    Raises:
        UserError: this machine or this build of torch does not have the device.
    """
    if device is None:
        return best_device()
    import torch

    try:
        torch.empty(1, device=device).cpu()
        return torch.device(device)
    except (RuntimeError, AssertionError, ImportError, NotImplementedError) as error:
        raise UserError(f"--device {device}: cannot be used here. This machine has {best_device().type}.") from error
