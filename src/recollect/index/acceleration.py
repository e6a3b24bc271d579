"""Makes look-up in large indexes fast, and measures the recall that it has on the index's own rows."""

import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import get_args

import numpy as np
from jaxtyping import Float32, Int64

from recollect.core.checksums import note_checksums
from recollect.core.errors import UserError
from recollect.core.files import atomic_folder, write_json
from recollect.core.nearest import ExactNeighbours
from recollect.core.seeding import numpy_generator
from recollect.core.validation import check_number
from recollect.index.lookup import look_up
from recollect.index.rows import By
from recollect.index.stores.base import Store
from recollect.index.stores.ivf import ADDED, Accelerator, InvertedFile, import_faiss, vector_keys
from recollect.index.stores.local import LocalStore
from recollect.index.stores.matrix import Matrix

_FEWEST = 20_000  # vectors, below which exact look-up is fast enough
_QUERIES, _TIMED = 500, 40
_NEAREST = 10


def accelerate(store: Store, target: float) -> list[Accelerator]:
    """Make look-ups fast; see `Index.accelerate`."""
    if not isinstance(store, LocalStore) or store.cache is None:
        raise UserError(f"{store.address}: only an index on disk is accelerated; others have their own")
    check_number("recall", target, above=0, most=1)
    parts = store.matrix().parts
    return [_make(store, by, target) for by in get_args(By) if sum(len(part.stored(by)) for part in parts) >= _FEWEST]


def drop_accelerators(store: Store) -> None:
    """Look up exactly from now on."""
    if isinstance(store, LocalStore) and store.cache is not None:
        for folder in store.cache.glob("ann-*"):
            shutil.rmtree(folder, ignore_errors=True)
        store.forget_accelerators()


def _make(store: LocalStore, by: By, target: float) -> Accelerator:
    faiss, matrix, width = import_faiss(), store.matrix(), store.record.width
    keys = vector_keys(matrix, by)
    places = np.flatnonzero(keys >= 0)
    cells = int(2 ** np.round(np.log2(4 * np.sqrt(len(places)))))
    draw = numpy_generator("ann", 0)
    sample = np.sort(draw.permutation(places)[: 64 * cells])
    made = faiss.IndexIVFScalarQuantizer(
        faiss.IndexFlatIP(width), width, cells, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
    )
    made.by_residual = False
    made.train(matrix.unit(by, sample))
    for start in range(0, len(places), ADDED):
        some = places[start : start + ADDED]
        made.add_with_ids(matrix.unit(by, some), keys[some])
    assert store.cache is not None
    folder = store.cache / f"ann-{by}"
    shutil.rmtree(folder, ignore_errors=True)
    with atomic_folder(folder) as unfinished:
        faiss.write_index(made, str(unfinished / "index.faiss"))
        _write_about(unfinished, Accelerator(by, len(places), cells, cells, 1.0))
    measured = _measured(store, matrix, InvertedFile(folder), places, target)
    _write_about(folder, measured)
    store.forget_accelerators()
    return measured


def _write_about(folder: Path, about: Accelerator) -> None:
    write_json(folder / "about.json", asdict(about))
    note_checksums(folder, [folder / "index.faiss"], [folder / "about.json"])


def _measured(store: LocalStore, matrix: Matrix, ann: InvertedFile, places: np.ndarray, target: float) -> Accelerator:
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
    store.forget_accelerators()
    slow = _milliseconds(store, timed, by, exact=True)
    store.keep_accelerator(ann)
    fast = _milliseconds(store, timed, by, exact=False)
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


def _milliseconds(store: LocalStore, queries: np.ndarray, by: By, exact: bool) -> float:
    """Median time of a look-up of one query."""
    times = []
    for query in queries:
        start = time.perf_counter()
        look_up(store, query[None], _NEAREST, by, exact=exact)
        times.append(time.perf_counter() - start)
    return float(np.median(times) * 1000)
