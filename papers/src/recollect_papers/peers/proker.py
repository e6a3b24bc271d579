"""ProKeR as in its public code, with the settings for ImageNet."""

from typing import Any

import numpy as np

from recollect.classifiers import ProKeR
from recollect.classifiers.heads.base import KernelForm
from recollect.classifiers.heads.holdout import HoldOut

SHOTS = (1, 2, 4, 8, 16)
BANDWIDTHS = (3.0, 2.6, 1.5, 1.66, 1.7)
RIDGES = (0.05, 0.05, 0.05, 0.07, 0.1)
"""The public code's settings for ImageNet by number of shots."""


class PublishedProKeR(ProKeR):
    """``z + ridge k(x) A^-1 (Y - Z)`` (Bendou et al., 2025), which is ``(1 - ridge) z + ridge ProKeR(x)`` at s = 1.

    Args:
        text_features: class texts, in the order of ``classes_``.
        bandwidth, ridge: by default the public code's, interpolated over log K.
    """

    def __init__(self, text_features: Any = None, bandwidth: float | None = None, ridge: float | None = None) -> None:
        super().__init__(text_features, bandwidth, ridge, 1.0)

    def _settings(self, plan: HoldOut) -> tuple[float, float, float]:
        shots = np.log2(len(self.labels_) / len(self.classes_))
        bandwidth, ridge = (float(np.interp(shots, np.log2(SHOTS), each)) for each in (BANDWIDTHS, RIDGES))
        bandwidth = bandwidth if self.bandwidth is None else self.bandwidth
        return bandwidth, ridge if self.ridge is None else self.ridge, 1.0

    def _chosen(self) -> dict[str, Any]:
        return {"bandwidth": self.bandwidth_, "ridge": self.ridge_}

    def _mixed(self, rows: np.ndarray, scores: np.ndarray) -> np.ndarray:
        if self.text_features is None:
            return scores
        return self.ridge_ * scores + (1 - self.ridge_) * (rows @ self.texts_.T)

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        return self._mixed(queries, super()._scores(queries))

    def _held_out(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> np.ndarray:
        return self._mixed(support[plan.rows], super()._held_out(support, labels, plan))

    def kernel_form(self) -> KernelForm:
        form = super().kernel_form()
        if self.text_features is None:
            return form
        return KernelForm.of(self, self.texts_, kernel=(form.keys, form.sharpness, self.ridge_ * form.values))

    def _exact(self, alpha: float) -> bool:
        return False
