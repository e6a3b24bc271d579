"""What every place that keeps a memory's rows has to do, checked; and the smallest one that does it."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float32

from recollect.core.errors import UserError
from recollect.core.nearest import exact_neighbours
from recollect.memory.backends.arrow import as_item
from recollect.memory.backends.base import Backend, Hits, matrix_of_columns
from recollect.memory.backends.cells import IndexRecord
from recollect.memory.backends.removals import Removal
from recollect.memory.filters import Filter, parse_filter
from recollect.memory.rows import COLUMNS, Item, Modality, Pairs, Record, VectorPrecision

_WIDTH = 8
_RECORD = Record(_WIDTH, "model", "the model", None, "float32", "key")
_SIGNS = [f"~{each}" for each in ("a\\b", "a\\n", "a\nb", 'say "x"', "it's", "tab\t", "ü%_", "\x01", "[1]", "p#1")]
"""Ids, each of them after those of the other rows."""
_FILTERS = (
    "source = 'emoji'",
    "id in ('row 3', 'row 4')",
    "caption like '%_wl'",
    "caption not like 'picture 1%'",
    "year >= 2030 and domain != 'd1'",
    "year < 2003 or (good = true and not domain in ('d0', 'd2'))",
    "rare = 'it''s'",
    "not (rare = 'it''s' or source = 'emoji')",
    "rare != 'other'",
    "year = 2007.0",
    "year > -1e3 and year <= 2.004e3",
    "year = '2007' or id = 'row 8'",
    "note = 'two\nlines\tand \\ one'",
    "note != 'two\nlines\tand \\ one'",
)


def check_backend(create: Callable[[Record], Backend], reopen: Callable[[], Backend]) -> None:
    """Check that a place for a memory's rows keeps what `Backend` promises; `ListBackend` is the smallest one.

    >>> place = ListBackend.create(Record(8, "model"))
    >>> check_backend(lambda record: place.clear(record), lambda: place)

    Args:
        create: makes an empty memory of a record, of which there is one at a time.
        reopen: opens what ``create`` made last, as another process would.

    Raises:
        AssertionError: naming the promise that is broken.
    """
    backend = create(_RECORD)
    assert isinstance(backend, Backend), f"{type(backend).__name__} lacks {_lacking(backend)}; see Backend"
    rows = _rows(40)
    _check_empty(backend)
    before = backend.version
    with backend.writing():
        backend.append(rows.take(range(25)))
        backend.append(rows.take(range(25, 40)))
    assert backend.version > before, "version grows with every change"
    _check_rows(backend, rows)
    _check_search(backend, rows)
    _check_filters(backend, rows)
    again = reopen()
    assert again.record == _RECORD, "the record is kept"
    _check_rows(again, rows)
    _check_changes(backend, again, rows)
    _check_removals(backend, again)
    _check_upkeep(backend)


def _rows(count: int, first: int = 0, seed: int = 0) -> Pairs:
    draw = np.random.default_rng([seed, first])
    both = draw.normal(size=(2, count, _WIDTH))
    images, texts = (both / np.linalg.norm(both, axis=2, keepdims=True)).astype(np.float32)
    numbers = range(first, first + count)
    texts[[number % 7 == 6 for number in numbers]] = 0  # pictures without a text
    captions = [f"picture {n} of {'a cat' if n % 2 else 'an owl'}" if n % 7 != 6 else "" for n in numbers]
    notes = ("two\nlines\tand \\ one", 'say "x"', "\x01 ü")
    metadata = [
        {"year": 2000 + n, "domain": f"d{n % 3}", "good": n % 4 == 0, "note": notes[n % 3]}
        | ({"rare": "it's"} if n % 5 == 0 else {})
        for n in numbers
    ]
    return Pairs(
        ids=[f"row {n}" for n in numbers],
        image_vectors=images,
        text_vectors=texts,
        captions=captions,
        model="model",
        sources=[("emoji", "birds")[n % 2] for n in numbers],
        metadata=metadata,
        images=[bytes([n % 256, 0, 255]) if n % 3 else None for n in numbers],
        paths=[None if n % 3 else f"/pictures/{n}.png" for n in numbers],
        origins=["origin"] * count,
        ordinals=np.array(numbers, dtype=np.int64),
        digests=[f"digest {n}" for n in numbers],
        places=["place"] * count,
        stamps=[f"stamp {n}" for n in numbers],
        looks=[f"{n:016x}" for n in numbers],
    )


def _lacking(backend: object) -> str:
    names = {*(name for name in dir(Backend) if not name.startswith("_")), *Backend.__annotations__}
    return ", ".join(sorted(name for name in names if not hasattr(backend, name)))


def _check_empty(backend: Backend) -> None:
    assert len(backend) == 0, "a new memory is empty"
    assert backend.count_texts() == 0, "nothing of a new memory has a text"
    assert backend.known(["a"]) == set(), "a new memory knows no id"
    assert not [id for batch in backend.columns(["id"], {}) for id in batch["id"]], "columns of nothing are empty"


def _check_rows(backend: Backend, rows: Pairs) -> None:
    order = [31, 2, 17]
    ids = [rows.ids[row] for row in order]
    assert len(backend) == len(rows), "len counts the rows"
    assert backend.count_texts() == int(rows.has_text.sum()), "count_texts counts the rows with a text"
    assert backend.known([*ids, "nobody"]) == set(ids), "known says which ids are there"
    for row, item in zip(order, backend.fetch(ids, True), strict=True):
        assert (item.id, item.caption) == (rows.ids[row], rows.captions[row]), "fetch keeps the order of the ids"
        assert item.source == rows.sources[row], "fetch gives the source"
        assert dict(item.metadata) == dict(rows.metadata[row]), "metadata come back as they were"
        assert (item.image or None) in (rows.images[row], item.path), "fetch gives the picture, or its file"
    for modality in ("image", "text"):
        wanted = getattr(rows, f"{modality}_vectors")[order]
        assert np.array_equal(backend.vectors(ids, modality), wanted), "vectors come back as they were, in order"
    whole = backend.rows(ids)
    for name in ("ids", "captions", "sources", "paths", "origins", "digests", "places", "stamps", "looks", "images"):
        assert list(getattr(whole, name)) == [getattr(rows, name)[row] for row in order], f"rows gives {name}"
    assert np.array_equal(whole.image_vectors, rows.image_vectors[order]), "rows gives the vectors"
    seen = [id for batch in backend.columns(["id"], {"source": "birds"}) for id in batch["id"]]
    wanted_ids = {id for id, source in zip(rows.ids, rows.sources, strict=True) if source == "birds"}
    assert len(seen) == len(set(seen)), "columns give each row once"
    assert set(seen) == wanted_ids, "columns give the rows whose columns have the values asked for"


def _check_search(backend: Backend, rows: Pairs) -> None:
    queries = _rows(7, seed=1).image_vectors
    spoken = rows.has_text
    asked: list[tuple[Modality, bool, np.ndarray]] = [
        ("image", False, np.ones(len(rows), dtype=bool)), ("image", True, spoken), ("text", False, spoken),
    ]  # fmt: skip
    for modality, with_text, among in asked:
        found = backend.search(queries, 5, modality, None, with_text, exact=True)
        _same_hits(found, *_brute(rows, queries, 5, modality, among), f"search among {modality}s")
        assert found.scores.dtype == np.float32, "scores are float32"
    most = int(spoken.sum())
    found = backend.search(queries, most, "text", None)
    assert found.ids.shape == (7, most), "search finds as many rows as are asked for"


def _check_filters(backend: Backend, rows: Pairs) -> None:
    queries = _rows(3, seed=2).image_vectors
    for text in _FILTERS:
        where = parse_filter(text)
        keep = np.array([where.matches(_columns(rows, row)) for row in range(len(rows))])
        wanted = {id for id, kept in zip(rows.ids, keep, strict=True) if kept}
        assert set(backend.ids_where(where)) == wanted, f"ids_where({text!r}) gives the rows that satisfy it"
        found = backend.search(queries, min(10, len(rows)), "image", where)
        many = min(10, len(wanted))
        assert found.ids.shape == (3, many), f"a search where {text!r} finds {many} rows, no fewer for the filter"
        _same_hits(found, *_brute(rows, queries, many, "image", keep), f"a search where {text!r}")


def _check_changes(backend: Backend, other: Backend, rows: Pairs) -> None:
    newer, version = _rows(10, first=35, seed=5), backend.version
    with backend.writing():
        backend.upsert(newer)
    assert backend.version > version, "version grows with every change"
    other.refresh()
    for each in (backend, other):
        assert len(each) == 45, "upsert replaces rows of the same ids, and adds the others"
        assert np.array_equal(each.vectors(["row 36"], "image"), newer.image_vectors[1:2]), "upsert replaces vectors"
        found = each.search(newer.image_vectors, 1, "image", None, exact=True)
        assert found.ids[:, 0].tolist() == list(newer.ids), "what was written is found at once"
    strange = replace(_rows(len(_SIGNS), first=60), ids=_SIGNS)
    with backend.writing():
        backend.append(strange)
    assert [item.id for item in backend.fetch(_SIGNS, False)] == _SIGNS, "ids may hold any sign"
    for last in sorted(_SIGNS, reverse=True):  # a place that reads in pages goes on behind the id that it read last
        seen = [id for batch in backend.columns(["id"], {}) for id in batch["id"]]
        assert len(seen) == len(set(seen)) == len(backend), f"columns give each row once, also where {last!r} is last"
        with backend.writing():
            backend.delete([last])
    with backend.writing():
        backend.append(strange)
        backend.delete([*_SIGNS, "row 3"])
    assert backend.known([*_SIGNS, "row 3", "row 4"]) == {"row 4"}, "delete removes the rows of these ids, and no other"
    assert len(backend) == 44, "delete removes the rows of these ids, and no other"
    found = backend.search(rows.image_vectors[3:4], 44, "image", None, exact=True)
    assert "row 3" not in set(found.ids.ravel()), "what was deleted is found never again"


def _check_removals(backend: Backend, other: Backend) -> None:
    assert list(backend.removals()) == [], "nothing stays away from a new memory"
    noted = [Removal("photos", sign, f"content {n}", f"digest {n}") for n, sign in enumerate(_SIGNS)]
    rows = len(backend)
    for kept in (noted[:7], noted[4:], []):
        with backend.writing():
            backend.keep_removals(kept)
        other.refresh()
        assert sorted(other.removals()) == sorted(kept), "removals gives what keep_removals was given last"
    assert len(backend) == rows, "what stays away is no row"


def _check_upkeep(backend: Backend) -> None:
    query = _rows(2, seed=8).image_vectors
    truth = backend.search(query, 9, "image", None, exact=True)
    with suppress(UserError):  # a memory of so few rows may refuse
        made = backend.index("image", 0.9)
        assert made is None or isinstance(made, IndexRecord), "index says what it measured, or None"
    backend.optimize(0.0)
    backend.drop_index()
    after = backend.search(query, 9, "image", None)
    assert after.ids.tolist() == truth.ids.tolist(), "without an index a search is exact"
    assert backend.damage() == [], "nothing is damaged"
    try:
        kept = backend.snapshot()
    except UserError:
        return  # the place keeps no versions, and says so
    rows = len(kept)
    with backend.writing():
        backend.delete(["row 5"])
    assert (len(kept), len(backend)) == (rows, rows - 1), "a snapshot stays as it was"


def _columns(rows: Pairs, row: int) -> dict[str, Any]:
    return {
        **rows.metadata[row], "id": rows.ids[row], "caption": rows.captions[row], "source": rows.sources[row],
    }  # fmt: skip


def _brute(
    rows: Pairs, queries: np.ndarray, k: int, modality: str, keep: np.ndarray
) -> tuple[list[list[str]], np.ndarray]:
    """Sort every row by its cosine, in double precision."""
    places = np.flatnonzero(keep)
    vectors = getattr(rows, f"{modality}_vectors").astype(np.float64)[places]
    cosines = queries.astype(np.float64) @ vectors.T
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    return [[rows.ids[places[row]] for row in each] for each in order], np.take_along_axis(cosines, order, 1)


def _same_hits(found: Hits, ids: list[list[str]], scores: np.ndarray, what: str) -> None:
    assert found.ids.tolist() == ids, f"{what} finds what sorting every row finds, best first"
    assert np.allclose(found.scores, scores, atol=1e-5), f"{what} scores by cosines"


class ListBackend:
    """Rows in a list: the smallest `Backend`, gone with its process. What it does, others do on disk."""

    whole_commits = False
    address = "a list"
    stored_precision: VectorPrecision = "float32"

    def __init__(self, record: Record) -> None:
        self.record = record
        self._held: dict[str, dict[str, Any]] = {}
        self._removals: list[Removal] = []
        self._version = 1

    @classmethod
    def create(cls, record: Record) -> "ListBackend":
        """An empty one."""
        return cls(record)

    def clear(self, record: Record) -> "ListBackend":
        """Begin anew."""
        self.record, self._held, self._removals, self._version = record, {}, [], 1
        return self

    @property
    def version(self) -> int:
        """Counted."""
        return self._version

    def __len__(self) -> int:
        return len(self._held)

    def writing(self) -> AbstractContextManager[None]:
        """Nobody else is there."""
        return nullcontext()

    def append(self, pairs: Pairs) -> None:
        """As `upsert`."""
        self.upsert(pairs)

    def upsert(self, pairs: Pairs) -> None:
        """By id."""
        self._version += 1
        for row in pairs.table().to_pylist():
            self._held[row["id"]] = row

    def delete(self, ids: Sequence[str]) -> None:
        """By id."""
        self._version += 1
        for id in ids:
            self._held.pop(id, None)

    def removals(self) -> list[Removal]:
        return self._removals

    def keep_removals(self, removals: Collection[Removal]) -> None:
        self._removals = list(removals)

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those of the ids that are there."""
        return {id for id in ids if id in self._held}

    def ids_where(self, where: Filter) -> list[str]:
        """Row by row."""
        return [id for id, row in self._held.items() if where.matches({**json.loads(row["metadata"]), **row})]

    def count_texts(self) -> int:
        """How many rows have a text."""
        return sum(row["has_text"] for row in self._held.values())

    def fetch(self, ids: Sequence[str], pictures: bool) -> list[Item]:
        """Rows in the order of their ids."""
        return [as_item(self._held[id] | ({} if pictures else {"image": None}), self.address) for id in ids]

    def rows(self, ids: Sequence[str]) -> Pairs:
        """Whole rows in the order of their ids."""
        return Pairs.of_columns(self._column_values(list(ids), COLUMNS), self.record.model)

    def vectors(self, ids: Sequence[str], modality: Modality) -> Float32[np.ndarray, "rows width"]:
        """Vectors in the order of their ids."""
        vectors = [self._held[id][f"{modality}_vector"] for id in ids]
        return np.array(vectors, dtype=np.float32).reshape(len(ids), self.record.width)

    def matrix(self, modality: Modality) -> tuple[list[str], np.ndarray]:
        return matrix_of_columns(self, modality)

    def prepare(self) -> None:
        pass

    def columns(self, names: Sequence[str], where: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """In one batch."""
        ids = [id for id, row in self._held.items() if all(row[name] == value for name, value in where.items())]
        yield self._column_values(ids, names)

    def _column_values(self, ids: list[str], names: Sequence[str]) -> dict[str, Any]:
        columns: dict[str, Any] = {name: [self._held[id][name] for id in ids] for name in names}
        for name in {"image_vector", "text_vector"} & set(names):
            columns[name] = np.array(columns[name], dtype=np.float32).reshape(len(ids), self.record.width)
        return columns

    def search(
        self,
        vectors: Float32[np.ndarray, "queries width"],
        k: int,
        modality: Modality,
        where: Filter | None,
        has_text: bool = False,
        exact: bool = False,
    ) -> Hits:
        """Exact."""
        ids = list(self._held) if where is None else self.ids_where(where)
        if has_text or modality == "text":
            ids = [id for id in ids if self._held[id]["has_text"]]
        if not ids:
            return Hits(np.empty((len(vectors), 0), dtype=object), np.empty((len(vectors), 0), dtype=np.float32))
        found = exact_neighbours(vectors, self.vectors(ids, modality), min(k, len(ids)))
        return Hits(np.array(ids, dtype=object)[found.rows], found.scores)

    def index(self, modality: Modality, target: float, train: bool = True) -> None:
        """Search is exact."""

    def indexes(self) -> list[IndexRecord]:
        """None."""
        return []

    def drop_index(self) -> None:
        """There is none."""

    def optimize(self, keep_days: float) -> None:
        """There are no files."""

    def damage(self) -> list[str]:
        """None that a list could have."""
        return []

    def refresh(self) -> None:
        """Nobody else writes."""

    def snapshot(self) -> Backend:
        """Not to be had.

        Raises:
            UserError: always.
        """
        raise UserError(f"{self.address}: keeps no versions")
