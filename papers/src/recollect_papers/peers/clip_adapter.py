"""CLIP-Adapter: a residual bottleneck on the image embedding (Gao et al., 2023)."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recollect.classifiers.heads.trained import Schedule, fit_by_gradient
from recollect.core.types import TEXT_SCALE
from recollect_papers.peers.together import Problem, TrainedHead, make_generator, stacked, summed_loss


class ClipAdapter(TrainedHead):
    """A residual bottleneck on the image embedding (Gao et al., 2023): ``norm(r MLP(f) + (1 - r) f)·W``.

    Trained by CoOp's recipe, as in the public code: SGD with momentum 0.9, weight decay 5e-4, learning rate 0.002 along
    a cosine after one epoch at 1e-5, batches of 32, and 200, 100 or 50 epochs at eight or more shots, at two, and at
    one. No augmentation, since the support set consists of embeddings.

    Args:
        text_features: class texts W, in the order of ``classes_``.
        ratio: weight r of the bottleneck.
        reduction: factor by which the bottleneck is narrower.
        epochs, learning_rate, batch: by default CoOp's epochs for the number of shots.
        scale: inverse temperature of the text scores.
        random_state: seed of initial weights and shuffling.

    Attributes:
        epochs_: what was used.
    """

    def __init__(
        self,
        text_features: Any = None,
        ratio: float = 0.2,
        reduction: int = 4,
        epochs: int | None = None,
        learning_rate: float = 2e-3,
        batch: int = 32,
        scale: float = TEXT_SCALE,
        random_state: Any = 0,
    ) -> None:
        self.text_features = text_features
        self.scale = scale
        self.ratio = ratio
        self.reduction = reduction
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch = batch
        self.random_state = random_state

    def _choosing(self, support: np.ndarray, labels: np.ndarray) -> Iterator[list[Problem]]:
        shots = len(labels) / len(self.classes_)
        usual = 200 if shots >= 8 else 100 if shots >= 2 else 50
        self.epochs_ = usual if self.epochs is None else self.epochs
        yield from ()

    def _train_stack(
        self, models: Sequence["ClipAdapter"], supports: Sequence[np.ndarray], classes: Sequence[np.ndarray]
    ) -> None:
        generator = make_generator(self.random_state)
        images, texts, own = stacked(supports), stacked([model.texts_ for model in models]), stacked(classes)
        count, width = images.shape[1:]
        hidden = max(1, width // self.reduction)
        down, up = (
            nn.Parameter(((torch.rand(shape, generator=generator) * 2 - 1) / shape[1] ** 0.5).repeat(len(images), 1, 1))
            for shape in ((hidden, width), (width, hidden))
        )

        def loss(rows: Tensor) -> Tensor:
            adapted = _adapt(images[:, rows], down, up, self.ratio)
            return summed_loss(self.scale * adapted @ texts.mT, own[:, rows])

        optimiser = torch.optim.SGD([down, up], lr=self.learning_rate, momentum=0.9, weight_decay=5e-4)
        fit_by_gradient(optimiser, loss, count, generator, Schedule(self.epochs_, self.batch, 1e-5))
        for place, model in enumerate(models):
            model.down_, model.up_ = (weights.detach()[place].clone().numpy() for weights in (down, up))

    def _settle(self) -> None:
        if self.epochs is not None:
            self.epochs_ = self.epochs

    def _chosen(self) -> dict[str, Any]:
        return {"epochs": self.epochs_}

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        down, up = torch.from_numpy(self.down_), torch.from_numpy(self.up_)
        adapted = _adapt(torch.from_numpy(queries).float(), down, up, self.ratio)
        return self.scale * adapted.numpy() @ self.texts_.T


def _adapt(images: Tensor, down: Tensor, up: Tensor, ratio: float) -> Tensor:
    bottleneck = torch.relu(torch.relu(images @ down.mT) @ up.mT)
    return nn.functional.normalize(ratio * bottleneck + (1 - ratio) * images, dim=-1)
