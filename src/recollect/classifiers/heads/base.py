"""What all classifiers on embeddings share: validation, normalisation, and scikit-learn's conventions."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from recollect.classifiers.heads.calibration import (
    SCORES_AT_ONCE,
    conformal_p,
    conformal_thresholds,
    expected_calibration_error,
    fit_temperature,
)
from recollect.classifiers.heads.holdout import MOST_TUNING_ROWS, HoldOut, SupportSimilarity
from recollect.classifiers.heads.trust import conformal_groups
from recollect.core.ordering import in_order

UNIT_TOLERANCE = 1e-2
"""Largest deviation from norm 1 that counts as rounding (half precision loses about 1e-3)."""


def unit_rows(matrix: np.ndarray, what: str) -> np.ndarray:
    """Normalise the rows of ``matrix``, with one warning if they were not unit-norm.

    Raises:
        ValueError: a row is zero and has no direction.
    """
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    if not norms.all():
        raise ValueError(f"{what}: row {int(np.argmin(norms))} is zero, so it has no direction to compare")
    if np.abs(norms - 1).max(initial=0) > UNIT_TOLERANCE:
        warnings.warn(f"{what} are not unit-norm; they are normalised first", UserWarning, stacklevel=4)
    return matrix / norms


def softmax(logits: np.ndarray) -> np.ndarray:
    """Row-wise softmax, stable."""
    weights = logits - logits.max(axis=1, keepdims=True)
    np.exp(weights, out=weights)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def class_means(features: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Plain mean of each class's rows (LIxP, Eq. 3), not normalised again: (classes, width)."""
    order = in_order(labels)
    counts = np.bincount(labels, minlength=classes)
    starts = np.cumsum(counts) - counts
    return np.add.reduceat(features[order], starts, axis=0) / counts[:, None]


class EmbeddingClassifier(ClassifierMixin, BaseEstimator):
    """Base of the classifiers: subclasses write ``_fit(support, labels)`` and ``_scores(queries)``.

    Every classifier scores its own examples as if it had not seen them: each alone, or up to four shots one of each
    class at a time; the only example of a class is never held out. Methods that choose settings chose them on the same
    examples, which makes ``loo_accuracy_`` too high for them (by up to eight points, results/few-shot/trust.json);
    `held_out_check` measures the accuracy to report. A subclass with a closed form writes
    ``_held_out(support, labels, plan)``; the others are fitted again on folds.

    ``support`` and ``queries`` arrive validated and unit-norm, ``labels`` as indices into ``classes_``. Where a
    method reads class texts, they are the constructor argument ``text_features``, one row for each entry of
    ``classes_`` in its order; without them the normalised class means stand in.

    Attributes:
        classes_: sorted class labels.
        n_features_in_: width of the embeddings.
        texts_: unit-norm class texts (classes, width), where the method reads them.
        loo_rows_: which examples were held out (held,), as rows of ``X``; none where every class has one.
        loo_scores_: their scores (held, classes), by the classifier without them.
        loo_accuracy_: share of them that is right (0 to 1), NaN if there are none.
        loo_ece_: expected calibration error of their probabilities, NaN if there are none.
        temperature_: of ``predict_proba``, the one of least negative log-likelihood on them; where there are none, a
            guess (`stand_ins`).
    """

    def fit(self, X: Any, y: Any) -> "EmbeddingClassifier":
        """Learn from a support set.

        Args:
            X: unit-norm embeddings (examples, width), NumPy or torch; others are normalised with a warning.
            y: one class label for each.

        Raises:
            ValueError: NaN, a zero row, fewer than two classes, or class texts that do not fit.
        """
        X, y = validate_data(self, as_numpy(X), as_numpy(y), dtype=[np.float32, np.float64], ensure_min_samples=2)
        with warnings.catch_warnings():  # a class for nearly every example looks like regression: here it is one shot
            warnings.filterwarnings("ignore", message="The number of unique classes is greater than 50%")
            check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"a classifier needs examples of two classes, got one class: {self.classes_[0]!r}")
        return self._learn(unit_rows(X, "support embeddings"), labels)

    def _learn(self, support: np.ndarray, labels: np.ndarray) -> "EmbeddingClassifier":
        self._fit_alone(support, labels)
        self._measure(support, labels)
        return self

    def _fit_alone(self, support: np.ndarray, labels: np.ndarray) -> None:
        if hasattr(self, "text_features"):
            self.texts_ = self._texts(support, labels)
        self._fit(support, labels)

    def _measure(self, support: np.ndarray, labels: np.ndarray) -> None:
        """Set what the held-out examples tell."""
        plan = HoldOut.of(labels)
        self.loo_rows_, own = plan.rows, plan.held_labels
        self.loo_accuracy_ = self.loo_ece_ = float("nan")
        self._known, self._known_labels, self._familiar = np.empty(0), own, np.empty(0)
        self.loo_scores_ = np.empty((0, len(self.classes_)))
        if not len(plan.rows):
            self.temperature_ = self._guessed_temperature(support, labels)
        else:
            self.loo_scores_ = self._held_out(support, labels, plan)
            self.temperature_ = fit_temperature(self._logits(self.loo_scores_), own)
            probabilities, block = np.empty_like(self.loo_scores_), max(1, SCORES_AT_ONCE // len(self.classes_))
            for start in range(0, len(own), block):
                rows = slice(start, start + block)
                probabilities[rows] = self._probabilities(self.loo_scores_[rows])
            self.loo_accuracy_ = float((self.loo_scores_.argmax(axis=1) == own).mean())
            self.loo_ece_ = expected_calibration_error(probabilities, own)
            self._known = probabilities[np.arange(len(own)), own]
            self._familiar = np.sort(self.loo_scores_.max(axis=1))

    def _guessed_temperature(self, support: np.ndarray, labels: np.ndarray) -> float:
        """The temperature that suits the examples when stand-ins of them were learned from (`stand_ins`)."""
        return self._suited([self._refitted(rows, labels) for rows in self._stand_ins(support)], support, labels)

    def _stand_ins(self, support: np.ndarray) -> list[np.ndarray]:
        generator = np.random.default_rng(0)
        draws = min(MOST_STAND_INS, -(-ENOUGH_GUESSES // len(support)))
        return [stand_ins(support, generator) for _ in range(draws)]

    def _suited(self, models: Sequence[Any], support: np.ndarray, labels: np.ndarray) -> float:
        support, labels = support[:MOST_TUNING_ROWS], labels[:MOST_TUNING_ROWS]
        scores = np.concatenate([model._scores(support) for model in models])
        return fit_temperature(self._logits(scores), np.tile(labels, len(models)))

    def _held_out(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> np.ndarray:
        """Scores of the examples ``plan.rows`` (held, classes) by the classifier, as it was tuned, without them."""
        scores = np.empty((len(plan.rows), len(self.classes_)), dtype=support.dtype)
        for learn, choose in plan.folds():
            fitted = self._refitted(support[learn], labels[learn])
            scores[np.searchsorted(plan.rows, choose)] = fitted._scores(support[choose])
        return scores

    def _refitted(self, support: np.ndarray, labels: np.ndarray, chosen: dict[str, Any] | None = None) -> Any:
        """A copy fitted on other examples of the same classes, with the parameters that this one chose."""
        copy = type(self)(**{**self.get_params(deep=False), **(self._chosen() if chosen is None else chosen)})
        copy.classes_, copy.n_features_in_ = self.classes_, self.n_features_in_
        copy._fit_alone(support, labels)
        return copy

    def _chosen(self) -> dict[str, Any]:
        """Constructor arguments with what was chosen in their place."""
        return {}

    def _text_similarity(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> np.ndarray:
        """Similarities of held-out examples to the class texts (held, classes); means that stand in go without them."""
        if self.text_features is not None:
            return support[plan.rows] @ self.texts_.T
        return left_out_means(support, labels, plan, cosine=True)

    _similarity: SupportSimilarity | None = None

    def fit_checked(
        self, support: np.ndarray, labels: np.ndarray, similarity: SupportSimilarity | None = None
    ) -> "EmbeddingClassifier":
        """As `fit`, for a caller who has checked: unit-norm float rows, labels 0…C - 1 that all occur.

        Args:
            similarity: of the support, where it is known already.
        """
        self.classes_, self.n_features_in_ = np.arange(int(labels.max()) + 1), support.shape[1]
        self._similarity = similarity
        try:
            return self._learn(support, labels)
        finally:
            self._similarity = None

    def _texts(self, support: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The class texts, checked; or what stands in for them."""
        given = self.text_features
        if given is None:
            return unit_or_zero(class_means(support, labels, len(self.classes_)))
        texts = check_array(as_numpy(given), dtype=[np.float32, np.float64], input_name="text_features")
        expected = (len(self.classes_), support.shape[1])
        if texts.shape != expected:
            raise ValueError(
                f"text_features has shape {texts.shape}; the support set needs {expected}: one row for each of the "
                f"{expected[0]} classes in the order of classes_, as wide as the embeddings"
            )
        return unit_rows(texts, "text_features").astype(support.dtype, copy=False)

    def scores(self, X: Any) -> np.ndarray:
        """Scores of all classes, also of two (where scikit-learn's ``decision_function`` gives one column).

        Args:
            X: embeddings (queries, width).

        Returns:
            (queries, classes), in the order of ``classes_``; larger is more likely.
        """
        return self._scores(self._queries(X))

    def _queries(self, X: Any) -> np.ndarray:
        """Queries checked and unit-norm."""
        check_is_fitted(self)
        X = validate_data(self, as_numpy(X), dtype=[np.float32, np.float64], reset=False)
        return unit_rows(X, "query embeddings")

    def decision_function(self, X: Any) -> np.ndarray:
        """As `scores`; for two classes the difference, as scikit-learn has it."""
        scores = self.scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """The class with the highest score; the first of equals."""
        best = np.argmax(self.scores(X), axis=1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities (queries, classes), ``softmax(scores / temperature_)``; ordered like the scores."""
        return self._probabilities(self.scores(X))

    def _probabilities(self, scores: np.ndarray) -> np.ndarray:
        logits = self._logits(scores) / self.temperature_
        return softmax(logits).astype(scores.dtype, copy=False)

    def _logits(self, scores: np.ndarray) -> np.ndarray:
        """Scores as the logits that a temperature divides; for scores that are shares, their logarithm."""
        return scores

    def shares(self, X: Any) -> np.ndarray:
        """What a mixture with other probabilities adds (queries, classes); votes are shares already, as published."""
        return self.shares_of(self.scores(X))

    def shares_of(self, scores: np.ndarray) -> np.ndarray:
        """As `shares`, from scores that are there already."""
        return self._probabilities(scores)

    def predict_set(self, X: Any, alpha: float = 0.1) -> np.ndarray:
        """The classes that cannot be ruled out at error rate ``alpha``, by conformal prediction.

        A class of n held-out examples is calibrated by itself if ``n >= 1 / alpha - 1`` (9 for 0.1); classes with fewer
        are calibrated together (`conformal_groups`). With fewer than that in all, no class is ever ruled out. The
        held-out examples are compared with queries scored by the classifier that learned from all examples (jackknife):
        no theorem covers this, but the measured coverage is near 1 - alpha. `ProKeR` has the exact form. An empty set
        says "none of these".

        Args:
            X: embeddings (queries, width).
            alpha: share of queries whose class may be missing from their set, 0 < alpha < 1.

        Returns:
            (queries, classes), true where the class stays possible.
        """
        if not 0 < alpha < 1:
            raise ValueError(f"alpha is a share between 0 and 1, got {alpha}")
        return self._possible(self._queries(X), alpha)

    def _possible(self, queries: np.ndarray, alpha: float) -> np.ndarray:
        probabilities = self._probabilities(self._scores(queries))
        return probabilities >= self._least(alpha).astype(probabilities.dtype)

    def _least(self, alpha: float) -> np.ndarray:
        """The probability from which on each class stays in a set (classes,)."""
        group = self._groups(alpha)
        return conformal_thresholds(self._known, group[self._known_labels], int(group.max()) + 1, alpha)[group]

    def _groups(self, alpha: float) -> np.ndarray:
        """The group that each class is calibrated in (classes,)."""
        return conformal_groups(np.bincount(self._known_labels, minlength=len(self.classes_)), alpha)

    def conformal_p(self, X: Any, alpha: float = 0.1) -> np.ndarray:
        """The p-value of each class that `predict_set` compares with ``alpha`` (queries, classes)."""
        group = self._groups(alpha)
        return conformal_p(self._known, group[self._known_labels], self.predict_proba(X), group)

    def known_p(self, X: Any) -> np.ndarray:
        """How many of the held-out examples look no more familiar than each query (queries,), 0 to 1.

        Small where a query belongs to none of the classes: a rule "none of these if below alpha" refuses about that
        share of queries that do belong. Familiarity is the highest score. It needs ``1 / alpha - 1`` held-out examples
        in all, far fewer than `predict_set` does, which asks class by class.
        """
        less = np.searchsorted(self._familiar, self.scores(X).max(axis=1), side="right")
        return (1 + less) / (len(self._familiar) + 1)

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        raise NotFittedError(f"{type(self).__name__} does not say how it learns")

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        raise NotFittedError(f"{type(self).__name__} does not say how it scores")


LIKENESS = 0.2
"""How much two pictures of one class are assumed to have in common, beyond what all pictures have: a correlation.

Chosen where the calibration error was least on EuroSAT, textures and Tiny ImageNet, and nearly as good from 0.05 to
0.25. One example of each class says nothing about it.
"""

ENOUGH_GUESSES, MOST_STAND_INS = 100, 4
"""How many examples are scored to guess a temperature, and how many stand-ins of each they are scored by at most."""


def stand_ins(support: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Another example of each class, drawn as if all of them were of one Gaussian world: (examples, width), unit.

    Means and deviations of classes are supposed to have covariances in proportion, of which the examples show the sum.
    Then another example of the class of x is distributed about ``m + rho (x - m)`` with the covariance
    ``(1 - rho^2) S``, where m and S are mean and covariance of the examples and rho is `LIKENESS`.

    Args:
        support: unit rows (examples, width), one of each class.
    """
    middle = support.mean(axis=0)
    apart = support - middle
    rows = apart
    if len(apart) > apart.shape[1]:  # they span no more than the width: as few rows have the same covariance
        rows = np.linalg.qr(apart, mode="r")
        (generator,) = generator.spawn(1)  # made data of this shape may come from a generator of the same seed
    drawn = generator.standard_normal((len(apart), len(rows))).astype(support.dtype) @ rows
    drawn *= ((1 - LIKENESS**2) / max(len(apart) - 1, 1)) ** 0.5
    return unit_or_zero(middle + LIKENESS * apart + drawn).astype(support.dtype, copy=False)


def left_out_means(support: np.ndarray, labels: np.ndarray, plan: HoldOut, cosine: bool = False) -> np.ndarray:
    """Similarities of held-out examples to the class means of the others (held, classes).

    Args:
        cosine: normalise the means.
    """
    counts = np.bincount(labels).astype(support.dtype)
    sums = class_means(support, labels, len(counts)) * counts[:, None]
    held, own = support[plan.rows], plan.held_labels
    if not plan.one_by_one:
        scores = np.empty((len(held), len(counts)), dtype=support.dtype)
        for learn, choose in plan.folds():
            means = class_means(support[learn], labels[learn], len(counts))
            scores[np.searchsorted(plan.rows, choose)] = support[choose] @ (unit_or_zero(means) if cosine else means).T
        return scores
    scores = held @ sums.T
    mine = sums[own] - held
    scores[np.arange(len(own)), own] = (held * mine).sum(axis=1)
    if not cosine:
        scores /= counts - (own[:, None] == np.arange(len(counts)))
        return scores
    norms = np.broadcast_to(np.linalg.norm(sums, axis=1), scores.shape).copy()
    norms[np.arange(len(own)), own] = np.linalg.norm(mine, axis=1)
    return scores / np.where(norms > 0, norms, 1)


def unit_or_zero(matrix: np.ndarray) -> np.ndarray:
    """Rows normalised; a row of zeros stays zero."""
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    return matrix / np.where(norms > 0, norms, 1)


def as_numpy(array: Any) -> Any:
    """A torch tensor as an array, without graph and on the CPU; anything else unchanged."""
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        return (array.float() if array.dtype.itemsize < 4 and array.is_floating_point() else array).numpy()
    return array
