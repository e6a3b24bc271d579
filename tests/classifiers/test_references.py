"""Every training-free classifier against a loop over queries, examples and classes in float64."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import Normalizer

from classifiers.worlds import world as make_world
from recollect import classifiers
from recollect_papers.peers.mixtures import DualMemory, GaussianDiscriminant

CLASSES, SHOTS, WIDTH = 4, 5, 12


def unit(vector):
    return vector / math.sqrt(sum(float(entry) ** 2 for entry in vector))


@pytest.fixture(scope="module")
def world():
    support, labels, queries, _, texts = make_world((SHOTS,) * CLASSES, WIDTH)
    return support, labels, queries, texts


def softmax(values):
    weights = [math.exp(value - max(values)) for value in values]
    return [weight / sum(weights) for weight in weights]


def slow_prototype(query, support, labels, texts, cosine=False):
    scores = []
    for label in range(CLASSES):
        mean = sum(row for row, own in zip(support, labels, strict=True) if own == label) / SHOTS
        scores.append(query @ (unit(mean) if cosine else mean))
    return scores


def slow_tip(query, support, labels, texts, alpha=1.0, beta=5.5, scale=1.0):
    scores = [scale * query @ text for text in texts]
    for row, label in zip(support, labels, strict=True):
        scores[label] += alpha * math.exp(-beta * (1 - query @ row))
    return scores


def slow_votes(query, support, labels, k, weigh):
    ranked = sorted(range(len(support)), key=lambda index: -(query @ support[index]))[:k]
    near = [query @ support[index] for index in ranked]
    votes = [0.0] * CLASSES
    for rank, index in enumerate(ranked):
        votes[labels[index]] += weigh(rank, near)
    return [vote / sum(votes) for vote in votes]


def slow_gda(query, support, labels, texts, alpha):
    means = [sum(row for row, own in zip(support, labels, strict=True) if own == c) / SHOTS for c in range(CLASSES)]
    scatter = sum(np.outer(row - means[own], row - means[own]) for row, own in zip(support, labels, strict=True))
    covariance = scatter / (len(support) - 1)
    precision = WIDTH * np.linalg.inv((len(support) - 1) * covariance + np.trace(covariance) * np.eye(WIDTH))
    scores = []
    for mean, text in zip(means, texts, strict=True):
        weight = mean @ precision
        bias = math.log(1 / CLASSES) - 0.5 * mean @ precision @ mean
        scores.append(100 * query @ text + alpha * (query @ weight + bias))
    return scores


def slow_dmn(query, support, labels, texts, alpha):
    """The memory has the class text and the examples; both scores are distributions."""
    reads = []
    for label, text in enumerate(texts):
        members = [text, *(row for row, own in zip(support, labels, strict=True) if own == label)]
        reads.append(query @ unit(sum(math.exp(-5.5 * (1 - query @ row)) * row for row in members)))
    zero_shot, memory = softmax([100 * query @ text for text in texts]), softmax([100 * read for read in reads])
    return [z + alpha * m for z, m in zip(zero_shot, memory, strict=True)]


def slow_mix(query, support, labels, texts, weight):
    zero_shot = softmax([100 * query @ text for text in texts])
    votes = slow_votes(query, support, labels, 7, lambda rank, near: math.exp(near[rank] / 0.07))
    return [z + weight * v for z, v in zip(zero_shot, votes, strict=True)]


CASES = {
    "prototype": (classifiers.PrototypeClassifier(), slow_prototype),
    "prototype cosine": (classifiers.PrototypeClassifier(cosine=True), lambda *a: slow_prototype(*a, cosine=True)),
    "zero-shot": (classifiers.ZeroShotClassifier(), lambda q, s, y, texts: [q @ text for text in texts]),
    "tip": (classifiers.TipAdapter(), slow_tip),
    "tip official": (classifiers.TipAdapter(preset="official", alpha=2.0, beta=3.0),
                     lambda *a: slow_tip(*a, alpha=2.0, beta=3.0, scale=100.0)),
    "plurality": (classifiers.PluralityVoting(), lambda q, s, y, t: slow_votes(q, s, y, SHOTS, lambda rank, near: 1.0)),
    "softmax": (classifiers.SoftmaxVoting(k=7),
                lambda q, s, y, t: slow_votes(q, s, y, 7, lambda rank, near: math.exp(near[rank] / 0.07))),
    "rank": (classifiers.RankVoting(), lambda q, s, y, t: slow_votes(q, s, y, 20, lambda rank, near: 1 / (2 + rank))),
    "gda": (GaussianDiscriminant(alpha=0.4), lambda *a: slow_gda(*a, alpha=0.4)),
    "dmn": (DualMemory(alpha=0.9), lambda *a: slow_dmn(*a, alpha=0.9)),
    "dmn published": (DualMemory(alpha=0.9, preset="published"), lambda *a: slow_dmn(*a, alpha=0.9)),
    "mix": (classifiers.ZeroShotMix(classifiers.SoftmaxVoting(k=7), weight=0.7), lambda *a: slow_mix(*a, weight=0.7)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_scores_equal_the_slow_reference(name, world):
    support, labels, queries, texts = world
    estimator, slow = CASES[name]
    if "text_features" in estimator.get_params():
        estimator.set_params(text_features=texts)
    scores = estimator.fit(support, labels).scores(queries)
    expected = np.array([slow(query, support, labels, texts) for query in queries])
    np.testing.assert_allclose(scores, expected, rtol=1e-9, atol=2e-9)


def test_cross_validation_picks_the_best_pair_of_its_grid(world):
    """No pair on a finer grid of alpha is more accurate on held-out examples."""
    from recollect.classifiers.heads.tip import BETA_GRID

    support, labels, _, texts = world
    model = classifiers.CrossValidatedTipAdapter(text_features=texts).fit(support, labels)

    def held_out_scores(index, alpha, beta):
        scores = np.array([support[index] @ text for text in texts])
        for row, (other, label) in enumerate(zip(support, labels, strict=True)):
            if row != index:  # four examples of its own class are scaled up to five
                factor = SHOTS / (SHOTS - 1) if label == labels[index] else 1.0
                scores[label] += alpha * factor * math.exp(-beta * (1 - support[index] @ other))
        return scores

    def held_out_accuracy(alpha, beta):
        scores = [held_out_scores(index, alpha, beta) for index in range(len(labels))]
        return np.mean(np.argmax(scores, axis=1) == labels)

    expected = [held_out_scores(index, model.alpha_, model.beta_) for index in range(len(labels))]
    np.testing.assert_allclose(model.loo_scores_, expected, rtol=1e-9)
    chosen = held_out_accuracy(model.alpha_, model.beta_)
    grid = max(held_out_accuracy(alpha, beta) for beta in BETA_GRID[::3] for alpha in np.geomspace(0.01, 50, 15))
    assert chosen >= grid


def test_tied_votes_go_to_the_class_of_the_nearest_example():
    support = np.array([unit(np.array(row)) for row in ([1, 0.2], [1, 0.1], [0.2, 1], [0.1, 1])])
    labels = np.array([0, 1, 1, 0])
    model = classifiers.PluralityVoting(k=2).fit(support, labels)
    assert model.predict(np.array([[1.0, 0.0]])).tolist() == [1]  # 1 is nearest, one vote each
    assert model.predict(np.array([[0.0, 1.0]])).tolist() == [0]


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from([np.float32, np.float64]))
def test_other_queries_in_the_batch_change_no_vote(seed, kind):
    """Every example occurs twice, with two labels, so the nearest decides every vote."""
    random = np.random.default_rng(seed)
    count, width, classes = (int(random.integers(*bounds)) for bounds in ((4, 40), (2, 300), (2, 5)))
    rows = Normalizer().transform(random.normal(size=(count + 8, width))).astype(kind)
    support, queries = np.concatenate([rows[:count], rows[:count]]), rows[-16:]
    labels = np.concatenate([np.arange(count), np.arange(count) + 1]) % classes
    for vote in (classifiers.PluralityVoting, classifiers.RankVoting, classifiers.SoftmaxVoting):
        model, order = vote(k=2 * int(random.integers(1, count + 1))), random.permutation(len(queries))
        expected = model.fit(support, labels).predict(queries)
        np.testing.assert_array_equal([model.predict(query[None])[0] for query in queries], expected)
        np.testing.assert_array_equal(model.predict(queries[order]), expected[order])


def test_plurality_caps_the_neighbors_at_the_shots_and_the_others_at_the_support(world):
    support, labels, _, _ = world
    assert classifiers.PluralityVoting().fit(support, labels).k_ == SHOTS
    assert classifiers.SoftmaxVoting().fit(support, labels).k_ == SHOTS * CLASSES
    assert classifiers.RankVoting(k=3).fit(support, labels).k_ == 3


def test_dmns_published_preset_picks_the_best_of_the_public_codes_thirteen_weights(world):
    support, labels, _, texts = world
    model = DualMemory(texts, preset="published").fit(support, labels)
    weights = np.geomspace(1e-3, 1e3, 13)
    right = [DualMemory(texts, alpha=weight).fit(support, labels).loo_accuracy_ for weight in weights]
    assert model.alpha_ == weights[int(np.argmax(right))]
