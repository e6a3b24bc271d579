"""Temperatures, calibration error, conformal sets and hold-out plans, against plain references."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.base import clone

from classifiers.worlds import CLASSIFIERS, unit, world
from recollect import classifiers
from recollect.classifiers.heads import base, calibration
from recollect.classifiers.heads.calibration import (
    conformal_groups,
    expected_calibration_error,
    fit_temperature,
    set_thresholds,
)
from recollect.classifiers.heads.holdout import HoldOut
from recollect_papers.peers.mixtures import DualMemory, GaussianDiscriminant


def with_texts(model, texts):
    return model.set_params(text_features=texts) if "text_features" in model.get_params() else model


def fitted(name, counts=(10, 10, 10)):
    support, labels, queries, query_labels, texts = world(counts, queries=60, noise=1.2, seed=1)
    return with_texts(getattr(classifiers, name)(), texts).fit(support, labels), labels, queries, query_labels


class_counts = st.lists(st.integers(1, 9), min_size=2, max_size=6)


@given(class_counts, st.integers(0, 99))
def test_every_example_but_the_only_one_of_a_class_is_held_out_once(counts, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    plan = HoldOut.of(labels)
    assert plan.rows.tolist() == [row for row, label in enumerate(labels) if counts[label] > 1]
    chosen = []
    for learn, choose in plan.folds():
        assert not set(learn) & set(choose)
        assert set(labels[learn]) == set(labels)
        chosen += choose.tolist()
    assert sorted(chosen) == plan.rows.tolist()
    positions, absent = plan.absent(plan.rows)
    assert {(row, row) for row in plan.rows} <= set(zip(plan.rows[positions], absent, strict=True))
    sums = np.zeros((len(plan.rows), len(counts)))
    for position, row in enumerate(plan.rows):
        left = np.setdiff1d(np.arange(len(labels)), absent[positions == position])
        sums[position] = np.bincount(labels[left], minlength=len(counts))
        assert row not in left
    np.testing.assert_allclose(plan.kept(plan.rows) * np.array(counts), sums)
    assert plan.leave_one_out == (max(counts) > 4)


@given(st.integers(0, 10**6), st.sampled_from([0.01, 1.0, 300.0]))
def test_the_temperature_maximizes_the_smoothed_likelihood(seed, scale):
    generator = np.random.default_rng(seed)
    labels = generator.integers(4, size=30)
    logits = scale * (generator.normal(size=(30, 4)) + 1.5 * np.eye(4)[labels])
    targets = np.full((30, 4), 1 / 31 / 4)
    targets[np.arange(30), labels] += 30 / 31

    def loss(log_sharpness):
        return -(targets * log_softmax(np.exp(log_sharpness) * logits, axis=1)).sum()

    best = minimize_scalar(loss, bounds=(-15 - np.log(scale), 8 - np.log(scale)), method="bounded",
                           options={"xatol": 1e-9})  # fmt: skip
    fitted_loss = loss(-np.log(fit_temperature(logits, labels)))
    assert fitted_loss <= best.fun + 1e-5 * abs(best.fun)


def test_misleading_scores_get_nearly_flat_probabilities():
    logits = np.array([[3.0, 0.0, 1.0], [0.0, 2.0, 1.0]])
    temperature = fit_temperature(logits, np.array([1, 0]))
    assert np.isfinite(temperature)
    assert np.abs(logits / temperature).max() < 0.01
    assert fit_temperature(np.zeros((3, 2)), np.array([0, 1, 0])) == 1.0
    assert np.isfinite(fit_temperature(np.eye(3), np.arange(3)))  # no errors, but no temperature of zero


def test_the_calibration_error_matches_a_loop():
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet(np.ones(3), size=200)
    labels = generator.integers(3, size=200)
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    expected = 0.0
    for low in np.arange(15) / 15:
        inside = (confidence >= low) & (confidence < low + 1 / 15)
        if inside.any():
            expected += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    assert expected_calibration_error(probabilities, labels) == pytest.approx(expected)


@given(st.integers(0, 10**6))
def test_a_set_contains_the_classes_whose_conformal_p_value_exceeds_alpha(seed):
    """The p-value counts the held-out examples of the class's group that fit no better."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(3, size=12)
    known, scores = generator.integers(5, size=12) / 4, generator.integers(5, size=(6, 4)) / 4
    for alpha in (0.1, 0.21, 0.34, 0.6, 1e-12, 1 - 1e-12):
        group = conformal_groups(np.bincount(labels, minlength=4), alpha)
        included = scores >= set_thresholds(known, labels, 4, alpha)
        for query in range(6):
            for label in range(4):
                group_scores = known[group[labels] == group[label]]
                p = (1 + (group_scores <= scores[query, label]).sum()) / (len(group_scores) + 1)
                assert included[query, label] == (p > alpha)


@pytest.mark.parametrize("name", ["PrototypeClassifier", "ProKeR"])
def test_sets_from_four_shots_rule_classes_out_and_reach_the_promised_coverage(name):
    """Four examples of one class cannot rule it out at alpha = 0.1, but examples pooled over classes can."""
    coverage, sizes = [], []
    for seed in range(12):
        support, labels, queries, query_labels, texts = world((4,) * 8, width=24, queries=100, noise=0.9, seed=seed)
        model = with_texts(getattr(classifiers, name)(), texts)
        included = model.fit(support, labels).predict_set(queries, 0.1)
        coverage.append(included[np.arange(100), query_labels].mean())
        sizes.append(included.sum(axis=1).mean())
    assert 0.85 < np.mean(coverage) < 0.99
    assert np.mean(sizes) < 5


CLOSED_FORMS = [
    classifiers.PrototypeClassifier(),
    classifiers.PrototypeClassifier(cosine=True),
    GaussianDiscriminant(alpha=0.4),
    DualMemory(alpha=0.7),
    classifiers.PluralityVoting(k=3),
    classifiers.SoftmaxVoting(k=5),
    classifiers.RankVoting(k=40),
    classifiers.ZeroShotMix(classifiers.SoftmaxVoting(k=5), weight=0.7),
]


@pytest.mark.parametrize("counts", [(6, 7, 5), (9, 1, 6), (4, 3, 4), (1, 2, 3)], ids=str)
@pytest.mark.parametrize("texts_given", [True, False], ids=["texts", "means"])
@pytest.mark.parametrize("model", CLOSED_FORMS, ids=lambda model: str(model)[:40])
def test_held_out_scores_are_those_of_a_classifier_that_never_saw_the_row(model, counts, texts_given):
    support, labels, _, _, texts = world(counts)
    if isinstance(model, DualMemory) and not texts_given and max(counts) > 4:
        pytest.skip("its memory holds the texts; with class means instead, it is evaluated on folds")
    model = with_texts(clone(model), texts if texts_given else None).fit(support, labels)
    plan = HoldOut.of(labels)
    for position, row in enumerate(model.loo_rows_):
        learn = np.setdiff1d(np.arange(len(labels)), plan.absent(np.array([row]))[1])
        alone = clone(model).fit(support[learn], labels[learn])
        expected = alone.scores(support[row : row + 1])[0]
        np.testing.assert_allclose(model.loo_scores_[position], expected, rtol=1e-7, atol=2e-9)


@pytest.mark.parametrize("name", CLASSIFIERS)
class TestEveryMethod:
    def test_the_held_out_accuracy_is_close_to_that_on_new_rows(self, name):
        model, labels, queries, query_labels = fitted(name)
        assert model.loo_scores_.shape == (30, 3)
        assert model.loo_accuracy_ == (model.loo_scores_.argmax(axis=1) == labels).mean()
        measured = (model.predict(queries) == query_labels).mean()
        assert abs(model.loo_accuracy_ - measured) < 0.3  # three standard errors of 30 and 60 rows
        assert 0 <= model.loo_ece_ < 0.4

    def test_probabilities_follow_the_scores(self, name):
        model, _, queries, _ = fitted(name)
        probabilities = model.predict_proba(queries)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
        np.testing.assert_array_equal(probabilities.argmax(axis=1), model.scores(queries).argmax(axis=1))

    def test_sets_shrink_with_alpha_and_mostly_contain_the_class(self, name):
        model, _, queries, query_labels = fitted(name)
        loose, tight = model.predict_set(queries, 0.4), model.predict_set(queries, 0.1)
        assert (tight >= loose).all()
        assert tight[np.arange(60), query_labels].mean() > 0.75
        assert model.predict_set(queries, 0.03).all()  # thirty examples cannot rule out at 3 in 100
        with pytest.raises(ValueError):
            model.predict_set(queries, 1.0)

    def test_one_shot_has_no_held_out_figures(self, name):
        model, _, queries, _ = fitted(name, counts=(1, 1, 1))
        assert len(model.loo_rows_) == 0
        assert np.isnan([model.loo_accuracy_, model.loo_ece_]).all()
        assert model.predict_set(queries, 0.1).all()
        assert (model.known_p(queries) == 1).all()
        assert np.isfinite(model.predict_proba(queries)).all()


def one_shot_world(likeness, classes=40, width=24, queries=1000):
    """Return support, labels, queries, query labels and class means, which have the share ``likeness`` of the variance.

    Channels differ in spread and all rows share a direction, as embeddings do.
    """
    generator = np.random.default_rng(0)
    spread = np.geomspace(2, 0.3, width)
    means = np.sqrt(likeness) * spread * generator.normal(size=(classes, width))
    query_labels = generator.integers(classes, size=queries)

    def around(which):
        return unit(5 + means[which] + np.sqrt(1 - likeness) * spread * generator.normal(size=(len(which), width)))

    return around(np.arange(classes)), np.arange(classes), around(query_labels), query_labels, unit(5 + means)


@pytest.mark.parametrize("name", ["PrototypeClassifier", "SoftmaxVoting", "ProKeR"])
@pytest.mark.parametrize("likeness", [0.4, 0.7])
def test_one_shot_confidence_is_calibrated_where_the_assumed_likeness_holds(name, likeness, monkeypatch):
    monkeypatch.setattr(base, "CLASS_CORRELATION", likeness)
    support, labels, queries, query_labels, texts = one_shot_world(likeness)
    model = with_texts(getattr(classifiers, name)(), texts).fit(support, labels)
    right, sure = (model.predict(queries) == query_labels).mean(), model.predict_proba(queries).max(axis=1).mean()
    assert sure == pytest.approx(right, abs=0.1)
    assert right > 0.1


def test_synthetic_supports_for_thousands_of_examples_need_little_memory(monkeypatch):
    monkeypatch.setattr(base, "CLASS_CORRELATION", 0.0)
    generator = np.random.default_rng(0)
    spread = generator.normal(size=(3000, 6)) @ np.diag([3, 1, 1, 1, 1, 0.3]) @ generator.normal(size=(6, 6))
    support = base.unit_or_zero(50 + spread)
    tracemalloc.start()
    samples = base.synthetic_examples(support, generator)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * support.nbytes, "a matrix of all pairs would take 500 times as much"
    expected = np.cov(support.T)
    np.testing.assert_allclose(np.cov(samples.T), expected, atol=0.1 * np.abs(expected).max())


def test_fitting_a_temperature_in_blocks_gives_the_same_value(monkeypatch):
    generator = np.random.default_rng(0)
    labels = generator.integers(6, size=90)
    logits = generator.normal(size=(90, 6))
    logits[np.arange(90), labels] += 1
    at_once = fit_temperature(logits, labels)
    monkeypatch.setattr(calibration, "SCORES_PER_BLOCK", 6 * 7)
    assert fit_temperature(logits, labels) == pytest.approx(at_once, rel=1e-9)
