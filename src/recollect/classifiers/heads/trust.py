"""Nested held-out accuracy, the rule for when figures are shown, and the open-set rule: embeddings far from every class
mean are "none of these"."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from recollect.classifiers.heads.base import class_means, left_out_means, unit_or_zero
from recollect.classifiers.heads.calibration import expected_calibration_error
from recollect.classifiers.heads.holdout import HoldOut, turns

MIN_EXAMPLES = 10
"""Minimum number of held-out examples (or clicks) to report a share; with nine, each moves it by 11 points."""

TOO_FEW_EXAMPLES = "too few examples to tell"
"""Shown in every interface instead of a figure measured on too few examples."""


def can_report(examples: int) -> bool:
    """Return whether to show a share measured on this many examples; otherwise show `TOO_FEW_EXAMPLES`."""
    return examples >= MIN_EXAMPLES


def format_share(share: float | None, examples: int) -> str:
    """Format a share, as in ``87.5 % of 24``, or return `TOO_FEW_EXAMPLES`.

    Args:
        share: between 0 and 1; None if not measured.
        examples: number of examples it was measured on.
    """
    if share is None or not can_report(examples):
        return TOO_FEW_EXAMPLES
    return f"{100 * share:.1f} % of {examples}"


MANY_EXAMPLES = 512
"""Above this many examples, four folds suffice."""


@dataclass(frozen=True)
class HeldOutCheck:
    """Accuracy and calibration on examples that were used neither to fit nor to choose anything.

    Attributes:
        accuracy: accuracy on these examples (0 to 1).
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
    """Measure accuracy and calibration by nested cross-validation.

    In each of up to eight folds (four above `MANY_EXAMPLES` examples), ``learn`` chooses method and settings and fits
    the temperature on the other examples. Folds learn from fewer examples than the final classifier, so the accuracy is
    slightly too low.

    Args:
        learn: function from unit-norm examples and labels 0 to C - 1 to a fitted classifier.
        support: unit-norm examples (n, width).
        labels: (n,). The only example of a class is in every fold's training set.

    Returns:
        The measured quality, or None with too few examples.
    """
    several = (np.bincount(labels) > 1)[labels]
    if not can_report(int(several.sum())):
        return None
    fold = turns(labels) % (8 if len(labels) <= MANY_EXAMPLES else 4)
    parts, own, learned = [], [], 0
    for number in range(int(fold[several].max()) + 1):
        held = (fold == number) & several
        classifier = learn(support[~held], labels[~held])
        parts.append(classifier.predict_proba(support[held]))
        own.append(labels[held])
        learned += int(held.sum()) * int((~held).sum())
    probabilities, truth = np.concatenate(parts), np.concatenate(own)
    accuracy = float((probabilities.argmax(axis=1) == truth).mean())
    low, high = accuracy_interval(accuracy, len(truth), learned / (len(truth) * len(labels)))
    return HeldOutCheck(len(truth), accuracy, low, high, expected_calibration_error(probabilities, truth))


INTERVAL_WIDTH = 1.3
"""Factor that widens the interval, since folds share examples. Chosen on three data sets; results/few-shot/trust.json
has the coverage on others."""


def accuracy_interval(share: float, count: int, learned: float = 1.0) -> tuple[float, float]:
    """Return Wilson's (1927) 95 % interval of an accuracy on ``count`` examples, widened by `INTERVAL_WIDTH`.

    The final classifier learns from more examples than the folds. Errors decrease at most with the square root of the
    number of examples, so the upper end assumes an error smaller by this factor.

    Args:
        share: measured accuracy (0 to 1).
        learned: share of all examples that a fold learns from, 0 < learned <= 1.
    """
    z = INTERVAL_WIDTH * 1.959964

    def wilson(share: float) -> tuple[float, float]:
        middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
        half = z / (1 + z**2 / count) * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
        return middle - half, middle + half

    return wilson(share)[0], wilson(1 - (1 - share) * math.sqrt(learned))[1]


UNKNOWN_RATE = 0.05
"""Share of pictures of the classes that may be rejected.

At 0.02 more than 70 % of the pictures of other classes of the same data set were accepted, at 0.05 about 60 %.
"""


@dataclass(frozen=True)
class UnknownRule:
    """Rule that pictures whose cosine to every class mean is below a threshold are "none of these".

    Attributes:
        means: unit-norm class means.
        threshold: minimum cosine of pictures of the classes.
        rejected: estimated share of pictures of the classes that are rejected; None with too few examples.
        accepted: estimated share of pictures of other classes that are accepted; None with too few examples.
    """

    means: Float[np.ndarray, "classes width"]
    threshold: float
    rejected: float | None = None
    accepted: float | None = None

    def similarity(self, rows: Float[np.ndarray, "n width"]) -> Float[np.ndarray, " n"]:
        """Return the cosine of each unit row to the nearest class mean."""
        return (rows @ self.means.T).max(axis=1)

    def is_unknown(self, rows: Float[np.ndarray, "n width"]) -> Bool[np.ndarray, " n"]:
        """Return whether each unit row belongs to none of the classes."""
        if not len(self.means):
            return np.zeros(len(rows), dtype=bool)
        return self.similarity(rows) < self.threshold


def unknown_rule(features: np.ndarray, labels: np.ndarray) -> UnknownRule:
    """Learn the rule from labeled examples, and estimate its error rates.

    Each example is compared with class means that exclude it: with all means as a picture of the classes, and with all
    but its own class's as a picture of another class. Cosines of the first kind, sorted ascending, give the threshold
    at rank ``max(1, floor(UNKNOWN_RATE (n + 1)))``, so ``rejected`` is ``rank / (n + 1)``. At one shot this is an upper
    bound, since the example's own class has no mean.

    Args:
        features: unit-norm examples (n, width), each picture once.
        labels: class indices 0 to C - 1, each at least once (n,).
    """
    count, width = features.shape
    if count < 2:
        return UnknownRule(np.empty((0, width), features.dtype), -1.0)
    classes = int(labels.max()) + 1
    several = np.bincount(labels)[labels] > 1
    rows = np.arange(count)
    similarity = left_out_means(features, labels, HoldOut(labels, rows, turns(labels)), cosine=True).astype(np.float64)
    similarity[rows[~several], labels[~several]] = -1.0
    known = similarity.max(axis=1)
    similarity[rows, labels] = -1.0
    others = similarity.max(axis=1)
    rank = max(1, math.floor(UNKNOWN_RATE * (count + 1)))
    threshold = float(np.sort(known)[rank - 1])
    means = unit_or_zero(class_means(features, labels, classes)).astype(features.dtype)
    if not can_report(count):
        return UnknownRule(means, threshold)
    accepted = float((others[several] >= threshold).mean()) if classes > 2 and can_report(int(several.sum())) else None
    return UnknownRule(means, threshold, rank / (count + 1), accepted)
