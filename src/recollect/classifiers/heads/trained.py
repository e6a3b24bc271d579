"""Linear probe, and gradient descent over a support set."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from recollect.classifiers.heads.base import EmbeddingClassifier, KernelForm
from recollect.classifiers.heads.holdout import MAX_TUNING_ROWS


class LinearProbe(EmbeddingClassifier):
    """Logistic regression with regularization chosen by cross-validation on the support set.

    Args:
        strengths: inverse regularization strengths C to choose from; ties go to the smallest.
    """

    def __init__(
        self, strengths: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0), max_iter: int = 1000
    ) -> None:
        self.strengths = strengths
        self.max_iter = max_iter

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        plan = self._plan.first(MAX_TUNING_ROWS)
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
        with warnings.catch_warnings():  # scikit-learn mistakes one shot per class for regression
            warnings.filterwarnings("ignore", message="The number of unique classes is greater than 50%")
            return LogisticRegression(C=strength, max_iter=self.max_iter).fit(support, labels)

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        logits = self.model_.decision_function(queries)
        if logits.ndim == 1:  # scikit-learn has one score for two classes
            logits = np.stack([-logits, logits], axis=1) / 2
        return log_softmax(logits, axis=1)

    def kernel_form(self) -> KernelForm:
        weights, bias = self.model_.coef_, self.model_.intercept_
        if len(weights) == 1:  # scikit-learn has one score for two classes
            weights, bias = np.concatenate([-weights, weights]) / 2, np.concatenate([-bias, bias]) / 2
        return KernelForm.of(self, weights, bias)


@dataclass(frozen=True)
class Schedule:
    """Schedule over shuffled batches, with a cosine from the optimizer's learning rate to zero.

    Attributes:
        warm_up: constant learning rate of the first epoch, before the cosine; None starts with the cosine.
    """

    epochs: int
    batch: int = 256
    warm_up: float | None = None


def fit_by_gradient(
    optimizer: torch.optim.Optimizer,
    loss: Callable[[Tensor], Tensor],
    count: int,
    generator: torch.Generator,
    schedule: Schedule,
    after: Callable[[float], None] | None = None,
) -> None:
    """Train on shuffled batches of the support set.

    Args:
        optimizer: its learning rate is the maximum.
        loss: function from row indices of the support set to the loss.
        after: called after each step with its learning rate.
    """
    steps = -(-count // schedule.batch)
    warm = steps if schedule.warm_up is not None and schedule.epochs > 1 else 0
    highest = [group["lr"] for group in optimizer.param_groups]
    done = 0
    for _ in range(schedule.epochs):
        for rows in torch.randperm(count, generator=generator).split(schedule.batch):
            share = max(done - warm, 0) / max(schedule.epochs * steps - warm, 1)
            for group, rate in zip(optimizer.param_groups, highest, strict=True):
                group["lr"] = schedule.warm_up if done < warm else rate * (1 + np.cos(np.pi * share)) / 2
            value = loss(rows)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            if after is not None:
                after(optimizer.param_groups[0]["lr"])
            done += 1
