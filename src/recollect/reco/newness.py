"""Simulated newness: training pairs whose embeddings are wrong while their neighbors are still right.

A frozen model is right about its own training pairs, so a fusion trained on them learns to trust the embedding and to
ignore the index. For pairs the model has never seen, image and text embeddings are far apart, yet similar images are
still close to each other, and so are similar texts. Offsets imitate this: each caption has one random direction per
modality, which is added to the embeddings of its pairs and to its vectors among the neighbors. Image and text of the
caption then no longer agree, but image agrees with image and text with text. Each step disturbs a share of the
captions.

All numbers are functions of (seed, step) and of the caption's key, so a resumed run continues bit for bit, and
processes that share a batch use the same offset for a caption.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from recollect.core.seeding import derive_seed, normals, uniforms
from recollect.core.validation import check_number
from recollect.index import By


@dataclass(frozen=True)
class Newness:
    """Changes that make training pairs look new to the model.

    Attributes:
        kind: leave pairs unchanged, or add offsets.
        strength: norm of an offset, relative to unit-norm embeddings.
        share: share of the captions with an offset in a step.
    """

    kind: Literal["none", "offsets"] = "none"
    strength: float = 2.0
    share: float = 0.5

    def check(self) -> None:
        """Check the ranges of strength and share.

        Raises:
            UserError: an option is out of range; the message names it.
        """
        check_number("newness strength", self.strength, above=0)
        check_number("newness share", self.share, above=0, most=1)


class Disturbance:
    """The offsets of one step."""

    def __init__(self, newness: Newness, seed: int, step: int) -> None:
        self.newness, self.seed, self.step = newness, seed, step

    def __call__(
        self,
        tokens: Float[Tensor, "some slots width"],
        modalities: tuple[By, ...],
        captions: Int64[Tensor, "some slots"],
    ) -> Float[Tensor, "some slots width"]:
        """Return disturbed tokens; empty slots stay zero.

        Args:
            tokens: embeddings, each followed by its neighbors.
            modalities: modality of the embeddings, then of each equal part of the neighbors.
            captions: `caption_key` of each token.
        """
        if self.newness.kind == "none":
            return tokens
        own, *read = modalities
        parts = [tensor[:, 1:].tensor_split(len(read), dim=1) for tensor in (tokens, captions)]
        return torch.cat(
            [self._offset(tokens[:, :1], own, captions[:, :1]), *map(self._offset, parts[0], read, parts[1])], dim=1
        )

    def _offset(self, vectors: Tensor, modality: By, captions: Tensor) -> Tensor:
        """Return ``n(x + strength · e / √width)`` with e ~ N(0, 1) per caption and modality, for disturbed captions."""
        distinct, inverse = np.unique(captions.numpy(), return_inverse=True)
        width = vectors.shape[2]
        chosen = uniforms(self._key("captions"), distinct, 1)[:, 0] < self.newness.share
        offsets = np.zeros((len(distinct), width), dtype=np.float32)
        drawn = normals(self._key(modality), distinct[chosen], width)
        offsets[chosen] = drawn * np.float32(self.newness.strength / width**0.5)
        moved = torch.from_numpy(chosen)[torch.from_numpy(inverse.reshape(captions.shape))]
        moved &= vectors.abs().amax(dim=2) > 0
        shifted = vectors[moved] + torch.from_numpy(offsets[inverse.reshape(captions.shape)[moved.numpy()]])
        return vectors.index_put((moved,), functional.normalize(shifted, dim=1).to(vectors.dtype))

    def _key(self, what: str) -> int:
        return derive_seed("newness", self.seed, self.step, what)
