"""How embeddings use their space: the span of the texts, what is outside it, and the control that removes that."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recollect.core.seeding import derive_seed
from recollect.core.types import Encoder, EncoderBase, ImageLike, Kind


def text_span(texts: np.ndarray, share: float = 0.99) -> np.ndarray:
    """An orthonormal basis of the directions that hold ``share`` of the centred texts' energy.

    Args:
        texts: (n, width) text embeddings.

    Returns:
        (rank, width), the leading principal components.
    """
    _, values, basis = np.linalg.svd(texts - texts.mean(0), full_matrices=False)
    energy = np.cumsum(values**2) / np.sum(values**2)
    return basis[: int(np.searchsorted(energy, share) + 1)]


def energy_outside(images: np.ndarray, span: np.ndarray) -> float:
    """Share of the centred images' energy that is outside ``span`` (0 to 1).

    The base objective hardly touches these directions, and the context objective trains them, so the share says
    how much there is for context to clean up.
    """
    centred = images - images.mean(0)
    return float(1.0 - np.sum((centred @ span.T) ** 2) / np.sum(centred**2))


@dataclass(frozen=True)
class SpanEncoder(EncoderBase):
    """The projection control: another encoder's image embeddings, projected onto the span of the texts.

    It costs no training. What context gains over this, context has learned; what this gains too, it has not.
    """

    encoder: Encoder
    span: np.ndarray

    @property
    def width(self) -> int:
        return self.encoder.width

    @property
    def scale(self) -> float | None:
        """The encoder's own."""
        return self.encoder.scale

    @property
    def base(self) -> Encoder:
        return self.encoder

    def refine_images(self, embeddings: Tensor) -> Tensor:
        return self.project(embeddings)

    @property
    def fingerprint(self) -> str:
        """That of the encoder and the span."""
        return f"{derive_seed(self.encoder.fingerprint, self.span.astype(np.float32).tobytes().hex()):016x}"

    def embed_images(self, images: Tensor | Sequence[ImageLike]) -> Tensor:
        """Unit-norm projections (n, width)."""
        return self.project(self.encoder.embed_images(images))

    def project(self, images: Tensor) -> Tensor:
        """The encoder's image embeddings (n, width), projected and unit-norm again."""
        basis = torch.from_numpy(self.span.astype(np.float32))
        return torch.nn.functional.normalize(images @ basis.T @ basis, dim=1)

    def embed_texts(self, texts: Sequence[str], prefix: Kind | None = None) -> Tensor:
        """The encoder's own text embeddings."""
        return self.encoder.embed_texts(texts, prefix)
