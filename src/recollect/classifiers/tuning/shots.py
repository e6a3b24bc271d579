"""Labelled pictures, random crops and the training loop of tuning."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from recollect.classifiers.heads.trained import Schedule, fit_by_gradient
from recollect.core.errors import UserError
from recollect.core.progress import progress
from recollect.core.seeding import derive_seed, seed_default_generators
from recollect.core.types import ImageLike
from recollect.models.dual import DualEncoder
from recollect.models.transformers.encoder import TransformersEncoder


@dataclass(frozen=True)
class LabelledPictures:
    """A support set of pictures.

    Attributes:
        pictures: PIL images or arrays (height, width, 3) of bytes.
        labels: of each, 0…C - 1 (n,).
        unlabelled: more pictures of the same kind, for methods that learn from them too.
    """

    pictures: Sequence[ImageLike]
    labels: np.ndarray
    names: tuple[str, ...]
    unlabelled: Sequence[ImageLike] = ()

    def __post_init__(self) -> None:
        if len(self.pictures) != len(self.labels):
            raise ValueError(f"{len(self.pictures)} pictures, but {len(self.labels)} labels")
        if len(self.names) < 2 or set(np.unique(self.labels).tolist()) != set(range(len(self.names))):
            raise ValueError(f"labels must be 0 to {len(self.names) - 1}, each at least once, of two or more classes")
        if any(isinstance(picture, np.ndarray) and picture.ndim == 1 for picture in self.pictures):
            raise UserError("tuning needs pictures, got vectors. Choose a method that reads embeddings.")

    @property
    def shots(self) -> int:
        """Average number of examples per class, at least one."""
        return max(1, round(len(self.labels) / len(self.names)))


def frozen_copy(encoder: DualEncoder) -> TransformersEncoder:
    """A copy to tune, with all parameters frozen.

    Raises:
        UserError: not a model of transformers.
    """
    if not isinstance(encoder, TransformersEncoder):
        raise UserError("tuning needs a CLIP or SigLIP checkpoint of transformers.")
    twin = copy.deepcopy(encoder).eval()
    twin.requires_grad_(False)
    return twin


@dataclass(frozen=True)
class Crops:
    """Random crops of 8 to 100 % of each picture's area, half of them mirrored, as in all published recipes.

    Attributes:
        encoder: its transform is applied to the crops.
        flip: mirror half of the crops; wrong for letters, signs and maps.
    """

    encoder: DualEncoder
    pictures: Sequence[ImageLike]
    flip: bool = True
    seed: int = 0

    def stream(self) -> Callable[[Tensor], Tensor]:
        """A function from rows to new crops, pixels (rows, 3, size, size) on the encoder's device."""
        transform = replace(self.encoder.transform, training=True, scale=(0.08, 1.0), flip=self.flip)
        random = np.random.default_rng(derive_seed("crops", self.seed))

        def crops(rows: Tensor) -> Tensor:
            pixels = [transform.pixels(self.pictures[row], random) for row in rows.tolist()]
            return transform.normalise(torch.from_numpy(np.stack(pixels))).to(self.encoder.device, self.encoder.dtype)

        return crops


def class_loss(images: Tensor, texts: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Cross-entropy of ``scale`` times the cosines of raw embeddings (n, width) and (classes, width)."""
    return F.cross_entropy(scale * F.normalize(images, dim=1) @ F.normalize(texts, dim=1).T, labels)


def descend(
    what: str,
    optimiser: torch.optim.Optimizer,
    loss: Callable[[Tensor], Tensor],
    count: int,
    schedule: Schedule,
    seed: int,
    after: Callable[[float], None] | None = None,
) -> None:
    """Train on shuffled rows; the same seed gives the same steps.

    Args:
        after: called after each step with its learning rate.
    """
    steps = schedule.epochs * math.ceil(count / schedule.batch)
    generator = torch.Generator().manual_seed(derive_seed("tuning", seed) % 2**63)
    with torch.random.fork_rng(devices=[]), progress(what, steps, "steps") as counter:
        seed_default_generators(derive_seed("dropout", seed) % 2**63)

        def done(rate: float) -> None:
            counter.advance(1)
            if after is not None:
                after(rate)

        fit_by_gradient(optimiser, loss, count, generator, schedule, done)
