"""Published few-shot methods compared with loops in float64."""

import math

import numpy as np
import pytest
from scipy.special import rel_entr

from classifiers.test_proker import refit
from classifiers.test_references import CLASSES, WIDTH, slow_tip, softmax, unit, world  # noqa: F401 - world is a fixture
from recollect import classifiers
from recollect.classifiers.heads.holdout import HoldOut
from recollect_papers.peers.ape import ApeClassifier, ApeTrained, channel_scores
from recollect_papers.peers.proker import PublishedProKeR
from recollect_papers.peers.tip_x import TipX
from recollect_papers.peers.trained import ClipAdapter, TipAdapterF


def slow_tip_x(query, support, labels, texts, alpha, beta, gamma):
    """The published formula: distributions at temperature 0.5, divergences scaled to the range of the cosines."""

    def guess(image):
        return np.array(softmax([image @ text / 0.5 for text in texts]))

    def divergence(left, right):
        return float(rel_entr(guess(left), guess(right)).sum())

    pairs = [(a, b) for i, a in enumerate(support) for j, b in enumerate(support) if i != j]
    between, cosines = [divergence(a, b) for a, b in pairs], [a @ b for a, b in pairs]
    scores = slow_tip(query, support, labels, texts, alpha, beta, scale=100.0)
    for row, label in zip(support, labels, strict=True):
        share = (divergence(query, row) - min(between)) / (max(between) - min(between))
        scores[label] += gamma * -(share * (max(cosines) - min(cosines)) + min(cosines))
    return scores


def slow_ape(query, support, labels, texts, alpha, beta, gamma, channels=500 / 1024, similarity_weight=0.7):
    """The published formula: images in the criterion, no temperature for the keys, divergence in bits."""
    several = [[texts[c], *(row for row, own in zip(support, labels, strict=True) if own == c)] for c in range(CLASSES)]
    criterion = []
    for channel in range(WIDTH):
        pairs = [a[channel] * b[channel] for i in range(CLASSES) for j in range(CLASSES) if i != j
                 for a in several[i] for b in several[j]]  # fmt: skip
        variance = np.var(texts[:, channel], ddof=1)
        criterion.append(-similarity_weight * np.mean(pairs) + (1 - similarity_weight) * variance)
    kept = sorted(np.argsort(criterion)[::-1][: round(channels * WIDTH)])
    scores = [100 * query @ text for text in texts]
    for row, label in zip(support, labels, strict=True):
        guess = softmax([unit(row[kept]) @ unit(text[kept]) for text in texts])
        weight = math.exp(gamma * -math.log2(guess[label]))
        scores[label] += alpha * weight * math.exp(-beta * (1 - unit(query[kept]) @ unit(row[kept])))
    return scores


CASES = {
    "tip-x": (TipX(alpha=1.5, beta=3.0, gamma=0.8),
              lambda *a: slow_tip_x(*a, alpha=1.5, beta=3.0, gamma=0.8)),
    "ape": (ApeClassifier(alpha=1.3, beta=4.0, gamma=0.2),
            lambda *a: slow_ape(*a, alpha=1.3, beta=4.0, gamma=0.2)),
    "ape own channels": (ApeClassifier(alpha=1.3, beta=4.0, gamma=0.2, channels=0.8, similarity_weight=0.3),
                         lambda *a: slow_ape(*a, alpha=1.3, beta=4.0, gamma=0.2, channels=0.8, similarity_weight=0.3)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_scores_equal_the_slow_reference(name, world):  # noqa: F811
    support, labels, queries, texts = world
    estimator, slow = CASES[name]
    found = estimator.set_params(text_features=texts).fit(support, labels).scores(queries)
    expected = np.array([slow(query, support, labels, texts) for query in queries])
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=2e-9)


def test_the_channel_score_is_the_mean_over_all_pairs(world):  # noqa: F811
    texts = world[3]
    for channel, score in enumerate(channel_scores(texts, 1.0)):
        pairs = [texts[i][channel] * texts[j][channel] for i in range(4) for j in range(4) if i != j]
        assert score == pytest.approx(-np.mean(pairs))


@pytest.mark.parametrize("kind", [TipAdapterF, ClipAdapter, ApeTrained, classifiers.LinearProbe])
def test_training_fits_the_support_and_repeats_exactly(kind, world):  # noqa: F811
    support, labels, queries, texts = world
    estimator = kind()
    if "text_features" in estimator.get_params():
        estimator.set_params(text_features=texts)
    if "epochs" in estimator.get_params():
        untrained = estimator.set_params(epochs=0).fit(support, labels)
        before = np.mean(untrained.predict(support) == labels)
        first_scores = untrained.scores(queries)
        estimator.set_params(epochs=40, learning_rate=2e-2)
        trained = estimator.fit(support, labels)
        assert np.mean(trained.predict(support) == labels) >= before
        assert np.abs(trained.scores(queries) - first_scores).max() > 0.1
    again = estimator.fit(support, labels).scores(queries)
    np.testing.assert_array_equal(again, estimator.fit(support, labels).scores(queries))


@pytest.mark.parametrize(
    ("trained", "free"),
    [
        (TipAdapterF(epochs=0), classifiers.TipAdapter(preset="official")),
        (ApeTrained(epochs=0, alpha=1.0, beta=5.5), classifiers.TipAdapter(preset="official")),
        (ClipAdapter(epochs=0, ratio=0.0), classifiers.ZeroShotClassifier()),
    ],
)
def test_trained_methods_without_training_equal_their_training_free_versions(trained, free, world):  # noqa: F811
    support, labels, queries, texts = world
    ours, theirs = (
        model.set_params(text_features=texts).fit(support, labels).scores(queries) for model in (trained, free)
    )
    factor = 1.0 if isinstance(free, classifiers.TipAdapter) else 100.0
    np.testing.assert_allclose(ours, factor * theirs, rtol=2e-5, atol=1e-4)


def test_published_presets_use_the_public_codes_ranges():
    labels = np.tile(np.arange(3), 6)
    generator = np.random.default_rng(5)
    support = np.eye(3, WIDTH)[labels] + 0.25 * generator.normal(size=(len(labels), WIDTH))
    support /= np.linalg.norm(support, axis=1, keepdims=True)
    right, wrong = np.eye(3, WIDTH), np.roll(np.eye(3, WIDTH), 1, axis=0)
    for texts in (right, wrong):
        tip_x = TipX(texts).fit(support, labels)
        assert 0.1 <= tip_x.alpha_ <= 50
        assert 1 <= tip_x.beta_ <= 50
        assert 0.1 <= tip_x.gamma_ <= 30
        ape = ApeClassifier(texts).fit(support, labels)
        assert 0.1 <= ape.alpha_ <= 7
        assert 0.1 <= ape.beta_ <= 7
        assert ape.gamma_ in (0, 0.1, 0.2, 0.3, 0.4)
        assert len(ape.channels_) == round(500 / 1024 * WIDTH)


def test_clip_adapter_uses_the_published_formula_and_epochs(world):  # noqa: F811
    support, labels, queries, texts = world
    model = ClipAdapter(texts, epochs=3, ratio=0.3).fit(support, labels)
    for query, found in zip(queries, model.scores(queries), strict=True):
        hidden = np.maximum(model.down_.astype(float) @ query, 0)
        adapted = unit(0.3 * np.maximum(model.up_.astype(float) @ hidden, 0) + 0.7 * query)
        np.testing.assert_allclose(found, 100 * texts @ adapted, rtol=1e-4, atol=1e-3)
    assert model.down_.shape == (WIDTH // 4, WIDTH)
    for shots, epochs in ((1, 50), (2, 100), (8, 200)):
        each = np.tile(np.arange(2), shots)
        rows = np.eye(2, WIDTH)[each]
        assert ClipAdapter(learning_rate=0.0).fit(rows, each).epochs_ == epochs


def test_published_proker_corrects_the_texts_by_the_ridge(world):  # noqa: F811
    support, labels, queries, texts = world
    model = PublishedProKeR(texts, bandwidth=2.0, ridge=0.3).fit(support, labels)

    def expected(learn, rows):
        return 0.7 * rows @ texts.T + 0.3 * refit(support, labels, texts, learn, rows, text_weight=1.0)

    every = np.arange(len(labels))
    np.testing.assert_allclose(model.scores(queries), expected(every, queries), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.kernel_form().scores(queries), model.scores(queries), rtol=1e-4, atol=1e-5)
    plan = HoldOut.of(labels)
    for place, row in enumerate(model.loo_rows_):
        learn = np.setdiff1d(every, plan.absent(np.array([row]))[1])
        np.testing.assert_allclose(model.loo_scores_[place], expected(learn, support[row : row + 1])[0], rtol=1e-8)


def test_published_proker_uses_the_public_codes_settings():
    model = PublishedProKeR(np.eye(3)).fit(np.eye(3), [0, 1, 2])
    assert (model.bandwidth_, model.ridge_, model.text_weight_) == (3.0, 0.05, 1.0)
