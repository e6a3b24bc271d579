"""The choice of method, and none of these, by simulation."""

import numpy as np
import pytest

from recollect.apps.classify import predictions
from recollect.apps.classify.choosing import CANDIDATES, by_names, choose_method
from recollect.apps.classify.teaching import Support
from recollect.fewshot import unknown
from recollect.fewshot.unknown import least_similarity


def blobs(per_class, classes=4, width=16, seed=0, spread=0.8):
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(classes, width))
    labels = np.repeat(np.arange(classes), per_class)
    rows = centres[labels] + spread * generator.normal(size=(len(labels), width))
    unit = lambda x: (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)  # noqa: E731
    texts = unit(centres + 0.8 * np.random.default_rng(98).normal(size=centres.shape))
    return unit(rows), labels, texts


def test_the_choice_is_the_best_held_out_accuracy():
    for spread in (0.5, 1.2, 2.5):
        support, labels, texts = blobs(8, spread=spread)
        method, estimator, accuracies = choose_method(CANDIDATES, texts, 100.0, support, labels)
        assert accuracies[method] == max(accuracies.values()) == estimator.loo_accuracy_
        assert set(accuracies) == set(CANDIDATES)


def test_one_example_of_each_class_leaves_nothing_to_choose_by():
    support, labels, texts = blobs(1)
    method, estimator, accuracies = choose_method(CANDIDATES, texts, 100.0, support, labels)
    assert (method, accuracies) == (CANDIDATES[0], {})
    assert estimator.predict(support).tolist() == labels.tolist()


def test_names_alone_are_as_sure_as_the_model():
    _, _, texts = blobs(1)
    logits = 7.0 * texts @ texts.T
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(by_names(texts, 7.0).predict_proba(texts), expected, rtol=1e-5)


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


def test_examples_are_compared_block_by_block(monkeypatch):
    support, labels, _ = blobs(7)
    support[9], support[3], support[12] = support[2], support[19], support[2]
    every = support @ support.T
    np.fill_diagonal(every, -np.inf)
    for rows in (1, 4, 100):
        monkeypatch.setattr(unknown, "EXAMPLES_AT_ONCE", rows)
        monkeypatch.setattr(predictions, "EXAMPLES_AT_ONCE", rows)
        assert least_similarity(support)[0] == pytest.approx(every.max(axis=1).min())
        named = tuple(str(row) for row in range(len(labels)))
        found = list(predictions._alike(Support(support, labels, named, named)))
        wanted = [(i, j) for i in range(len(labels)) for j in range(i + 1, len(labels))
                  if every[i, j] >= 0.995 and labels[i] != labels[j]]  # fmt: skip
        assert [pair[:2] for pair in found] == wanted != []
