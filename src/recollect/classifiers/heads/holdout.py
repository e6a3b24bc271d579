"""Hold-out plans: leave one example out or, at few shots, one of each class."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from recollect.core.ordering import stable_argsort

FEW_SHOTS = 4
"""Up to this many examples in the largest class, one of each class is held out at a time. Removing a single example
leaves its class with K - 1 examples against K of the others, which at few shots underestimates the accuracy."""

FOLDS = 3

MAX_SCORES = 2**26
"""Maximum number of held-out scores (rows x classes) in memory: 256 MiB in single precision."""

MAX_TUNING_ROWS = 4096
"""Maximum number of examples for choosing a parameter, drawn evenly over the classes."""


@dataclass(frozen=True)
class HoldOut:
    """Plan that holds out every example once, except the only example of a class.

    Attributes:
        labels: (examples,), 0…C - 1; every class occurs.
        rows: (held,), indices of the held-out examples; empty if every class has a single example.
        turn: (examples,), position of each example in a random order of its class.
        leave_one_out: each example is held out alone; otherwise together with those of the same turn.
    """

    labels: np.ndarray
    rows: np.ndarray
    turn: np.ndarray
    leave_one_out: bool = True

    @classmethod
    def of(cls, labels: np.ndarray) -> "HoldOut":
        """Plan to leave one out, or one of each class at up to `FEW_SHOTS` shots."""
        counts = np.bincount(labels)
        plan = cls(labels, np.flatnonzero(counts[labels] > 1), turns(labels), bool(counts.max() > FEW_SHOTS))
        return plan.first(MAX_SCORES // len(counts))

    @property
    def held_labels(self) -> np.ndarray:
        """Labels of the held-out examples (held,)."""
        return self.labels[self.rows]

    @cached_property
    def counts(self) -> np.ndarray:
        """Number of examples per class (classes,)."""
        return np.bincount(self.labels)

    def first(self, most: int) -> "HoldOut":
        """Return the plan with at most ``most`` held-out examples, evenly over the classes."""
        if len(self.rows) <= most:
            return self
        order = np.lexsort((self.labels[self.rows], self.turn[self.rows]))
        return HoldOut(self.labels, np.sort(self.rows[order[:most]]), self.turn, self.leave_one_out)

    def kept(self, rows: np.ndarray) -> np.ndarray:
        """Return the share of each class's examples that remains while each of ``rows`` is held out: (rows, classes).

        Dividing a sum over the remaining examples by this share estimates the sum over the whole class. It is 1
        if no example remains, since the sum is 0 anyway.
        """
        share = np.ones((len(rows), len(self.counts)))
        if self.leave_one_out:
            share[np.arange(len(rows)), self.labels[rows]] -= 1 / self.counts[self.labels[rows]]
            return share
        absent = self.turn[rows][:, None] < np.where(self.counts > 1, self.counts, 0)[None, :]
        return np.where(absent, 1 - 1 / self.counts, 1.0)

    def absent(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return index pairs (i, j): example j is held out while ``rows[i]`` is scored."""
        if self.leave_one_out:
            return np.arange(len(rows)), rows
        same = self.turn[rows][:, None] == self.turn[None, :]
        same &= (self.counts > 1)[self.labels][None, :]
        places, examples = np.nonzero(same)
        return places, examples

    def folds(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield three folds, or one per group if one of each class is held out at a time.

        Yields:
            Ascending indices of the examples to learn from, at least one per class, and of the examples to score.
        """
        several = (self.counts > 1)[self.labels]
        held = np.zeros(len(self.labels), dtype=bool)
        held[self.rows] = True
        fold = self.turn % FOLDS if self.leave_one_out else self.turn
        for number in range(int(fold.max()) + 1):
            choose = (fold == number) & several
            if (choose & held).any():
                yield np.flatnonzero(~choose), np.flatnonzero(choose & held)

    def scored(self, score: Callable[[np.ndarray, np.ndarray], Any], shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Score the held-out examples fold by fold: (..., held, classes).

        Args:
            score: function from the examples to learn from and the examples to score to scores (..., scored, classes).
            shape: shape of the scores of one example (..., classes).
        """
        scores = np.empty((*shape[:-1], len(self.rows), shape[-1]), dtype=dtype)
        for learn, choose in self.folds():
            scores[..., np.searchsorted(self.rows, choose), :] = score(learn, choose)
        return scores


def turns(labels: np.ndarray) -> np.ndarray:
    """Return the position of each row in a random order of its class, from 0: (rows,)."""
    order = np.random.default_rng(0).permutation(len(labels))
    order = order[stable_argsort(labels[order])]
    counts = np.bincount(labels)
    positions = np.empty(len(labels), dtype=np.int64)
    positions[order] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return positions
