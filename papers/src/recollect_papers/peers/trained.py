"""Heads trained by gradient descent: CLIP-Adapter and Tip-Adapter-F."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor, nn

from recollect.classifiers.heads.base import EmbeddingClassifier, KernelForm
from recollect.classifiers.heads.trained import Schedule, fit_by_gradient
from recollect.core.types import TEXT_SCALE


def make_generator(random_state: Any) -> torch.Generator:
    """Create a torch generator from scikit-learn's ``random_state``."""
    return torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))


def tensors(*arrays: np.ndarray) -> list[Tensor]:
    """Convert arrays to tensors, floats to single precision."""
    found = [torch.from_numpy(array) for array in arrays]
    return [each.float() if each.is_floating_point() else each for each in found]


@dataclass(eq=False, repr=False)
class ClipAdapter(EmbeddingClassifier):
    """Residual bottleneck on the image embedding (Gao et al., 2023): ``norm(r MLP(f) + (1 - r) f)·W``.

    Trained by CoOp's recipe, as in the public code: SGD with momentum 0.9, weight decay 5e-4, learning rate 0.002 along
    a cosine after one epoch at 1e-5, batches of 32, and 200 epochs for at least 8 shots, 100 for at least 2, 50 for 1.
    No augmentation, since the support set consists of embeddings.

    Args:
        text_features: class texts W, in the order of ``classes_``.
        ratio: weight r of the bottleneck, which is a quarter as wide as the embedding.
        epochs: by default CoOp's for the number of shots.
        learning_rate, batch: parameters of SGD.
        scale: inverse temperature of the text scores.
        random_state: seed of initial weights and shuffling.
    """

    text_features: Any = None
    ratio: float = 0.2
    epochs: int | None = None
    learning_rate: float = 2e-3
    batch: int = 32
    scale: float = TEXT_SCALE
    random_state: Any = 0

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        shots = len(labels) / len(self.classes_)
        usual = 200 if shots >= 8 else 100 if shots >= 2 else 50
        self.epochs_ = usual if self.epochs is None else self.epochs
        generator = make_generator(self.random_state)
        images, texts, own = tensors(support, self.texts_, labels)
        width, hidden = images.shape[1], max(1, images.shape[1] // 4)
        down, up = (
            nn.Parameter((torch.rand(shape, generator=generator) * 2 - 1) / shape[1] ** 0.5)
            for shape in ((hidden, width), (width, hidden))
        )

        def loss(rows: Tensor) -> Tensor:
            return nn.functional.cross_entropy(self.scale * self._adapted(images[rows], down, up) @ texts.T, own[rows])

        optimizer = torch.optim.SGD([down, up], lr=self.learning_rate, momentum=0.9, weight_decay=5e-4)
        fit_by_gradient(optimizer, loss, len(images), generator, Schedule(self.epochs_, self.batch, 1e-5))
        self.down_, self.up_ = down.detach().numpy(), up.detach().numpy()

    def _chosen(self) -> dict[str, Any]:
        return {"epochs": self.epochs_}

    def _adapted(self, images: Tensor, down: Tensor, up: Tensor) -> Tensor:
        bottleneck = torch.relu(torch.relu(images @ down.T) @ up.T)
        return nn.functional.normalize(self.ratio * bottleneck + (1 - self.ratio) * images, dim=-1)

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        adapted = self._adapted(*tensors(queries, self.down_, self.up_))
        return self.scale * adapted.numpy() @ self.texts_.T


@dataclass(eq=False, repr=False)
class TipAdapterF(EmbeddingClassifier):
    """Tip-Adapter whose keys are trained from the support embeddings (Zhang et al., 2022).

    Args:
        text_features: class texts W, in the order of ``classes_``.
        alpha, beta: weight and sharpness of the cache.
        epochs, learning_rate: parameters of AdamW.
        scale: inverse temperature of the text scores.
        random_state: seed of the shuffling.
    """

    text_features: Any = None
    alpha: float = 1.0
    beta: float = 5.5
    epochs: int = 20
    learning_rate: float = 1e-3
    scale: float = TEXT_SCALE
    random_state: Any = 0

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        images, texts, own = tensors(support, self.texts_, labels)
        values, keys = nn.functional.one_hot(own, len(self.classes_)).float(), nn.Parameter(images.clone())

        def loss(rows: Tensor) -> Tensor:
            cache = torch.exp(self.beta * (images[rows] @ keys.T - 1)) @ values
            return nn.functional.cross_entropy(self.scale * images[rows] @ texts.T + self.alpha * cache, own[rows])

        optimizer = torch.optim.AdamW([keys], lr=self.learning_rate, eps=1e-4)
        fit_by_gradient(optimizer, loss, len(images), make_generator(self.random_state), Schedule(self.epochs))
        self.keys_, self.values_ = keys.detach().numpy(), values.numpy()

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        cache = np.exp(self.beta * (queries @ self.keys_.T - 1)) @ self.values_
        return self.scale * queries @ self.texts_.T + self.alpha * cache

    def kernel_form(self) -> KernelForm:
        kernel = self.keys_, self.beta, self.alpha * self.values_
        return KernelForm.of(self, self.scale * self.texts_, kernel=kernel)
