"""Tip-Adapter-F: Tip-Adapter with trained keys (Zhang et al., 2022)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recollect.classifiers.heads.base import KernelForm
from recollect.classifiers.heads.trained import Schedule, fit_by_gradient
from recollect.core.types import TEXT_SCALE
from recollect_papers.peers.together import TrainedHead, make_generator, stacked, summed_loss


class TipAdapterF(TrainedHead):
    """Tip-Adapter whose keys are trained from the support embeddings (Zhang et al., 2022).

    Args:
        text_features: class texts W, in the order of ``classes_``.
        alpha, beta: weight and sharpness of the cache.
        epochs, learning_rate: of AdamW.
        scale: inverse temperature of the text scores.
        random_state: seed of the shuffling.
    """

    def __init__(
        self,
        text_features: Any = None,
        alpha: float = 1.0,
        beta: float = 5.5,
        epochs: int = 20,
        learning_rate: float = 1e-3,
        scale: float = TEXT_SCALE,
        random_state: Any = 0,
    ) -> None:
        self.text_features = text_features
        self.scale = scale
        self.alpha = alpha
        self.beta = beta
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.random_state = random_state

    def _train_stack(
        self, models: Sequence["TipAdapterF"], supports: Sequence[np.ndarray], classes: Sequence[np.ndarray]
    ) -> None:
        images, texts, own = stacked(supports), stacked([model.texts_ for model in models]), stacked(classes)
        values = nn.functional.one_hot(own, len(self.classes_)).float()
        keys = nn.Parameter(images.clone())

        def loss(rows: Tensor) -> Tensor:
            cache = torch.exp(self.beta * (images[:, rows] @ keys.mT - 1)) @ values
            return summed_loss(self.scale * images[:, rows] @ texts.mT + self.alpha * cache, own[:, rows])

        optimiser = torch.optim.AdamW([keys], lr=self.learning_rate, eps=1e-4)
        fit_by_gradient(optimiser, loss, images.shape[1], make_generator(self.random_state), Schedule(self.epochs))
        for model, found, ones in zip(models, keys.detach(), values, strict=True):
            model.keys_, model.values_ = found.clone().numpy(), ones.clone().numpy()

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        cache = np.exp(self.beta * (queries @ self.keys_.T - 1)) @ self.values_
        return self.scale * queries @ self.texts_.T + self.alpha * cache

    def kernel_form(self) -> KernelForm:
        kernel = self.keys_, self.beta, self.alpha * self.values_
        return KernelForm.of(self, self.scale * self.texts_, kernel=kernel)
