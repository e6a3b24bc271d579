"""Approximate lookup with a faiss inverted file whose recall is measured on the index's own rows."""

import json
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32, Int64

from recollect.core.checksums import damaged_files, write_checksums
from recollect.core.errors import UserError
from recollect.core.files import atomic_folder, write_json
from recollect.core.nearest import ExactNeighbors
from recollect.core.ordering import stable_argsort
from recollect.core.seeding import numpy_generator
from recollect.index.lookup import look_up
from recollect.index.rows import By
from recollect.index.stores.matrix import Matrix, within

if TYPE_CHECKING:
    from recollect.index.stores.local import LocalStore

_MAX_CAPTIONS = 2**12  # searchable captions per row; row number and caption position form a vector's key
_EXTRA = 10  # additional candidates scored exactly, since half precision changes the order of close ones
_MAX_DEAD = 64  # additional candidates to compensate for deleted vectors
_ADD_BLOCK = 20_000  # vectors added at a time
MIN_VECTORS = 20_000  # with fewer vectors, exact lookup is fast enough
_QUERIES, _TIMED, _NEAREST = 500, 40, 10  # queries and neighbors for measurements


@dataclass(frozen=True)
class Accelerator:
    """Measurements of an approximate index.

    Attributes:
        by: vectors it searches.
        rows: number of vectors when it was trained.
        cells: number of cells of the inverted file.
        probes: cells read per query.
        recall: recall of the ten nearest, with pictures and captions of this index as queries; a query's own vector is
            excluded.
        milliseconds: median time of a lookup with one query.
        exact_milliseconds: median time of the same lookup without the approximate index.
    """

    by: By
    rows: int
    cells: int
    probes: int
    recall: float
    milliseconds: float = 0.0
    exact_milliseconds: float = 0.0


class InvertedFile:
    """Faiss inverted file of half-precision vectors; candidates are rescored exactly.

    Args:
        folder: its folder on disk.
        about: its measurements.
        index: the faiss index.
    """

    def __init__(self, folder: Path, about: Accelerator, index: Any) -> None:
        self.folder, self.about, self.index = folder, about, index
        self._version = -1
        self._positions = self._keys = np.empty(0, dtype=np.int64)
        self._known = _all_keys(self.index)

    def search(self, matrix: Matrix, queries: np.ndarray, k: int, probes: int | None = None) -> ExactNeighbors | None:
        """Return the k nearest vectors by position as in `Matrix.nearest`; None if fewer than k are found."""
        self._follow(matrix)
        if len(self._keys) < k:
            return None
        parameters = _import_faiss().SearchParametersIVF(nprobe=probes or self.about.probes)
        dead = min(len(self._known) - len(self._keys), _MAX_DEAD)
        _, keys = self.index.search(queries, min(k + _EXTRA + dead, self.index.ntotal), params=parameters)
        found = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        rows = np.where(self._keys[found] == keys, self._positions[found], -1)
        if (rows >= 0).sum(axis=1).min(initial=k) < k:
            return None
        vectors = matrix.unit(self.about.by, np.maximum(rows, 0).reshape(-1)).reshape(*rows.shape, -1)
        scores = np.einsum("qw,qkw->qk", queries, vectors).astype(np.float32)
        scores[rows < 0] = -np.inf
        best = np.lexsort((rows, -scores))[:, :k]
        return ExactNeighbors(np.take_along_axis(rows, best, 1), np.take_along_axis(scores, best, 1))

    def fill(self, matrix: Matrix) -> None:
        """Replace its vectors by those of ``matrix`` and save it, keeping the trained cells and the measurements."""
        self.index.reset()
        self._known, self._version = np.empty(0, dtype=np.int64), -1
        self._follow(matrix)
        shutil.rmtree(self.folder, ignore_errors=True)
        with atomic_folder(self.folder) as unfinished:
            _import_faiss().write_index(self.index, str(unfinished / "index.faiss"))
            _write_about(unfinished, self.about)

    def _follow(self, matrix: Matrix) -> None:
        """Update to the version of ``matrix``: add new vectors, and keep the keys of those that still exist."""
        if self._version == matrix.version:
            return
        keys = vector_keys(matrix, self.about.by)
        visible = np.flatnonzero(keys >= 0)
        self._positions = visible[stable_argsort(keys[visible])]
        self._keys = keys[self._positions]
        missing = np.flatnonzero(~within(self._keys, self._known))
        for start in range(0, len(missing), _ADD_BLOCK):
            block = missing[start : start + _ADD_BLOCK]
            self.index.add_with_ids(matrix.unit(self.about.by, self._positions[block]), self._keys[block])
        self._known = np.sort(np.concatenate([self._known, self._keys[missing]]))
        self._version = matrix.version


def vector_keys(matrix: Matrix, by: By) -> Int64[np.ndarray, " vectors"]:
    """Return a key per vector that is stable across versions; -1 for vectors of deleted rows."""
    numbers = matrix.numbers if matrix.alive is None else np.where(matrix.alive, matrix.numbers, -1)
    if by == "image":
        return np.where(matrix.has_image, numbers, -1)
    entries = np.arange(len(matrix.owners)) - matrix.first[matrix.owners]
    owners = numbers[matrix.owners]
    return np.where((owners >= 0) & (entries < _MAX_CAPTIONS), owners * _MAX_CAPTIONS + entries, -1)


def open_inverted_file(cache: Path | None, by: By) -> InvertedFile | None:
    """Open the approximate index on disk; None if it is missing or damaged, or faiss is not installed."""
    folder = None if cache is None else cache / f"ann-{by}"
    if folder is None or not folder.is_dir():
        return None
    if damaged_files(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return None
    try:
        about = Accelerator(**json.loads((folder / "about.json").read_text()))
        return InvertedFile(folder, about, _import_faiss().read_index(str(folder / "index.faiss")))
    except (UserError, OSError, ValueError, KeyError, TypeError, RuntimeError):
        return None


def _all_keys(index: Any) -> Int64[np.ndarray, " vectors"]:
    """Return the sorted keys of all vectors of an inverted file."""
    faiss, lists = _import_faiss(), index.invlists
    sizes = [lists.list_size(cell) for cell in range(lists.nlist)]
    keys = [faiss.rev_swig_ptr(lists.get_ids(cell), size).copy() for cell, size in enumerate(sizes) if size]
    return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *keys]))


def _import_faiss() -> Any:
    """Import faiss, with installation instructions if it is missing."""
    try:
        import faiss
    except ImportError:
        raise UserError("approximate lookup needs faiss: pip install 'recollect[index]'") from None
    return faiss


def build_inverted_file(store: "LocalStore", cache: Path, by: By, target: float) -> InvertedFile:
    """Train an approximate index of images or captions, save it, and measure it (see `Index.accelerate`)."""
    faiss, matrix, width = _import_faiss(), store.matrix(), store.record.width
    positions = np.flatnonzero(vector_keys(matrix, by) >= 0)
    cells = int(2 ** np.round(np.log2(4 * np.sqrt(len(positions)))))
    sample = np.sort(numpy_generator("ann", 0).permutation(positions)[: 64 * cells])
    index = faiss.IndexIVFScalarQuantizer(
        faiss.IndexFlatIP(width), width, cells, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
    )
    index.by_residual = False
    index.train(matrix.unit(by, sample))
    built = InvertedFile(cache / f"ann-{by}", Accelerator(by, len(positions), cells, cells, 1.0), index)
    built.fill(matrix)
    built.about = _measured(store, built, positions, target)
    _write_about(built.folder, built.about)
    return built


def _write_about(folder: Path, about: Accelerator) -> None:
    write_json(folder / "about.json", asdict(about))
    write_checksums(folder, [folder / "index.faiss"], [folder / "about.json"])


def _measured(store: "LocalStore", ann: InvertedFile, positions: np.ndarray, target: float) -> Accelerator:
    """Choose the fewest probes that reach the target on half of the queries; measure recall on the other half."""
    by, draw, matrix = ann.about.by, numpy_generator("ann queries", 0), store.matrix()
    own_rows = draw.permutation(positions)[:_QUERIES]
    queries = matrix.unit(by, own_rows)
    other: By = "text" if by == "image" else "image"
    across = np.flatnonzero(vector_keys(matrix, other) >= 0)
    if len(across):  # most real queries search pictures by text
        drawn = draw.permutation(across)[:_QUERIES]
        queries = np.concatenate([queries, matrix.unit(other, drawn)])
        own_rows = np.concatenate([own_rows, np.full(len(drawn), -1)])
    exact = matrix.nearest(queries, _NEAREST + 1, by, matrix.searchable(by, None, False))
    choosing, kinds = np.arange(len(queries)) % 2 == 0, own_rows < 0
    probes, recall = 1, 0.0
    while True:
        found = ann.search(matrix, queries, _NEAREST + 1, probes)
        if found is not None:
            recalls = recall_of(found, exact, own_rows)
            recall = worst_mean_recall(recalls[~choosing], kinds[~choosing])
            if worst_mean_recall(recalls[choosing], kinds[choosing]) >= target:
                break
        if probes >= ann.about.cells:
            break
        probes = min(2 * probes, ann.about.cells)
    ann.about = replace(ann.about, probes=probes, recall=recall)
    store.use_inverted_files(ann)
    timed = queries[: 2 * _TIMED : 2]
    slow, fast = (_milliseconds(store, timed, by, exact) for exact in (True, False))
    return replace(ann.about, milliseconds=fast, exact_milliseconds=slow)


def recall_of(
    found: ExactNeighbors, exact: ExactNeighbors, own_rows: Int64[np.ndarray, " queries"]
) -> Float32[np.ndarray, " queries"]:
    """Return each query's recall of the ten nearest, excluding the query's own vector; tied scores are equivalent."""
    out = []
    for row, own in enumerate(own_rows.tolist()):
        wanted = exact.scores[row][exact.rows[row] != own][:_NEAREST]
        mine = found.scores[row][found.rows[row] != own][:_NEAREST]
        out.append((mine >= wanted[-1] - 1e-6).sum() / len(wanted))
    return np.minimum(np.array(out, dtype=np.float32), 1)


def worst_mean_recall(recalls: Float32[np.ndarray, " queries"], kinds: np.ndarray) -> float:
    """Return the mean recall of the kind of queries (same-modality or cross-modal) with the lowest recall."""
    return min(float(recalls[kinds == kind].mean()) for kind in np.unique(kinds))


def _milliseconds(store: "LocalStore", queries: np.ndarray, by: By, exact: bool) -> float:
    """Return the median time of a lookup with one query."""
    times = []
    for query in queries:
        start = time.perf_counter()
        look_up(store, query[None], _NEAREST, by, exact=exact)
        times.append(time.perf_counter() - start)
    return float(np.median(times) * 1000)
