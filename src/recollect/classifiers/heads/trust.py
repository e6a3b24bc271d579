"""How far a classifier can be trusted: nested held-out accuracy, and the one rule for when figures are shown."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from recollect.classifiers.heads.calibration import expected_calibration_error
from recollect.classifiers.heads.holdout import turns

ENOUGH_EXAMPLES = 10
"""Fewest held-out examples (or clicks) a share may be reported from: of nine, a single one moves it by 11 points."""

TOO_FEW = "too few examples to tell"
"""What is shown in place of a figure that too few examples support, in every interface."""


def enough_to_tell(examples: int) -> bool:
    """Whether a share measured on this many examples may be shown; where it may not, show `TOO_FEW`."""
    return examples >= ENOUGH_EXAMPLES


def share_text(share: float | None, examples: int) -> str:
    """A share as text, ``87.5 % of 24``, or `TOO_FEW`.

    Args:
        share: between 0 and 1; None if it was not measured.
        examples: how many it was measured on.
    """
    if share is None or not enough_to_tell(examples):
        return TOO_FEW
    return f"{100 * share:.1f} % of {examples}"


def conformal_groups(counts: np.ndarray, alpha: float) -> np.ndarray:
    """The calibration group of each class: its own, or one shared by all classes with too few examples.

    A class of n held-out examples can be ruled out at error rate ``alpha`` only if ``n >= 1 / alpha - 1``. Classes with
    fewer share a group, the "null cluster" of clustered conformal prediction (Ding et al., 2023): its sets hold the
    true class with probability 1 - alpha over the pictures of all its classes, not for each class by itself.

    Args:
        counts: held-out examples of each class (classes,).
        alpha: error rate, 0 < alpha < 1.

    Returns:
        Group of each class, 0 to the number of groups - 1 (classes,).
    """
    small = counts < math.ceil(1 / alpha - 1 - 1e-9)
    group = np.cumsum(~small) - 1
    group[small] = int((~small).sum())
    return group


MANY_EXAMPLES = 512
"""Beyond so many examples, four folds measure well enough, and each fit takes longer."""


@dataclass(frozen=True)
class HeldOutCheck:
    """What a classifier says of examples that neither taught it nor chose anything about it.

    Attributes:
        examples: how many were held out.
        accuracy: share that is right (0 to 1).
        interval: 95 % interval of the accuracy of the final classifier on new pictures (`accuracy_interval`).
        calibration_error: expected calibration error of the probabilities.
    """

    examples: int
    accuracy: float
    interval: tuple[float, float]
    calibration_error: float


def held_out_check(
    learn: Callable[[np.ndarray, np.ndarray], Any], support: np.ndarray, labels: np.ndarray
) -> HeldOutCheck | None:
    """Accuracy and calibration by nested cross-validation.

    In each of up to eight folds (four beyond `MANY_EXAMPLES` examples), ``learn`` does everything with the other
    examples: it chooses method and settings, and fits the temperature. So no choice was made on the examples it is
    tested on. The folds learn from fewer examples than the final classifier, which makes the figure slightly too low.

    Args:
        learn: from unit-norm examples and labels 0 to C - 1 to a fitted classifier.
        support: unit-norm examples (n, width).
        labels: (n,). The only example of a class is learned from in every fold.

    Returns:
        None with too few examples to tell.
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
    interval = accuracy_interval(accuracy, len(right), learned / (len(right) * len(labels)))
    return HeldOutCheck(len(right), accuracy, interval, expected_calibration_error(asked, right))


INTERVAL_WIDTH = 1.3
"""The measured accuracy varies more than that of independent examples, since folds share examples. Chosen on three
sets; results/few-shot/trust.json has the coverage on others."""


def accuracy_interval(share: float, count: int, learned: float = 1.0) -> tuple[float, float]:
    """95 % interval of an accuracy measured on ``count`` held-out examples: Wilson's (1927), `INTERVAL_WIDTH` as wide.

    The final classifier learns from more examples than the folds do, and errors fall at most as fast as the inverse
    square root of the number of examples. So the upper end is that of an error smaller by this factor.

    Args:
        share: that was right (0 to 1).
        count: examples that were held out.
        learned: share of all examples that a fold learned from, 0 < learned <= 1.
    """
    z = INTERVAL_WIDTH * 1.959964

    def wilson(share: float) -> tuple[float, float]:
        middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
        half = z / (1 + z**2 / count) * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
        return middle - half, middle + half

    return wilson(share)[0], wilson(1 - (1 - share) * math.sqrt(learned))[1]
