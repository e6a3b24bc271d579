import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from recollect.data.batches.order import Plan, endless, mix, shuffled


@given(size=st.integers(1, 3000), key=st.integers(0, 2**62))
def test_a_shuffle_is_a_permutation(size, key):
    assert np.array_equal(np.sort(shuffled(np.arange(size), size, key)), np.arange(size))


@given(size=st.integers(1, 60), window=st.integers(1, 60), key=st.integers(0, 99))
def test_every_pass_is_a_permutation_and_no_window_contains_duplicates(size, window, key):
    order = endless(np.arange(7 * size), size, window, lambda turn: 1000 * key + turn)
    for turn in range(7):
        assert sorted(order[turn * size : (turn + 1) * size]) == list(range(size))
    if window <= size:
        assert all((order[distance:] != order[:-distance]).all() for distance in range(1, window))
    some = np.array([6 * size, 0, 3 * size + size // 2])
    assert np.array_equal(endless(some, size, window, lambda turn: 1000 * key + turn), order[some])


@given(shares=st.lists(st.floats(0.01, 1), min_size=1, max_size=4), batch_size=st.integers(1, 500), whole=st.booleans())
def test_no_step_takes_more_of_a_source_than_the_stated_maximum(shares, batch_size, whole):
    plan = Plan(tuple(share / sum(shares) for share in shares), batch_size, whole, 3)
    assert (plan.counts(np.arange(200)).max(0) <= np.array(plan.most)).all()


def test_all_permutations_of_five_items_are_equally_likely():
    orders = Counter(tuple(shuffled(np.arange(5), 5, key)) for key in range(1200))
    seen = [orders[order] for order in itertools.permutations(range(5))]
    assert chisquare(seen).pvalue > 1e-3


def test_neighbors_in_a_large_source_are_scattered():
    size = 10**9 + 7
    places = shuffled(np.arange(20_000) + 5 * 10**8, size, 1)
    assert places.min() >= 0
    assert places.max() < size
    assert len(np.unique(places)) == 20_000
    assert chisquare(np.bincount(places * 20 // size, minlength=20)).pvalue > 1e-3
    assert abs(np.corrcoef(places[:-1], places[1:])[0, 1]) < 0.03


def test_the_hash_matches_a_reference_and_depends_on_every_part():
    # splitmix64 with Python integers.
    def reference(*parts):
        state, bits = 0x9E3779B97F4A7C15, 2**64 - 1
        for part in parts:
            state = (state ^ part) * 0x9E3779B97F4A7C15 & bits
            state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & bits
            state = (state ^ (state >> 27)) * 0x94D049BB133111EB & bits
            state ^= state >> 31
        return state

    assert [int(value) for value in mix(5, np.arange(4), 7)] == [reference(5, i, 7) for i in range(4)]
    assert len({int(mix(1, 2)), int(mix(2, 1)), int(mix(1, 2, 0)), int(mix(1))}) == 4


@given(
    shares=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=5),
    batch_size=st.integers(1, 300),
    key=st.integers(0, 99),
)  # fmt: skip
def test_a_mixed_batch_has_the_right_size_and_each_share_rounded_up_or_down(shares, batch_size, key):
    counts = Plan(shares, batch_size, whole=False, key=key).counts(np.arange(50))
    exact = np.array(shares) / sum(shares) * batch_size
    assert (counts.sum(axis=1) == batch_size).all()
    assert (np.abs(counts - exact) < 1 + 1e-6).all()


def test_shares_are_exact_on_average():
    counts = Plan([0.301, 0.199, 0.5], 10, whole=False, key=3).counts(np.arange(40_000))
    np.testing.assert_allclose(counts.mean(axis=0), [3.01, 1.99, 5.0], atol=0.01)


def test_single_source_batches_occur_in_proportion_to_the_shares():
    counts = Plan([0.25, 0.5, 0.25], 32, whole=True, key=3).counts(np.arange(40_000))
    assert ((counts == 32).sum(axis=1) == 1).all()
    np.testing.assert_allclose((counts == 32).mean(axis=0), [0.25, 0.5, 0.25], atol=0.01)


@pytest.mark.parametrize("step", [0, 1, 4095, 4096, 4097, 9000])
@pytest.mark.parametrize("whole", [False, True])
def test_before_equals_the_sum_of_all_previous_steps(step, whole):
    plan = Plan([0.3, 0.7], 7, whole=whole, key=5)
    assert plan.before(step).tolist() == plan.counts(np.arange(step)).sum(axis=0).tolist()
    assert Plan([0.3, 0.7], 7, whole=whole, key=5).before(step).tolist() == plan.before(step).tolist()
