"""Where a bound of a search lies, to the last bit."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recollect.memory import Memory, Pairs
from recollect.memory.backends.matrix import within


def test_a_row_exactly_as_near_as_max_score_is_passed_over(tmp_path):
    memory = Memory.create(tmp_path / "memory", width=2, model="m")
    vectors = np.array([[1, 0], [0.5, np.sqrt(0.75)], [0, 1]], dtype=np.float32)
    memory.add(Pairs(["same", "half", "other"], vectors, vectors, ["a", "b", "c"], "m"))
    query = np.array([[1.0, 0.0]], dtype=np.float32)
    assert memory.search(query, k=3).scores[0, 1] == 0.5
    assert memory.search(query, k=1, max_score=0.5).ids.tolist() == [["other"]]
    above = float(np.nextafter(np.float32(0.5), np.float32(1)))
    assert memory.search(query, k=1, max_score=above).ids.tolist() == [["half"]]


@given(
    some=st.lists(st.integers(-5, 60), max_size=40),
    rising=st.lists(st.integers(0, 50), max_size=40, unique=True).map(sorted),
)
def test_within_says_what_isin_says(some, rising):
    one, other = np.array(some, dtype=np.int64), np.array(rising, dtype=np.int64)
    np.testing.assert_array_equal(within(one, other), np.isin(one, other))
