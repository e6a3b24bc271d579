"""Trained heads, stacked: at few shots the overhead of a step dominates, so problems of the same size (folds, settings,
draws) are trained as one problem with an additional axis."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor, nn

from recollect.classifiers.heads.base import EmbeddingClassifier
from recollect.classifiers.heads.holdout import HoldOut

Problem = tuple["TrainedHead", np.ndarray, np.ndarray]
"""An unfitted model with its texts and settings, and the examples and labels it is trained on."""

MOST_STACKED = 2**22
"""Maximum size (examples x width) of one stack: 16 MiB."""


class TrainedHead(EmbeddingClassifier):
    """A classifier trained by gradient descent, together with the models of its hold-out folds.

    A subclass defines ``_train_stack``, and ``_choosing`` if it has settings to choose.
    """

    _on_folds: "list[Any] | None" = None
    _on_stand_ins: "list[Any] | None" = None

    def _train_stack(self, models: Any, supports: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> None:
        """Train models that have the same number of examples and the same settings except those chosen."""
        raise NotImplementedError

    def _choosing(self, support: np.ndarray, labels: np.ndarray) -> Iterator[list[Problem]]:
        """Choose settings; the problems it yields are trained when the generator resumes."""
        yield from ()

    def learning(self, support: np.ndarray, labels: np.ndarray) -> Iterator[list[Problem]]:
        """A whole fit as a generator of problems, as in `_choosing`."""
        if hasattr(self, "text_features"):
            self.texts_ = self._texts(support, labels)
        yield from self._choosing(support, labels)
        plan, problems = HoldOut.of(labels), [(self, support, labels)]
        if not len(plan.rows):
            problems += (others := [(self._copy(rows, labels), rows, labels) for rows in self._stand_ins(support)])
            self._on_stand_ins = [model for model, *_ in others]
        elif self._on_folds is None:
            problems += (others := [self._without(support, labels, learn) for learn, _ in plan.folds()])
            self._on_folds = [model for model, *_ in others]
        yield problems
        self._measure(support, labels)

    def _learn(self, support: np.ndarray, labels: np.ndarray) -> "TrainedHead":
        _in_step([self.learning(support, labels)])
        return self

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        _in_step([self._choosing(support, labels)])
        _train([(self, support, labels)])

    @classmethod
    def fit_each(
        cls, models: Iterable[Any], supports: Iterable[np.ndarray], labels: Iterable[np.ndarray]
    ) -> Iterator[EmbeddingClassifier]:
        """All of them are trained together."""
        models = list(models)
        fit_together(models, list(supports), list(labels))
        yield from models

    def _copy(self, support: np.ndarray, labels: np.ndarray, chosen: dict[str, Any] | None = None) -> Any:
        """An unfitted copy to be trained on these examples."""
        copy = self._copied(chosen)
        if hasattr(self, "text_features"):
            copy.texts_ = self.texts_ if self.text_features is not None else copy._texts(support, labels)
        copy._settle()
        return copy

    def _settle(self) -> None:
        """Use the settings that were given as the chosen ones."""

    def _without(
        self, support: np.ndarray, labels: np.ndarray, learn: np.ndarray, chosen: dict[str, Any] | None = None
    ) -> Problem:
        return self._copy(support[learn], labels[learn], chosen), support[learn], labels[learn]

    def _guessed_temperature(self, support: np.ndarray, labels: np.ndarray) -> float:
        models, self._on_stand_ins = self._on_stand_ins, None
        if models is None:
            return super()._guessed_temperature(support, labels)
        return self._fitted_temperature(models, support, labels)

    def _held_out(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> np.ndarray:
        models, self._on_folds = self._on_folds, None
        if models is None:
            return super()._held_out(support, labels, plan)
        each = iter(models)
        return plan.scored(lambda _, choose: next(each)._scores(support[choose]), (len(self.classes_),), support.dtype)


def fit_together(
    estimators: Sequence[TrainedHead], supports: Sequence[np.ndarray], labels: Sequence[np.ndarray]
) -> None:
    """`fit_checked` of several estimators with the same settings."""
    for estimator, support, own in zip(estimators, supports, labels, strict=True):
        estimator.classes_, estimator.n_features_in_ = np.arange(int(own.max()) + 1), support.shape[1]
    _in_step([each.learning(*rows) for each, *rows in zip(estimators, supports, labels, strict=True)])


def _in_step(fits: Iterable[Iterator[list[Problem]]]) -> None:
    """Advance all fits together, training the problems they yield in common stacks."""
    going = list(fits)
    while going:
        asked = [next(fit, None) for fit in going]
        going = [fit for fit, problems in zip(going, asked, strict=True) if problems is not None]
        _train([problem for problems in asked for problem in problems or ()])


def _train(problems: Iterable[Problem]) -> None:
    """Train problems of the same size in stacks."""
    sizes: dict[tuple[int, ...], list[Problem]] = {}
    for problem in problems:
        sizes.setdefault(problem[1].shape, []).append(problem)
    for (count, width), alike in sizes.items():
        most = max(1, MOST_STACKED // (max(count, width) * width))
        for start in range(0, len(alike), most):
            stack = alike[start : start + most]
            stack[0][0]._train_stack(*zip(*stack, strict=True))


def stacked(arrays: Sequence[np.ndarray]) -> Tensor:
    """Stack arrays of one shape, in single precision (or integers)."""
    found = torch.from_numpy(np.stack(arrays))
    return found.float() if found.is_floating_point() else found


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of logits (problems, rows, classes): mean over rows, sum over problems."""
    summed = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return summed / labels.shape[1]


def make_generator(random_state: Any) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))
    return generator
