"""Methods that train a little on the support set: linear probe, CLIP-Adapter, Tip-Adapter-F, APE-T."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.utils import check_random_state
from torch import Tensor, nn

from recollect.fewshot.ape import ApeClassifier, unit_or_zero
from recollect.fewshot.base import EmbeddingClassifier
from recollect.fewshot.mixture import TEXT_SCALE
from recollect.fewshot.tip import one_hot
from recollect.fewshot.tuning import support_folds


class LinearProbe(EmbeddingClassifier):
    """Logistic regression whose regularisation is chosen on held-out parts of the support set.

    Args:
        strengths: inverse regularisation strengths C to choose from; the smallest wins ties.
        max_iter: of the solver.

    Attributes:
        C_: what was chosen.
        model_: the fitted regression.
        n_iter_: iterations the solver took.
    """

    def __init__(
        self, strengths: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0), max_iter: int = 1000
    ) -> None:
        self.strengths = strengths
        self.max_iter = max_iter

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        folds = list(support_folds(labels))
        self.C_ = 1.0 if 1.0 in self.strengths else self.strengths[0]
        if folds:
            accuracy = [cross_val_score(self._new(c), support, labels, cv=folds).mean() for c in self.strengths]
            self.C_ = self.strengths[int(np.argmax(accuracy))]
        self.model_ = self._new(self.C_).fit(support, labels)
        self.n_iter_ = int(self.model_.n_iter_.max())

    def _chosen(self) -> dict[str, Any]:
        return {"strengths": (self.C_,)}

    def _new(self, strength: float) -> LogisticRegression:
        return LogisticRegression(C=strength, max_iter=self.max_iter)

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        return self.model_.predict_log_proba(queries)


def fit_by_gradient(
    parameters: list[nn.Parameter],
    logits: Callable[[Tensor], Tensor],
    count: int,
    labels: Tensor,
    generator: torch.Generator,
    *,
    epochs: int,
    learning_rate: float,
    batch: int = 256,
) -> None:
    """AdamW with a cosine schedule over shuffled batches of the support set (Tip-Adapter-F's loop).

    Args:
        parameters: what is trained.
        logits: from row indices of the support set to logits (rows, classes).
        count: rows of the support set.
    """
    steps = epochs * -(-count // batch)
    optimiser = torch.optim.AdamW(parameters, lr=learning_rate, eps=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(epochs):
        for rows in torch.randperm(count, generator=generator).split(batch):
            loss = nn.functional.cross_entropy(logits(rows), labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()


def _generator(random_state: Any) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))
    return generator


class ClipAdapter(EmbeddingClassifier):
    """A residual bottleneck on the image embedding (Gao et al., 2023): ``norm(r MLP(f) + (1 - r) f)·W``.

    Args:
        text_features: class texts W, in the order of ``classes_``.
        ratio: weight r of the bottleneck.
        reduction: the bottleneck is this many times narrower.
        epochs, learning_rate: of AdamW.
        scale: inverse temperature of the text scores.
        random_state: seed of initial weights and shuffling.
    """

    def __init__(
        self,
        text_features: Any = None,
        ratio: float = 0.2,
        reduction: int = 4,
        epochs: int = 20,
        learning_rate: float = 1e-3,
        scale: float = TEXT_SCALE,
        random_state: Any = 0,
    ) -> None:
        self.text_features = text_features
        self.scale = scale
        self.ratio = ratio
        self.reduction = reduction
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.random_state = random_state

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        generator = _generator(self.random_state)
        width, hidden = support.shape[1], max(1, support.shape[1] // self.reduction)
        shapes = ((hidden, width), (width, hidden))
        down, up = (
            nn.Parameter((torch.rand(shape, generator=generator) * 2 - 1) / shape[1] ** 0.5) for shape in shapes
        )
        images, texts = torch.from_numpy(support).float(), torch.from_numpy(self.texts_).float()

        def logits(rows: Tensor) -> Tensor:
            adapted = _adapt(images[rows], down, up, self.ratio)
            return self.scale * adapted @ texts.T

        fit_by_gradient([down, up], logits, len(images), torch.from_numpy(labels), generator,
              epochs=self.epochs, learning_rate=self.learning_rate)  # fmt: skip
        self.down_, self.up_ = down.detach().numpy(), up.detach().numpy()

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        down, up = torch.from_numpy(self.down_), torch.from_numpy(self.up_)
        adapted = _adapt(torch.from_numpy(queries).float(), down, up, self.ratio)
        return self.scale * adapted.numpy() @ self.texts_.T


def _adapt(images: Tensor, down: Tensor, up: Tensor, ratio: float) -> Tensor:
    bottleneck = torch.relu(torch.relu(images @ down.T) @ up.T)
    return nn.functional.normalize(ratio * bottleneck + (1 - ratio) * images, dim=1)


class TipAdapterF(EmbeddingClassifier):
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

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        generator = _generator(self.random_state)
        images, texts = torch.from_numpy(support).float(), torch.from_numpy(self.texts_).float()
        values = torch.from_numpy(one_hot(labels, len(self.classes_), np.float32))
        keys = nn.Parameter(images.clone())

        def logits(rows: Tensor) -> Tensor:
            cache = torch.exp(self.beta * (images[rows] @ keys.T - 1)) @ values
            return self.scale * images[rows] @ texts.T + self.alpha * cache

        fit_by_gradient([keys], logits, len(images), torch.from_numpy(labels), generator,
              epochs=self.epochs, learning_rate=self.learning_rate)  # fmt: skip
        self.keys_, self.values_ = keys.detach().numpy(), values.numpy()

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        cache = np.exp(self.beta * (queries @ self.keys_.T - 1)) @ self.values_
        return self.scale * queries @ self.texts_.T + self.alpha * cache


class ApeTrained(ApeClassifier):
    """APE-T: APE with a learned residual for each class, added to its text and to its keys, and a learned weight for
    each example (Zhu et al., 2023, section 3.3).

    Args:
        text_features, alpha, beta, gamma, channels, scale: as for APE.
        epochs, learning_rate: of AdamW.
        random_state: seed of the shuffling.
    """

    confidence_scale = 1.0

    def __init__(
        self,
        text_features: Any = None,
        alpha: float | None = None,
        beta: float = 5.5,
        gamma: float = 0.2,
        channels: float = 0.75,
        scale: float = TEXT_SCALE,
        epochs: int = 20,
        learning_rate: float = 1e-3,
        random_state: Any = 0,
    ) -> None:
        super().__init__(text_features, alpha, beta, gamma, channels, scale)
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.random_state = random_state

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        super()._fit(support, labels)
        keys, values = self._cache(support, labels)
        tensors = [torch.from_numpy(array).float() for array in (support, keys, values, self.texts_)]
        images, keys_, values_, texts = tensors
        own = torch.from_numpy(labels)
        residual = nn.Parameter(torch.zeros(len(self.classes_), len(self.channels_)))
        weights = nn.Parameter(torch.ones(len(labels), 1))
        places = torch.from_numpy(self.channels_)

        def logits(rows: Tensor) -> Tensor:
            refined = texts.index_add(1, places, residual)
            near = torch.exp(self.beta * (keys_[rows] @ nn.functional.normalize(keys_ + residual[own], dim=1).T - 1))
            zero_shot = images[rows] @ nn.functional.normalize(refined, dim=1).T
            return self.scale * (zero_shot + self.alpha_ * near @ (weights * values_))

        fit_by_gradient([residual, weights], logits, len(images), own, _generator(self.random_state),
              epochs=self.epochs, learning_rate=self.learning_rate)  # fmt: skip
        with torch.no_grad():
            self.refined_ = nn.functional.normalize(texts.index_add(1, places, residual), dim=1).numpy()
            self.keys_ = nn.functional.normalize(keys_ + residual[own], dim=1).numpy()
            self.values_ = (weights * values_).numpy()

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        near = np.exp(self.beta * (unit_or_zero(queries[:, self.channels_]) @ self.keys_.T - 1))
        return self.scale * (queries @ self.refined_.T + self.alpha_ * near @ self.values_)
