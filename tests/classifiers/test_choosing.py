"""The choice of method, and none of these, by simulation."""

import numpy as np
import pytest

from recollect.classifiers.heads.methods import CANDIDATES, by_names, choose_method
from recollect.classifiers.heads.trust import INTERVAL_WIDTH, accuracy_interval, held_out_check, unknown_rule


def blobs(per_class, classes=4, width=16, seed=0, spread=0.8):
    generator = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(classes, width))
    labels = np.repeat(np.arange(classes), per_class)
    rows = centers[labels] + spread * generator.normal(size=(len(labels), width))
    unit = lambda x: (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)  # noqa: E731
    texts = unit(centers + 0.8 * np.random.default_rng(98).normal(size=centers.shape))
    return unit(rows), labels, texts


def test_the_choice_is_the_best_held_out_accuracy():
    for spread in (0.5, 1.2, 2.5):
        support, labels, texts = blobs(8, spread=spread)
        method, estimator, accuracies = choose_method(CANDIDATES, texts, 100.0, support, labels)
        assert accuracies[method] == max(accuracies.values()) == estimator.loo_accuracy_
        assert set(accuracies) == set(CANDIDATES)


@pytest.mark.parametrize(("good", "chosen"), [(True, "proker"), (False, "prototype")])
def test_at_one_shot_names_count_only_if_they_agree_with_the_examples(good, chosen):
    support, labels, texts = blobs(1, classes=12, width=64)
    if not good:
        texts = texts[np.roll(np.arange(12), 1)]
    method, estimator, accuracies = choose_method(CANDIDATES, texts, 100.0, support, labels)
    assert (method, accuracies) == (chosen, {})
    fresh, own, _ = blobs(20, classes=12, width=64, seed=5)
    means = (fresh @ support.T).argmax(axis=1) == own
    assert (estimator.predict(fresh) == own).mean() >= means.mean() - 0.02


@pytest.mark.parametrize("shots", [4, 16])
def test_the_nested_accuracy_is_that_of_fresh_pictures(shots):
    """In a world that is hard enough, choosing settings and measuring on the same examples is too high."""
    told, true, optimistic, inside = [], [], [], []
    for seed in range(10):
        support, labels, texts = blobs(shots, classes=8, width=64, seed=seed, spread=2.5)

        def learn(rows, own, texts=texts):
            return choose_method(CANDIDATES, texts, 100.0, rows, own)[1]

        found = held_out_check(learn, support, labels)
        fresh, own, _ = blobs(60, classes=8, width=64, seed=1000 + seed, spread=2.5)
        estimator = learn(support, labels)
        true.append((estimator.predict(fresh) == own).mean())
        told.append(found.accuracy)
        optimistic.append(estimator.loo_accuracy_)
        inside.append(found.low <= true[-1] <= found.high)
        assert found.examples == 8 * shots
    assert abs(np.mean(told) - np.mean(true)) < 0.04
    assert np.mean(inside) >= 0.8
    assert np.mean(optimistic) > np.mean(told)


def test_names_alone_are_as_sure_as_the_model():
    _, _, texts = blobs(1)
    logits = 7.0 * texts @ texts.T
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(by_names(texts, 7.0).predict_proba(texts), expected, rtol=1e-5)


def test_none_of_these_is_wrong_as_often_as_it_says():
    """Rejected pictures of the classes, and accepted pictures of classes that are not among them."""
    errors = []
    for seed in range(10):
        rows, labels, _ = blobs(12, classes=12, seed=seed, spread=0.8)
        fresh, own, _ = blobs(40, classes=12, seed=500 + seed, spread=0.8)
        rule = unknown_rule(rows[labels < 8], labels[labels < 8])
        assert 0.02 < rule.rejected <= 0.05
        rejected, accepted = rule.is_unknown(fresh[own < 8]).mean(), 1 - rule.is_unknown(fresh[own >= 8]).mean()
        errors.append([rejected - rule.rejected, accepted - rule.accepted, accepted])
    assert np.abs(np.mean(errors, axis=0)[:2]).max() < 0.05
    assert np.mean(errors, axis=0)[2] < 0.6


def test_the_rule_against_a_loop():
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
    assert unknown_rule(rows[:-2], labels[:-2]).accepted is None, "nine examples that can be held out"


def test_the_interval_is_wilsons_and_reaches_as_high_as_more_examples_may_lift_it():
    low, high = accuracy_interval(0.8, 50)
    z = INTERVAL_WIDTH * 1.959964
    for end in (low, high):  # the ends solve |p - share| = z sqrt(p (1 - p) / n)
        assert abs(end - 0.8) == pytest.approx(z * (end * (1 - end) / 50) ** 0.5)
    assert low < 0.8 < high
    from_half = accuracy_interval(0.8, 50, learned=0.5)
    assert from_half[0] == low
    assert from_half[1] == pytest.approx(accuracy_interval(1 - 0.2 * 0.5**0.5, 50)[1])
