"""Nested held-out accuracy, and the rule for when figures are shown."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from recollect.classifiers.heads.calibration import expected_calibration_error
from recollect.classifiers.heads.holdout import turns

ENOUGH_EXAMPLES = 10
"""Minimum number of held-out examples (or clicks) to report a share: one of nine moves it by 11 points."""

TOO_FEW = "too few examples to tell"
"""Shown instead of a figure in every interface where there are too few examples."""


def enough_to_tell(examples: int) -> bool:
    """Whether to show a share measured on this many examples; otherwise show `TOO_FEW`."""
    return examples >= ENOUGH_EXAMPLES


def share_text(share: float | None, examples: int) -> str:
    """A share as text, ``87.5 % of 24``, or `TOO_FEW`.

    Args:
        share: between 0 and 1; None if not measured.
        examples: number of examples it was measured on.
    """
    if share is None or not enough_to_tell(examples):
        return TOO_FEW
    return f"{100 * share:.1f} % of {examples}"


MANY_EXAMPLES = 512
"""Above this many examples four folds suffice."""


@dataclass(frozen=True)
class HeldOutCheck:
    """Accuracy and calibration on examples that were used neither to fit nor to choose anything.

    Attributes:
        accuracy: on them (0 to 1).
        low, high: 95 % interval of the accuracy of the final classifier on new pictures (`accuracy_interval`).
    """

    examples: int
    accuracy: float
    low: float
    high: float
    calibration_error: float


def held_out_check(
    learn: Callable[[np.ndarray, np.ndarray], Any], support: np.ndarray, labels: np.ndarray
) -> HeldOutCheck | None:
    """Accuracy and calibration by nested cross-validation.

    In each of up to eight folds (four above `MANY_EXAMPLES` examples), ``learn`` chooses method and settings and fits
    the temperature on the other examples. Folds learn from fewer examples than the final classifier, so the accuracy is
    slightly too low.

    Args:
        learn: from unit-norm examples and labels 0 to C - 1 to a fitted classifier.
        support: unit-norm examples (n, width).
        labels: (n,). The only example of a class is part of every fold's training set.

    Returns:
        None with too few examples.
    """
    several = (np.bincount(labels) > 1)[labels]
    if not enough_to_tell(int(several.sum())):
        return None
    fold = turns(labels) % (8 if len(labels) <= MANY_EXAMPLES else 4)
    probabilities, own, learned = [], [], 0
    for number in range(int(fold[several].max()) + 1):
        held = (fold == number) & several
        classifier = learn(support[~held], labels[~held])
        probabilities.append(classifier.predict_proba(support[held]))
        own.append(labels[held])
        learned += int(held.sum()) * int((~held).sum())
    asked, right = np.concatenate(probabilities), np.concatenate(own)
    accuracy = float((asked.argmax(axis=1) == right).mean())
    low, high = accuracy_interval(accuracy, len(right), learned / (len(right) * len(labels)))
    return HeldOutCheck(len(right), accuracy, low, high, expected_calibration_error(asked, right))


INTERVAL_WIDTH = 1.3
"""Widens the interval, since folds share examples. Chosen on three data sets; results/few-shot/trust.json has the
coverage on others."""


def accuracy_interval(share: float, count: int, learned: float = 1.0) -> tuple[float, float]:
    """95 % interval of an accuracy on ``count`` held-out examples: Wilson's (1927), widened by `INTERVAL_WIDTH`.

    The final classifier learns from more examples than the folds. Errors decrease at most with the square root of the
    number of examples, so the upper end assumes an error that is smaller by this factor.

    Args:
        share: measured accuracy (0 to 1).
        learned: share of all examples that a fold learned from, 0 < learned <= 1.
    """
    z = INTERVAL_WIDTH * 1.959964

    def wilson(share: float) -> tuple[float, float]:
        middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
        half = z / (1 + z**2 / count) * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
        return middle - half, middle + half

    return wilson(share)[0], wilson(1 - (1 - share) * math.sqrt(learned))[1]
