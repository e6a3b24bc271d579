"""Heads that are trained, beside each other: at few shots and classes a step costs what it takes to call it, so that
problems of one size (folds, strengths, draws) are one problem with one more axis."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.classifiers.heads.base import EmbeddingClassifier
from recollect.classifiers.heads.holdout import HoldOut

Problem = tuple["TrainedHead", np.ndarray, np.ndarray]
"""A model that has its texts and settings, and the examples and labels that it is trained on."""

MOST_STACKED = 2**22
"""Most numbers (examples x width) of problems that are trained in one stack: 16 MiB."""


class TrainedHead(EmbeddingClassifier):
    """A classifier trained by gradient: a subclass writes ``_train_stack``, and ``_choosing`` if it chooses something.

    What says how far it can be trusted is trained beside it: the models of its folds, or of its stand-ins.
    """

    _on_folds: "list[Any] | None" = None
    _on_stand_ins: "list[Any] | None" = None

    def _train_stack(self, models: Any, supports: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> None:
        """Train models with as many examples each, and the same settings but what they chose."""
        raise NotImplementedError

    def _choosing(self, support: np.ndarray, labels: np.ndarray) -> Iterator[list[Problem]]:
        """Set what it chooses; what is to be trained for that is yielded, and trained when it goes on."""
        yield from ()

    def learning(self, support: np.ndarray, labels: np.ndarray) -> Iterator[list[Problem]]:
        """All of a fit, as `_choosing`."""
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

    def _copy(self, support: np.ndarray, labels: np.ndarray, chosen: dict[str, Any] | None = None) -> Any:
        """A copy with what was chosen, to be trained on these examples."""
        copy = type(self)(**{**self.get_params(deep=False), **(self._chosen() if chosen is None else chosen)})
        copy.classes_, copy.n_features_in_ = self.classes_, self.n_features_in_
        if hasattr(self, "text_features"):
            copy.texts_ = self.texts_ if self.text_features is not None else copy._texts(support, labels)
        copy._settle()
        return copy

    def _settle(self) -> None:
        """Take what is given as chosen."""

    def _without(
        self, support: np.ndarray, labels: np.ndarray, learn: np.ndarray, chosen: dict[str, Any] | None = None
    ) -> Problem:
        return self._copy(support[learn], labels[learn], chosen), support[learn], labels[learn]

    def _guessed_temperature(self, support: np.ndarray, labels: np.ndarray) -> float:
        models, self._on_stand_ins = self._on_stand_ins, None
        if models is None:
            return super()._guessed_temperature(support, labels)
        return self._suited(models, support, labels)

    def _held_out(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> np.ndarray:
        models, self._on_folds = self._on_folds, None
        if models is None:
            return super()._held_out(support, labels, plan)
        scores = np.empty((len(plan.rows), len(self.classes_)), dtype=support.dtype)
        for model, (_, choose) in zip(models, plan.folds(), strict=True):
            scores[np.searchsorted(plan.rows, choose)] = model._scores(support[choose])
        return scores


def fit_together(
    estimators: Sequence[TrainedHead], supports: Sequence[np.ndarray], labels: Sequence[np.ndarray]
) -> None:
    """As `fit_checked` of each, several with the same settings."""
    for estimator, support, own in zip(estimators, supports, labels, strict=True):
        estimator.classes_, estimator.n_features_in_ = np.arange(int(own.max()) + 1), support.shape[1]
    _in_step([each.learning(*rows) for each, *rows in zip(estimators, supports, labels, strict=True)])


def _in_step(fits: Iterable[Iterator[list[Problem]]]) -> None:
    """Go on with all fits, and train what they ask for together, until they are done."""
    going = list(fits)
    while going:
        asked = [next(fit, None) for fit in going]
        going = [fit for fit, problems in zip(going, asked, strict=True) if problems is not None]
        _train([problem for problems in asked for problem in problems or ()])


def _train(problems: Iterable[Problem]) -> None:
    """Train problems of one size in stacks."""
    sizes: dict[tuple[int, ...], list[Problem]] = {}
    for problem in problems:
        sizes.setdefault(problem[1].shape, []).append(problem)
    for (count, width), alike in sizes.items():
        most = max(1, MOST_STACKED // (max(count, width) * width))
        for start in range(0, len(alike), most):
            stack = alike[start : start + most]
            stack[0][0]._train_stack(*zip(*stack, strict=True))


def stacked(arrays: Sequence[np.ndarray]) -> Tensor:
    """Arrays of one shape beside each other, single precision (or whole numbers)."""
    found = torch.from_numpy(np.stack(arrays))
    return found.float() if found.is_floating_point() else found
