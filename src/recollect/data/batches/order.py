"""Which sample comes when, as a pure function: hashes, shuffled orders, and how many of each source a batch takes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recollect.core.hashing import GOLDEN, splitmix64

_UNIT = 2**32  # shares of sources are whole numbers of this unit, so that counts are exact
_BLOCK = 4096
_ROUNDS = 16  # with 8, some orders of five things came three times too often


def mix(*parts: int | np.ndarray) -> np.ndarray:
    """Hash integers to 64 bits, element by element (splitmix64's finaliser over each part in turn).

    Arrays broadcast. The same everywhere, and fast enough for a number for each image of a batch.
    """
    state: Any = GOLDEN
    with np.errstate(over="ignore"):
        for part in parts:
            state = splitmix64((state ^ np.asarray(part).astype(np.uint64)) * GOLDEN)
    return np.asarray(state)


def choose(hashes: np.ndarray | np.uint64, count: int) -> np.ndarray:
    """Turn hashes into numbers below ``count``, all equally likely (to one in 2^32)."""
    return np.asarray((hashes >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)).astype(np.int64)


def shuffled(positions: np.ndarray, size: int, key: int) -> np.ndarray:
    """Where each position goes in a random order of ``size`` things; no two go to the same place.

    A Feistel network over a rectangle that just holds ``size`` cells, walked again where it leaves them (Black and
    Rogaway, 2002): a position costs the same whether the source holds a thousand images or a billion, and nothing
    is kept.
    """
    height = max(1, math.isqrt(size - 1) + 1)
    width = -(-size // height)
    places = np.array(positions, dtype=np.int64)
    astray = np.arange(len(places))
    while len(astray):
        row, column = np.divmod(places[astray], width)
        for turn in range(0, _ROUNDS, 2):
            row = (row + choose(mix(key, turn, column), height)) % height
            column = (column + choose(mix(key, turn + 1, row), width)) % width
        places[astray] = row * width + column
        astray = astray[places[astray] >= size]
    return places


@dataclass
class Plan:
    """How many samples of each source each step takes.

    Attributes:
        shares: of each source, adding up to one.
        batch_size: of the global batch.
        whole: give each step to one source alone, chosen with its share as probability, instead of dividing it.
        key: seed of the choices.
    """

    shares: Sequence[float]
    batch_size: int
    whole: bool
    key: int
    _sums: list[np.ndarray] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        ends = np.round(np.cumsum(self.shares) / math.fsum(self.shares) * _UNIT).astype(np.int64)
        ends[-1] = _UNIT
        self._ends = ends
        self._sums = [np.zeros(len(ends), dtype=np.int64)]

    def counts(self, steps: np.ndarray) -> np.ndarray:
        """Samples of each source in each step: int64 (steps, sources), every row adding up to the batch size.

        A divided step takes ``share * batch_size`` of each source, rounded up or down at random so that the mean is
        exact (systematic sampling).
        """
        offset = (mix(self.key, steps) >> np.uint64(32)).astype(np.int64)[:, None]
        if self.whole:
            below = (offset < self._ends).astype(np.int64)
            return self.batch_size * np.diff(below, prepend=0)
        # Python's floor of a whole number of units: (ends * batch + offset) / 2^32, without floating point.
        ends = (self._ends * self.batch_size + offset) // _UNIT
        return np.diff(ends, prepend=0)

    def before(self, step: int) -> np.ndarray:
        """Samples of each source in all steps before ``step``; sums of whole blocks are kept."""
        while len(self._sums) <= step // _BLOCK:
            start = (len(self._sums) - 1) * _BLOCK
            self._sums.append(self._sums[-1] + self.counts(np.arange(start, start + _BLOCK)).sum(axis=0))
        start = step // _BLOCK * _BLOCK
        return self._sums[step // _BLOCK] + self.counts(np.arange(start, step)).sum(axis=0)
