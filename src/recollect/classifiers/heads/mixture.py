"""Methods that add a second score to the class-text score, weighted on the support set."""

from typing import Any

import numpy as np
from sklearn.base import clone

from recollect.classifiers.heads.base import EmbeddingClassifier, softmax
from recollect.classifiers.heads.holdout import MOST_TUNING_ROWS, HoldOut
from recollect.classifiers.heads.mixing import Pair, best_weight
from recollect.classifiers.heads.voting import SoftmaxVoting
from recollect.core.types import TEXT_SCALE


class Mixture(EmbeddingClassifier):
    """``base + weight extra``, with the weight that is exactly best on held-out examples.

    A subclass defines ``_learn_extra(support, labels)``, ``_components(queries)`` and, where there is a closed form,
    ``_held_out_pair(support, labels, plan)``; ``weight_name`` names the constructor argument of the weight.
    """

    weight_name = "alpha"
    weight_bounds = (0.0, np.inf)
    default_weight = 1.0

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        self._learn_extra(support, labels)
        weight = getattr(self, self.weight_name)
        plan = self._plan.first(MOST_TUNING_ROWS)
        if weight is None and len(plan.rows):
            base, extra = self._held_out_pair(support, labels, plan)
            weight = self._weigh(base, extra, plan.held_labels)
        setattr(self, self.weight_name + "_", self.default_weight if weight is None else weight)

    def _weigh(self, base: np.ndarray, extra: np.ndarray, labels: np.ndarray) -> float:
        return best_weight(base, extra, labels, self.weight_bounds)[0]

    def _chosen(self) -> dict[str, Any]:
        return {**self._other_choices(), self.weight_name: self._weight()}

    def _other_choices(self) -> dict[str, Any]:
        """Chosen constructor arguments other than the weight."""
        return {}

    def _learn_extra(self, support: np.ndarray, labels: np.ndarray) -> None:
        raise NotImplementedError

    def _components(self, queries: np.ndarray) -> Pair:
        raise NotImplementedError

    def _held_out_pair(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> Pair:
        chosen = {**self._other_choices(), self.weight_name: 1.0}

        def score(learn: np.ndarray, choose: np.ndarray) -> Pair:
            return self._refitted(support[learn], labels[learn], chosen)._components(support[choose])

        base, extra = plan.scored(score, (2, len(self.classes_)), support.dtype)
        return base, extra

    def _held_out(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> np.ndarray:
        base, extra = self._held_out_pair(support, labels, plan)
        return base + np.asarray(self._weight(), base.dtype) * extra

    def _weight(self) -> float:
        return getattr(self, self.weight_name + "_")

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        base, extra = self._components(queries)
        return base + np.asarray(self._weight(), base.dtype) * extra


def _shares(estimator: Any, queries: np.ndarray) -> np.ndarray:
    """Shares of an `EmbeddingClassifier`, probabilities of any other scikit-learn classifier."""
    return getattr(estimator, "shares", estimator.predict_proba)(queries)


class ZeroShotMix(Mixture):
    """Any classifier's probabilities added to zero-shot ones: ``softmax(scale f·W) + weight P`` (LIxP, Table 2).

    Args:
        estimator: any classifier; a clone of it is fitted.
        text_features: class texts W, in the order of ``classes_``.
        weight: of the classifier's probabilities; None chooses the exactly best one on held-out examples.
        scale: inverse temperature of the zero-shot probabilities.
    """

    def __init__(
        self, estimator: Any = None, text_features: Any = None, weight: float | None = 1.0, scale: float = TEXT_SCALE
    ) -> None:
        self.estimator = estimator
        self.text_features = text_features
        self.weight = weight
        self.scale = scale

    weight_name = "weight"

    def _learn_extra(self, support: np.ndarray, labels: np.ndarray) -> None:
        estimator = SoftmaxVoting() if self.estimator is None else clone(self.estimator)
        checked = isinstance(estimator, EmbeddingClassifier)
        self.estimator_ = (estimator.fit_checked if checked else estimator.fit)(support, labels)

    def _components(self, queries: np.ndarray) -> Pair:
        return softmax(self.scale * queries @ self.texts_.T), _shares(self.estimator_, queries)

    def _held_out_pair(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> Pair:
        known = getattr(self.estimator_, "loo_rows_", np.empty(0))
        if not np.isin(plan.rows, known).all():  # not an EmbeddingClassifier
            return super()._held_out_pair(support, labels, plan)
        base = softmax(self.scale * self._text_similarity(support, labels, plan))
        scores = self.estimator_.loo_scores_[np.searchsorted(known, plan.rows)]
        return base, self.estimator_.shares_of(scores)

    def _logits(self, scores: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(scores, np.finfo(np.float32).tiny))
