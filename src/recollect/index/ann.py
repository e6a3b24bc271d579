"""Fast look-up in large indexes by faiss, with the recall that it has on the index's own rows."""

import json
import shutil
import time
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32, Int64

from recollect.core.checksums import damaged_files, note_checksums
from recollect.core.errors import UserError
from recollect.core.files import atomic_folder
from recollect.core.nearest import ExactNeighbours
from recollect.core.ordering import in_order
from recollect.core.seeding import numpy_generator
from recollect.index.rows import By
from recollect.index.stores.matrix import Matrix, within

if TYPE_CHECKING:
    from recollect.index.index import Index
    from recollect.index.stores.local import LocalStore

_FEWEST = 20_000  # vectors, below which exact look-up is fast enough
_CAPTIONS = 2**12  # of a row, at most: with the row number they make the number of a vector
_QUERIES, _TIMED = 500, 40
_NEAREST = 10
_SPARE = 10  # more are scored exactly than are wanted, since half precision changes the order of near ones
_ADDED = 20_000  # vectors that are added, and searched, at a time


@dataclass(frozen=True)
class Accelerator:
    """What was measured of an approximate index.

    Attributes:
        by: which vectors it searches.
        rows: how many vectors it was trained for.
        cells: of the inverted file.
        probes: cells that a query reads.
        recall: share of the ten nearest that it finds, for pictures and captions of this index as queries, which never
            count themselves.
        milliseconds: of a look-up of one query, the whole call.
        exact_milliseconds: of the same look-up without it.
    """

    by: By
    rows: int
    cells: int
    probes: int
    recall: float
    milliseconds: float = 0.0
    exact_milliseconds: float = 0.0


class Ann:
    """An inverted file of half-precision vectors (faiss); what it finds is scored again exactly.

    Args:
        folder: where it is on disk.
    """

    def __init__(self, folder: Path) -> None:
        faiss = _faiss()
        self.folder = folder
        self.about = Accelerator(**json.loads((folder / "about.json").read_text()))
        self.index = faiss.read_index(str(folder / "index.faiss"))

    @cached_property
    def _state(self) -> dict[str, Any]:
        return {"version": -1}

    def search(self, matrix: Matrix, queries: np.ndarray, k: int, probes: int | None = None) -> ExactNeighbours | None:
        """The k nearest vectors of a version, by place as in `Matrix.nearest`; None where it finds too few."""
        self._follow(matrix)
        places, order = self._state["places"], self._state["order"]
        faiss = _faiss()
        parameters = faiss.SearchParametersIVF(nprobe=probes or self.about.probes)
        asked = min(k + _SPARE + self._state["dead"], self.index.ntotal)
        _, keys = self.index.search(queries, asked, params=parameters)
        found = np.searchsorted(order, keys)
        found = np.minimum(found, len(order) - 1)
        rows = np.where(order[found] == keys, places[found], -1)
        if (rows >= 0).sum(axis=1).min(initial=k) < k:
            return None
        vectors = matrix.unit(self.about.by, np.maximum(rows, 0).reshape(-1)).reshape(*rows.shape, -1)
        scores = np.einsum("qw,qkw->qk", queries, vectors).astype(np.float32)
        scores[rows < 0] = -np.inf
        best = np.lexsort((rows, -scores))[:, :k]
        return ExactNeighbours(np.take_along_axis(rows, best, 1), np.take_along_axis(scores, best, 1))

    def _follow(self, matrix: Matrix) -> None:
        """Add what is new in a version, and note what is gone."""
        if self._state["version"] == matrix.version:
            return
        keys = vector_keys(matrix, self.about.by)
        there = np.flatnonzero(keys >= 0)
        order = in_order(keys[there])
        places, rising = there[order], keys[there][order]
        known = self._state.get("known")
        if known is None:
            known = np.sort(_all_ids(self.index))
        missing = np.flatnonzero(~within(rising, known))
        for start in range(0, len(missing), _ADDED):
            some = missing[start : start + _ADDED]
            self.index.add_with_ids(matrix.unit(self.about.by, places[some]), rising[some])
        known = np.sort(np.concatenate([known, rising[missing]]))
        dead = int(min(len(known) - len(rising), 64)) if len(known) > len(rising) else 0
        self._state.update(version=matrix.version, places=places, order=rising, known=known, dead=dead)


def vector_keys(matrix: Matrix, by: By) -> Int64[np.ndarray, " vectors"]:
    """A number for each vector that stays the same in later versions, -1 for vectors of rows that are gone."""
    numbers = matrix.numbers if matrix.alive is None else np.where(matrix.alive, matrix.numbers, -1)
    if by == "image":
        has = np.concatenate([part.norms["image"] > 0 for part in matrix.parts])
        return np.where(has, numbers, -1)
    entries = np.arange(len(matrix.owners)) - matrix.first[matrix.owners]
    owners = numbers[matrix.owners]
    return np.where((owners >= 0) & (entries < _CAPTIONS), owners * _CAPTIONS + entries, -1)


def accelerate(index: "Index", target: float) -> list[Accelerator]:
    """Make look-ups fast; see `Index.accelerate`."""
    from recollect.index.stores.local import LocalStore

    store = index.store
    if not isinstance(store, LocalStore) or store.cache is None:
        raise UserError(f"{index.address}: only an index on disk is accelerated; others have their own")
    if not 0 < target <= 1:
        raise UserError(f"recall {target:g}: a share above 0, at most 1")
    found: list[Accelerator] = []
    kinds: tuple[By, ...] = ("image", "text")
    for by in kinds:
        count = sum(len(part.stored(by)) for part in store.matrix().parts)
        if count >= _FEWEST:
            found.append(_make(index, store, by, target))
    return found


def drop_accelerators(store: "LocalStore") -> None:
    """Look up exactly from now on."""
    for folder in (store.cache or Path()).glob("ann-*") if store.cache else ():
        shutil.rmtree(folder, ignore_errors=True)
    store.forget_accelerators()


def open_ann(cache: Path | None, by: By) -> Ann | None:
    """The approximate index on disk; None where there is none, faiss is missing, or it is damaged."""
    folder = None if cache is None else cache / f"ann-{by}"
    if folder is None or not folder.is_dir():
        return None
    if damaged_files(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return None
    try:
        return Ann(folder)
    except (UserError, OSError, ValueError, KeyError, TypeError, RuntimeError):
        return None


def _make(index: "Index", store: "LocalStore", by: By, target: float) -> Accelerator:
    faiss, matrix = _faiss(), store.matrix()
    keys = vector_keys(matrix, by)
    places = np.flatnonzero(keys >= 0)
    cells = int(2 ** np.round(np.log2(4 * np.sqrt(len(places)))))
    draw = numpy_generator("ann", 0)
    sample = np.sort(draw.permutation(places)[: 64 * cells])
    made = faiss.IndexIVFScalarQuantizer(
        faiss.IndexFlatIP(index.width), index.width, cells, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
    )
    made.by_residual = False
    made.train(matrix.unit(by, sample))
    for start in range(0, len(places), _ADDED):
        some = places[start : start + _ADDED]
        made.add_with_ids(matrix.unit(by, some), keys[some])
    assert store.cache is not None
    folder = store.cache / f"ann-{by}"
    shutil.rmtree(folder, ignore_errors=True)
    with atomic_folder(folder) as unfinished:
        faiss.write_index(made, str(unfinished / "index.faiss"))
        _write_about(unfinished, Accelerator(by, len(places), cells, cells, 1.0))
    measured = _measured(index, matrix, Ann(folder), places, target)
    _write_about(folder, measured)
    store.forget_accelerators()
    return measured


def _write_about(folder: Path, about: Accelerator) -> None:
    (folder / "about.json").write_text(json.dumps(asdict(about)))
    note_checksums(folder, [folder / "index.faiss"], [folder / "about.json"])


def _measured(index: "Index", matrix: Matrix, ann: Ann, places: np.ndarray, target: float) -> Accelerator:
    """The fewest probes that reach the target on half of the queries of each kind; recall is that on the other half."""
    by, draw = ann.about.by, numpy_generator("ann queries", 0)
    own = draw.permutation(places)[:_QUERIES]
    queries, selves = matrix.unit(by, own), own
    other: By = "text" if by == "image" else "image"
    across = np.flatnonzero(vector_keys(matrix, other) >= 0)
    if len(across):  # most queries are words that look for pictures
        some = draw.permutation(across)[:_QUERIES]
        queries = np.concatenate([queries, matrix.unit(other, some)])
        selves = np.concatenate([selves, np.full(len(some), -1)])
    exact = matrix.nearest(queries, _NEAREST + 1, by, matrix.searchable(by, None, False))
    choosing = np.arange(len(queries)) % 2 == 0
    kinds = np.where(selves < 0, 1, 0)
    probes, recall = 1, 0.0
    while True:
        found = ann.search(matrix, queries, _NEAREST + 1, probes)
        if found is not None:
            recalls = recall_of(found, exact, selves)
            recall = lowest_mean(recalls[~choosing], kinds[~choosing])
            if lowest_mean(recalls[choosing], kinds[choosing]) >= target:
                break
        if probes >= ann.about.cells:
            break
        probes = min(2 * probes, ann.about.cells)
    about = Accelerator(by, len(places), ann.about.cells, probes, recall)
    ann.about = about
    timed = queries[: 2 * _TIMED : 2]
    store = index.store
    store.forget_accelerators()  # type: ignore[attr-defined]
    slow = _milliseconds(index, timed, by, exact=True)
    store.keep_accelerator(ann)  # type: ignore[attr-defined]
    fast = _milliseconds(index, timed, by, exact=False)
    return Accelerator(by, len(places), about.cells, probes, recall, fast, slow)


def recall_of(
    found: ExactNeighbours, exact: ExactNeighbours, selves: Int64[np.ndarray, " queries"]
) -> Float32[np.ndarray, " queries"]:
    """Share of the ten nearest that were found, without the query itself; of equal scores any counts."""
    out = []
    for row, own in enumerate(selves.tolist()):
        wanted = exact.scores[row][exact.rows[row] != own][:_NEAREST]
        mine = found.scores[row][found.rows[row] != own][:_NEAREST]
        out.append((mine >= wanted[-1] - 1e-6).sum() / len(wanted))
    return np.minimum(np.array(out, dtype=np.float32), 1)


def lowest_mean(recalls: Float32[np.ndarray, " queries"], kinds: Int64[np.ndarray, " queries"]) -> float:
    """The recall of the kind of queries that is found worst: pictures that look for words may be, or the reverse."""
    return min(float(recalls[kinds == kind].mean()) for kind in np.unique(kinds))


def _milliseconds(index: "Index", queries: np.ndarray, by: By, exact: bool) -> float:
    """Median time of a look-up of one query, as a caller waits for it."""
    times = []
    for query in queries:
        start = time.perf_counter()
        index.lookup(query[None], _NEAREST, by, exact=exact)
        times.append(time.perf_counter() - start)
    return float(np.median(times) * 1000)


def _all_ids(index: Any) -> Int64[np.ndarray, " vectors"]:
    """The numbers of all vectors of an inverted file."""
    faiss, lists = _faiss(), index.invlists
    sizes = [lists.list_size(cell) for cell in range(lists.nlist)]
    ids = [faiss.rev_swig_ptr(lists.get_ids(cell), size).copy() for cell, size in enumerate(sizes) if size]
    return np.concatenate([np.empty(0, dtype=np.int64), *ids])


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise UserError("fast look-up needs faiss: pip install 'recollect[memory]'") from None
    return faiss
