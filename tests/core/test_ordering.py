"""Stable sorting of scores and groups."""

import numpy as np

from recollect.core.ordering import best_first, stable_argsort


def test_ties_keep_their_order():
    assert best_first(np.array([0.5, 0.9, 0.5, 0.9])).tolist() == [1, 3, 0, 2]
    assert stable_argsort(np.array([2, 0, 2, 0, 1])).tolist() == [1, 3, 4, 0, 2]


def test_scores_are_sorted_along_the_last_axis():
    scores = np.array([[1.0, 3.0], [2.0, 0.0]])
    assert best_first(scores).tolist() == [[1, 0], [0, 1]]
