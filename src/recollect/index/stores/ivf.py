"""Approximate look-up by faiss: an inverted file, whose finds are scored again exactly."""

import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from recollect.core.checksums import damaged_files
from recollect.core.errors import UserError
from recollect.core.nearest import ExactNeighbours
from recollect.core.ordering import in_order
from recollect.index.rows import By
from recollect.index.stores.matrix import Matrix
from recollect.index.stores.parts import within

_CAPTIONS = 2**12  # of a row, at most: with the row number they make the number of a vector
_SPARE = 10  # more are scored exactly than are wanted, since half precision changes the order of near ones
ADDED = 20_000
"""Vectors that are added at a time."""


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


class InvertedFile:
    """An inverted file of half-precision vectors (faiss); what it finds is scored again exactly.

    Args:
        folder: where it is on disk.
    """

    def __init__(self, folder: Path) -> None:
        faiss = import_faiss()
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
        faiss = import_faiss()
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
        for start in range(0, len(missing), ADDED):
            some = missing[start : start + ADDED]
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


def open_inverted_file(cache: Path | None, by: By) -> InvertedFile | None:
    """The approximate index on disk; None where there is none, faiss is missing, or it is damaged."""
    folder = None if cache is None else cache / f"ann-{by}"
    if folder is None or not folder.is_dir():
        return None
    if damaged_files(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return None
    try:
        return InvertedFile(folder)
    except (UserError, OSError, ValueError, KeyError, TypeError, RuntimeError):
        return None


def _all_ids(index: Any) -> Int64[np.ndarray, " vectors"]:
    """The numbers of all vectors of an inverted file."""
    faiss, lists = import_faiss(), index.invlists
    sizes = [lists.list_size(cell) for cell in range(lists.nlist)]
    ids = [faiss.rev_swig_ptr(lists.get_ids(cell), size).copy() for cell, size in enumerate(sizes) if size]
    return np.concatenate([np.empty(0, dtype=np.int64), *ids])


def import_faiss() -> Any:
    """The module, or one line that says how to install it."""
    try:
        import faiss
    except ImportError:
        raise UserError("fast look-up needs faiss: pip install 'recollect[index]'") from None
    return faiss
