"""What all classifiers on embeddings share: validation, normalisation, and scikit-learn's conventions."""

import warnings
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

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
    if np.abs(norms - 1).max() > UNIT_TOLERANCE:
        warnings.warn(f"{what} are not unit-norm; they are normalised first", UserWarning, stacklevel=4)
    return matrix / norms


def softmax(logits: np.ndarray) -> np.ndarray:
    """Row-wise softmax, stable."""
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def class_means(features: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Plain mean of each class's rows (LIxP, Eq. 3), not normalised again: (classes, width)."""
    order = np.argsort(labels, kind="stable")
    counts = np.bincount(labels, minlength=classes)
    starts = np.cumsum(counts) - counts
    return np.add.reduceat(features[order], starts, axis=0) / counts[:, None]


class EmbeddingClassifier(ClassifierMixin, BaseEstimator):
    """Base of the classifiers: subclasses write ``_fit(support, labels)`` and ``_scores(queries)``.

    ``support`` and ``queries`` arrive validated and unit-norm, ``labels`` as indices into ``classes_``. Where a
    method reads class texts, they are the constructor argument ``text_features``, one row for each entry of
    ``classes_`` in its order; without them the normalised class means stand in.

    Attributes:
        classes_: sorted class labels.
        n_features_in_: width of the embeddings.
        texts_: unit-norm class texts (classes, width), where the method reads them.
    """

    confidence_scale = 1.0
    """Factor of the scores in the softmax of ``predict_proba``."""

    def fit(self, X: Any, y: Any) -> "EmbeddingClassifier":
        """Learn from a support set.

        Args:
            X: unit-norm embeddings (examples, width), NumPy or torch; others are normalised with a warning.
            y: one class label for each.

        Raises:
            ValueError: NaN, a zero row, fewer than two classes, or class texts that do not fit.
        """
        X, y = validate_data(self, _as_numpy(X), _as_numpy(y), dtype=[np.float32, np.float64], ensure_min_samples=2)
        with warnings.catch_warnings():  # a class for nearly every example looks like regression: here it is one shot
            warnings.filterwarnings("ignore", message="The number of unique classes is greater than 50%")
            check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"a classifier needs examples of two classes, got one class: {self.classes_[0]!r}")
        return self._learn(unit_rows(X, "support embeddings"), labels)

    def _learn(self, support: np.ndarray, labels: np.ndarray) -> "EmbeddingClassifier":
        if hasattr(self, "text_features"):
            self.texts_ = self._texts(support, labels)
        self._fit(support, labels)
        return self

    def fit_checked(self, support: np.ndarray, labels: np.ndarray) -> "EmbeddingClassifier":
        """As `fit`, for a caller who has checked: unit-norm float rows, labels 0…C - 1 that all occur."""
        self.classes_, self.n_features_in_ = np.arange(int(labels.max()) + 1), support.shape[1]
        return self._learn(support, labels)

    def _texts(self, support: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The class texts, checked; or what stands in for them."""
        given = self.text_features
        if given is None:
            means = class_means(support, labels, len(self.classes_))
            norms = np.linalg.norm(means, axis=1, keepdims=True)
            return means / np.where(norms > 0, norms, 1)
        texts = check_array(_as_numpy(given), dtype=[np.float32, np.float64], input_name="text_features")
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
        check_is_fitted(self)
        X = validate_data(self, _as_numpy(X), dtype=[np.float32, np.float64], reset=False)
        return self._scores(unit_rows(X, "query embeddings"))

    def decision_function(self, X: Any) -> np.ndarray:
        """As `scores`; for two classes the difference, as scikit-learn has it."""
        scores = self.scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """The class with the highest score; the first of equals."""
        best = np.argmax(self.scores(X), axis=1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Scores as probabilities (queries, classes). They order like the scores; they are not calibrated."""
        return self._probabilities(self.scores(X))

    def _probabilities(self, scores: np.ndarray) -> np.ndarray:
        return softmax(self.confidence_scale * scores)

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        raise NotFittedError(f"{type(self).__name__} does not say how it learns")

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        raise NotFittedError(f"{type(self).__name__} does not say how it scores")


def _as_numpy(array: Any) -> Any:
    """A torch tensor as an array, without graph and on the CPU; anything else unchanged."""
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        return (array.float() if array.dtype.itemsize < 4 and array.is_floating_point() else array).numpy()
    return array
