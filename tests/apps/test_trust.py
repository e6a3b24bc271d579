"""Confidence, sets and none of these, against slow references and simulation."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from recollect.apps.classify.choosing import choose, left_out
from recollect.apps.classify.trust import (
    calibration_error,
    class_p_values,
    inverse_temperature,
    least_similarity,
)
from recollect.fewshot.base import softmax
from recollect.fewshot.protocol import FEW_SHOT_METHODS


def blobs(per_class, classes=4, width=16, seed=0, spread=0.8):
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(classes, width))
    labels = np.repeat(np.arange(classes), per_class)
    rows = centres[labels] + spread * generator.normal(size=(len(labels), width))
    unit = lambda x: (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)  # noqa: E731
    texts = unit(centres + 0.8 * np.random.default_rng(98).normal(size=centres.shape))
    return unit(rows), labels, texts


@pytest.mark.parametrize("method", ["prototype", "tip-adapter", "gda"])
def test_left_out_scores_are_those_of_a_fit_without_the_example(method):
    support, labels, texts = blobs(4)
    found = left_out(method, texts, 100.0, support, labels)
    assert found.how == "exact"
    for row in range(len(labels)):
        rest = np.arange(len(labels)) != row
        one = FEW_SHOT_METHODS[method](texts, 100.0).fit_checked(support[rest].astype(np.float64), labels[rest])
        expected = one.scores(support[row : row + 1].astype(np.float64))[0]
        np.testing.assert_allclose(found.scores[row], expected, rtol=2e-3, atol=2e-3)


def test_a_lone_example_is_not_left_out():
    support, labels, texts = blobs(3)
    keep = np.concatenate([np.flatnonzero(labels > 0), [0]])
    found = left_out("prototype", texts, 100.0, support[keep], labels[keep])
    assert 0 not in found.labels
    assert len(found.labels) == 9
    first = np.array([0, 3, 6, 9])
    assert left_out("prototype", texts, 100.0, support[first], labels[first]) is None


def test_the_choice_is_the_best_left_out_accuracy():
    support, labels, texts = blobs(8, spread=1.2)
    method, found, accuracies = choose(("zero-shot", "prototype", "gda"), texts, 100.0, support, labels)
    assert accuracies[method] == max(accuracies.values()) == found.accuracy


def test_the_inverse_temperature_is_the_minimum_of_the_likelihood():
    generator = np.random.default_rng(0)
    scores, labels = generator.normal(size=(60, 5)), generator.integers(5, size=60)
    scores[np.arange(60), labels] += 1.5
    right = 61 / 62
    wanted = np.full(scores.shape, (1 - right) / 4)
    wanted[np.arange(60), labels] = right
    slow = minimize_scalar(
        lambda t: -(wanted * np.log(softmax(t * scores))).sum(), bounds=(0, 50), options={"xatol": 1e-10}
    ).x
    assert inverse_temperature(scores, labels) == pytest.approx(slow, rel=1e-5)


def test_scores_that_say_nothing_give_no_confidence_and_perfect_ones_no_certainty():
    labels = np.arange(20) % 2
    against = np.eye(2)[1 - labels]
    assert inverse_temperature(against, labels) == 0.0
    perfect = np.eye(2)[labels]
    confidence = softmax(inverse_temperature(perfect, labels) * perfect).max()
    assert confidence == pytest.approx(21 / 22, abs=1e-6)


def test_calibration_error_by_hand():
    probabilities = np.array([[0.85, 0.15], [0.85, 0.15], [0.35, 0.65], [0.35, 0.65]])
    assert calibration_error(probabilities, np.array([0, 1, 1, 1])) == pytest.approx(0.5 * 0.35 + 0.5 * 0.35)


def test_p_values_by_counting():
    generator = np.random.default_rng(1)
    known, queries = generator.dirichlet(np.ones(3), 30), generator.dirichlet(np.ones(3), 7)
    labels = generator.integers(2, size=30)  # no example of the third class
    values = class_p_values(known, labels, queries)
    for q in range(7):
        for c in range(3):
            own = known[labels == c, c]
            assert values[q, c] == (1 + sum(own <= queries[q, c])) / (len(own) + 1)
    assert (values[:, 2] == 1).all()


def test_sets_cover_every_class_and_shrink_with_examples():
    sizes = []
    for per_class in (4, 12, 24):
        covered, size = [], []
        for seed in range(12):
            support, labels, texts = blobs(per_class, seed=seed, spread=1.0)
            new, truth, _ = blobs(40, seed=1000 + seed, spread=1.0)
            found = left_out("prototype", texts, 100.0, support, labels)
            t = inverse_temperature(found.scores, found.labels)
            model = FEW_SHOT_METHODS["prototype"](texts, 100.0).fit_checked(support, labels)
            sets = class_p_values(softmax(t * found.scores), labels, softmax(t * model.scores(new))) > 0.1
            covered.append(sets[np.arange(len(truth)), truth])
            size.append(sets.sum(1).mean())
        for c in range(4):  # class by class: 0.9 within the noise of 12 draws
            assert np.concatenate(covered)[np.tile(truth, 12) == c].mean() >= 0.85
        sizes.append(np.mean(size))
    assert sizes[0] == 4, "four examples of a class can rule out nothing at 0.1"
    assert sizes[2] < sizes[1] < sizes[0]


def test_few_of_the_known_and_most_of_the_unknown_are_none_of_these():
    known_flags, unknown_flags = [], []
    for seed in range(10):
        support, _, _ = blobs(25, seed=seed, spread=0.5)
        threshold, rate = least_similarity(support, 0.05)
        assert rate <= 0.05
        new, _, _ = blobs(50, seed=500 + seed, spread=0.5)
        noise = np.random.default_rng(seed).normal(size=(100, 16))
        noise /= np.linalg.norm(noise, axis=1, keepdims=True)
        known_flags.append((new @ support.T).max(1) < threshold)
        unknown_flags.append((noise @ support.T).max(1) < threshold)
    assert np.mean(known_flags) < 0.08
    assert np.mean(unknown_flags) > 0.9
    assert least_similarity(support[:1]) == (-1.0, 0.0)
