"""What tuning leaves: an encoder, perhaps with prompts in it, and one text embedding for each class."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from recollect.core.types import ImageLike
from recollect.models.transformers.encoder import TransformersEncoder
from recollect.tuning.prompts import Prompts, prompted


@dataclass(frozen=True)
class TunedClassifier:
    """Classifies pictures by the nearest class text, both as tuned.

    Attributes:
        encoder: the tuned copy; one without prompts is a model like any other (`DualEncoder.save`).
        names: of the classes.
        texts: unit-norm class embeddings (classes, width).
        scale: factor of the cosines.
        prompts: that stand in the towers while they embed.
        embed_names: from names, also others, to unit-norm class embeddings; None where each class learned its own.
    """

    encoder: TransformersEncoder
    names: tuple[str, ...]
    texts: Float[Tensor, "classes width"]
    scale: float
    prompts: tuple[Prompts, ...] = ()
    embed_names: Callable[[Sequence[str]], Tensor] | None = None

    def embed_images(self, images: Sequence[ImageLike]) -> Float[Tensor, "n width"]:
        """Unit-norm embeddings of pictures by the tuned image tower."""
        with prompted(self.encoder, self.prompts):
            return self.encoder.embed_images(images)

    def scores(self, images: Sequence[ImageLike]) -> Float[np.ndarray, "n classes"]:
        """``scale`` times the cosines to the class texts; a softmax of them is the trained probability."""
        return (self.scale * self.embed_images(images) @ self.texts.T).numpy()

    def predict(self, images: Sequence[ImageLike]) -> list[str]:
        """The likeliest name for each picture."""
        return [self.names[place] for place in self.scores(images).argmax(axis=1)]


@torch.no_grad()
def unit_texts(raw: Tensor) -> Float[Tensor, "classes width"]:
    """Unit-norm float32 on the CPU, without graph."""
    return F.normalize(raw.detach().float(), dim=1).cpu()
