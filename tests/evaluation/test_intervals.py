"""Confidence intervals of recalls with dependent queries, against the bootstrap over pictures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.evaluation.intervals import ClusterGroups


def mean_interval(hit, clusters):
    return ClusterGroups.of(hit, clusters).interval(least=0.0)


def gain_interval(hit, before, clusters):
    return ClusterGroups.of(hit.astype(int) - before.astype(int), clusters).interval(least=-1.0)


def gain_test(hit, before, clusters):
    return ClusterGroups.of(hit.astype(int) - before.astype(int), clusters).sign_test()


def five_captions(generator, pictures=200, share=0.3):
    """Return hits of five captions per picture, and their pictures, some easy and some hard."""
    easy = generator.beta(0.6 * share, 0.6 * (1 - share), pictures)
    return (generator.random((pictures, 5)) < easy[:, None]).ravel(), np.repeat(np.arange(pictures), 5)


def test_the_interval_matches_a_bootstrap_over_pictures():
    generator = np.random.default_rng(0)
    hit, clusters = five_captions(generator)
    low, high = mean_interval(hit, clusters)
    means = hit.reshape(200, 5)[generator.integers(0, 200, (4000, 200))].mean(axis=(1, 2))
    assert low == pytest.approx(np.quantile(means, 0.025), abs=0.006)
    assert high == pytest.approx(np.quantile(means, 0.975), abs=0.006)
    alone = mean_interval(hit, np.arange(1000))
    assert high - low > 1.3 * (alone[1] - alone[0])  # captions of one picture are not independent


def test_the_interval_has_its_nominal_coverage():
    generator, covered = np.random.default_rng(1), 0
    for _ in range(300):
        low, high = mean_interval(*five_captions(generator))
        covered += low <= 0.3 <= high
    assert 0.90 < covered / 300 < 0.985


@pytest.mark.parametrize("number", [1, 5, 125])
def test_no_hits_among_a_few_queries_leave_a_wide_interval(number):
    """Clopper and Pearson: the upper end is the recall at which all misses have a probability of 2.5 %."""
    nothing = np.zeros(number, dtype=bool)
    low, high = mean_interval(nothing, np.arange(number))
    assert low == 0
    assert (1 - high) ** number == pytest.approx(0.025)
    assert mean_interval(~nothing, np.arange(number)) == (pytest.approx(1 - high), 1.0)
    per_caption = mean_interval(np.repeat(nothing, 5), np.repeat(np.arange(number), 5))
    assert per_caption == (low, high)  # the same number of pictures
    unchanged = gain_interval(nothing, nothing, np.arange(number))
    assert unchanged == (pytest.approx(-high), pytest.approx(high))
    one_of_five, pictures = np.tile(np.arange(5) == 0, number), np.repeat(np.arange(number), 5)
    expected = (pytest.approx(max(0, 0.2 - high)), pytest.approx(min(1, 0.2 + high)))
    assert mean_interval(one_of_five, pictures) == expected  # wide too, although the queries differ
    assert gain_interval(one_of_five, np.zeros_like(one_of_five), pictures)[1] == expected[1]


@given(st.integers(0, 10_000), st.integers(2, 30))
def test_an_interval_contains_its_estimate(seed, number):
    generator = np.random.default_rng(seed)
    hit, before = generator.random((2, number)) < 0.5
    clusters = generator.integers(0, 5, number)
    low, high = mean_interval(hit, clusters)
    assert 0 <= low <= hit.mean() + 1e-12
    assert hit.mean() - 1e-12 <= high <= 1
    low, high = gain_interval(hit, before, clusters)
    assert -1 <= low <= high <= 1
    assert 0 < gain_test(hit, before, clusters) <= 1


def test_the_p_value_matches_random_signs_and_is_valid_under_the_null():
    generator = np.random.default_rng(2)
    hit, clusters = five_captions(generator, 60)
    before, _ = five_captions(generator, 60)
    gains = (hit.astype(int) - before.astype(int)).reshape(60, 5).sum(axis=1)
    sums = (gains * generator.choice([-1, 1], (20_000, 60))).sum(axis=1)
    wanted = (np.abs(sums) >= abs(gains.sum())).mean()
    assert gain_test(hit, before, clusters) == pytest.approx(wanted, abs=0.03)
    assert gain_test(hit, hit, clusters) == 1
    better = hit.copy()
    better[::5] = True
    assert gain_test(better, np.zeros_like(hit), clusters) < 0.001
    null_values = [gain_test(*five_captions(generator, 40)[:1], *five_captions(generator, 40)) for _ in range(200)]
    assert np.mean(np.array(null_values) < 0.05) < 0.11
