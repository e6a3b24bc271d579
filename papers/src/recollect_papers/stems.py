"""Models on one locked image tower read the pictures of their tests once, whichever of them comes first."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from recollect.core.types import EncoderBase, ImageLike, Kind
from recollect.models import DualEncoder
from recollect.training.feature_store import FeatureStore


class FeatureEncoder(EncoderBase):
    """A model that embeds features of its locked image tower (`recollect.training.locked.lock_source`), and texts."""

    def __init__(self, model: DualEncoder) -> None:
        self.model, self.width = model.eval(), model.width

    @property
    def scale(self) -> float | None:
        """The model's own."""
        return self.model.scale

    @property
    def prefixes(self) -> Mapping[Kind, tuple[str, ...]]:
        """The model's own."""
        return self.model.prefixes

    @property
    def fingerprint(self) -> str:
        """The model's own."""
        return self.model.fingerprint

    @torch.no_grad()
    def embed_images(self, images: Tensor | Sequence[ImageLike]) -> Float[Tensor, "n width"]:
        """Unit-norm embeddings of feature vectors (n, features)."""
        features = images if isinstance(images, Tensor) else torch.from_numpy(np.stack(images))  # type: ignore[arg-type]
        raw = self.model.project_images(features.to(self.model.device, self.model.dtype))
        return F.normalize(raw.float(), dim=1).cpu()

    def embed_texts(self, texts: Sequence[str], prefix: Kind | None = None) -> Float[Tensor, "n width"]:
        """The model's own."""
        return self.model.embed_texts(texts, prefix)


class SharedStem(FeatureEncoder):
    """A model with a locked image tower; what the tower makes of a block of pictures is kept for all models on it.

    The tower is most of what an evaluation costs, and equal for every run and seed that was trained on its features.
    Blocks are known by their content: tasks that ask different things of the same pictures share them, too. Embeddings
    are those of the model itself, bit for bit.

    Args:
        model: with an image tower whose head alone has learned.
        folder: where features are kept.
    """

    def __init__(self, model: DualEncoder, folder: Path) -> None:
        super().__init__(model)
        self._store, self._stem = FeatureStore(folder), model.stem_fingerprint("image")

    def embed_images(self, images: Tensor | Sequence[ImageLike]) -> Float[Tensor, "n width"]:
        """Unit-norm embeddings of pictures."""
        if len(images) == 0:
            return torch.empty(0, self.width)
        key = ("stem", self._stem, _digest(images))
        kept = self._store.load(*key)
        if kept is None:
            kept = {"features": self.model.pooled_images(images)}
            self._store.save(kept, *key)
        return super().embed_images(kept["features"])


def _digest(images: Tensor | Sequence[ImageLike]) -> str:
    """Of the pictures' pixels, in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for image in images:
        array = np.ascontiguousarray(image)
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()
