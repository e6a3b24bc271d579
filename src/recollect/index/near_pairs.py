"""Which of many vectors are near to one another: all pairs, or those within neighbourhoods, in bounded memory.

Few pairs are ever multiplied whole. With an orthonormal basis of m directions, the product of two unit vectors is that
of their m coordinates plus that of what is left of them, and the latter is at most the product of its norms
(Cauchy–Schwarz): one product of width m + 1 bounds it from above, and only pairs whose bound reaches the threshold are
compared exactly. And what is asked for is what hangs together: a pair whose ends do already needs no comparison.
"""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from recollect.core.ordering import in_order
from recollect.core.progress import Counter, progress
from recollect.core.seeding import numpy_generator
from recollect.core.types import best_device

_STRIPE, _BLOCK = 512, 4_096
"""Rows that are multiplied with one another at a time: their bounds (8 MB) stay in a cache."""

_CHUNK = 16_384
"""Pairs that are compared exactly at a time."""

_WIDTHS = (15, 31, 63, 127, 255)
_SAMPLE, _TRIED = 16_384, 1_536
_SLACK = 1e-5  # more than single precision takes from a bound
_COLUMN, _PAIR, _SCAN = 0.03, 200.0, 1.0
"""Nanoseconds of a pair: for each coordinate of its bound, to be compared exactly, and where some of a block are to."""

_MILLION = 1e6

CELL, PROBES, MOST_IN_CELL = 1_000, 2, 8_192
"""Rows for each centre of a neighbourhood; nearest centres that a row belongs to; rows that are compared in one."""

_ROUNDS, _TRAINED_ON = 4, 32


class DisjointSets:
    """Which rows hang together: a forest, whose trees are joined many at a time.

    Args:
        count: rows, each by itself.
    """

    def __init__(self, count: int) -> None:
        self._parent = np.arange(count, dtype=np.int64)

    def roots(self, rows: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """The smallest row that each hangs together with."""
        found = self._parent[rows]
        while not np.array_equal(above := self._parent[found], found):
            found = above
        self._parent[rows] = found
        return found

    def apart(self, one: Int64[np.ndarray, " n"], other: Int64[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        """Which pairs do not hang together yet."""
        return self.roots(one) != self.roots(other)

    def join(self, one: Int64[np.ndarray, " n"], other: Int64[np.ndarray, " n"]) -> None:
        """Let the rows of each pair hang together."""
        while True:
            first, second = self.roots(one), self.roots(other)
            different = first != second
            if not different.any():
                return
            first, second = first[different], second[different]
            np.minimum.at(self._parent, np.maximum(first, second), np.minimum(first, second))
            one, other = first, second

    def all(self) -> Int64[np.ndarray, " rows"]:
        """The root of every row."""
        return self.roots(np.arange(len(self._parent), dtype=np.int64))


class Bounds:
    """Vectors with what bounds their products from above.

    Args:
        vectors: (rows, width), none of them zero; their norms are divided out.
        threshold: the least cosine that will be asked for: the bound is as narrow as serves it best.
    """

    def __init__(self, vectors: Float32[np.ndarray, "rows width"], threshold: float) -> None:
        self.vectors = vectors
        self.norms = np.concatenate(
            [np.empty(0, np.float32), *(np.linalg.norm(each, axis=1) for _, each in self._blocks())]
        )
        rows, width = vectors.shape
        sample = torch.from_numpy(self._unit(_some(rows, _SAMPLE)))
        _, axes = torch.linalg.eigh((sample.T @ sample).double())
        axes = axes.flip(1).float()  # those that hold most of all products come first
        widths = [each for each in _WIDTHS if each < width]
        tried = sample[torch.from_numpy(_some(len(sample), _TRIED))]
        costs = [_cost(_coordinates(tried, axes[:, :each]), tried, threshold) for each in widths]
        best = widths[int(np.argmin(costs))] if widths and min(costs) < _COLUMN * width else width
        self.axes = axes[:, :best]
        self.short = torch.empty((rows, best + (best < width)), dtype=torch.float32, device=best_device())
        for start, block in self._blocks():
            some = torch.from_numpy(block / self.norms[start : start + len(block), None])
            self.short[start : start + len(block)] = _coordinates(some, self.axes).to(self.short.device)

    def __len__(self) -> int:
        return len(self.vectors)

    def _blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        for start in range(0, len(self.vectors), _SAMPLE):
            yield start, self.vectors[start : start + _SAMPLE]

    def _unit(self, rows: np.ndarray) -> Float32[np.ndarray, "rows width"]:
        return np.asarray(self.vectors[rows] / self.norms[rows, None], dtype=np.float32)

    def reach(
        self, one: Int64[np.ndarray, " n"], other: Int64[np.ndarray, " n"], threshold: float
    ) -> Bool[np.ndarray, " n"]:
        """Which pairs have at least this cosine; no more than a few thousand at a time."""
        products = np.einsum("nw,nw->n", self.vectors[one], self.vectors[other])
        return np.asarray(products / (self.norms[one] * self.norms[other]) >= threshold)

    def cosines(self, one: Int64[np.ndarray, " n"], other: Int64[np.ndarray, " m"]) -> Float32[np.ndarray, "n m"]:
        """Of each row with each other one."""
        return self._unit(one) @ self._unit(other).T


def join_pairs(
    bounds: Bounds, joined: DisjointSets, one: Int64[np.ndarray, " n"], other: Int64[np.ndarray, " n"], threshold: float
) -> None:
    """Join those of some pairs whose cosine reaches a threshold."""
    for start in range(0, len(one), _CHUNK):
        first, second = one[start : start + _CHUNK], other[start : start + _CHUNK]
        apart = joined.apart(first, second)
        first, second = first[apart], second[apart]
        near = bounds.reach(first, second, threshold)
        joined.join(first[near], second[near])


def join_all(bounds: Bounds, joined: DisjointSets, threshold: float) -> None:
    """Join every pair of rows whose cosine reaches a threshold; half of all pairs are looked at, each once."""
    # what is alike comes together, and a block whose rows all hang together is passed over
    spread = bounds.short[:, : bounds.axes.shape[1]].std(0, correction=0)
    rows = in_order(bounds.short[:, int(spread.argmax())].cpu().numpy()).astype(np.int64)
    with progress("compare pictures", len(rows) * (len(rows) - 1) / 2 / _MILLION, "million pairs") as counter:
        _join_within(bounds, joined, rows, threshold, counter)


def join_neighbourhoods(bounds: Bounds, joined: DisjointSets, threshold: float) -> int:
    """Join pairs whose cosine reaches a threshold, of rows that share one of their nearest centres.

    Pairs on both sides of a border are missed where no other row joins them. The work grows as the rows do: no more
    than `MOST_IN_CELL` are compared at a time; of a larger neighbourhood, those as far from its centre.

    Returns:
        How many neighbourhoods were compared.
    """
    cells = list(_cells(bounds))
    with progress("compare pictures", sum(len(each) ** 2 for each in cells) / 2 / _MILLION, "million pairs") as counter:
        for rows in cells:
            _join_within(bounds, joined, rows, threshold, counter)
    return len(cells)


def _join_within(bounds: Bounds, joined: DisjointSets, rows: np.ndarray, threshold: float, counter: Counter) -> None:
    short = bounds.short[torch.from_numpy(rows)]
    for start in range(0, len(rows), _STRIPE):
        stripe = rows[start : start + _STRIPE]
        for first in range(start, len(rows), _BLOCK):
            block = rows[first : first + _BLOCK]
            _join_between(
                bounds,
                joined,
                (stripe, block),
                (short[start : start + _STRIPE], short[first : first + _BLOCK]),
                threshold,
            )
        counter.advance(len(stripe) * (len(rows) - start - len(stripe) / 2) / _MILLION)


def _join_between(
    bounds: Bounds,
    joined: DisjointSets,
    rows: tuple[np.ndarray, np.ndarray],
    short: tuple[Tensor, Tensor],
    threshold: float,
) -> None:
    one, other = (joined.roots(each) for each in rows)
    if one[0] == other[0] and (one == one[0]).all() and (other == one[0]).all():
        return
    products = short[0] @ short[1].T
    if products.max() < threshold - _SLACK:
        return
    near = (products >= threshold - _SLACK).cpu().numpy()
    if len(rows[0]) + len(rows[1]) < np.count_nonzero(near):  # dense: most may hang together already
        near &= one[:, None] != other
    first, second = np.divmod(np.flatnonzero(near), len(other))
    join_pairs(bounds, joined, rows[0][first], rows[1][second], threshold)


def _cells(bounds: Bounds) -> Iterator[np.ndarray]:
    """Rows that share one of their nearest centres, no more than so many at a time."""
    count, width = -(-len(bounds) // CELL), bounds.axes.shape[1]
    generator = numpy_generator("neighbourhoods", len(bounds))
    sample = bounds.short[torch.from_numpy(_some(len(bounds), _TRAINED_ON * count)), :width]
    centres = sample[torch.from_numpy(generator.choice(len(sample), count, replace=False))]
    for _ in range(_ROUNDS):
        centres = torch.nn.functional.normalize(centres, dim=1)
        nearest = (sample @ centres.T).argmax(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, sample)
        centres = torch.where(torch.bincount(nearest, minlength=count)[:, None] > 0, sums, centres)
    centres = torch.nn.functional.normalize(centres, dim=1)
    probes = min(PROBES, count)
    own = np.empty((len(bounds), probes), dtype=np.int32)
    near = np.empty((len(bounds), probes), dtype=np.float32)
    for start in range(0, len(bounds), _SAMPLE):
        best = (bounds.short[start : start + _SAMPLE, :width] @ centres.T).topk(probes, dim=1)
        own[start : start + _SAMPLE], near[start : start + _SAMPLE] = (
            best.indices.cpu().numpy(),
            best.values.cpu().numpy(),
        )
    order = np.lexsort((near.reshape(-1), own.reshape(-1)))
    edges = np.searchsorted(own.reshape(-1)[order], np.arange(count + 1))
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        for first in range(start, end, MOST_IN_CELL):
            yield order[first : min(first + MOST_IN_CELL, end)] // probes


def _coordinates(vectors: Tensor, axes: Tensor) -> Tensor:
    """Along each axis, and the norm of what is left where the axes are not all."""
    inside = vectors @ axes
    if axes.shape[1] == vectors.shape[1]:
        return inside
    left = (1 - inside.square().sum(1, keepdim=True)).clamp(min=0).sqrt()
    return torch.cat([inside, left], dim=1)


def _cost(short: Tensor, vectors: Tensor, threshold: float) -> float:
    """Nanoseconds of a pair, on average: its bound, and its comparison where the bound says nothing."""
    in_vain = float(((short @ short.T >= threshold - _SLACK) & (vectors @ vectors.T < threshold)).float().mean())
    return _COLUMN * short.shape[1] + _PAIR * in_vain + _SCAN * min(1.0, _STRIPE * _BLOCK * in_vain)


def _some(count: int, most: int) -> Int64[np.ndarray, " some"]:
    """Rows drawn for a measurement, rising."""
    if count <= most:
        return np.arange(count, dtype=np.int64)
    return np.sort(numpy_generator("rows of a sample", count).choice(count, most, replace=False)).astype(np.int64)
