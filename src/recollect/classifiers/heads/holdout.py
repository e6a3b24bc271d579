"""Which examples of a support set are held out together: one by one, or one of each class where there are few."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from recollect.core.ordering import in_order

FEW_SHOTS = 4
"""Up to so many examples of the largest class, one of each class is held out at a time. Taking only one example away
leaves its class with K - 1 against K, which at few shots makes the examples look worse than they are."""

MOST_SCORES = 2**26
"""Most scores (rows x classes) of held-out examples that are kept: 256 MiB in single precision."""

MOST_TUNING_ROWS = 4096
"""Most examples that a parameter is chosen on; drawn evenly over the classes."""


@dataclass(frozen=True)
class HoldOut:
    """A plan that takes every example away once, except the only example of a class, which always stays.

    Attributes:
        labels: (examples,), 0…C - 1, all of which occur.
        rows: (held,), indices of the examples that are held out; empty if every class has one.
        turn: (examples,), place of each example in a random order of its class.
        one_by_one: each example is held out alone; otherwise together with those of the same turn.
    """

    labels: np.ndarray
    rows: np.ndarray
    turn: np.ndarray
    one_by_one: bool = True

    @classmethod
    def of(cls, labels: np.ndarray) -> "HoldOut":
        """The plan for a support set: leave one out, or one of each class at up to `FEW_SHOTS` shots."""
        counts = np.bincount(labels)
        plan = cls(labels, np.flatnonzero(counts[labels] > 1), turns(labels), bool(counts.max() > FEW_SHOTS))
        return plan.first(MOST_SCORES // len(counts))

    @property
    def held_labels(self) -> np.ndarray:
        """Labels of the examples that are held out (held,)."""
        return self.labels[self.rows]

    @cached_property
    def counts(self) -> np.ndarray:
        """Examples of each class (classes,)."""
        return np.bincount(self.labels)

    def first(self, most: int) -> "HoldOut":
        """The plan with at most ``most`` of its examples, evenly over the classes."""
        if len(self.rows) <= most:
            return self
        order = np.lexsort((self.labels[self.rows], self.turn[self.rows]))
        return HoldOut(self.labels, np.sort(self.rows[order[:most]]), self.turn, self.one_by_one)

    def kept(self, rows: np.ndarray) -> np.ndarray:
        """Share of each class's examples that is left when each of ``rows`` is absent: (rows, classes).

        A sum over a class's examples divided by it stands for the sum over the whole class. Where nothing is left
        (the rest of a group took a class's only example away) it is 1, as the sum is 0 anyway.
        """
        share = np.ones((len(rows), len(self.counts)))
        if self.one_by_one:
            share[np.arange(len(rows)), self.labels[rows]] -= 1 / self.counts[self.labels[rows]]
            return share
        absent = self.turn[rows][:, None] < np.where(self.counts > 1, self.counts, 0)[None, :]
        return np.where(absent, 1 - 1 / self.counts, 1.0)

    def absent(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which examples are absent when each of ``rows`` is scored: places (i, j), row i and example j."""
        if self.one_by_one:
            return np.arange(len(rows)), rows
        same = self.turn[rows][:, None] == self.turn[None, :]
        same &= (self.counts > 1)[self.labels][None, :]
        places, examples = np.nonzero(same)
        return places, examples

    def folds(self, count: int = 3) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Up to ``count`` folds (all groups where examples are held out one of each class): what to learn from, what
        to choose on. Each class keeps at least one example in what is learned from.

        Yields:
            Indices of examples, ascending.
        """
        several = (self.counts > 1)[self.labels]
        held = np.zeros(len(self.labels), dtype=bool)
        held[self.rows] = True
        fold = self.turn % count if self.one_by_one else self.turn
        for number in range(int(fold.max()) + 1):
            choose = (fold == number) & several
            if (choose & held).any():
                yield np.flatnonzero(~choose), np.flatnonzero(choose & held)


def turns(labels: np.ndarray, seed: int = 0) -> np.ndarray:
    """Place of each row in a random order of its class, from 0: (rows,)."""
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[in_order(labels[order])]
    counts = np.bincount(labels)
    places = np.empty(len(labels), dtype=np.int64)
    places[order] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return places


_GRID = 2.0**36
_COSINES_AT_ONCE, _EXAMPLES_AT_ONCE = 2**22, 2**13
"""What is of double precision at a time: 32 MiB of cosines, and as much of examples at a width of 512."""


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Cosines of unit rows (left, right), by which neighbours are ordered: equal pairs have equal ones.

    The order in which a matrix product adds up hangs on its shape, so that of two copies of an example another one
    would be the nearer to a query alone than to the same query among others, and with it the class of a tied vote. Here
    sums are of double precision, and rounded to 2^-36: two of one pair, at most ``2 width 2^-53`` apart (1e-13 at 512),
    round to different numbers at most once in 130 pairs.
    """
    found = np.empty((len(left), len(right)), dtype=left.dtype)
    for first in range(0, len(right), _EXAMPLES_AT_ONCE):
        columns = slice(first, first + _EXAMPLES_AT_ONCE)
        known = right[columns].astype(np.float64).T
        block = max(1, _COSINES_AT_ONCE // known.shape[1])
        for start in range(0, len(left), block):
            rows = slice(start, start + block)
            exact = left[rows].astype(np.float64) @ known
            exact *= _GRID
            np.rint(exact, out=exact)
            exact /= _GRID
            found[rows, columns] = exact
    return found


class SupportSimilarity:
    """Cosines of the examples of a support among each other, and the nearest ones, computed once for several
    classifiers and for all the smaller supports that are its beginning.

    Args:
        support: unit rows (examples, width).
    """

    def __init__(self, support: np.ndarray) -> None:
        self.matrix = cosines(support, support)
        self._near: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def first(self, count: int) -> "SupportSimilarity":
        """Of the first so many examples."""
        part = object.__new__(SupportSimilarity)
        part.matrix, part._near = self.matrix[:count, :count], {}
        return part

    def nearest(
        self, k: int, find: Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]], block: int = 256
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k nearest others of each example and their cosines, nearest first: (examples, k).

        Args:
            find: of a block of cosines, the places and values of the largest.
        """
        found = next((near for most, near in self._near.items() if most >= k), None)
        if found is None:
            parts = []
            for start in range(0, len(self.matrix), block):
                similarity = self.matrix[start : start + block].copy()
                places = np.arange(len(similarity))
                similarity[places, start + places] = -np.inf
                parts.append(find(similarity, k))
            found = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
            self._near[k] = found
        return found[0][:, :k], found[1][:, :k]
