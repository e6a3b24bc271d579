"""What passes between the rooms: samples, batches and everything that embeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

Kind = Literal["caption", "label"]
"""What a text is: a free caption, or the wording of a class label."""

ImageLike = Image.Image | np.ndarray
"""One image: a PIL image, a (height, width, 3) uint8 array, or a 1-d float32 vector of the latent world."""

NO_LABEL = -1
"""The label of a sample that has no class."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One image with its texts.

    Attributes:
        image: the picture, or the vector in the latent world.
        texts: every text that describes it; may be empty for a labelled image, whose text is then made from
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


@runtime_checkable
class Source(Protocol):
    """A finite, indexable, deterministic set of samples.

    Attributes:
        name: unique within a run; appears in logs, reports and cache keys.
        kind: the kind of all its samples.
        class_names: readable class names in label order; empty where samples have no label.
        fingerprint: changes whenever any sample would; the part of the feature cache's key that names the data.
    """

    name: str
    kind: Kind
    class_names: tuple[str, ...]

    @property
    def fingerprint(self) -> str: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...


@dataclass(frozen=True, slots=True)
class Batch:
    """``n`` samples, ready for a model and a loss; every field has ``n`` entries in the same order.

    Attributes:
        images: float32 pixels (n, 3, height, width), transformed; or vectors (n, width) in the latent world.
        texts: one text drawn for each sample.
        labels: int64 (n,), class ids that are unique across all sources of the run; `NO_LABEL` where there is none.
        kinds: caption or label, per sample; chooses the prefix token.
        sources: name of each sample's source.
        ids: each sample's id within its source.
    """

    images: Tensor
    texts: tuple[str, ...]
    labels: Tensor
    kinds: tuple[Kind, ...]
    sources: tuple[str, ...]
    ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows: slice) -> "Batch":
        return Batch(
            self.images[rows], self.texts[rows], self.labels[rows], self.kinds[rows], self.sources[rows], self.ids[rows]
        )


@runtime_checkable
class Encoder(Protocol):
    """Anything that embeds: a plain model, a retrieval-enhanced one, an episode-adapted one.

    Attributes:
        width: number of entries of an embedding.
    """

    @property
    def width(self) -> int: ...

    @property
    def fingerprint(self) -> str:
        """Changes whenever an embedding would: weights, image transform and dtype."""
        ...

    def embed_images(self, images: Tensor | Sequence[ImageLike]) -> Tensor:
        """Embed transformed pixels (n, 3, height, width), vectors (n, width), or untransformed images.

        Returns:
            (n, width), unit-norm float32, on the CPU, without graph.
        """
        ...

    def embed_texts(self, texts: Sequence[str], prefix: Kind | None = None) -> Tensor:
        """Embed texts, read as ``prefix`` says by a model that has prefix tokens (others ignore it).

        Returns:
            (n, width), unit-norm float32, on the CPU, without graph.
        """
        ...


def best_device() -> torch.device:
    """CUDA if there is one, then Apple's MPS, then the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")
