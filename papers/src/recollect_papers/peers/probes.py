"""Linear heads held near the class texts: CLAP, LP++, and a residual map of the image embeddings (RLA, ProLIP)."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from recollect.classifiers.heads.base import KernelForm, class_means, softmax
from recollect.classifiers.heads.holdout import MOST_TUNING_ROWS, HoldOut
from recollect.classifiers.heads.tip import check_preset
from recollect.classifiers.heads.trained import Schedule, fit_by_gradient
from recollect.core.types import TEXT_SCALE
from recollect_papers.peers.together import Problem, TrainedHead, make_generator, stacked, summed_loss


class _Anchored(TrainedHead):
    """A trained head with one regularisation strength, chosen on folds; the first of equally accurate ones."""

    strength_name: str

    def _values(self, labels: np.ndarray) -> tuple[float, ...]:
        """Candidate strengths; the first is used where no example can be held out."""
        raise NotImplementedError

    @property
    def _strength(self) -> float:
        return getattr(self, self.strength_name + "_")

    def _settle(self) -> None:
        setattr(self, self.strength_name + "_", getattr(self, self.strength_name))

    def _choosing(self, support: np.ndarray, labels: np.ndarray) -> Iterator[list[Problem]]:
        self._settle()
        if getattr(self, self.strength_name) is not None:
            return
        values, plan = self._values(labels), HoldOut.of(labels)
        best = 0
        if len(plan.rows) and len(values) > 1:
            some = plan.first(MOST_TUNING_ROWS)
            folds = list(some.folds())
            tried = [[self._without(support, labels, learn, {self.strength_name: value}) for value in values]
                     for learn, _ in folds]  # fmt: skip
            yield [problem for problems in tried for problem in problems]
            right = np.zeros(len(values))
            for problems, (_, at) in zip(tried, folds, strict=True):
                right += [np.sum(model._scores(support[at]).argmax(axis=1) == labels[at]) for model, *_ in problems]
            best = int(np.argmax(right))
            if len(some.rows) == len(plan.rows):  # these are the folds that are held out to measure it
                self._on_folds = [problems[best][0] for problems in tried]
        setattr(self, self.strength_name + "_", values[best])

    def _chosen(self) -> dict[str, Any]:
        return {self.strength_name: self._strength}


MOMENTUM = 0.9
"""Momentum of CLAP's gradient descent, as published."""


def _basis(rows: np.ndarray) -> np.ndarray | None:
    """Orthonormal float64 columns (width, rank) that span the rows; None if there are at least ``width`` rows.

    Gradient and L-BFGS steps are rotation-invariant and stay in the span of the examples and the start, so few examples
    can be learned from in that subspace with the same result.
    """
    return None if len(rows) >= rows.shape[1] else np.linalg.qr(rows.T.astype(np.float64))[0]


def _within(rows: np.ndarray, basis: np.ndarray | None) -> np.ndarray:
    """Coordinates of rows in a basis that spans them."""
    return rows if basis is None else rows @ basis


def _without(rows: np.ndarray, basis: np.ndarray | None) -> np.ndarray:
    """Inverse of `_within`."""
    return rows if basis is None else rows @ basis.T


class ClassAdaptiveProbe(_Anchored):
    """CLAP: a linear probe initialised at the class texts and regularised towards them (Silva-Rodríguez et al., 2024).

    Logits ``scale cos(x, w_c)``, loss cross-entropy ``+ factor mean_c lambda_c |w_c - t_c|^2`` , where ``lambda_c`` is
    the mean zero-shot probability of the class over its examples: the better a text, the stronger its pull. SGD at 0.1
    with momentum 0.9, a cosine after one epoch at 1e-5; the penalty's step is implicit, so it is stable for any
    factor. Texts are unit-norm; in the public code they are not, which makes its penalty depend on the model. Factor 0
    is ZS-LP.

    Args:
        text_features: class texts W, in the order of ``classes_``.
        factor: of the penalty; by default chosen among 10, 1 and 100 on folds.
        epochs, learning_rate: 300 and 0.1 as published.
        scale: inverse temperature of the text scores.
        random_state: seed of the shuffling.
    """

    strength_name = "factor"

    def __init__(
        self,
        text_features: Any = None,
        factor: float | None = None,
        epochs: int = 300,
        learning_rate: float = 0.1,
        scale: float = TEXT_SCALE,
        random_state: Any = 0,
    ) -> None:
        self.text_features = text_features
        self.factor = factor
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.scale = scale
        self.random_state = random_state

    def _values(self, labels: np.ndarray) -> tuple[float, ...]:
        return 10.0, 1.0, 100.0

    def _train_stack(
        self, models: Sequence["ClassAdaptiveProbe"], supports: Sequence[np.ndarray], classes: Sequence[np.ndarray]
    ) -> None:
        pulls = []
        for model, support, labels in zip(models, supports, classes, strict=True):
            zero_shot = softmax(self.scale * support @ model.texts_.T)[np.arange(len(labels)), labels]
            counts = np.bincount(labels)
            model.lambda_ = np.bincount(labels, zero_shot) / counts
            pulls.append(2 * model.factor_ * model.lambda_ / len(counts))
        pull = torch.from_numpy(np.stack(pulls)).float()[..., None]
        bases = [_basis(np.concatenate([rows, m.texts_])) for rows, m in zip(supports, models, strict=True)]
        images, texts = (
            stacked([_within(*pair) for pair in zip(each, bases, strict=True)])
            for each in (supports, [model.texts_ for model in models])
        )
        own, weights = stacked(classes), nn.Parameter(texts.clone())

        def loss(rows: Tensor) -> Tensor:
            cosines = images[:, rows] @ nn.functional.normalize(weights, dim=2).mT
            return summed_loss(self.scale * cosines, own[:, rows])

        def hold(rate: float) -> None:
            # With momentum every gradient counts 1/(1 - m) times in total; the penalty's step has none, so scale it.
            weights.data = texts + (weights.data - texts) / (1 + rate / (1 - MOMENTUM) * pull)

        optimiser = torch.optim.SGD([weights], lr=self.learning_rate, momentum=MOMENTUM)
        schedule = Schedule(self.epochs, 256, 1e-5)
        fit_by_gradient(optimiser, loss, images.shape[1], make_generator(self.random_state), schedule, hold)
        found = nn.functional.normalize(weights.detach(), dim=2).numpy()
        for model, inside, basis in zip(models, found, bases, strict=True):
            model.coef_ = _without(inside, basis).astype(np.float32)

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        return self.scale * queries @ self.coef_.T

    def kernel_form(self) -> KernelForm:
        return KernelForm.of(self, self.scale * self.coef_)


_LOGITS = 2**22
"""Block of LP++'s logits (examples x classes): 32 MiB in double precision."""


class LinearProbePlusPlus(_Anchored):
    """LP++: ``f·(w_c + alpha_c t_c) + b_c``, learned prototypes and learned text weights (Huang et al., 2024).

    The published method starts from ``w_c``, the sum of the class's examples, and ``alpha = 250 mean(x·t)`` and stops
    early on a validation set. The loss is convex, so here it is minimised by L-BFGS, with a ridge around the same start
    instead of early stopping: mean cross-entropy ``+ ridge/2 (|w - w_0|^2 + |alpha / alpha_0 - 1|^2 + |b|^2)``. The
    ridge includes the intercept (random at first in the public code), which separable classes would leave undetermined.

    Args:
        text_features: class texts W, in the order of ``classes_``.
        ridge: by default chosen among 1e-3, 1e-2, 1e-1 and 1e-4 on folds.
        max_iter: of L-BFGS.

    Attributes:
        n_iter_: number of iterations.
    """

    strength_name = "ridge"

    def __init__(self, text_features: Any = None, ridge: float | None = None, max_iter: int = 500) -> None:
        self.text_features = text_features
        self.ridge = ridge
        self.max_iter = max_iter

    def _values(self, labels: np.ndarray) -> tuple[float, ...]:
        return 1e-3, 1e-2, 1e-1, 1e-4

    def start(self, support: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``w_0`` (classes, width) and ``alpha_0`` (classes,)."""
        classes = len(self.classes_)
        own = (support * self.texts_[labels]).sum(axis=1)
        alpha = 250.0 * float((np.bincount(labels, own) / np.bincount(labels)).mean())
        sums = class_means(support, labels, classes) * np.bincount(labels)[:, None]
        return sums.astype(np.float64), np.full(classes, alpha if abs(alpha) > 1e-3 else 1e-3)

    def _train_stack(
        self,
        models: Sequence["LinearProbePlusPlus"],
        supports: Sequence[np.ndarray],
        classes: Sequence[np.ndarray],
    ) -> None:
        for model, support, labels in zip(models, supports, classes, strict=True):
            model._minimise(support, labels, model.ridge_)

    def _minimise(self, support: np.ndarray, labels: np.ndarray, strength: float) -> None:
        sums, alphas = self.start(support, labels)
        basis, count = _basis(support), len(labels)
        images, sums = (_within(rows, basis).astype(np.float64) for rows in (support, sums))
        classes, width = sums.shape
        block = max(1, _LOGITS // classes)
        blocks = [slice(start, start + block) for start in range(0, count, block)]

        def near(rows: slice) -> np.ndarray:
            return (support[rows] @ self.texts_.T).astype(np.float64)

        whole = near(blocks[0]) if len(blocks) == 1 else None

        def similar(rows: slice) -> np.ndarray:  # recomputed at each step if there are several blocks
            return near(rows) if whole is None else whole

        squares = sum((similar(rows) ** 2).sum(axis=0) for rows in blocks)
        # The curvature along a text's weight (alpha is near 100) is this much larger than along an entry of w. Scaled
        # by it, about 150 steps reach the minimum; without it 500 do not.
        unit = np.sqrt(alphas**2 * squares / count + 1)

        def parts(moved: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            return moved[: sums.size].reshape(sums.shape), moved[sums.size : -classes] / unit, moved[-classes:]

        def loss(moved: np.ndarray) -> tuple[float, np.ndarray]:
            shift, stretch, bias = parts(moved)
            value, of_shift, of_stretch, of_bias = 0.0, np.zeros_like(shift), np.zeros(classes), np.zeros(classes)
            for rows in blocks:
                close, own = similar(rows), (np.arange(len(labels[rows])), labels[rows])
                logits = images[rows] @ (sums + shift).T + close * (alphas * (1 + stretch)) + bias
                errors = softmax(logits)
                peak = logits.max(axis=1)
                value += (peak + np.log(np.exp(logits - peak[:, None]).sum(axis=1)) - logits[own]).sum() / count
                errors[own] -= 1
                errors /= count
                of_shift += errors.T @ images[rows]
                of_stretch += (errors * close).sum(axis=0)
                of_bias += errors.sum(axis=0)
            value += strength / 2 * float((shift**2).sum() + (stretch**2).sum() + (bias**2).sum())
            of_stretch = of_stretch * alphas + strength * stretch
            return value, np.concatenate(
                [(of_shift + strength * shift).ravel(), of_stretch / unit, of_bias + strength * bias]
            )

        found = minimize(loss, np.zeros(classes * (width + 2)), jac=True, method="L-BFGS-B",
                         options={"maxiter": self.max_iter, "ftol": 1e-16, "gtol": 1e-10})  # fmt: skip
        shift, stretch, bias = parts(found.x)
        self.n_iter_ = max(1, int(found.nit))
        self.alpha_ = alphas * (1 + stretch)
        self.coef_ = (_without(sums + shift, basis) + self.alpha_[:, None] * self.texts_).astype(support.dtype)
        self.intercept_ = bias.astype(support.dtype)

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        return queries @ self.coef_.T + self.intercept_

    def kernel_form(self) -> KernelForm:
        return KernelForm.of(self, self.coef_, self.intercept_)


class ResidualMap(_Anchored):
    """A linear map of the image embeddings near the identity: ``scale norm(f A)·W`` (RLA; ProLIP on the projection).

    Loss cross-entropy ``+ penalty |A - I|^2``; 300 full-batch steps of Adam at 1e-3 along a cosine. Embeddings cannot
    be augmented, so the penalty matters: it is chosen on folds among 1/K, 1/K^2, 1 and 10.

    Args:
        text_features: class texts W, in the order of ``classes_``.
        penalty: chosen by default.
        epochs, learning_rate: of Adam.
        scale: inverse temperature of the text scores.
        preset: ``published`` fixes the penalty at 1/K.
    """

    strength_name = "penalty"

    def __init__(
        self,
        text_features: Any = None,
        penalty: float | None = None,
        epochs: int = 300,
        learning_rate: float = 1e-3,
        scale: float = TEXT_SCALE,
        preset: Literal["default", "published"] = "default",
    ) -> None:
        self.text_features = text_features
        self.penalty = penalty
        self.preset = preset
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.scale = scale

    def _values(self, labels: np.ndarray) -> tuple[float, ...]:
        check_preset(self.preset)
        shots = len(labels) / len(self.classes_)
        if self.preset == "published":
            return (1 / shots,)
        return tuple(dict.fromkeys((1 / shots, 1 / shots**2, 1.0, 10.0)))

    def _train_stack(
        self, models: Sequence["ResidualMap"], supports: Sequence[np.ndarray], classes: Sequence[np.ndarray]
    ) -> None:
        images, texts, own = stacked(supports), stacked([model.texts_ for model in models]), stacked(classes)
        strengths = torch.tensor([model.penalty_ for model in models])
        move = nn.Parameter(torch.zeros(len(images), images.shape[2], images.shape[2]))

        def loss(rows: Tensor) -> Tensor:  # full batch: the order does not matter
            mapped = nn.functional.normalize(torch.baddbmm(images, images, move), dim=2)
            held = (strengths * move.square().sum(dim=(1, 2))).sum()
            return summed_loss(self.scale * mapped @ texts.mT, own) + held

        optimiser = torch.optim.Adam([move], lr=self.learning_rate, eps=1e-4)
        count = images.shape[1]
        fit_by_gradient(optimiser, loss, count, make_generator(0), Schedule(self.epochs, count))
        for model, found in zip(models, move.detach(), strict=True):
            model.map_ = (torch.eye(len(found)) + found).numpy()

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        mapped = torch.nn.functional.normalize(torch.from_numpy(queries).float() @ torch.from_numpy(self.map_), dim=1)
        return self.scale * mapped.numpy() @ self.texts_.T.astype(np.float32)
