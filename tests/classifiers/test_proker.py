"""ProKeR (kernel ridge on the residual), against plain refits."""

import tracemalloc
import warnings

import numpy as np
import pytest

from classifiers.worlds import unit, world
from recollect.classifiers import ProKeR
from recollect.classifiers.heads import proker
from recollect.classifiers.heads.holdout import HoldOut
from recollect.classifiers.heads.kernel import Landmarks, RidgeTargets, ridge_path
from recollect.classifiers.heads.proker import trusted_text_weight

SETTINGS = {"bandwidth": 2.0, "ridge": 0.3, "text_weight": 1.7}


def refit(support, labels, texts, learn, queries, bandwidth=2.0, ridge=0.3, text_weight=1.7):
    """Compute the scores in plain NumPy from the examples at rows ``learn``."""
    one_hot = np.eye(len(texts))[labels[learn]]
    kernel = np.exp(-bandwidth * (1 - support[learn] @ support[learn].T)) + ridge * np.eye(len(learn))
    solved = np.linalg.inv(kernel) @ (one_hot - text_weight * support[learn] @ texts.T)
    return text_weight * queries @ texts.T + np.exp(-bandwidth * (1 - queries @ support[learn].T)) @ solved


def test_scores_follow_the_formula():
    support, labels, queries, _, texts = world()
    model = ProKeR(texts, **SETTINGS).fit(support, labels)
    expected = refit(support, labels, texts, np.arange(len(labels)), queries)
    np.testing.assert_allclose(model.scores(queries), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("counts", [(5, 5, 5, 5), (6, 1, 9), (3, 3, 3), (4, 2, 1, 3)], ids=str)
def test_held_out_scores_match_refits(counts):
    support, labels, _, _, texts = world(counts)
    model = ProKeR(texts, **SETTINGS).fit(support, labels)
    plan = HoldOut.of(labels)
    np.testing.assert_array_equal(model.loo_rows_, np.flatnonzero(np.bincount(labels)[labels] > 1))
    for position, row in enumerate(model.loo_rows_):
        absent = plan.absent(np.array([row]))[1]
        assert row in absent
        learn = np.setdiff1d(np.arange(len(labels)), absent)
        expected = refit(support, labels, texts, learn, support[row : row + 1])
        np.testing.assert_allclose(model.loo_scores_[position], expected[0], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("counts", [(6, 6, 6), (6, 1, 9), (3, 3, 3), (4, 2, 1)], ids=str)
@pytest.mark.parametrize("exact", [True, False], ids=["kernel", "landmarks"])
def test_the_search_scores_like_refits_at_every_ridge(counts, exact):
    """With all examples as landmarks, the features reproduce the kernel."""
    support, labels, _, _, texts = world(counts)
    plan, ridges = HoldOut.of(labels), np.array([1e-2, 0.5, 4.0])
    features = None if exact else Landmarks(support, 2.0)(support)
    for ridge, (ones, similarity) in zip(
        ridges, ridge_path(RidgeTargets(support, labels, texts), plan, 2.0, ridges, features), strict=True
    ):
        model = ProKeR(texts, bandwidth=2.0, ridge=ridge, text_weight=3.0).fit(support, labels)
        scores = ones + 3.0 * (support[plan.rows] @ texts.T - similarity)
        np.testing.assert_allclose(scores, model.loo_scores_, rtol=1e-4, atol=1e-4 if not exact else 1e-9)


def test_no_setting_on_the_grid_is_more_accurate():
    support, labels, _, _, texts = world((8, 8, 8, 8), noise=1.6)
    model = ProKeR(texts).fit(support, labels)
    for bandwidth in proker.BANDWIDTHS[::2]:
        for ridge in proker.RIDGES[::3]:
            for weight in np.geomspace(0.01, 100, 15):
                fixed = ProKeR(texts, bandwidth=bandwidth, ridge=ridge, text_weight=weight).fit(support, labels)
                assert fixed.loo_accuracy_ <= model.loo_accuracy_ + 1e-12


def test_ties_in_accuracy_go_to_the_least_squared_error_and_then_to_the_larger_ridge(monkeypatch):
    support, labels, _, _, texts = world((6, 6, 6), noise=0.3)

    monkeypatch.setattr(proker, "BANDWIDTHS", (0.5, 2.0, 8.0))
    monkeypatch.setattr(proker, "RIDGES", (1e-3, 0.03, 0.3, 10.0))

    def errors(model):
        return -model.loo_accuracy_, np.square(model.loo_scores_ - np.eye(3)[labels]).mean()

    chosen = ProKeR(texts).fit(support, labels)
    others = [
        errors(ProKeR(texts, bandwidth=bandwidth, ridge=ridge).fit(support, labels))
        for bandwidth in proker.BANDWIDTHS for ridge in proker.RIDGES
    ]  # fmt: skip
    assert sum(other[0] == -1.0 for other in others) > 6  # many settings make no error
    assert errors(chosen) == pytest.approx(min(others))

    def same_for_all_ridges(targets, plan, bandwidth, ridges, features):
        (first,) = ridge_path(targets, plan, 2.0, ridges[:1], features)
        return ((first[0].copy(), first[1].copy()) for _ in ridges)

    monkeypatch.setattr(proker, "ridge_path", same_for_all_ridges)
    assert ProKeR(texts).fit(support, labels).ridge_ == max(proker.RIDGES)


def test_the_one_shot_text_weight_follows_the_agreement_with_the_examples():
    """It is the slope of a regression through the origin minus its standard error, and at least zero."""
    generator = np.random.default_rng(0)
    similarity, labels = generator.normal(size=(6, 6)) + 2 * np.eye(6), np.arange(6)
    x = (similarity - similarity.mean(axis=1, keepdims=True)).ravel()
    y = (np.eye(6) - 1 / 6).ravel()
    slope = x @ y / (x @ x)
    error = np.sqrt(((y - slope * x) ** 2).sum() / 29 / (x @ x))
    assert trusted_text_weight(similarity, labels) == pytest.approx(slope - error)
    assert trusted_text_weight(-similarity, labels) == trusted_text_weight(np.zeros((6, 6)), labels) == 0


@pytest.mark.parametrize("noise", [0.3, 30.0], ids=["good texts", "random texts"])
def test_at_one_shot_proker_matches_the_better_of_names_and_class_means(noise):
    right = {"proker": [], "names": [], "means": []}
    for seed in range(20):
        generator = np.random.default_rng(seed)
        centers = generator.normal(size=(10, 40))
        support, queries = (unit(centers[rows] + 1.5 * generator.normal(size=(len(rows), 40)))
                            for rows in (np.arange(10), np.arange(200) % 10))  # fmt: skip
        texts = unit(centers + noise * generator.normal(size=centers.shape))
        scores = {"proker": ProKeR(texts).fit(support, np.arange(10)).scores(queries),
                  "names": queries @ texts.T, "means": queries @ support.T}  # fmt: skip
        for name, each in scores.items():
            right[name].append((each.argmax(axis=1) == np.arange(200) % 10).mean())
    means = {name: np.mean(each) for name, each in right.items()}
    assert means["proker"] > max(means["names"], means["means"]) - 0.03


@pytest.mark.parametrize("counts", [(6, 6, 6), (3, 3, 3), (6, 1, 4)], ids=str)
def test_extending_equals_refitting(counts):
    support, labels, queries, _, texts = world(counts)
    added, added_labels = queries[:3], np.array([0, 1, 1])
    model = ProKeR(texts, **SETTINGS).fit(support, labels).extend(added, added_labels)
    refitted = ProKeR(texts, **SETTINGS).fit(np.concatenate([support, added]), np.concatenate([labels, added_labels]))
    np.testing.assert_allclose(model.scores(queries), refitted.scores(queries), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(model.loo_scores_, refitted.loo_scores_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(model._exact_p(queries), refitted._exact_p(queries))
    assert model.temperature_ == pytest.approx(refitted.temperature_, rel=1e-4)


def test_invalid_examples_leave_the_classifier_unchanged():
    support, labels, queries, _, texts = world((5, 5, 5))
    model = ProKeR(texts, bandwidth=2.0, ridge=0.1, text_weight=1.0).fit(support, labels)
    before = model.scores(queries), model.predict_set(queries, 0.3)
    one = support[:1]
    new_class_without_its_text = (one, [7])
    for arguments in [new_class_without_its_text, (one, [0], texts[:2]), (one, [0, 1]), (one, [[0]]), (one, ["a"])]:
        with pytest.raises(ValueError):
            model.extend(*arguments)
        assert model.classes_.tolist() == [0, 1, 2]
        assert model.text_features is texts
        np.testing.assert_array_equal(model.scores(queries), before[0])
        np.testing.assert_array_equal(model.predict_set(queries, 0.3), before[1])
    assert model.extend(one, [0]).scores(queries).shape == before[0].shape


def test_extending_can_add_classes():
    support, labels, queries, _, texts = world((6, 6, 6))
    names = np.array(["bee", "cat", "eel"])[labels]
    model = ProKeR(**SETTINGS).fit(support, names).extend(queries[:2], ["ant", "dog"])
    assert model.classes_.tolist() == ["ant", "bee", "cat", "dog", "eel"]
    assert model.predict(queries[:2]).tolist() == ["ant", "dog"]
    with pytest.raises(ValueError):
        ProKeR(texts, **SETTINGS).fit(support, names).extend(queries[:1], ["ant"])


def test_conformal_p_values_match_refits_on_the_augmented_support():
    """Each query is added to the support with each label in turn."""
    support, labels, queries, _, texts = world((4, 3, 5), queries=4)
    model = ProKeR(texts, **SETTINGS).fit(support, labels)
    p_values = model._exact_p(queries)
    for number, query in enumerate(queries):
        for label in range(3):
            rows, row_labels = np.concatenate([support, query[None]]), np.append(labels, label)
            members = np.flatnonzero(row_labels == label)
            errors = []
            for row in members:
                learn = np.setdiff1d(np.arange(len(rows)), [row])
                errors.append(1 - refit(rows, row_labels, texts, learn, rows[row : row + 1])[0, label])
            worse = sum(error >= errors[-1] - 1e-12 for error in errors)
            assert p_values[number, label] == pytest.approx(worse / len(members))


def test_a_copy_of_an_example_ties_with_it():
    """Despite rounding, so no p-value for a class of n examples is below 2 / (n + 1)."""
    support, labels, _, _, texts = world((1, 2, 7), noise=1.5)
    model = ProKeR(texts, **SETTINGS).fit(support, labels)
    p_values = model._exact_p(support)[np.arange(len(labels)), labels]
    assert (p_values >= 2 / (np.bincount(labels)[labels] + 1) - 1e-12).all()


def test_large_supports_use_landmarks(monkeypatch):
    """With all examples as landmarks the result is exact; with fewer it is close."""
    support, labels, queries, query_labels, texts = world((12,) * 5, queries=80)
    exact = ProKeR(texts, **SETTINGS).fit(support, labels)
    monkeypatch.setattr(proker, "EXACT_ROWS", 10)
    approximate = ProKeR(texts, **SETTINGS).fit(support, labels)
    np.testing.assert_allclose(approximate.scores(queries), exact.scores(queries), atol=2e-4)
    np.testing.assert_allclose(approximate.loo_scores_, exact.loo_scores_, atol=2e-3)
    monkeypatch.setattr(proker, "LANDMARKS", 30)
    fewer = ProKeR(texts, **SETTINGS).fit(support, labels)
    assert fewer.coef_.shape[0] <= 30
    assert (fewer.predict(queries) == query_labels).mean() > (exact.predict(queries) == query_labels).mean() - 0.1
    grown = fewer.extend(queries[:1], query_labels[:1])
    assert len(grown.labels_) == 61
    assert grown.predict_set(queries).shape == (80, 5)


def test_fitting_many_examples_never_stores_all_their_features(monkeypatch):
    monkeypatch.setattr(proker, "EXACT_ROWS", 1_000)
    monkeypatch.setattr(proker, "LANDMARKS", 256)
    random, classes, count = np.random.default_rng(0), 8, 20_000
    support = unit(random.standard_normal((count, 8))).astype(np.float32)
    model = ProKeR(support[:classes], **SETTINGS)
    tracemalloc.start()
    model.fit(support, np.arange(count) % classes)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < count * 256 * 4  # of float32; the scores of the held-out examples are a thirtieth of that
    assert model.loo_scores_.dtype == np.float32


def test_duplicates_and_a_tiny_ridge_give_finite_scores():
    support, labels, _, _, texts = world((6, 6))
    twice, twice_labels = np.concatenate([support, support]), np.concatenate([labels, labels])
    model = ProKeR(texts, bandwidth=2.0, ridge=1e-9, text_weight=1.0).fit(twice, twice_labels)
    assert np.isfinite(model.scores(support)).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(ProKeR(texts).fit(unit(np.ones((4, 12))), [0, 0, 1, 1]).scores(support)).all()
