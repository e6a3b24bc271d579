import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.core import nearest
from recollect.core.nearest import (
    ExactNeighbors,
    exact_neighbors,
    merge_neighbors,
    nearest_by_numpy,
    nearest_by_torch,
)


def loop(queries, matrix, k):
    """Rank all rows for each query by a stable sort, in double precision."""
    scores = queries.astype(np.float64) @ matrix.astype(np.float64).T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(scores, order, 1)


def test_ties_between_parts_are_broken_in_favor_of_the_earlier_part():
    parts = [
        ExactNeighbors(np.array([[start, start + 1]]), np.array([scores], dtype=np.float32))
        for start, scores in ((0, [0.5, 0.25]), (10, [0.75, 0.5]), (20, [0.5, 0.5]))
    ]
    found = merge_neighbors(parts, 4)
    assert found.rows.tolist() == [[10, 0, 11, 20]]
    assert found.scores.tolist() == [[0.75, 0.5, 0.5, 0.5]]
    assert merge_neighbors(parts[:1], 1).rows.tolist() == [[0]]


def in_blocks(probes, matrix, k, scores, group):
    before = nearest._SCORES, nearest._GROUP
    nearest._SCORES, nearest._GROUP = scores, group
    try:
        best, order = nearest_by_torch(torch.from_numpy(probes), matrix, k, None, None)
        return ExactNeighbors(order.numpy(), best.numpy())
    finally:
        nearest._SCORES, nearest._GROUP = before


@given(
    seed=st.integers(0, 10**6), queries=st.integers(1, 9), rows=st.integers(1, 700), k=st.integers(1, 12),
    scores=st.integers(1, 4000), group=st.sampled_from([1, 2, 7, 64]),
)  # fmt: skip
def test_block_and_group_sizes_do_not_affect_the_result(seed, queries, rows, k, scores, group):
    generator = np.random.default_rng(seed)
    probes, matrix = (generator.normal(size=(count, 5)).astype(np.float32) for count in (queries, rows))
    k = min(k, rows)
    found = in_blocks(probes, matrix, k, scores, group)
    order, best = loop(probes, matrix, k)
    np.testing.assert_array_equal(found.rows, order)
    np.testing.assert_allclose(found.scores, best, atol=1e-5)


@given(
    seed=st.integers(0, 10**6), rows=st.integers(1, 700), k=st.integers(1, 12), scores=st.integers(1, 4000),
    group=st.sampled_from([1, 2, 7, 64]), values=st.integers(1, 3),
)  # fmt: skip
def test_ties_are_broken_in_favor_of_the_earlier_row(seed, rows, k, scores, group, values):
    """So a longer list of copies of one picture starts with the shorter one. Products of integers are exact."""
    generator = np.random.default_rng(seed)
    probes, matrix = (generator.integers(-values, values + 1, (n, 3)).astype(np.float32) for n in (4, rows))
    k = min(k, rows)
    found = in_blocks(probes, matrix, k, scores, group)
    np.testing.assert_array_equal(found.rows, loop(probes, matrix, k)[0])
    np.testing.assert_array_equal(nearest_by_numpy(probes, matrix, k, None, None)[1], found.rows)


def test_many_queries_are_searched_in_several_passes(monkeypatch):
    monkeypatch.setattr(nearest, "_QUERIES", 3)
    generator = np.random.default_rng(0)
    probes, matrix = (generator.normal(size=(count, 4)).astype(np.float32) for count in (10, 50))
    np.testing.assert_array_equal(exact_neighbors(probes, matrix, 4).rows, loop(probes, matrix, 4)[0])


@pytest.mark.parametrize("among", [None, np.arange(0, 300, 2)])
def test_given_norms_turn_products_into_cosines(among):
    generator = np.random.default_rng(2)
    probes, matrix = (generator.normal(size=(count, 16)).astype(np.float32) for count in (6, 300))
    probes /= np.linalg.norm(probes, axis=1, keepdims=True)
    norms = np.linalg.norm(matrix.astype(np.float64), axis=1)
    found = exact_neighbors(probes, matrix, 9, among, norms=norms.astype(np.float32))
    rows = np.arange(300) if among is None else among
    order, cosines = loop(probes, matrix[rows] / norms[rows, None], 9)
    np.testing.assert_array_equal(found.rows, rows[order])
    np.testing.assert_allclose(found.scores, cosines, atol=18 * 2**-24)  # 16 products, a sum and a division


@pytest.mark.usefixtures("unchecked")
def test_mismatched_shapes_are_rejected():
    matrix = np.zeros((3, 4), dtype=np.float32)
    with pytest.raises(ValueError, match=r"\(1, 5\) and rows \(3, 4\)"):
        exact_neighbors(np.zeros((1, 5), dtype=np.float32), matrix, 1)
    with pytest.raises(ValueError, match="k = 4, but 3 rows"):
        exact_neighbors(matrix, matrix, 4)


@given(
    seed=st.integers(0, 10**6), queries=st.integers(1, 4), rows=st.integers(1, 2500), k=st.integers(1, 12),
    half=st.booleans(), some=st.booleans(), normed=st.booleans(),
)  # fmt: skip
def test_numpy_search_matches_a_sort(seed, queries, rows, k, half, some, normed):
    generator = np.random.default_rng(seed)
    probes, matrix = (generator.integers(-3, 4, size=(count, 5)).astype(np.float32) for count in (queries, rows))
    matrix = matrix.astype(np.float16) if half else matrix
    among = np.flatnonzero(generator.random(rows) < 0.7) if some else None
    among = None if among is not None and not len(among) else among
    norms = generator.integers(1, 3, size=rows).astype(np.float32) if normed else None
    k = min(k, rows if among is None else len(among))
    scores, places = nearest_by_numpy(probes, matrix, k, among, norms)
    searched = matrix.astype(np.float32) if norms is None else matrix.astype(np.float32) / norms[:, None]
    order, best = loop(probes, searched if among is None else searched[among], k)
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(scores, best)
