"""Where a bound of a search lies, to the last bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.memory import Memory, Pairs
from recollect.memory.backends.parts import within


def test_a_row_exactly_as_near_as_max_score_is_passed_over(tmp_path):
    memory = Memory.create(tmp_path / "memory", width=2, model="m")
    vectors = np.array([[1, 0], [0.5, np.sqrt(0.75)], [0, 1]], dtype=np.float32)
    memory.add(Pairs(["same", "half", "other"], vectors, vectors, ["a", "b", "c"], "m"))
    query = np.array([[1.0, 0.0]], dtype=np.float32)
    assert memory.search(query, k=3).scores[0, 1] == 0.5
    assert memory.search(query, k=1, max_score=0.5).ids.tolist() == [["other"]]
    above = float(np.nextafter(np.float32(0.5), np.float32(1)))
    assert memory.search(query, k=1, max_score=above).ids.tolist() == [["half"]]


def test_a_copy_is_a_near_duplicate_at_any_threshold_though_both_were_rounded(tmp_path):
    memory = Memory.create(tmp_path / "memory", width=48, model="m", precision="float16")
    rows = np.random.default_rng(0).normal(size=(30, 48)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    ids = [f"p{number}" for number in range(30)]
    memory.add(Pairs(ids, rows, rows, ["a"] * 30, "m"))
    assert sorted(memory.near_duplicates(rows, 1.0)) == sorted(ids)


@pytest.mark.parametrize("hidden", [40, 130, 298])
def test_however_many_rows_may_not_be_found_the_next_ones_are(tmp_path, hidden):
    """More than are asked for beyond k the first time, and more than the second: by score, by id and by picture."""
    angles = np.linspace(0, 1, 300)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    memory = Memory.create(tmp_path / "memory", width=2, model="m")
    pictures = [f"p{number}" for number in range(300)]
    memory.add(Pairs(pictures, vectors, vectors, ["a"] * 300, "m"))
    query, left = vectors[:1], pictures[hidden : hidden + 2]
    assert memory.search(query, 2, exclude_ids=pictures[:hidden]).ids.tolist() == [left]
    between = float((vectors[hidden - 1] @ vectors[0] + vectors[hidden] @ vectors[0]) / 2)
    assert memory.search(query, 2, max_score=between).ids.tolist() == [left]
    captions = Memory.create(tmp_path / "captions", width=2, model="m")
    ids = ["one", *(f"one#{number}" for number in range(1, hidden)), *left]
    captions.add(Pairs(ids, vectors[: hidden + 2], vectors[: hidden + 2], ["a"] * (hidden + 2), "m"))
    assert captions.search(query, 2, "text", exclude=["one"]).ids.tolist() == [left]


@given(
    some=st.lists(st.integers(-5, 60), max_size=40),
    rising=st.lists(st.integers(0, 50), max_size=40, unique=True).map(sorted),
)
def test_within_says_what_isin_says(some, rising):
    one, other = np.array(some, dtype=np.int64), np.array(rising, dtype=np.int64)
    np.testing.assert_array_equal(within(one, other), np.isin(one, other))
