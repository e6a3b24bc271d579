"""Weighted sum of zero-shot probabilities and those of any classifier."""

from typing import Any

import numpy as np
from sklearn.base import clone

from recollect.classifiers.heads.base import EmbeddingClassifier, softmax
from recollect.classifiers.heads.holdout import MAX_TUNING_ROWS, HoldOut
from recollect.classifiers.heads.mixing import ScorePair, best_weight
from recollect.classifiers.heads.voting import SoftmaxVoting
from recollect.core.types import TEXT_SCALE


class ZeroShotMix(EmbeddingClassifier):
    """Sum of zero-shot probabilities and those of any classifier: ``softmax(scale f·W) + weight P`` (LIxP, Table 2).

    Args:
        estimator: any classifier; a clone of it is fitted.
        text_features: class texts W, in the order of ``classes_``.
        weight: weight of the classifier's probabilities; None chooses the exact optimum on held-out examples.
        scale: inverse temperature of the zero-shot probabilities.
    """

    def __init__(
        self, estimator: Any = None, text_features: Any = None, weight: float | None = 1.0, scale: float = TEXT_SCALE
    ) -> None:
        self.estimator = estimator
        self.text_features = text_features
        self.weight = weight
        self.scale = scale

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        estimator = SoftmaxVoting() if self.estimator is None else clone(self.estimator)
        checked = isinstance(estimator, EmbeddingClassifier)
        self.estimator_ = (estimator.fit_checked if checked else estimator.fit)(support, labels)
        self.weight_ = 1.0 if self.weight is None else self.weight
        plan = self._plan.first(MAX_TUNING_ROWS)
        if self.weight is None and len(plan.rows):
            self.weight_, _ = best_weight(*self._held_out_pair(support, labels, plan), plan.held_labels)

    def _chosen(self) -> dict[str, Any]:
        return {"weight": self.weight_}

    def _components(self, queries: np.ndarray) -> ScorePair:
        if isinstance(self.estimator_, EmbeddingClassifier):
            shares = self.estimator_.shares_of(self.estimator_._scores(queries))
        else:
            shares = self.estimator_.predict_proba(queries)
        return softmax(self.scale * queries @ self.texts_.T), shares

    def _held_out_pair(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> ScorePair:
        if isinstance(self.estimator_, EmbeddingClassifier):
            base = softmax(self.scale * self._text_similarity(support, labels, plan))
            rows = np.searchsorted(self.estimator_.loo_rows_, plan.rows)
            return base, self.estimator_.shares_of(self.estimator_.loo_scores_[rows])

        def score(learn: np.ndarray, choose: np.ndarray) -> ScorePair:
            return self._refitted(support[learn], labels[learn], {"weight": 1.0})._components(support[choose])

        base, extra = plan.scored(score, (2, len(self.classes_)), support.dtype)
        return base, extra

    def _held_out(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> np.ndarray:
        return self._mixed(*self._held_out_pair(support, labels, plan))

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        return self._mixed(*self._components(queries))

    def _mixed(self, base: np.ndarray, extra: np.ndarray) -> np.ndarray:
        return base + np.asarray(self.weight_, base.dtype) * extra

    def _logits(self, scores: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(scores, np.finfo(np.float32).tiny))
