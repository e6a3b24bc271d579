"""Heads trained on the support set: linear probe, CLIP-Adapter, Tip-Adapter-F, APE-T."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.utils import check_random_state
from torch import Tensor, nn

from recollect.classifiers.heads.ape import PUBLISHED_ALPHAS, PUBLISHED_BETAS, channel_scores
from recollect.classifiers.heads.base import EmbeddingClassifier
from recollect.classifiers.heads.holdout import MOST_TUNING_ROWS, HoldOut
from recollect.classifiers.heads.tip import best_mixture
from recollect.classifiers.heads.together import Problem, TrainedHead, stacked
from recollect.core.ordering import best_first
from recollect.core.types import TEXT_SCALE


class LinearProbe(EmbeddingClassifier):
    """Logistic regression with regularisation chosen by cross-validation on the support set.

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
        with warnings.catch_warnings():  # scikit-learn takes one shot per class for regression
            warnings.filterwarnings("ignore", message="The number of unique classes is greater than 50%")
            return LogisticRegression(C=strength, max_iter=self.max_iter).fit(support, labels)

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        return self.model_.predict_log_proba(queries)


@dataclass(frozen=True)
class Schedule:
    """Training of a head over shuffled batches, with a cosine from the optimiser's learning rate to zero.

    Attributes:
        epochs: passes over the support set.
        batch: examples per step.
        warm_up: constant learning rate of an epoch before the cosine; None for none.
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
        optimiser: its learning rate is the highest one.
        loss: from row indices of the support set to the loss.
        count: rows of the support set.
        after: called after each step with its learning rate.
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


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of logits (problems, rows, classes): mean over rows, sum over problems."""
    summed = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return summed / labels.shape[1]


def make_generator(random_state: Any) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))
    return generator


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


class ApeTrained(TrainedHead):
    """APE-T: a learned residual for each class on the most discriminative channels, added to its text and to its keys,
    and a learned weight for each example (Zhu et al., 2023, section 3.3, as in the public code).

    ``scale f·W' + alpha exp(-beta (1 - f·F')) diag(weights) L`` with all channels, neither renormalisation nor
    divergence. Trained at alpha 2 and beta 1; both are then chosen on separately trained folds, alpha exactly.

    Args:
        text_features: class texts W, in the order of ``classes_``.
        alpha, beta: weight and sharpness of the cache; chosen by default.
        channels: share of channels with a residual.
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

    def _settle(self) -> None:
        if not 0 < self.channels <= 1:
            raise ValueError(f"channels must be above 0 and at most 1, got {self.channels}")
        self.alpha_ = 2.0 if self.alpha is None else self.alpha
        self.beta_ = 1.0 if self.beta is None else self.beta

    def _choosing(self, support: np.ndarray, labels: np.ndarray) -> Iterator[list[Problem]]:
        self._settle()
        plan = HoldOut.of(labels)
        if not len(plan.rows) or None not in (self.alpha, self.beta):
            return
        some = plan.first(MOST_TUNING_ROWS)
        folds = list(some.folds())
        problems = [self._without(support, labels, learn, {}) for learn, _ in folds]
        yield problems
        betas = PUBLISHED_BETAS if self.beta is None else (self.beta,)
        bounds = PUBLISHED_ALPHAS if self.alpha is None else (self.alpha, float(np.nextafter(self.alpha, np.inf)))

        def blocks() -> Iterator[tuple[np.ndarray, np.ndarray, Iterable[np.ndarray]]]:
            for (model, *_), (_, choose) in zip(problems, folds, strict=True):
                queries = support[choose]
                caches = (model._cache(queries, beta) for beta in betas)
                yield np.searchsorted(some.rows, choose), (self.scale * queries @ model.refined_.T)[None], caches

        best = best_mixture(blocks(), some.held_labels, [(beta,) for beta in betas], bounds)
        self.alpha_ = best.weight if self.alpha is None else self.alpha
        self.beta_ = best.parameters[0]
        if len(some.rows) == len(plan.rows):  # these are the folds that are held out to measure it
            self._on_folds = [model for model, *_ in problems]
            for model in self._on_folds:
                model.alpha_, model.beta_ = self.alpha_, self.beta_

    def _train_stack(
        self, models: Sequence["ApeTrained"], supports: Sequence[np.ndarray], classes: Sequence[np.ndarray]
    ) -> None:
        images, texts, own = stacked(supports), stacked([model.texts_ for model in models]), stacked(classes)
        scores = [channel_scores(model.texts_, self.similarity_weight) for model in models]
        kept = best_first(np.stack(scores))[:, : max(1, round(self.channels * images.shape[2]))]
        places = torch.from_numpy(np.sort(kept, axis=1))[:, None]
        of_class, of_example = (places.expand(-1, count, -1) for count in (texts.shape[1], images.shape[1]))
        values = nn.functional.one_hot(own, texts.shape[1]).float()
        residual = nn.Parameter(torch.zeros(of_class.shape))
        weights = nn.Parameter(torch.ones(*own.shape, 1))
        alpha, beta = (given if given is not None else usual for given, usual in ((self.alpha, 2.0), (self.beta, 1.0)))

        def refined() -> tuple[Tensor, Tensor]:
            mine = residual.gather(1, own[..., None].expand(-1, -1, residual.shape[2]))
            return texts.scatter_add(2, of_class, residual), images.scatter_add(2, of_example, mine)

        def loss(rows: Tensor) -> Tensor:
            towards, keys = refined()
            near = torch.exp(beta * (images[:, rows] @ keys.mT - 1))
            zero_shot = images[:, rows] @ towards.mT
            return summed_loss(self.scale * zero_shot + alpha * near @ (weights * values), own[:, rows])

        optimiser = torch.optim.AdamW([residual, weights], lr=self.learning_rate, eps=1e-3, weight_decay=0.1)
        fit_by_gradient(optimiser, loss, images.shape[1], make_generator(self.random_state), Schedule(self.epochs))
        with torch.no_grad():
            arrays = [each.numpy() for each in (*refined(), weights * values)]
        for place, model in enumerate(models):
            model.refined_, model.keys_, model.values_ = (array[place].copy() for array in arrays)

    def _cache(self, queries: np.ndarray, beta: float) -> np.ndarray:
        return np.exp(beta * (queries @ self.keys_.T - 1)) @ self.values_

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        return self.scale * queries @ self.refined_.T + self.alpha_ * self._cache(queries, self.beta_)
