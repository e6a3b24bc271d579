"""Stable sorting by score and by group."""

import numpy as np
from jaxtyping import Int64, Num, Shaped


def best_first(scores: Num[np.ndarray, "*shape"]) -> Int64[np.ndarray, "*shape"]:
    """Return the indices that sort scores along the last axis, best first; ties keep their order."""
    return np.argsort(-scores, axis=-1, kind="stable")


def stable_argsort(values: Shaped[np.ndarray, " rows"]) -> Int64[np.ndarray, " rows"]:
    """Return the indices that sort values in ascending order; ties (labels of a class) keep their order."""
    return np.argsort(values, kind="stable")
