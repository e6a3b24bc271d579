"""An index that states its recall: rows in cells around centres, of which a query reads the nearest, scored exactly.

How many cells are read is not a constant: it is the least number that reaches the recall asked for on rows of this
memory, searched once exactly and once through the index. These rows had no part in placing the centres where there are
enough of others, and the recall has to lie above what was asked by as much as chance can have done for it.
"""

import hashlib
import json
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.files import atomic_path
from recollect.core.nearest import ExactNeighbours
from recollect.core.progress import track
from recollect.core.seeding import numpy_generator
from recollect.memory.backends.matrix import Matrices
from recollect.memory.backends.parts import Part
from recollect.memory.rows import Modality

SAMPLED, MOST_SAMPLED = 200, 1_000
"""Queries that recall is measured on: so many rows, and as many vectors of the other modality where there are some.
More where the recall asked for is so near to 1 that fewer would not show it."""

_SURE = 1.645  # standard errors: nineteen times in twenty the recall is not below what was asked

_K = 10
_TRAINED_ON = 50  # rows for each centre
_ROUNDS = 8
_BLOCK = 16_384
_NEAR = 1_024  # rows gathered, widened and multiplied at a time: they stay near the processor, which halves the time
_TOGETHER = 16  # queries from which cells are read once for all of them
_CANDIDATES = 2**24
_ROUNDING = 2e-6  # by which two ways to sum up a product may differ in single precision
_KEPT = "cells-"
_SUM = "crc32"


@dataclass(frozen=True)
class IndexRecord:
    """What an index says of itself.

    Attributes:
        modality: which vectors it finds.
        cells: centres.
        probes: cells that a query reads; 0 where exact search was as fast for the recall asked for.
        target: recall@10 asked for.
        reached: recall@10 measured, the lower one of queries of either modality.
        rows: of the memory when it was measured.
        single_ms: that a search for one query took, exact and through the index, when it was measured.
        block_ms: of each of 256 queries asked together, likewise.
    """

    modality: Modality
    cells: int
    probes: int
    target: float
    reached: float
    rows: int
    single_ms: tuple[float, float]
    block_ms: tuple[float, float]


@dataclass(frozen=True)
class Cells:
    """A trained index.

    Attributes:
        record: what it says of itself.
        centres: unit-norm.
        key: hash of the centres, which tells two sets of them apart.
    """

    record: IndexRecord
    centres: Float[Tensor, "cells width"]
    key: str

    @classmethod
    def open(cls, path: Path) -> "Cells | None":
        """From a file; None if there is none, or it is damaged: exact search needs no index."""
        try:
            centres, said = _unsealed(path)
            values = json.loads(said["record"])
            values |= {name: tuple(values[name]) for name in ("single_ms", "block_ms")}
            return cls(IndexRecord(**values), centres, said["key"])
        except (OSError, SafetensorError, KeyError, TypeError, ValueError):
            return None

    def save(self, path: Path) -> None:
        """Write it, whole or not at all."""
        _sealed(path, self.centres, {"record": json.dumps(asdict(self.record)), "key": self.key})

    def faster(self, queries: int) -> bool:
        """Whether it was faster than exact search for so many queries at once."""
        exact, index = self.record.block_ms if queries >= _TOGETHER else self.record.single_ms
        return self.record.probes > 0 and index < exact


class CellSearch:
    """Searches one version of a memory through an index.

    Args:
        cells: the index.
        matrices: the version's vectors.
        modality: which of them.
    """

    def __init__(self, cells: Cells, matrices: Matrices, modality: Modality) -> None:
        self.cells, self.matrices, self.modality = cells, matrices, modality
        searched = matrices.searchable(modality == "text")
        assigned = [self._assigned(part) for part in matrices.parts]
        cell_of = np.concatenate(assigned) if assigned else np.empty(0, dtype=np.int64)
        positions = np.arange(len(cell_of)) if searched is None else searched
        order = np.argsort(cell_of[positions], kind="stable")
        self.positions = positions[order]
        self.bounds = np.searchsorted(cell_of[positions][order], np.arange(len(cells.centres) + 1))

    def search(self, queries: Float[np.ndarray, "queries width"], k: int, probes: int) -> ExactNeighbours | None:
        """The k best rows of the nearest cells; None where they hold fewer than k for some query."""
        asked = torch.from_numpy(np.ascontiguousarray(queries))
        chosen = (asked @ self.cells.centres.T).topk(min(probes, len(self.cells.centres)), dim=1).indices.numpy()
        held = (self.bounds[1:] - self.bounds[:-1])[chosen].sum(1)
        if len(held) and held.min() < k:
            return None
        if len(queries) < _TOGETHER:
            found = [self._one(query, cells, k) for query, cells in zip(asked, chosen, strict=True)]
            return ExactNeighbours(np.stack([rows for rows, _ in found]), np.stack([scores for _, scores in found]))
        step = max(_TOGETHER, _CANDIDATES // (k * chosen.shape[1]))
        parts = [self._together(asked[at : at + step], chosen[at : at + step], k) for at in range(0, len(asked), step)]
        return ExactNeighbours(np.concatenate([rows for rows, _ in parts]), np.concatenate([each for _, each in parts]))

    def _one(self, query: Tensor, cells: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        rows = np.concatenate([self.positions[self.bounds[cell] : self.bounds[cell + 1]] for cell in cells.tolist()])
        blocks = [rows[start : start + _NEAR] for start in range(0, len(rows), _NEAR)]
        scores, best = torch.cat([self._cosines(query[None], block)[0] for block in blocks]).topk(k)
        return rows[best.numpy()], scores.numpy()

    def _cosines(self, queries: Tensor, rows: np.ndarray) -> Tensor:
        products = queries @ torch.from_numpy(self.matrices.as_kept(rows, self.modality)).T
        return products.div_(torch.from_numpy(self.matrices.norms(rows, self.modality)))

    def _together(self, queries: Tensor, chosen: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Each cell is read once, for all queries that chose it."""
        scores = torch.full((*chosen.shape, k), -torch.inf, dtype=torch.float32)
        rows = torch.zeros((*chosen.shape, k), dtype=torch.int64)
        flat = chosen.reshape(-1)
        order = np.argsort(flat, kind="stable")
        bounds = np.searchsorted(flat[order], np.arange(len(self.cells.centres) + 1))
        for cell in np.unique(flat).tolist():
            mine = self.positions[self.bounds[cell] : self.bounds[cell + 1]]
            if not len(mine):
                continue
            owners, place = np.divmod(order[bounds[cell] : bounds[cell + 1]], chosen.shape[1])
            best, inside = self._cosines(queries[owners], mine).topk(min(k, len(mine)), dim=1)
            scores[owners, place, : best.shape[1]] = best
            rows[owners, place, : best.shape[1]] = torch.from_numpy(mine)[inside]
        best, order_of = scores.flatten(1).topk(k, dim=1)
        return rows.flatten(1).gather(1, order_of).numpy(), best.numpy()

    def _assigned(self, part: Part) -> Int64[np.ndarray, " rows"]:
        """The cell of every row of a part, kept beside it."""
        if part.folder is None:
            return nearest_centres(part.modality(self.modality), self.cells.centres)
        kept = part.folder / f"{_KEPT}{self.modality}-{self.cells.key}.safetensors"
        with suppress(OSError, SafetensorError, KeyError, ValueError):  # not there, or damaged: it is found again
            found = _unsealed(kept)[0].numpy()
            if found.shape == (len(part.numbers),):
                return found.astype(np.int64)
        found = nearest_centres(part.modality(self.modality), self.cells.centres)
        # On a full disk, or one that cannot be written to, the same is found again next time.
        with suppress(OSError, SafetensorError):
            _sealed(kept, torch.from_numpy(found.astype(np.int32)), {})
            for older in part.folder.glob(f"{_KEPT}{self.modality}-*"):  # of centres that were placed before
                if older != kept:
                    older.unlink(missing_ok=True)
        return found


def damaged_cells(folder: Path) -> list[str]:
    """Files beside a part that say which cell its rows are in, and differ from their checksums, a line each."""
    found = []
    for path in sorted(folder.glob(f"{_KEPT}*")):
        try:
            _unsealed(path)
        except (OSError, SafetensorError, KeyError, ValueError):
            found.append(f"{path}: differs from its checksum")
    return found


def _sealed(path: Path, values: Tensor, said: dict[str, str]) -> None:
    """Write a tensor, and what is said of it, with their checksum."""
    path.parent.mkdir(exist_ok=True)
    with atomic_path(path) as temporary:
        save_file({"values": values}, temporary, said | {_SUM: _sum(values, said)})


def _unsealed(path: Path) -> tuple[Tensor, dict[str, str]]:
    """What `_sealed` wrote.

    Raises:
        OSError, SafetensorError, KeyError, ValueError: it is not there, or not as it was written.
    """
    with safe_open(path, "pt") as file:
        values, said = file.get_tensor("values"), file.metadata() or {}
    if said.pop(_SUM) != _sum(values, said):
        raise ValueError(f"{path}: differs from its checksum")
    return values, said


def _sum(values: Tensor, said: dict[str, str]) -> str:
    return str(zlib.crc32(json.dumps(sorted(said.items())).encode(), zlib.crc32(values.numpy().data)))


def nearest_centres(vectors: np.ndarray, centres: Float[Tensor, "cells width"]) -> Int64[np.ndarray, " rows"]:
    """Which centre each row is nearest to."""
    found = []
    for start in range(0, len(vectors), _BLOCK):
        block = torch.from_numpy(np.array(vectors[start : start + _BLOCK], dtype=np.float32))
        found.append((block @ centres.T).argmax(1).numpy())
    return np.concatenate([np.empty(0, dtype=np.int64), *found])


def train_cells(
    matrices: Matrices,
    modality: Modality,
    target: float,
    exact: Callable[[np.ndarray, int], ExactNeighbours],
    path: Path,
    old: Cells | None = None,
) -> Cells:
    """Place centres (spherical k-means on a sample) and choose how many cells a query reads, by measuring.

    Args:
        matrices: the memory's vectors.
        modality: which to index.
        target: recall@10 to reach.
        exact: exact search of these vectors.
        path: where the index is kept.
        old: keep its centres, and only measure anew.

    Raises:
        UserError: a target outside of (0, 1], or too few rows.
    """
    if not 0 < target <= 1:
        raise UserError(f"--recall {target}: lies above 0 and at most at 1")
    searched = matrices.searchable(modality == "text")
    positions = np.arange(sum(len(part.numbers) for part in matrices.parts)) if searched is None else searched
    if len(positions) <= 4 * _K:
        raise UserError(f"{len(positions):,} rows of {modality}s need no index: search is exact, and fast")
    count = max(4, min(len(positions) // 8, 2 * round(len(positions) ** 0.5)))
    generator = numpy_generator("cells", modality, len(positions))
    rows = generator.choice(positions, min(_sampled(target), len(positions)), replace=False)
    if old is None:
        others = np.setdiff1d(positions, rows)
        others = others if len(others) >= 2 * count else positions
        sample = np.sort(generator.choice(others, min(len(others), _TRAINED_ON * count), replace=False))
        centres = _centres(torch.from_numpy(matrices.take(sample, modality)), count, generator)
        key = hashlib.blake2b(centres.numpy().data, digest_size=6).hexdigest()
    else:
        centres, key = old.centres, old.key
    nothing = IndexRecord(modality, len(centres), 0, target, 1.0, len(positions), (0.0, 0.0), (0.0, 0.0))
    search = CellSearch(Cells(nothing, centres, key), matrices, modality)
    cells = Cells(_measured(search, matrices, rows, target, exact), centres, key)
    cells.save(path)
    return cells


def _sampled(target: float) -> int:
    """Queries among whose neighbours ten may be missed."""
    return int(min(MOST_SAMPLED, max(SAMPLED, 1 / max(1 - target, 1e-9))))


def _centres(sample: Tensor, count: int, generator: np.random.Generator) -> Tensor:
    centres = sample[torch.from_numpy(np.sort(generator.choice(len(sample), count, replace=False)))].clone()
    for _ in track(range(_ROUNDS), "place cells", _ROUNDS, "rounds"):
        nearest = torch.from_numpy(nearest_centres(sample.numpy(), centres))
        sums = torch.zeros_like(centres).index_add_(0, nearest, sample)
        empty = torch.bincount(nearest, minlength=count) == 0
        sums[empty] = sample[torch.from_numpy(generator.choice(len(sample), int(empty.sum()), replace=False))]
        centres = torch.nn.functional.normalize(sums, dim=1)
    return centres


def _measured(
    search: CellSearch,
    matrices: Matrices,
    rows: np.ndarray,
    target: float,
    exact: Callable[[np.ndarray, int], ExactNeighbours],
) -> IndexRecord:
    """The least number of cells that reaches the target for queries of either modality; a row does not count itself."""
    modality = search.modality
    asked = [(matrices.take(rows, modality), rows)]
    other = matrices.take(rows, "text" if modality == "image" else "image")
    if spoken := np.flatnonzero(other.any(axis=1)).tolist():
        asked.append((other[spoken], np.full(len(spoken), -1)))
    truth = [exact(queries, _K + 1) for queries, _ in asked]
    probes, reached = 1, 0.0
    while True:
        shares = []
        for (queries, own), best in zip(asked, truth, strict=True):
            found = search.search(queries, _K + 1, probes)
            shares.append(np.zeros(1) if found is None else _recalls(found, best, own))
        reached = min(float(each.mean()) for each in shares)
        sure = min(float(each.mean() - _SURE * each.std() / len(each) ** 0.5) for each in shares)
        if sure >= target or probes >= len(search.cells.centres):
            break
        probes = min(len(search.cells.centres), max(probes + 1, round(1.5 * probes)))
    queries = np.concatenate([each for each, _ in asked])[:256]
    single = (
        milliseconds(lambda some: exact(some, _K), queries, 1),
        milliseconds(lambda some: search.search(some, _K, probes), queries, 1),
    )
    block = (
        milliseconds(lambda some: exact(some, _K), queries, len(queries)),
        milliseconds(lambda some: search.search(some, _K, probes), queries, len(queries)),
    )
    if min(single[1] - single[0], block[1] - block[0]) >= 0:
        probes, reached = 0, 1.0  # exact search is what will be used
    return IndexRecord(
        modality, len(search.cells.centres), probes, target, reached, len(search.positions), single, block
    )


def _recalls(found: ExactNeighbours, truth: ExactNeighbours, own: np.ndarray) -> np.ndarray:
    """Of each query: the share of its ten places that hold a row as near as the tenth is; of equal rows any will do."""
    counts = []
    for each in (truth, found):
        others = np.where(each.rows == own[:, None], -np.inf, each.scores)
        counts.append(-np.sort(-others, axis=1)[:, :_K])
    best, reached = counts
    return np.asarray((reached >= best[:, -1:] - _ROUNDING).mean(axis=1))


def milliseconds(ask: Callable[[np.ndarray], object], queries: np.ndarray, together: int) -> float:
    """Median milliseconds of a query, asked so many at a time."""
    blocks = [queries[start : start + together] for start in range(0, len(queries), together)][:20]
    ask(blocks[0])
    times = []
    for block in blocks if len(blocks) > 1 else blocks * 3:
        start = time.perf_counter()
        ask(block)
        times.append((time.perf_counter() - start) / len(block))
    return 1000 * float(np.median(times))
