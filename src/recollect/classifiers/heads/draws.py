"""Draws of a support. They are nested: for one seed, K shots are the first K of each class in one random order.

So all that a method reads from similarities to 2K shots (class sums, cache sums, nearest examples) is what it read from
K shots and the increment.
"""

from typing import Literal

import numpy as np

ShortClasses = Literal["refuse", "all"]

NO_ROW = -1
"""In a draw: the class has no further example."""


def nested_supports(
    labels: np.ndarray, classes: int, shots: int, seed: int, short_classes: ShortClasses = "refuse"
) -> np.ndarray:
    """Rows of the pool in the order in which they are drawn: (shots, classes), column c from class c.

    The first K rows are the support of K shots, so supports of one seed are nested.

    Args:
        short_classes: ``all`` takes all of a class that has fewer, and `NO_ROW` stands for those that it lacks.

    Raises:
        ValueError: a class has fewer than ``shots`` examples, or none.
    """
    counts = np.bincount(labels, minlength=classes)
    if counts.min() < (shots if short_classes == "refuse" else 1):
        raise ValueError(f"class {int(counts.argmin())} has {counts.min()} examples, fewer than {shots} shots")
    generator = np.random.default_rng([seed, 0x5EED])
    drawn = np.full((shots, classes), NO_ROW)
    for label in range(classes):
        mine = generator.permutation(np.flatnonzero(labels == label))[:shots]
        drawn[: len(mine), label] = mine
    return drawn


def support_of(order: np.ndarray, shots: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the first so many shots of a draw, shot by shot, and their classes."""
    rows = order[:shots].ravel()
    labels = np.tile(np.arange(order.shape[1]), len(order[:shots]))
    return rows[rows != NO_ROW], labels[rows != NO_ROW]
