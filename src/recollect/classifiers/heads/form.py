"""Export of classifiers whose scores are a linear map plus a kernel expansion."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from recollect.classifiers.heads.base import EmbeddingClassifier
from recollect.classifiers.heads.mixture import GaussianDiscriminant
from recollect.classifiers.heads.probes import ClassAdaptiveProbe, LinearProbePlusPlus
from recollect.classifiers.heads.proker import ProKeR
from recollect.classifiers.heads.prototype import PrototypeClassifier
from recollect.classifiers.heads.timo import Timo
from recollect.classifiers.heads.tip import TIP_PRESETS, TipAdapter, ZeroShotClassifier, one_hot
from recollect.classifiers.heads.trained import ApeTrained, LinearProbe, TipAdapterF


@dataclass(frozen=True)
class KernelForm:
    """Scores ``x·W + b + exp(beta (x·F - 1)) V`` of unit rows x.

    Attributes:
        weights: W.
        bias: b.
        keys: rows F; none for a linear classifier.
        sharpness: beta.
        values: V.
        temperature: the probabilities are the softmax of the scores over it.
    """

    weights: Float[np.ndarray, "classes width"]
    bias: Float[np.ndarray, " classes"]
    keys: Float[np.ndarray, "keys width"]
    sharpness: float
    values: Float[np.ndarray, "keys classes"]
    temperature: float

    def scores(self, rows: Float[np.ndarray, "n width"]) -> Float[np.ndarray, "n classes"]:
        """Scores of unit rows."""
        return rows @ self.weights.T + self.bias + np.exp(self.sharpness * (rows @ self.keys.T - 1)) @ self.values


def kernel_form(estimator: EmbeddingClassifier) -> KernelForm | None:
    """The kernel form of a fitted classifier; None where its scores have another form (votes, adapters).

    Scores equal the classifier's up to a constant per row, which changes no probability.
    """
    bias = np.zeros(len(estimator.classes_))
    temperature = float(estimator.temperature_)
    keys, sharpness = np.empty((0, estimator.n_features_in_)), 0.0
    values = np.empty((0, len(estimator.classes_)))
    match estimator:
        case ZeroShotClassifier():
            weights = estimator.texts_
        case PrototypeClassifier():
            weights = estimator.prototypes_
        case GaussianDiscriminant():
            weight = estimator._weight()
            weights = estimator.scale * estimator.texts_ + weight * estimator.coef_
            bias = weight * estimator.intercept_
        case TipAdapter():
            weights, keys, sharpness = (
                TIP_PRESETS[estimator.preset] * estimator.texts_,
                estimator.support_,
                estimator.beta_,
            )
            values = estimator.alpha_ * one_hot(estimator.labels_, len(bias), np.float64)
        case TipAdapterF():
            weights, keys, sharpness = estimator.scale * estimator.texts_, estimator.keys_, estimator.beta
            values = estimator.alpha * estimator.values_
        case ApeTrained():
            weights, keys, sharpness = estimator.scale * estimator.refined_, estimator.keys_, estimator.beta_
            values = estimator.alpha_ * estimator.values_
        case LinearProbe():
            weights, bias = estimator.model_.coef_, estimator.model_.intercept_
            if len(weights) == 1:  # scikit-learn has one score for two classes
                weights, bias = np.concatenate([-weights, weights]) / 2, np.concatenate([-bias, bias]) / 2
        case LinearProbePlusPlus():
            weights, bias = estimator.coef_, estimator.intercept_
        case ClassAdaptiveProbe():
            weights = estimator.scale * estimator.coef_
        case Timo():
            weights, bias = estimator.coef_ + estimator.alpha_ * estimator.weighed_, estimator.intercept_
        case ProKeR():
            weights, sharpness = estimator.text_weight_ * estimator.texts_, estimator.bandwidth_
            keys, values = estimator.expansion()
        case _:
            return None
    single = [np.asarray(each, dtype=np.float32) for each in (weights, bias, keys, values)]
    return KernelForm(single[0], single[1], single[2], float(sharpness), single[3], temperature)
