"""Methods that train a little on the support set: linear probe, CLIP-Adapter, Tip-Adapter-F, APE-T."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.utils import check_random_state
from torch import Tensor, nn

from recollect.core.types import TEXT_SCALE
from recollect.fewshot.ape import PUBLISHED_ALPHAS, PUBLISHED_BETAS, channel_scores
from recollect.fewshot.base import EmbeddingClassifier
from recollect.fewshot.holdout import MOST_TUNING_ROWS, HoldOut
from recollect.fewshot.tip import best_mixture, one_hot


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
        plan = HoldOut.of(labels).first(MOST_TUNING_ROWS)
        self.C_ = 1.0 if 1.0 in self.strengths else self.strengths[0]
        if len(self.strengths) > 1 and len(plan.rows):
            right = [
                [np.mean(self._model(c, support[learn], labels[learn]).predict(support[choose]) == labels[choose])
                 for c in self.strengths] for learn, choose in plan.folds()
            ]  # fmt: skip
            self.C_ = self.strengths[int(np.argmax(np.mean(right, axis=0)))]
        self.model_ = self._model(self.C_, support, labels)
        self.n_iter_ = int(self.model_.n_iter_.max())

    def _chosen(self) -> dict[str, Any]:
        return {"strengths": (self.C_,)}

    def _model(self, strength: float, support: np.ndarray, labels: np.ndarray) -> LogisticRegression:
        with warnings.catch_warnings():  # a class for nearly every example looks like regression to scikit-learn
            warnings.filterwarnings("ignore", message="The number of unique classes is greater than 50%")
            return LogisticRegression(C=strength, max_iter=self.max_iter).fit(support, labels)

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        return self.model_.predict_log_proba(queries)


@dataclass(frozen=True)
class Schedule:
    """How a head is trained: cosine from the optimiser's rate to zero, over shuffled batches.

    Attributes:
        epochs: passes over the support set.
        batch: examples a step.
        warm_up: rate of a first epoch that the cosine starts after; None for none.
    """

    epochs: int
    batch: int = 256
    warm_up: float | None = None


def fit_by_gradient(
    optimiser: torch.optim.Optimizer,
    loss: Callable[[Tensor], Tensor],
    count: int,
    generator: torch.Generator,
    schedule: Schedule,
    after: Callable[[float], None] | None = None,
) -> None:
    """Train on shuffled batches of the support set.

    Args:
        optimiser: of what is trained; its rate is the highest.
        loss: from row indices of the support set to the loss.
        count: rows of the support set.
        after: called after each step with its rate.
    """
    steps = -(-count // schedule.batch)
    warm = steps if schedule.warm_up is not None and schedule.epochs > 1 else 0
    highest = [group["lr"] for group in optimiser.param_groups]
    done = 0
    for _ in range(schedule.epochs):
        for rows in torch.randperm(count, generator=generator).split(schedule.batch):
            share = max(done - warm, 0) / max(schedule.epochs * steps - warm, 1)
            for group, rate in zip(optimiser.param_groups, highest, strict=True):
                group["lr"] = schedule.warm_up if done < warm else rate * (1 + np.cos(np.pi * share)) / 2
            value = loss(rows)
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            if after is not None:
                after(optimiser.param_groups[0]["lr"])
            done += 1


def make_generator(random_state: Any) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))
    return generator


class ClipAdapter(EmbeddingClassifier):
    """A residual bottleneck on the image embedding (Gao et al., 2023): ``norm(r MLP(f) + (1 - r) f)·W``.

    Trained as its code is, by CoOp's recipe: stochastic gradient descent with momentum 0.9, weight decay 5e-4, rate
    0.002 falling along a cosine after one epoch at 1e-5, batches of 32, and 200, 100 or 50 epochs at eight shots and
    more, at two, and at one. Without views: a support set of embeddings has none.

    Args:
        text_features: class texts W, in the order of ``classes_``.
        ratio: weight r of the bottleneck.
        reduction: the bottleneck is this many times narrower.
        epochs, learning_rate, batch: None epochs are CoOp's for the number of shots.
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

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        generator = make_generator(self.random_state)
        width, hidden = support.shape[1], max(1, support.shape[1] // self.reduction)
        shapes = ((hidden, width), (width, hidden))
        down, up = (
            nn.Parameter((torch.rand(shape, generator=generator) * 2 - 1) / shape[1] ** 0.5) for shape in shapes
        )
        images, texts = torch.from_numpy(support).float(), torch.from_numpy(self.texts_).float()
        own = torch.from_numpy(labels)

        def loss(rows: Tensor) -> Tensor:
            adapted = _adapt(images[rows], down, up, self.ratio)
            return nn.functional.cross_entropy(self.scale * adapted @ texts.T, own[rows])

        shots = len(labels) / len(self.classes_)
        usual = 200 if shots >= 8 else 100 if shots >= 2 else 50
        self.epochs_ = usual if self.epochs is None else self.epochs
        optimiser = torch.optim.SGD([down, up], lr=self.learning_rate, momentum=0.9, weight_decay=5e-4)
        fit_by_gradient(optimiser, loss, len(images), generator, Schedule(self.epochs_, self.batch, 1e-5))
        self.down_, self.up_ = down.detach().numpy(), up.detach().numpy()

    def _chosen(self) -> dict[str, Any]:
        return {"epochs": self.epochs_}

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
        generator = make_generator(self.random_state)
        images, texts = torch.from_numpy(support).float(), torch.from_numpy(self.texts_).float()
        values = torch.from_numpy(one_hot(labels, len(self.classes_), np.float32))
        keys = nn.Parameter(images.clone())

        own = torch.from_numpy(labels)

        def loss(rows: Tensor) -> Tensor:
            cache = torch.exp(self.beta * (images[rows] @ keys.T - 1)) @ values
            logits = self.scale * images[rows] @ texts.T + self.alpha * cache
            return nn.functional.cross_entropy(logits, own[rows])

        optimiser = torch.optim.AdamW([keys], lr=self.learning_rate, eps=1e-4)
        fit_by_gradient(optimiser, loss, len(images), generator, Schedule(self.epochs))
        self.keys_, self.values_ = keys.detach().numpy(), values.numpy()

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        cache = np.exp(self.beta * (queries @ self.keys_.T - 1)) @ self.values_
        return self.scale * queries @ self.texts_.T + self.alpha * cache


class ApeTrained(EmbeddingClassifier):
    """APE-T: a learned residual for each class on the channels that tell classes apart, added to its text and to its
    keys, and a learned weight for each example (Zhu et al., 2023, section 3.3, as in the public code).

    All channels are kept, nothing is normalised again, and values have no divergence:
    ``scale f·W' + alpha exp(-beta (1 - f·F')) diag(weights) L``. Trained at alpha 2 and beta 1; both are then chosen
    on folds, each trained by itself, alpha exactly.

    Args:
        text_features: class texts W, in the order of ``classes_``.
        alpha, beta: weight and sharpness of the cache; None chooses.
        channels: share of the channels that have a residual.
        similarity_weight: w of the channels' score.
        scale: factor of the text scores, the model's own.
        epochs, learning_rate: of AdamW.
        random_state: seed of the shuffling.
    """

    def __init__(
        self,
        text_features: Any = None,
        alpha: float | None = None,
        beta: float | None = None,
        channels: float = 0.5,
        similarity_weight: float = 0.2,
        scale: float = TEXT_SCALE,
        epochs: int = 20,
        learning_rate: float = 1e-3,
        random_state: Any = 0,
    ) -> None:
        self.text_features = text_features
        self.alpha = alpha
        self.beta = beta
        self.channels = channels
        self.similarity_weight = similarity_weight
        self.scale = scale
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.random_state = random_state

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        if not 0 < self.channels <= 1:
            raise ValueError(f"channels is a share between 0 and 1, got {self.channels}")
        self.alpha_, self.beta_ = self._choose(support, labels)
        self._train(support, labels)

    def _choose(self, support: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        plan = HoldOut.of(labels).first(MOST_TUNING_ROWS)
        alpha, beta = (given if given is not None else usual for given, usual in ((self.alpha, 2.0), (self.beta, 1.0)))
        if not len(plan.rows) or None not in (self.alpha, self.beta):
            return alpha, beta
        betas = PUBLISHED_BETAS if self.beta is None else (self.beta,)
        bounds = PUBLISHED_ALPHAS if self.alpha is None else (self.alpha, float(np.nextafter(self.alpha, np.inf)))

        def blocks() -> Iterator[tuple[np.ndarray, np.ndarray, Iterable[np.ndarray]]]:
            for learn, choose in plan.folds():
                fold = self._refitted(support[learn], labels[learn], {"alpha": alpha, "beta": beta})
                queries = support[choose]
                caches = (fold._cache(queries, beta) for beta in betas)
                yield np.searchsorted(plan.rows, choose), (self.scale * queries @ fold.refined_.T)[None], caches

        best = best_mixture(blocks(), plan.held_labels, [(beta,) for beta in betas], bounds)
        return best.weight if self.alpha is None else alpha, best.parameters[0]

    def _chosen(self) -> dict[str, Any]:
        return {"alpha": self.alpha_, "beta": self.beta_}

    def _train(self, support: np.ndarray, labels: np.ndarray) -> None:
        score = channel_scores(self.texts_, self.similarity_weight)
        kept = np.argsort(-score, kind="stable")[: max(1, round(self.channels * support.shape[1]))]
        images, texts = (torch.from_numpy(array).float() for array in (support, self.texts_))
        values = torch.from_numpy(one_hot(labels, len(self.classes_), np.float32))
        own, places = torch.from_numpy(labels), torch.from_numpy(np.sort(kept))
        residual = nn.Parameter(torch.zeros(len(self.classes_), len(kept)))
        weights = nn.Parameter(torch.ones(len(labels), 1))
        alpha, beta = (given if given is not None else usual for given, usual in ((self.alpha, 2.0), (self.beta, 1.0)))

        def loss(rows: Tensor) -> Tensor:
            keys = images.index_add(1, places, residual[own])
            near = torch.exp(beta * (images[rows] @ keys.T - 1))
            zero_shot = images[rows] @ texts.index_add(1, places, residual).T
            logits = self.scale * zero_shot + alpha * near @ (weights * values)
            return nn.functional.cross_entropy(logits, own[rows])

        optimiser = torch.optim.AdamW([residual, weights], lr=self.learning_rate, eps=1e-3, weight_decay=0.1)
        fit_by_gradient(optimiser, loss, len(images), make_generator(self.random_state), Schedule(self.epochs))
        with torch.no_grad():
            self.refined_ = texts.index_add(1, places, residual).numpy()
            self.keys_ = images.index_add(1, places, residual[own]).numpy()
            self.values_ = (weights * values).numpy()

    def _cache(self, queries: np.ndarray, beta: float) -> np.ndarray:
        return np.exp(beta * (queries @ self.keys_.T - 1)) @ self.values_

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        return self.scale * queries @ self.refined_.T + self.alpha_ * self._cache(queries, self.beta_)
