"""Simulations of method choice, held-out accuracy and the rule for unknown classes."""

import numpy as np
import pytest

from index_rows import unit
from recollect.classifiers.heads.methods import CANDIDATES, choose_method, text_classifier
from recollect.classifiers.heads.trust import INTERVAL_WIDTH, accuracy_interval, held_out_check, unknown_rule


def blobs(per_class, classes=4, width=16, seed=0, spread=0.8):
    generator = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(classes, width))
    labels = np.repeat(np.arange(classes), per_class)
    rows = centers[labels] + spread * generator.normal(size=(len(labels), width))
    texts = unit(centers + 0.8 * np.random.default_rng(98).normal(size=centers.shape))
    return unit(rows), labels, texts


def test_the_method_with_the_best_held_out_accuracy_is_chosen():
    for spread in (0.5, 1.2, 2.5):
        support, labels, texts = blobs(8, spread=spread)
        method, estimator, accuracies = choose_method(CANDIDATES, texts, 100.0, support, labels)
        assert accuracies[method] == max(accuracies.values()) == estimator.loo_accuracy_
        assert set(accuracies) == set(CANDIDATES)


@pytest.mark.parametrize("good", [True, False])
def test_one_shot_uses_class_names_only_if_they_agree_with_the_examples(good):
    support, labels, texts = blobs(1, classes=12, width=64)
    if not good:
        texts = texts[np.roll(np.arange(12), 1)]
    method, estimator, accuracies = choose_method(CANDIDATES, texts, 100.0, support, labels)
    assert (method, accuracies, bool(estimator.text_weight_)) == ("proker", {}, good)
    queries, query_labels, _ = blobs(20, classes=12, width=64, seed=5)
    means = (queries @ support.T).argmax(axis=1) == query_labels
    assert (estimator.predict(queries) == query_labels).mean() >= means.mean() - 0.02


@pytest.mark.parametrize("shots", [4, 16])
def test_nested_accuracy_matches_that_on_new_pictures(shots):
    """On hard data, the accuracy on the examples used to choose the settings is too high."""
    nested, actual, optimistic, covered = [], [], [], []
    for seed in range(10):
        support, labels, texts = blobs(shots, classes=8, width=64, seed=seed, spread=2.5)

        def learn(rows, row_labels, texts=texts):
            return choose_method(CANDIDATES, texts, 100.0, rows, row_labels)[1]

        check = held_out_check(learn, support, labels)
        queries, query_labels, _ = blobs(60, classes=8, width=64, seed=1000 + seed, spread=2.5)
        estimator = learn(support, labels)
        actual.append((estimator.predict(queries) == query_labels).mean())
        nested.append(check.accuracy)
        optimistic.append(estimator.loo_accuracy_)
        covered.append(check.low <= actual[-1] <= check.high)
        assert check.examples == 8 * shots
    assert abs(np.mean(nested) - np.mean(actual)) < 0.04
    assert np.mean(covered) >= 0.8
    assert np.mean(optimistic) > np.mean(nested)


def test_names_alone_give_the_softmax_of_the_model():
    _, _, texts = blobs(1)
    logits = 7.0 * texts @ texts.T
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(text_classifier(texts, 7.0).predict_proba(texts), expected, rtol=1e-5)


def test_the_unknown_rule_errs_as_often_as_estimated():
    """Its errors are rejected pictures of known classes and accepted pictures of unknown ones."""
    errors = []
    for seed in range(10):
        rows, labels, _ = blobs(12, classes=12, seed=seed, spread=0.8)
        queries, query_labels, _ = blobs(40, classes=12, seed=500 + seed, spread=0.8)
        rule = unknown_rule(rows[labels < 8], labels[labels < 8])
        assert 0.02 < rule.rejected <= 0.05
        unknown = rule.is_unknown(queries)
        rejected, accepted = unknown[query_labels < 8].mean(), 1 - unknown[query_labels >= 8].mean()
        errors.append([rejected - rule.rejected, accepted - rule.accepted, accepted])
    assert np.abs(np.mean(errors, axis=0)[:2]).max() < 0.05
    assert np.mean(errors, axis=0)[2] < 0.6


def test_the_unknown_rule_matches_a_loop():
    rows, labels, _ = blobs(15, seed=2)
    rows, labels = rows[:-14], labels[:-14]  # the last class has one example
    known, others = [], []
    for place in range(len(rows)):
        rest = np.arange(len(rows)) != place
        cosines = {}
        for label in set(labels[rest]):
            mean = rows[rest & (labels == label)].mean(axis=0)
            cosines[label] = rows[place] @ mean / np.linalg.norm(mean)
        known.append(max(cosines.values()))
        others.append(max(value for label, value in cosines.items() if label != labels[place]))
    rule = unknown_rule(rows, labels)
    assert rule.threshold == pytest.approx(sorted(known)[1], abs=1e-6)  # the second of 46: 2 / 47 <= 0.05
    assert rule.rejected == pytest.approx(2 / 47)
    assert unknown_rule(rows[:9], labels[:9]).rejected is None
    rows, labels, _ = blobs(3, seed=2)
    assert unknown_rule(rows[:-2], labels[:-2]).accepted is None, "only nine examples can be held out"


def test_the_wilson_interval_allows_for_gains_from_the_examples_held_out():
    low, high = accuracy_interval(0.8, 50)
    z = INTERVAL_WIDTH * 1.959964
    for end in (low, high):  # the ends solve |p - share| = z sqrt(p (1 - p) / n)
        assert abs(end - 0.8) == pytest.approx(z * (end * (1 - end) / 50) ** 0.5)
    assert low < 0.8 < high
    from_half = accuracy_interval(0.8, 50, learned=0.5)
    assert from_half[0] == low
    assert from_half[1] == pytest.approx(accuracy_interval(1 - 0.2 * 0.5**0.5, 50)[1])
