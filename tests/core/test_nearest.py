import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.core import nearest
from recollect.core.nearest import ExactNeighbors, best_of, best_of_all, exact_neighbors, nearest_by_numpy


def loop(queries, matrix, k):
    """Rank all rows of each query by sorting, in double precision."""
    scores = queries.astype(np.float64) @ matrix.astype(np.float64).T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(scores, order, 1)


def test_of_equal_ones_in_several_places_the_first_place_comes_first():
    parts = [
        ExactNeighbors(np.array([[start, start + 1]]), np.array([scores], dtype=np.float32))
        for start, scores in ((0, [0.5, 0.25]), (10, [0.75, 0.5]), (20, [0.5, 0.5]))
    ]
    found = best_of_all(parts, 4)
    assert found.rows.tolist() == [[10, 0, 11, 20]]
    assert found.scores.tolist() == [[0.75, 0.5, 0.5, 0.5]]
    assert best_of_all(parts[:1], 1).rows.tolist() == [[0]]


def in_blocks(asked, matrix, k, scores, group):
    before = nearest._SCORES, nearest._GROUP
    nearest._SCORES, nearest._GROUP = scores, group
    try:
        return exact_neighbors(asked, matrix, k, device=torch.device("cpu"))
    finally:
        nearest._SCORES, nearest._GROUP = before


@given(
    seed=st.integers(0, 10**6), queries=st.integers(1, 9), rows=st.integers(1, 700), k=st.integers(1, 12),
    scores=st.integers(1, 4000), group=st.sampled_from([1, 2, 7, 64]),
)  # fmt: skip
def test_blocks_and_groups_change_nothing(seed, queries, rows, k, scores, group):
    generator = np.random.default_rng(seed)
    asked, matrix = (generator.normal(size=(count, 5)).astype(np.float32) for count in (queries, rows))
    k = min(k, rows)
    found = in_blocks(asked, matrix, k, scores, group)
    order, best = loop(asked, matrix, k)
    np.testing.assert_array_equal(found.rows, order)
    np.testing.assert_allclose(found.scores, best, atol=1e-5)


@given(
    seed=st.integers(0, 10**6), rows=st.integers(1, 700), k=st.integers(1, 12), scores=st.integers(1, 4000),
    group=st.sampled_from([1, 2, 7, 64]), values=st.integers(1, 3),
)  # fmt: skip
def test_of_equal_rows_the_first_are_found(seed, rows, k, scores, group, values):
    """Copies of one picture, say: a longer list then begins with the shorter one. Products of integers are exact."""
    generator = np.random.default_rng(seed)
    asked, matrix = (generator.integers(-values, values + 1, (n, 3)).astype(np.float32) for n in (4, rows))
    k = min(k, rows)
    found = in_blocks(asked, matrix, k, scores, group)
    np.testing.assert_array_equal(found.rows, loop(asked, matrix, k)[0])
    np.testing.assert_array_equal(nearest_by_numpy(asked, matrix, k, None, None)[1], found.rows)


def test_more_queries_than_fit_at_once(monkeypatch):
    monkeypatch.setattr(nearest, "_QUERIES", 3)
    generator = np.random.default_rng(0)
    asked, matrix = (generator.normal(size=(count, 4)).astype(np.float32) for count in (10, 50))
    np.testing.assert_array_equal(exact_neighbors(asked, matrix, 4).rows, loop(asked, matrix, 4)[0])


def test_among_some_rows_only_those_are_found():
    generator = np.random.default_rng(1)
    asked, matrix = (generator.normal(size=(count, 4)).astype(np.float32) for count in (5, 300))
    among = np.sort(generator.choice(300, size=120, replace=False))
    found = exact_neighbors(asked, matrix, 7, among)
    np.testing.assert_array_equal(found.rows, among[loop(asked, matrix[among], 7)[0]])


@given(seed=st.integers(0, 10**6), rows=st.integers(1, 200), queries=st.integers(1, 5), k=st.integers(1, 9))
def test_of_equal_ones_the_first_row_comes_first(seed, rows, queries, k):
    generator = np.random.default_rng(seed)
    asked, matrix = (generator.integers(-1, 2, size=(count, 3)).astype(np.float32) for count in (queries, rows))
    found = exact_neighbors(asked, matrix, min(k, rows))
    for positions, scores in zip(found.rows, found.scores, strict=True):
        for place in range(1, len(positions)):
            assert scores[place] < scores[place - 1] or positions[place] > positions[place - 1]


@pytest.mark.parametrize("among", [None, np.arange(0, 300, 2)])
def test_norms_make_cosines_of_products(among):
    generator = np.random.default_rng(2)
    asked, matrix = (generator.normal(size=(count, 16)).astype(np.float32) for count in (6, 300))
    asked /= np.linalg.norm(asked, axis=1, keepdims=True)
    norms = np.linalg.norm(matrix.astype(np.float64), axis=1)
    found = exact_neighbors(asked, matrix, 9, among, norms=norms.astype(np.float32))
    rows = np.arange(300) if among is None else among
    order, cosines = loop(asked, matrix[rows] / norms[rows, None], 9)
    np.testing.assert_array_equal(found.rows, rows[order])
    np.testing.assert_allclose(found.scores, cosines, atol=18 * 2**-24)  # 16 products, a sum and a division


@given(seed=st.integers(0, 10**6), columns=st.integers(1, 3000), k=st.integers(1, 8))
def test_the_best_of_a_long_row_are_those_of_topk(seed, columns, k):
    scores = torch.randn(3, columns, generator=torch.Generator().manual_seed(seed))
    k = min(k, columns)
    values, places = best_of(scores, k)
    expected = scores.topk(k, dim=1)
    assert torch.equal(values, expected.values)
    assert torch.equal(places, expected.indices)


@pytest.mark.usefixtures("unchecked")
def test_shapes_that_do_not_fit_are_named():
    matrix = np.zeros((3, 4), dtype=np.float32)
    with pytest.raises(ValueError, match=r"\(1, 5\) and rows \(3, 4\)"):
        exact_neighbors(np.zeros((1, 5), dtype=np.float32), matrix, 1)
    with pytest.raises(ValueError, match="k = 4, but 3 rows"):
        exact_neighbors(matrix, matrix, 4)


@given(
    seed=st.integers(0, 10**6), queries=st.integers(1, 4), rows=st.integers(1, 2500), k=st.integers(1, 12),
    half=st.booleans(), some=st.booleans(), normed=st.booleans(),
)  # fmt: skip
def test_without_torch_the_same_rows_are_found(seed, queries, rows, k, half, some, normed):
    generator = np.random.default_rng(seed)
    asked, matrix = (generator.integers(-3, 4, size=(count, 5)).astype(np.float32) for count in (queries, rows))
    matrix = matrix.astype(np.float16) if half else matrix
    among = np.flatnonzero(generator.random(rows) < 0.7) if some else None
    among = None if among is not None and not len(among) else among
    norms = generator.integers(1, 3, size=rows).astype(np.float32) if normed else None
    k = min(k, rows if among is None else len(among))
    scores, places = nearest_by_numpy(asked, matrix, k, among, norms)
    searched = matrix.astype(np.float32) if norms is None else matrix.astype(np.float32) / norms[:, None]
    order, best = loop(asked, searched if among is None else searched[among], k)
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(scores, best)
