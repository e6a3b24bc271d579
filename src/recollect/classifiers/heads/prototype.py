"""Classifier by the nearest class mean."""

import numpy as np

from recollect.classifiers.heads.base import EmbeddingClassifier, KernelForm, class_means, left_out_means, unit_or_zero
from recollect.classifiers.heads.holdout import HoldOut


class PrototypeClassifier(EmbeddingClassifier):
    """Scores ``f·mu_c`` with the plain mean of each class (Snell et al., 2017; LIxP, Eq. 3).

    The mean is not normalized again, so a scattered class, whose mean is short, scores lower.

    Args:
        cosine: normalize the means.

    Attributes:
        prototypes_: (classes, width).

    >>> import numpy as np
    >>> support = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> PrototypeClassifier().fit(support, ["cat", "cat", "dog"]).predict([[0.6, 0.8]])
    array(['dog'], dtype='<U3')
    """

    def __init__(self, cosine: bool = False) -> None:
        self.cosine = cosine

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        means = class_means(support, labels, len(self.classes_))
        self.prototypes_ = unit_or_zero(means) if self.cosine else means

    def _held_out(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> np.ndarray:
        return left_out_means(support, labels, plan, self.cosine)

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        return queries @ self.prototypes_.T

    def kernel_form(self) -> KernelForm:
        return KernelForm.of(self, self.prototypes_)
