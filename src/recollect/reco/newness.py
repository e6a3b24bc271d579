"""Simulated newness: training pairs whose own embeddings are wrong while their neighbors are still right.

A frozen model is right about the pairs it was fitted to, so a fusion trained on them learns to trust the embedding and
to ignore the index. Pairs the model never saw differ: image and text lie apart, yet similar images still lie together,
and so do similar texts. Offsets imitate this. Each caption has one random direction for each modality. It is added to
the embeddings of its pairs and to everything read of it, so image and text of the caption no longer agree, but image
agrees with image and text with text. In each step a share of the captions is disturbed.

All numbers are functions of (seed, step) and of the caption's key, so a resumed run continues bit for bit, and
processes that share a batch agree about a caption.
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
    """How training pairs are made to look new to the model.

    Attributes:
        kind: leave pairs as they are, or disturb captions.
        strength: length of an offset, where an embedding's is 1.
        share: of the captions that have an offset in a step.
    """

    kind: Literal["none", "offsets"] = "none"
    strength: float = 2.0
    share: float = 0.5

    def check(self) -> None:
        """Refuse a strength or share out of range.

        Raises:
            UserError: naming the option.
        """
        check_number("newness strength", self.strength, above=0)
        check_number("newness share", self.share, above=0, most=1)


class Disturbance:
    """The offsets of one step."""

    def __init__(self, newness: Newness, seed: int, step: int) -> None:
        self.newness, self.seed, self.step = newness, seed, step

    def __call__(
        self,
        tokens: Float[Tensor, "some places width"],
        modalities: tuple[By, ...],
        captions: Int64[Tensor, "some places"],
    ) -> Float[Tensor, "some places width"]:
        """Disturbed tokens; empty places stay zero.

        Args:
            tokens: embeddings, each followed by what it reads.
            modalities: of the embeddings, then of the equal parts of what they read.
            captions: `caption_key` of each token.
        """
        if self.newness.kind == "none":
            return tokens
        own, *read = modalities
        places = [tensor[:, 1:].tensor_split(len(read), dim=1) for tensor in (tokens, captions)]
        return torch.cat(
            [self._offset(tokens[:, :1], own, captions[:, :1]), *map(self._offset, places[0], read, places[1])], dim=1
        )

    def _offset(self, vectors: Tensor, modality: By, captions: Tensor) -> Tensor:
        """``n(x + strength · e / √width)``, e ~ N(0, 1) of caption and modality, for disturbed captions."""
        distinct, places = np.unique(captions.numpy(), return_inverse=True)
        width = vectors.shape[2]
        chosen = uniforms(self._key("captions"), distinct, 1)[:, 0] < self.newness.share
        offsets = np.zeros((len(distinct), width), dtype=np.float32)
        drawn = normals(self._key(modality), distinct[chosen], width)
        offsets[chosen] = drawn * np.float32(self.newness.strength / width**0.5)
        moved = torch.from_numpy(chosen)[torch.from_numpy(places.reshape(captions.shape))]
        moved &= vectors.abs().amax(dim=2) > 0
        shifted = vectors[moved] + torch.from_numpy(offsets[places.reshape(captions.shape)[moved.numpy()]])
        return vectors.index_put((moved,), functional.normalize(shifted, dim=1).to(vectors.dtype))

    def _key(self, what: str) -> int:
        return derive_seed("newness", self.seed, self.step, what)
