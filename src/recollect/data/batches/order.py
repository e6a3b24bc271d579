"""The order of samples as a pure function: hashes, shuffles, and how many samples of each source a batch takes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recollect.core.seeding import GOLDEN, splitmix64

_UNIT = 2**32  # shares of sources are whole numbers of this unit, so that counts are exact
_BLOCK = 4096
_TOGETHER = 16  # blocks that are shuffled into each other: of row groups of a thousand, 16,000 samples
_ROUNDS = 16  # with 8, some orders of five things came three times too often


def mix(*parts: int | np.ndarray) -> np.ndarray:
    """Hash integers to 64 bits, element by element (splitmix64's finalizer over each part); arrays broadcast."""
    state: Any = GOLDEN
    with np.errstate(over="ignore"):
        for part in parts:
            state = splitmix64((state ^ np.asarray(part).astype(np.uint64)) * GOLDEN)
    return np.asarray(state)


def number_below(hashes: np.ndarray | np.uint64, count: int) -> np.ndarray:
    """Turn hashes into numbers below ``count``, all equally likely (to one in 2^32)."""
    return np.asarray((hashes >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)).astype(np.int64)


def shuffled(positions: np.ndarray, size: int, key: int) -> np.ndarray:
    """A random permutation of ``size`` items, at these positions.

    A Feistel network over a rectangle that just holds ``size`` cells, repeated for positions that leave them (Black and
    Rogaway, 2002): needs no memory, and a position costs the same in a source of a thousand or a billion images.
    """
    height = max(1, math.isqrt(size - 1) + 1)
    width = -(-size // height)
    places = np.array(positions, dtype=np.int64)
    astray = np.arange(len(places))
    while len(astray):
        row, column = np.divmod(places[astray], width)
        for turn in range(0, _ROUNDS, 2):
            row = (row + number_below(mix(key, turn, column), height)) % height
            column = (column + number_below(mix(key, turn + 1, row), width)) % width
        places[astray] = row * width + column
        astray = astray[places[astray] >= size]
    return places


def endless(positions: np.ndarray, size: int, window: int, key: Callable[[int], int]) -> np.ndarray:
    """Endless passes through ``size`` items, at these positions; every pass is a permutation.

    Args:
        positions: int64, not negative.
        size: number of items.
        window: no item comes twice within so many positions, also across the end of a pass (if there are as many
            items), so that a batch holds no copies.
        key: maps the number of a pass to its seed.
    """
    passes, places = np.divmod(positions, size)
    for turn in np.unique(passes).tolist():
        here = passes == turn
        if window > size:
            places[here] = shuffled(places[here], size, key(turn))
        elif size < 3 * window:
            places[here] = _in_blocks(places[here], size, size - window + 1, key(0), key(turn))
        else:
            places[here] = _clear_of_the_last(places[here], size, window, turn, key)
    return places


def _in_blocks(places: np.ndarray, size: int, block: int, base: int, key: int) -> np.ndarray:
    """Shuffle within blocks of an order that all passes share: an item moves by less than a block."""
    starts = places // block * block
    inner = places - starts
    for start in np.unique(starts).tolist():
        here = starts == start
        inner[here] = shuffled(inner[here], min(block, size - start), int(mix(key, start)))
    return shuffled(starts + inner, size, base)


def _clear_of_the_last(places: np.ndarray, size: int, window: int, turn: int, key: Callable[[int], int]) -> np.ndarray:
    """A pass whose first ``window`` items are none of the last ``window`` of the pass before.

    Items that are swap places with later ones, but not with the last ``window`` of the pass. So a pass depends only on
    the one before.
    """
    found = shuffled(places, size, key(turn))
    early = places < 2 * window
    if turn == 0 or not early.any():
        return found
    start = shuffled(np.arange(2 * window), size, key(turn))
    last = np.isin(start, shuffled(np.arange(size - window, size), size, key(turn - 1)))
    met = np.flatnonzero(last[:window])
    free = window + np.flatnonzero(~last[window:])[: len(met)]
    start[met], start[free] = start[free], start[met]
    found[early] = start[places[early]]
    return found


class BlockOrder:
    """Endless passes through items in blocks, a few blocks at a time; every pass is a permutation.

    The blocks of a pass are shuffled; then the items of each stretch of ``together`` blocks are shuffled, as by a
    shuffle buffer of that size, but with access to any position. Neighboring stretches share no block, also across the
    end of a pass.

    Args:
        sizes: of the blocks, int64.
        together: blocks of a stretch.
        key: maps the number of a pass to its seed.
    """

    def __init__(self, sizes: np.ndarray, together: int, key: Callable[[int], int]) -> None:
        self.sizes, self.together, self.key = sizes, together, key
        self._starts = np.cumsum([0, *sizes])
        self._passes: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    @classmethod
    def of(cls, sizes: np.ndarray | None, window: int, key: Callable[[int], int]) -> "BlockOrder | None":
        """The order of a source with these blocks; None if it has too few of them for a random order."""
        if sizes is None or not len(sizes):
            return None
        together = max(_TOGETHER, math.ceil(window / sizes.mean()) + 1)
        return cls(sizes, together, key) if 3 * together <= len(sizes) else None

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """The items at these positions, int64."""
        passes, places = np.divmod(positions, self._starts[-1])
        found = np.empty_like(places)
        for turn in np.unique(passes).tolist():
            here = np.flatnonzero(passes == turn)
            blocks, ends = self._pass(turn)
            stretches = np.searchsorted(ends, places[here], side="right")
            for stretch in np.unique(stretches).tolist():
                inside = here[stretches == stretch]
                mine = blocks[stretch * self.together : (stretch + 1) * self.together]
                size, start = int(self.sizes[mine].sum()), int(ends[stretch] - self.sizes[mine].sum())
                drawn = shuffled(places[inside] - start, size, int(mix(self.key(turn), stretch)))
                edges = np.cumsum([0, *self.sizes[mine]])
                which = np.searchsorted(edges, drawn, side="right") - 1
                found[inside] = self._starts[mine[which]] + drawn - edges[which]
        return found

    def _pass(self, turn: int) -> tuple[np.ndarray, np.ndarray]:
        """The blocks of a pass in order, and the position after each stretch of them."""
        if turn not in self._passes:
            count = len(self.sizes)
            blocks = endless(turn * count + np.arange(count), count, 3 * self.together, self.key)
            sums = np.add.reduceat(self.sizes[blocks], np.arange(0, count, self.together))
            self._passes = {last: kept for last, kept in self._passes.items() if last == turn - 1}
            self._passes[turn] = blocks, np.cumsum(sums)
        return self._passes[turn]


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

    @property
    def most(self) -> tuple[int, ...]:
        """The most samples of each source that any step takes."""
        if self.whole:
            return (self.batch_size,) * len(self.shares)
        # A share that falls just short of a whole number may be one of the units above it.
        parts = (share / math.fsum(self.shares) * self.batch_size for share in self.shares)
        return tuple(min(self.batch_size, math.floor(part + 1e-3) + 1) for part in parts)

    def before(self, step: int) -> np.ndarray:
        """Samples of each source in all steps before ``step``; sums of whole blocks are kept."""
        while len(self._sums) <= step // _BLOCK:
            start = (len(self._sums) - 1) * _BLOCK
            self._sums.append(self._sums[-1] + self.counts(np.arange(start, start + _BLOCK)).sum(axis=0))
        start = step // _BLOCK * _BLOCK
        return self._sums[step // _BLOCK] + self.counts(np.arange(start, step)).sum(axis=0)
