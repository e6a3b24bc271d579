"""Conformance test for `Store` implementations, with `RamStore` as the reference."""

from collections.abc import Callable, Sequence

import numpy as np

from recollect.index.filters import parse_filter
from recollect.index.index import Index
from recollect.index.picture import File
from recollect.index.rows import COLUMNS, By, Record, Rows
from recollect.index.stores.base import Store
from recollect.index.stores.ram import RamStore

_WIDTH = 8
_RECORD = Record(_WIDTH, "model", "the model", None, "float32", "key")
_ODD_IDS = ("a\\b", "a\\n", "a\nb", 'say "x"', "it's", "tab\t", "ü%_", "[1]", "p#1")
_FILTERS = (
    "source = 'emoji'",
    "id in ('row 3', 'row 4')",
    "caption like '%owl%'",
    "label = 'cat' and not domain = 'd1'",
    "folder = 'Norway' or width >= 130",
    "year < 2003 or (good = true and not domain in ('d0', 'd2'))",
    "rare = 'it''s'",
)


def check_store(create: Callable[[Record], Store], reopen: Callable[[], Store]) -> None:
    """Check that a store satisfies the contract of `recollect.index.stores.base.Store`.

    >>> store = RamStore(Record(8, "model"))
    >>> check_store(lambda record: store.__init__(record) or store, lambda: store)

    Args:
        create: creates an empty store with the given record; called once.
        reopen: opens the created store again, as another process would.

    Raises:
        AssertionError: the message names the violated requirement.
    """
    store, reference = create(_RECORD), RamStore(_RECORD)
    assert isinstance(store, Store), f"{type(store).__name__} does not inherit from Store"
    index, expected = Index(store), Index(reference)
    _check_equal(index, expected, "empty store")
    before = index.version
    for each in (index, expected):
        each.insert(_rows(25))
        with each.store.writing():  # must be reentrant
            each.insert(_rows(15, first=25))
        each.insert(Rows(ids=list(_ODD_IDS), image_vectors=_unit(np.random.default_rng(9), len(_ODD_IDS))))
    assert index.version > before, "version grows with every change"
    _check_equal(index, expected, "after inserting rows")
    for each in (index, expected):
        each.insert(_rows(10, first=20, seed=1))
        each.remove([*_ODD_IDS[:4], "row 3"])
        each.restore([_ODD_IDS[0]])
        each.store.delete(["row 7", _ODD_IDS[5], "unknown id"])
    _check_equal(index, expected, "after replacing, removing, restoring and deleting rows")
    reopened = Index(reopen())
    assert reopened.record == _RECORD, "the record is stored"
    _check_equal(reopened, expected, "after reopening")
    assert reopened.verify() == [], "an intact store reports no damage"


def _check_equal(index: Index, expected: Index, what: str) -> None:
    assert len(index) == len(expected), f"{what}: count"
    assert index.texts == expected.texts, f"{what}: count of rows with a caption"
    assert sorted(index.ids) == sorted(expected.ids), f"{what}: scan visits every visible row once"
    assert index.ids == index.ids, f"{what}: scan order is stable"
    ids = sorted(expected.ids)
    stored = [*ids, *(each.id for each in expected.removed())]
    columns = [name for name in COLUMNS if "vector" not in name]
    found, right = (each.store.rows(ids, columns).to_pylist() for each in (index, expected))
    assert found == right, f"{what}: rows"
    assert {each.id for each in index.removed()} == {each.id for each in expected.removed()}, f"{what}: removed rows"
    kinds: tuple[By, ...] = ("image", "text")
    queries = _unit(np.random.default_rng(3), 5)
    for by in kinds:
        mine, theirs = (each.vectors(stored, by) for each in (index, expected))
        assert np.allclose(mine, theirs, atol=1e-5), f"{what}: vectors by {by}"
        for where in (None, *(each for each in _FILTERS if _matches(expected, each))):
            for read in kinds:
                found, right = (each.lookup(queries, 9, by, read, where=where) for each in (index, expected))
                name = f"{what}: nearest by {by} where {where}"
                assert found.ids.tolist() == right.ids.tolist(), name
                assert np.allclose(found.scores, right.scores, atol=1e-5), f"{name}: scores"
                mine, theirs = (np.asarray(each.vectors) for each in (found, right))
                assert np.allclose(mine, theirs, atol=1e-5), f"{name}: returned {read} vectors"
    for where in _FILTERS:
        if _matches(expected, where):
            chosen = set(expected.ids_where(where))
            assert set(index.ids_where(where)) == chosen, f"{what}: where {where}"
            tables = index.store.scan(["id", "image_vector"], parse_filter(where))
            scanned = {id for table in tables for id in table["id"].to_pylist()}
            assert scanned == chosen, f"{what}: scan of vectors where {where}"
            assert index.count_where(where) == len(chosen), f"{what}: count where {where}"
            with_caption = expected.store.count(captioned=True, where=parse_filter(where))
            assert index.store.count(captioned=True, where=parse_filter(where)) == with_caption, (
                f"{what}: count {where}"
            )


def _matches(index: Index, where: str) -> bool:
    return bool(index.store.ids(parse_filter(where)))


def _rows(count: int, first: int = 0, seed: int = 0) -> Rows:
    draw, numbers = np.random.default_rng([seed, first]), range(first, first + count)
    captions: Sequence[tuple[str, ...]] = [
        tuple(f"picture {n} of {'a cat' if j % 2 else 'an owl'}, {j}" for j in range(n % 4)) for n in numbers
    ]
    return Rows(
        ids=[f"row {n}" for n in numbers],
        image_vectors=_unit(draw, count),
        captions=captions,
        caption_vectors=[_unit(draw, len(each)) for each in captions],
        files=[[File(("emoji", "birds")[n % 2], f"{n}.png", f"/pictures/{n}.png", "/pictures")] for n in numbers],
        labels=[["cat", "pet"] if n % 3 else [] for n in numbers],
        folder=["Norway/Bergen" if n % 2 else "" for n in numbers],
        width=[100 + n for n in numbers],
        height=[0] * count,
        images=[bytes([n % 256, 0, 255]) if n % 3 else None for n in numbers],
        metadata=[
            {"year": 2000 + n, "domain": f"d{n % 3}", "good": n % 4 == 0} | ({"rare": "it's"} if n % 5 == 0 else {})
            for n in numbers
        ],
    )


def _unit(draw: np.random.Generator, count: int) -> np.ndarray:
    rows = draw.normal(size=(count, _WIDTH))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
