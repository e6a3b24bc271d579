"""ADAPT on streams and folders: limits, and a plain loop."""

import numpy as np
import pytest

from classifiers.test_transductive import crowd, zero_shot
from recollect.classifiers import OnlineGaussians, adapt
from recollect.classifiers.heads.adapt import bank_gaussians
from recollect.classifiers.heads.mixture import discriminant


def slow_scores(row, bank, texts, scale, sharpness):
    """ADAPT's formula, class by class and row by row."""
    classes, width = texts.shape
    means = []
    for c in range(classes):
        mine = [(key, p[c]) for label, key, p in bank if label == c]
        mean = sum(w * key for key, w in mine) / sum(w for _, w in mine) if mine else None
        means.append(texts[c] if mean is None else 0.9 * mean + 0.1 * texts[c])
    scatter = sum(np.outer(key - means[label], key - means[label]) for label, key, _ in bank)
    precision = width * np.linalg.inv(scatter + np.trace(scatter) / (len(bank) - 1) * np.eye(width))
    gda = np.array([row @ precision @ m - 0.5 * m @ precision @ m - np.log(classes) for m in means])
    evidence = gda - np.log(np.exp(gda).sum())
    for label, key, p in bank:
        evidence[label] += sharpness / (2 * len(bank)) * (row @ key) * p[label]
    factor = np.exp((evidence - evidence.max()) / sharpness)
    cosines = texts @ row
    return scale * np.where(cosines >= 0, cosines * factor, cosines * (2 - factor))


def test_a_stream_against_a_loop():
    rows, _, texts = crowd(counts=(12, 12, 12), width=8, noise=2.0)
    stream, bank = OnlineGaussians(texts, scale=8.0, bank=3), {0: [], 1: [], 2: []}
    found = np.concatenate([stream.scores(rows[:10]), stream.scores(rows[10:])])  # a stream may come in parts
    for row, scores in zip(rows, found, strict=True):
        p = zero_shot(row[None], texts, 8.0)[0]
        label = int(p.argmax())
        bank[label] = sorted([*bank[label], (-(p * np.log(p)).sum(), row, p)], key=lambda item: item[0])[:3]
        flat = [(label, *item[1:]) for label, items in bank.items() for item in items]
        if len(flat) > 1:
            np.testing.assert_allclose(scores, slow_scores(row, flat, texts, 8.0, 50.0), rtol=1e-8)
    assert (found < 0).any()  # so that the other branch was tested


def test_a_folder_reads_the_surest_of_each_class_at_once():
    rows, _, texts = crowd(counts=(12, 12, 12), width=8)
    first = zero_shot(rows, texts, 8.0)
    bank = []
    for c in range(3):
        mine = sorted((-(p * np.log(p)).sum(), i) for i, p in enumerate(first) if p.argmax() == c)[:6]
        bank += [(c, rows[i], first[i]) for _, i in mine]
    slow = np.array([slow_scores(row, bank, texts, 8.0, 50.0) for row in rows])
    weights = np.exp(slow - slow.max(axis=1, keepdims=True))
    found = adapt(rows, texts, scale=8.0)
    np.testing.assert_allclose(found.probabilities, weights / weights.sum(axis=1, keepdims=True), rtol=1e-8)


def test_an_empty_bank_is_zero_shot():
    rows, _, texts = crowd()
    np.testing.assert_allclose(adapt(rows, texts, bank=0).probabilities, zero_shot(rows, texts))
    np.testing.assert_allclose(OnlineGaussians(texts, bank=0).scores(rows), 100 * rows @ texts.T)


def test_shots_as_the_bank_without_texts_are_the_discriminant():
    rows, labels, texts = crowd()
    expected = discriminant(rows, labels, 3)
    found = bank_gaussians(rows, np.eye(3)[labels], labels, texts, text_share=0.0)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-9)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-9)


def test_a_folder_in_another_order_is_the_same_folder():
    rows, _, texts = crowd()
    order = np.random.default_rng(1).permutation(len(rows))
    np.testing.assert_allclose(adapt(rows[order], texts).probabilities, adapt(rows, texts).probabilities[order])


def test_seen_pictures_and_labelled_ones_help_where_texts_are_off():
    rows, labels, texts = crowd(counts=(80, 80, 80), off=1.6)
    before = ((rows @ texts.T).argmax(axis=1) == labels).mean()
    assert (adapt(rows, texts, scale=20.0).labels == labels).mean() > before
    assert (OnlineGaussians(texts, 20.0, sharpness=10.0).scores(rows).argmax(axis=1) == labels).mean() > before
    shots = np.concatenate([np.flatnonzero(labels == label)[:4] for label in range(3)])
    taught = OnlineGaussians(texts, 20.0, sharpness=10.0, support=rows[shots], labels=labels[shots])
    assert (taught.scores(rows).argmax(axis=1) == labels).mean() > before
    with pytest.raises(ValueError):
        OnlineGaussians(texts, support=rows[shots])
