"""The form in which classifiers can be exported: a linear map plus a kernel expansion."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class KernelForm:
    """Scores ``x·W + b + exp(beta (x·F - 1)) V`` of unit rows x, up to a constant for each row.

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

    @classmethod
    def of(
        cls,
        estimator: Any,
        weights: np.ndarray,
        bias: np.ndarray | None = None,
        *,
        kernel: tuple[np.ndarray, float, np.ndarray] | None = None,
    ) -> "KernelForm":
        """The form of a fitted classifier, in single precision.

        Args:
            kernel: keys, sharpness and values.
        """
        classes, width = weights.shape
        keys, sharpness, values = kernel or (np.empty((0, width)), 0.0, np.empty((0, classes)))
        bias = np.zeros(classes) if bias is None else bias
        single = [np.asarray(each, dtype=np.float32) for each in (weights, bias, keys, values)]
        return cls(single[0], single[1], single[2], float(sharpness), single[3], float(estimator.temperature_))

    def scores(self, rows: Float[np.ndarray, "n width"]) -> Float[np.ndarray, "n classes"]:
        """Scores of unit rows."""
        return rows @ self.weights.T + self.bias + np.exp(self.sharpness * (rows @ self.keys.T - 1)) @ self.values
