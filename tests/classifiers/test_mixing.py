import tracemalloc
import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect import classifiers
from recollect.classifiers.heads.mixing import best_weight, best_weight_of_intervals, correct_interval
from recollect.classifiers.heads.tip import best_mixture
from recollect_papers.peers.tip_x import TipX


def accuracy(base, extra, labels, weight):
    return np.mean(np.argmax(base + weight * extra, axis=1) == labels)


def scores(seed, rows=25, classes=4, coarse=False):
    generator = np.random.default_rng(seed)
    base, extra = generator.normal(size=(2, rows, classes))
    if coarse:  # many equal scores
        base, extra = np.round(base), np.round(extra)
    return base, extra, generator.integers(classes, size=rows)


def brute_force(base, extra, labels, low, high):
    """Return the best accuracy at weights between neighboring ties of any two classes in any row."""
    crossings = {low}
    for row in range(len(labels)):
        for one in range(base.shape[1]):
            for other in range(one):
                slope = extra[row, one] - extra[row, other]
                if slope:
                    crossings.add((base[row, other] - base[row, one]) / slope)
    inside = sorted(place for place in crossings if low <= place < high)
    ends = [*inside, high if np.isfinite(high) else inside[-1] + 2]
    return max(accuracy(base, extra, labels, (a + b) / 2) for a, b in pairwise(ends) if b > a)


@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([(0.0, np.inf), (1e-4, 1e2), (0.5, 0.9)]))
def test_no_weight_beats_the_sweep(seed, coarse, bounds):
    base, extra, labels = scores(seed, coarse=coarse)
    weight, share = best_weight(base, extra, labels, bounds)
    assert bounds[0] <= weight <= bounds[1]
    assert share == pytest.approx(brute_force(base, extra, labels, *bounds))
    assert accuracy(base, extra, labels, weight) == pytest.approx(share)


@pytest.mark.parametrize(
    ("base", "extra", "labels", "weight", "share"),
    [
        ([[1, 0, -2.5]], [[0, 1, 2]], [1], 1.75, 1.0),  # correct on (1, 2.5)
        ([[1, 0, -9], [1, 0, -2.5]], [[0, 1, 0], [0, 1, 2]], [0, 1], 1.25, 0.5),  # one row on (0, 1), one on (1, 2.5)
        ([[1, 0]], [[0, 1]], [1], 2.0, 1.0),  # correct above 1: twice the lower end
        ([[0, 1]], [[0, 0]], [1], 1.0, 1.0),  # correct everywhere
    ],
)
def test_the_answer_is_the_center_of_the_best_plateau(base, extra, labels, weight, share):
    base, extra = np.array(base, dtype=float), np.array(extra, dtype=float)
    assert best_weight(base, extra, np.array(labels)) == (pytest.approx(weight), share)


def test_the_first_of_equal_mixtures_wins():
    base, extra, labels = scores(0)
    rows = np.arange(len(labels))
    worse = extra.copy()
    worse[rows, labels] -= 9
    best = best_mixture([(rows, base[None], [worse, extra, extra])], labels, [(3.0,), (2.0,), (1.0,)])
    assert best.parameters == (2.0,)
    assert (best.weight, best.right) == best_weight(base, extra, labels)


def test_the_weight_avoids_a_tie_at_the_center_of_a_plateau():
    """One row turns wrong at 2 as another turns right: the plateau's center would tie both."""
    lower, upper = np.array([0.0, 2.0, 0.0]), np.array([2.0, 4.0, 4.0])
    weight, share = best_weight_of_intervals(lower, upper, (0.0, 4.0))
    assert share == np.mean((lower < weight) & (weight < upper)) == 2 / 3


@pytest.mark.parametrize(
    ("model", "limit"),
    [(classifiers.CrossValidatedTipAdapter(), 40e6), (TipX(alpha=1.0, beta=5.5, gamma=1.0), 25e6)],
    ids=str,
)
def test_fitting_stores_neither_the_scores_of_a_whole_grid_nor_all_pairs(model, limit):
    """24 sharpnesses x 1,600 rows x 200 classes in double precision take 61 MB and all pairs 20 MB, before copies."""
    random = np.random.default_rng(0)
    support = random.normal(size=(1600, 16))
    support /= np.linalg.norm(support, axis=1, keepdims=True)
    model.set_params(text_features=support[:200])
    tracemalloc.start()
    model.fit(support, np.arange(1600) % 200)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < limit


def test_a_denormal_slope_difference_gives_no_bound_and_no_warning():
    base, extra = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[5e-324, 0.0], [1.0, 0.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lower, upper = correct_interval(base, extra, np.array([0, 0]))
    assert lower[0] == np.inf
    assert (lower[1], upper[1]) == (-1.0, np.inf)
