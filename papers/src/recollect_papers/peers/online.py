"""Test-time methods for single pictures: a cache over a stream (TDA), a vote of views (ZERO)."""

from dataclasses import dataclass, field

import numpy as np

from recollect.classifiers.heads.base import softmax, unit_rows
from recollect.core.ordering import in_order

POSITIVE, NEGATIVE = 3, 2
"""Number of rows kept for each predicted class: the most confident, and those of medium entropy."""

DOUBTFUL = (0.2, 0.5)
"""Range of the entropy divided by log2(classes) of rows in the negative cache."""

UNLIKELY = (0.03, 1.0)
"""Range of the probability of classes that a negative row votes against."""

_Item = tuple[float, np.ndarray, np.ndarray]
_Bank = dict[int, list[_Item]]
"""Kept rows of each predicted class: entropy, key, and value (classes,)."""


@dataclass
class OnlineCache:
    """TDA (Karmanov et al., 2024): a stream of pictures is classified by the texts and earlier pictures.

    ``scale f·W + alpha sum exp(-beta (1 - cos)) onehot - 0.117 sum exp(-(1 - cos)) [0.03 < p < 1]``: positive rows, the
    three of lowest entropy for each predicted class, vote for their class; negative rows, two of medium entropy,
    against the classes that they may belong to. As published, a row enters before it is scored. The order matters.

    Args:
        texts: unit class texts (classes, width).
        scale: the model's inverse temperature.
        alpha, beta: weight and sharpness of the positive cache; 2 and 5 are published for ImageNet.
        negative: weight of the negative cache.
    """

    texts: np.ndarray
    scale: float = 100.0
    alpha: float = 2.0
    beta: float = 5.0
    negative: float = 0.117
    _sure: _Bank = field(default_factory=dict, repr=False)
    _unsure: _Bank = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.texts = unit_rows(np.asarray(self.texts, dtype=np.float64), "texts")

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """Scores of the next pictures of the stream (rows, classes), in order."""
        rows = unit_rows(np.asarray(rows, dtype=np.float64), "embeddings")
        return np.array([self._next(row) for row in rows]).reshape(len(rows), len(self.texts))

    def _next(self, row: np.ndarray) -> np.ndarray:
        scores = self.scale * self.texts @ row
        probabilities = softmax(scores[None])[0]
        entropy = -float((probabilities * np.log(np.maximum(probabilities, 1e-30))).sum())
        label = int(probabilities.argmax())
        _keep(self._sure, label, (entropy, row, np.eye(len(scores))[label]), POSITIVE)
        if DOUBTFUL[0] < entropy / np.log2(len(scores)) < DOUBTFUL[1]:
            mask = (probabilities > UNLIKELY[0]) & (probabilities < UNLIKELY[1])
            _keep(self._unsure, label, (entropy, row, mask.astype(np.float64)), NEGATIVE)
        scores = scores + self.alpha * _read(self._sure, row, self.beta)
        return scores - self.negative * _read(self._unsure, row, 1.0)


def _keep(bank: _Bank, label: int, item: _Item, most: int) -> None:
    """Add an item to its class's bank if it is among those of least entropy."""
    bank[label] = sorted([*bank.get(label, []), item], key=lambda kept: kept[0])[:most]


def _read(bank: _Bank, row: np.ndarray, beta: float) -> np.ndarray:
    items = [item for kept in bank.values() for item in kept]
    return np.asarray(sum(np.exp(-beta * (1 - row @ key)) * value for _, key, value in items))


def counted_vote(
    views: np.ndarray, texts: np.ndarray, *, scale: float = 100.0, share: float = 0.3
) -> tuple[int, float]:
    """ZERO (Farina et al., 2024): the class nearest to most of the confident views of one picture, and its share.

    The share of views with least entropy votes, at least one (published: the centre crop and 63 random ones); ties go
    to the class of the most confident view. It costs one forward pass per view, and misleading crops hurt.

    Args:
        views: unit embeddings of the views of one picture (views, width).
        texts: unit class texts (classes, width).
        scale: the model's inverse temperature.
        share: of the views that vote.

    Returns:
        The class, and its share of the votes, which is ZERO's probability.

    Raises:
        ValueError: no view, or a share that is not in (0, 1].
    """
    if not len(views) or not 0 < share <= 1:
        raise ValueError(f"need at least one view and a share in (0, 1], got {len(views)} and {share}")
    probabilities = softmax(scale * unit_rows(views, "views") @ texts.T)
    entropy = -(probabilities * np.log(np.maximum(probabilities, 1e-30))).sum(axis=1)
    surest = in_order(entropy)[: max(1, int(share * len(views)))]
    voted = probabilities[surest].argmax(axis=1)
    votes = np.bincount(voted, minlength=len(texts))
    tied = votes == votes.max()
    label = int(next(label for label in voted if tied[label]))
    return label, float(votes[label] / len(voted))
