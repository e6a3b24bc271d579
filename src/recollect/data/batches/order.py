"""Sample order as a pure function: hashes, shuffles, and the number of samples of each source per batch."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recollect.core.seeding import GOLDEN, splitmix64

_UNIT = 2**32  # shares of sources are multiples of 1 / _UNIT, so counts are exact
_STEPS_PER_SUM = 4096
_STRETCH_BLOCKS = 16  # blocks shuffled together; with row groups of 1,000, this is 16,000 samples
_ROUNDS = 16  # with 8, some permutations of five items were three times too frequent


def mix(*parts: int | np.ndarray) -> np.ndarray:
    """Hash integers to 64 bits, element by element (splitmix64's finalizer over each part); arrays broadcast."""
    state: Any = GOLDEN
    with np.errstate(over="ignore"):
        for part in parts:
            state = splitmix64((state ^ np.asarray(part).astype(np.uint64)) * GOLDEN)
    return np.asarray(state)


def hash_to_index(hashes: np.ndarray | np.uint64, count: int) -> np.ndarray:
    """Map hashes to numbers below ``count``, uniformly up to 2^-32."""
    return np.asarray((hashes >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)).astype(np.int64)


def shuffled(positions: np.ndarray, size: int, key: int) -> np.ndarray:
    """Return the items at ``positions`` of a random permutation of ``size`` items.

    This is a Feistel network on the smallest rectangle with at least ``size`` cells, applied again to results outside
    the range (Black and Rogaway, 2002). It needs no memory, and its cost per position does not depend on ``size``.
    """
    height = max(1, math.isqrt(size - 1) + 1)
    width = -(-size // height)
    items = np.array(positions, dtype=np.int64)
    pending = np.arange(len(items))
    while len(pending):
        row, column = np.divmod(items[pending], width)
        for turn in range(0, _ROUNDS, 2):
            row = (row + hash_to_index(mix(key, turn, column), height)) % height
            column = (column + hash_to_index(mix(key, turn + 1, row), width)) % width
        items[pending] = row * width + column
        pending = pending[items[pending] >= size]
    return items


def endless(positions: np.ndarray, size: int, window: int, key: Callable[[int], int]) -> np.ndarray:
    """Return the items at ``positions`` of endless passes through ``size`` items, each pass a permutation.

    Args:
        positions: int64, not negative.
        size: number of items.
        window: minimum distance between repetitions of an item, also across passes, so that batches have no duplicates;
            ignored if larger than ``size``.
        key: maps the number of a pass to its seed.
    """
    passes, items = np.divmod(positions, size)
    for turn in np.unique(passes).tolist():
        here = passes == turn
        if window > size:
            items[here] = shuffled(items[here], size, key(turn))
        elif size < 3 * window:
            items[here] = _shuffle_blocks(items[here], size, size - window + 1, key(0), key(turn))
        else:
            items[here] = _avoid_previous_pass(items[here], size, window, turn, key)
    return items


def _shuffle_blocks(positions: np.ndarray, size: int, block: int, base: int, key: int) -> np.ndarray:
    """Shuffle within blocks of an order shared by all passes, so each item moves by less than a block."""
    starts = positions // block * block
    inner = positions - starts
    for start in np.unique(starts).tolist():
        here = starts == start
        inner[here] = shuffled(inner[here], min(block, size - start), int(mix(key, start)))
    return shuffled(starts + inner, size, base)


def _avoid_previous_pass(
    positions: np.ndarray, size: int, window: int, turn: int, key: Callable[[int], int]
) -> np.ndarray:
    """Return items of a pass whose first ``window`` items are not among the last ``window`` of the previous pass.

    Violating items are swapped with later ones, but never with the last ``window`` items, so a pass depends only on the
    previous one.
    """
    items = shuffled(positions, size, key(turn))
    early = positions < 2 * window
    if turn == 0 or not early.any():
        return items
    start = shuffled(np.arange(2 * window), size, key(turn))
    recent = np.isin(start, shuffled(np.arange(size - window, size), size, key(turn - 1)))
    repeated = np.flatnonzero(recent[:window])
    free = window + np.flatnonzero(~recent[window:])[: len(repeated)]
    start[repeated], start[free] = start[free], start[repeated]
    items[early] = start[positions[early]]
    return items


class BlockOrder:
    """Endless passes through items stored in blocks, reading a few blocks at a time; each pass is a permutation.

    A pass shuffles the blocks, then the items within each stretch of ``together`` blocks, like a shuffle buffer of that
    size but with random access. Neighboring stretches share no block, even across passes.

    Args:
        sizes: number of items of each block, int64.
        together: number of blocks per stretch.
        key: maps the number of a pass to its seed.
    """

    def __init__(self, sizes: np.ndarray, together: int, key: Callable[[int], int]) -> None:
        self.sizes, self.together, self.key = sizes, together, key
        self._starts = np.cumsum([0, *sizes])
        self._passes: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    @classmethod
    def of(cls, sizes: np.ndarray | None, window: int, key: Callable[[int], int]) -> "BlockOrder | None":
        """Return the order of a source with these blocks, or None if there are too few blocks for a random order."""
        if sizes is None or not len(sizes):
            return None
        together = max(_STRETCH_BLOCKS, math.ceil(window / sizes.mean()) + 1)
        return cls(sizes, together, key) if 3 * together <= len(sizes) else None

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Return the items at ``positions``, int64."""
        passes, positions = np.divmod(positions, self._starts[-1])
        items = np.empty_like(positions)
        for turn in np.unique(passes).tolist():
            here = np.flatnonzero(passes == turn)
            blocks, ends = self._pass(turn)
            stretches = np.searchsorted(ends, positions[here], side="right")
            for stretch in np.unique(stretches).tolist():
                inside = here[stretches == stretch]
                own = blocks[stretch * self.together : (stretch + 1) * self.together]
                size, start = int(self.sizes[own].sum()), int(ends[stretch] - self.sizes[own].sum())
                drawn = shuffled(positions[inside] - start, size, int(mix(self.key(turn), stretch)))
                edges = np.cumsum([0, *self.sizes[own]])
                which = np.searchsorted(edges, drawn, side="right") - 1
                items[inside] = self._starts[own[which]] + drawn - edges[which]
        return items

    def _pass(self, turn: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the blocks of a pass in order, and the end position of each stretch."""
        if turn not in self._passes:
            count = len(self.sizes)
            blocks = endless(turn * count + np.arange(count), count, 3 * self.together, self.key)
            sums = np.add.reduceat(self.sizes[blocks], np.arange(0, count, self.together))
            self._passes = {number: cached for number, cached in self._passes.items() if number == turn - 1}
            self._passes[turn] = blocks, np.cumsum(sums)
        return self._passes[turn]


@dataclass
class Plan:
    """Number of samples of each source in each step.

    Attributes:
        shares: share of each source; they are normalized to sum to one.
        batch_size: number of rows of the global batch.
        whole: take each whole step from one source, drawn with its share as probability, instead of dividing it.
        key: random seed.
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
        """Return the number of samples of each source in each step: int64 (steps, sources).

        Each row sums to the batch size. Without ``whole``, a step takes ``share * batch_size`` of each source, randomly
        rounded up or down with the exact mean (systematic sampling).
        """
        offset = (mix(self.key, steps) >> np.uint64(32)).astype(np.int64)[:, None]
        if self.whole:
            below = (offset < self._ends).astype(np.int64)
            return self.batch_size * np.diff(below, prepend=0)
        # floor((ends * batch + offset) / 2^32), in integer arithmetic
        ends = (self._ends * self.batch_size + offset) // _UNIT
        return np.diff(ends, prepend=0)

    @property
    def most(self) -> tuple[int, ...]:
        """Upper bound on the number of samples of each source in a step."""
        if self.whole:
            return (self.batch_size,) * len(self.shares)
        # Rounding shares to units may lift a count that is just below a whole number above it.
        parts = (share / math.fsum(self.shares) * self.batch_size for share in self.shares)
        return tuple(min(self.batch_size, math.floor(part + 1e-3) + 1) for part in parts)

    def before(self, step: int) -> np.ndarray:
        """Return the number of samples of each source in all steps before ``step``."""
        while len(self._sums) <= step // _STEPS_PER_SUM:
            start = (len(self._sums) - 1) * _STEPS_PER_SUM
            self._sums.append(self._sums[-1] + self.counts(np.arange(start, start + _STEPS_PER_SUM)).sum(axis=0))
        start = step // _STEPS_PER_SUM * _STEPS_PER_SUM
        return self._sums[step // _STEPS_PER_SUM] + self.counts(np.arange(start, step)).sum(axis=0)
