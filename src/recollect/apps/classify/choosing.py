"""Which method: the one that is right most often about examples that it was not shown."""

from collections.abc import Sequence

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.model_selection import StratifiedKFold

from recollect.apps.classify.trust import LeftOut, inverse_temperature, negative_log_likelihood
from recollect.fewshot.base import class_means, softmax
from recollect.fewshot.protocol import FEW_SHOT_METHODS

BEST = "best"
"""Name of the choice by leaving out."""

CANDIDATES = ("zero-shot", "prototype", "gda")
"""Methods among which `BEST` chooses."""

ONE_SHOT = "tip-adapter"
"""Where no class has two examples nothing can be left out."""

_REFITS = 64  # an example each; beyond, ten folds
_FOLDS = 10


def left_out(method: str, texts: np.ndarray, scale: float, support: np.ndarray, labels: np.ndarray) -> LeftOut | None:
    """What ``method`` says of each example while it is left out; None where no class has two examples.

    Args:
        method: a name in `FEW_SHOT_METHODS`.
        texts: unit-norm class texts (classes, width).
        scale: the model's inverse temperature.
        support: unit-norm examples (n, width), some of every class.
        labels: (n,), indices of classes.
    """
    counts = np.bincount(labels, minlength=len(texts))
    rows = np.flatnonzero(counts[labels] > 1)
    if not len(rows):
        return None
    if method == "zero-shot":
        return LeftOut(rows, support[rows] @ texts.T, labels[rows], "exact")
    if method == "prototype":
        return LeftOut(rows, _without_own(support, labels, len(texts))[rows], labels[rows], "exact")
    make = FEW_SHOT_METHODS[method]
    if len(rows) <= _REFITS:
        parts = [np.array([row]) for row in rows]
        how = "exact"
    else:
        splits = StratifiedKFold(min(_FOLDS, int(counts[labels[rows]].min())), shuffle=True, random_state=0)
        parts = [rows[test] for _, test in splits.split(rows[:, None], labels[rows])]
        how = f"{len(parts)} folds"
    scores = np.empty((len(support), len(texts)))
    for part in parts:
        rest = np.setdiff1d(np.arange(len(support)), part)
        scores[part] = make(texts, scale).fit_checked(support[rest], labels[rest]).scores(support[part])
    return LeftOut(rows, scores[rows], labels[rows], how)


def _without_own(support: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Scores by class means, each example's own class without it: ``(n μ − x)/(n − 1)``."""
    means = class_means(support, labels, classes)
    scores = support @ means.T
    counts = np.bincount(labels, minlength=classes)[labels]
    rows = np.arange(len(support))
    scores[rows, labels] = (counts * scores[rows, labels] - 1) / np.maximum(counts - 1, 1)
    return scores


def choose(
    methods: Sequence[str],
    texts: np.ndarray,
    scale: float,
    support: np.ndarray,
    labels: np.ndarray,
) -> tuple[str, LeftOut | None, dict[str, float]]:
    """The method that is right most often about left-out examples; of equals, the likelier one.

    Returns:
        Its name, what it said, and the left-out accuracy of every method asked.
    """
    best: tuple[tuple[float, float], str, LeftOut | None] = ((-1.0, 0.0), ONE_SHOT, None)
    accuracies = {}
    for method in methods:
        found = left_out(method, texts, scale, support, labels)
        if found is None:
            return (methods[0] if len(methods) == 1 else ONE_SHOT), None, {}
        probabilities = softmax(inverse_temperature(found.scores, found.labels) * found.scores)
        rank = (found.accuracy, -negative_log_likelihood(probabilities, found.labels))
        accuracies[method] = found.accuracy
        if rank > best[0]:
            best = (rank, method, found)
    return best[1], best[2], accuracies


def fitted(method: str, texts: np.ndarray, scale: float, support: np.ndarray, labels: np.ndarray) -> ClassifierMixin:
    """The method, taught; classes without any example are left to their texts by ``zero-shot`` alone."""
    estimator = FEW_SHOT_METHODS[method](texts, scale)
    if method == "zero-shot":  # it reads no support, only how many classes there are
        return estimator.fit_checked(texts, np.arange(len(texts)))
    return estimator.fit_checked(support, labels)


def settings_of(estimator: ClassifierMixin) -> dict[str, float | int | str | bool]:
    """What the method chose for itself, as numbers."""
    plain = (bool, int, float, str, np.integer, np.floating)
    return {
        name.rstrip("_"): value.item() if isinstance(value, np.generic) else value
        for name, value in sorted(vars(estimator).items())
        if name.endswith("_") and isinstance(value, plain) and name != "n_features_in_" and not name.startswith("loo_")
    }
