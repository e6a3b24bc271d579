"""Methods that add one more score to the class texts' and weigh it on the support set: GDA, DMN, zero-shot mix."""

from typing import Any

import numpy as np
from sklearn.base import clone

from recollect.fewshot.base import EmbeddingClassifier, class_means, softmax
from recollect.fewshot.tuning import Pair, tuned_weight

TEXT_SCALE = 100.0
"""Scale of the text scores in the published codes: CLIP's learned one. Give another model's own as ``scale``."""


class GaussianDiscriminant(EmbeddingClassifier):
    """Gaussian discriminant analysis added to the text scores (Wang et al., 2024, "hard-to-beat baseline").

    ``scale f·W + alpha (f·W_g + b)`` with ``W_g = mu S^-1``, ``b = log 1/C - 1/2 mu S^-1 mu`` and the shrunk precision
    ``S^-1 = d [(n - 1) Cov + tr(Cov) I]^-1`` of the pooled within-class covariance.

    Args:
        text_features: class texts W, in the order of ``classes_``.
        alpha: weight of the discriminant; None chooses it by cross-validation within 1e-4…1e2, exactly.
        scale: factor of the text scores.
    """

    def __init__(self, text_features: Any = None, alpha: float | None = None, scale: float = TEXT_SCALE) -> None:
        self.text_features = text_features
        self.alpha = alpha
        self.scale = scale

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        self.alpha_ = tuned_weight(self.alpha, self._components, support, labels, bounds=(1e-4, 1e2))
        self.coef_, self.intercept_ = self._discriminant(support, labels)

    def _chosen(self) -> dict[str, Any]:
        return {"alpha": self.alpha_}

    def _discriminant(self, support: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        count, width = support.shape
        means = class_means(support, labels, len(self.classes_)).astype(np.float64)
        centred = support - means[labels]
        scatter = centred.T @ centred  # (n - 1) Cov
        trace = np.trace(scatter) / max(count - 1, 1)
        if trace == 0:  # one example of each class: no spread to measure, so all directions count the same
            trace = 1.0
        weights = width * np.linalg.solve(scatter + trace * np.eye(width), means.T).T
        bias = -np.log(len(self.classes_)) - 0.5 * np.einsum("cd,cd->c", means, weights)
        return weights.astype(support.dtype), bias.astype(support.dtype)

    def _components(self, support: np.ndarray, labels: np.ndarray, queries: np.ndarray) -> Pair:
        weights, bias = self._discriminant(support, labels)
        return self.scale * queries @ self.texts_.T, queries @ weights.T + bias

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        return self.scale * queries @ self.texts_.T + self.alpha_ * (queries @ self.coef_.T + self.intercept_)


class DualMemory(EmbeddingClassifier):
    """The training-free static memory of DMN added to the text scores (Zhang et al., 2024).

    For each class the query reads that class's examples, ``norm( sum exp(-beta (1 - f·m)) m )``, and is compared with
    what it reads. The published method also keeps a memory of the test images seen so far; here a query is scored by
    itself.

    Args:
        text_features: class texts W, in the order of ``classes_``.
        alpha: weight of the memory; None chooses it by cross-validation, exactly.
        beta: sharpness of the read.
    """

    confidence_scale = 100.0

    def __init__(self, text_features: Any = None, alpha: float | None = None, beta: float = 5.5) -> None:
        self.text_features = text_features
        self.alpha = alpha
        self.beta = beta

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        self.support_, self.labels_ = support, labels
        self.alpha_ = tuned_weight(self.alpha, self._components, support, labels)

    def _chosen(self) -> dict[str, Any]:
        return {"alpha": self.alpha_}

    def _components(self, support: np.ndarray, labels: np.ndarray, queries: np.ndarray) -> Pair:
        similarity = queries @ support.T
        weights = np.exp(self.beta * (similarity - 1))
        read = np.empty((len(queries), len(self.classes_)), dtype=queries.dtype)
        for label in range(len(self.classes_)):
            mine = labels == label
            # f·(w m) is the weighted sum of similarities; only the norm needs the vector itself.
            norm = np.linalg.norm(weights[:, mine] @ support[mine], axis=1)
            read[:, label] = (weights[:, mine] * similarity[:, mine]).sum(axis=1) / np.maximum(norm, 1e-12)
        return queries @ self.texts_.T, read

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        texts, memory = self._components(self.support_, self.labels_, queries)
        return texts + self.alpha_ * memory


def _shares(estimator: Any, queries: np.ndarray) -> np.ndarray:
    """Shares of one of our classifiers, probabilities of anybody's."""
    return getattr(estimator, "shares", estimator.predict_proba)(queries)


class ZeroShotMix(EmbeddingClassifier):
    """Any classifier's probabilities added to zero-shot ones: ``softmax(scale f·W) + weight P`` (LIxP, Table 2).

    Args:
        estimator: the classifier; it is cloned, not changed.
        text_features: class texts W, in the order of ``classes_``.
        weight: of the classifier's probabilities; None chooses it by cross-validation, exactly.
        scale: inverse temperature of the zero-shot probabilities.

    Attributes:
        estimator_: the fitted classifier.
        weight_: what was used.
    """

    def __init__(
        self, estimator: Any = None, text_features: Any = None, weight: float | None = 1.0, scale: float = TEXT_SCALE
    ) -> None:
        self.estimator = estimator
        self.text_features = text_features
        self.weight = weight
        self.scale = scale

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        self.weight_ = tuned_weight(self.weight, self._components, support, labels)
        self.estimator_ = self._new().fit(support, labels)

    def _new(self) -> Any:
        from recollect.fewshot.voting import SoftmaxVoting

        return SoftmaxVoting() if self.estimator is None else clone(self.estimator)

    def _components(self, support: np.ndarray, labels: np.ndarray, queries: np.ndarray) -> Pair:
        fitted = self._new().fit(support, labels)
        return softmax(self.scale * queries @ self.texts_.T), _shares(fitted, queries)

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        return self.combine(queries @ self.texts_.T, _shares(self.estimator_, queries))

    def combine(self, text_similarity: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
        """Scores from the queries' similarities to the texts and the classifier's probabilities."""
        return softmax(self.scale * text_similarity) + self.weight_ * probabilities

    def _chosen(self) -> dict[str, Any]:
        return {"weight": self.weight_}

    def _logits(self, scores: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(scores, np.finfo(np.float32).tiny))
