"""None of these, whatever the method: embeddings that are unlike every example."""

import math

import numpy as np

UNKNOWN_RATE = 0.02
"""Share of pictures of the classes that may be called "none of these"."""

EXAMPLES_AT_ONCE = 1024
"""Examples whose similarities to all others are in memory at a time."""


def least_similarity(features: np.ndarray, rate: float = UNKNOWN_RATE) -> tuple[float, float]:
    """The similarity to the nearest example below which a picture is called "none of these".

    The statistic of a picture is its cosine to the nearest example; that of an example, to the nearest other one. The
    threshold is the ``⌊rate (n + 1)⌋``-th least of these, and at least the least.

    Args:
        features: unit-norm examples (n, width), no picture twice.
        rate: share of pictures of the classes that may fall below.

    Returns:
        The threshold, and the share that may in fact fall below it, ``rank/(n + 1)``; −1 and 0 for fewer than two.
    """
    count = len(features)
    if count < 2:
        return -1.0, 0.0
    nearest = np.empty(count, dtype=features.dtype)
    for start in range(0, count, EXAMPLES_AT_ONCE):  # all pairs of 40,000 examples would take 6 GB
        similarity = features[start : start + EXAMPLES_AT_ONCE] @ features.T
        rows = np.arange(len(similarity))
        similarity[rows, start + rows] = -np.inf
        nearest[start : start + EXAMPLES_AT_ONCE] = similarity.max(axis=1)
    rank = max(1, math.floor(rate * (count + 1)))
    return float(np.sort(nearest)[rank - 1]), rank / (count + 1)
