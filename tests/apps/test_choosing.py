"""The choice of method, and none of these, by simulation."""

import numpy as np

from recollect.apps.classify.choosing import CANDIDATES, by_names, choose
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
        method, estimator, accuracies = choose(CANDIDATES, texts, 100.0, support, labels)
        assert accuracies[method] == max(accuracies.values()) == estimator.loo_accuracy_
        assert set(accuracies) == set(CANDIDATES)


def test_one_example_of_each_class_leaves_nothing_to_choose_by():
    support, labels, texts = blobs(1)
    method, estimator, accuracies = choose(CANDIDATES, texts, 100.0, support, labels)
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
