"""Stable orders: by score, and by group."""

import numpy as np
from jaxtyping import Int64, Num, Shaped


def best_first(scores: Num[np.ndarray, "*shape"], axis: int = -1) -> Int64[np.ndarray, "*shape"]:
    """Places of scores along an axis, best first; equal scores in their own order."""
    return np.argsort(-scores, axis=axis, kind="stable")


def in_order(values: Shaped[np.ndarray, " rows"]) -> Int64[np.ndarray, " rows"]:
    """Places of values in ascending order; equal values, such as the labels of a class, in their own order."""
    return np.argsort(values, kind="stable")
