"""Pools, streams and views: limits, symmetries, and plain loops."""

import numpy as np
import pytest

from classifiers.worlds import unit
from recollect.classifiers.heads.mixture import discriminant
from recollect_papers.peers import transductive
from recollect_papers.peers.adapt import OnlineGaussians, adapt, bank_gaussians
from recollect_papers.peers.online import OnlineCache, counted_vote
from recollect_papers.peers.transductive import stat_a, trans_clip


def crowd(counts=(60, 60, 60), noise=0.9, off=0.9, width=24, seed=0):
    """Rows around centres, their labels, and texts that are off."""
    generator = np.random.default_rng(seed)
    centres = unit(generator.normal(size=(len(counts), width)))
    labels = generator.permutation(np.repeat(np.arange(len(counts)), counts))
    rows = unit(centres[labels] + noise / np.sqrt(width) * 2 * generator.normal(size=(len(labels), width)))
    return rows, labels, unit(centres + off / np.sqrt(width) * 2 * generator.normal(size=centres.shape))


def zero_shot(rows, texts, scale=100.0):
    logits = scale * rows @ texts.T
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("method", [trans_clip, stat_a])
class TestBoth:
    def test_order_does_not_matter(self, method):
        rows, _, texts = crowd()
        order = np.random.default_rng(1).permutation(len(rows))
        np.testing.assert_allclose(method(rows[order], texts).probabilities, method(rows, texts).probabilities[order])

    def test_no_rounds_is_zero_shot(self, method):
        rows, _, texts = crowd()
        np.testing.assert_allclose(method(rows, texts, rounds=0).probabilities, zero_shot(rows, texts))

    def test_neighbours_and_a_mixture_that_say_nothing_leave_zero_shot(self, method, monkeypatch):
        rows, _, texts = crowd()
        monkeypatch.setattr(transductive, "LIKELIHOOD_SCALE", 0.0)
        monkeypatch.setattr(
            transductive, "_graph", lambda rows: (np.zeros((len(rows), 3), dtype=int), np.zeros((len(rows), 3)))
        )
        np.testing.assert_allclose(method(rows, texts).probabilities, zero_shot(rows, texts), atol=1e-12)

    def test_a_pool_helps_where_texts_are_off(self, method):
        rows, labels, texts = crowd(off=1.6)
        before = ((rows @ texts.T).argmax(axis=1) == labels).mean()
        assert (method(rows, texts, scale=20.0).labels == labels).mean() > before

    def test_a_pool_too_small_or_of_another_width_is_refused(self, method):
        rows, _, texts = crowd()
        with pytest.raises(ValueError):
            method(rows[:3], texts)
        with pytest.raises(ValueError):
            method(rows[:, :5], texts)
        with pytest.raises(ValueError, match="NaN"):
            method(np.where(np.arange(len(rows))[:, None] == 4, np.nan, rows), texts)


def test_an_infinite_anchor_keeps_the_texts_as_means():
    rows, _, texts = crowd()
    np.testing.assert_allclose(stat_a(rows, texts, alpha=1e15).means, texts, atol=1e-9)


def test_classes_that_do_not_occur_stay_with_their_texts():
    rows, labels, texts = crowd(counts=(80, 80, 1, 1, 1, 1), noise=0.3, off=0.3)
    rows, labels = rows[labels < 2], labels[labels < 2]
    found = stat_a(rows, texts)
    assert (found.labels == labels).all()
    np.testing.assert_allclose(found.means[2:], texts[2:], atol=1e-9)
    assert np.abs(found.means[:2] - texts[:2]).max() > 1e-3


def slow_mixture(rows, texts, scale, alpha=None):
    """TransCLIP written out, or with ``alpha`` StatA: a density for each row and class, a sum for each mean."""
    from scipy.stats import multivariate_normal

    first = zero_shot(rows, texts, scale)
    likeness = rows @ rows.T
    np.fill_diagonal(likeness, -np.inf)
    graph = np.zeros_like(likeness)
    for row, near in enumerate(np.argsort(-likeness, axis=1)[:, :3]):
        graph[row, near] = np.maximum(likeness[row, near], 0)
    classes, assigned = range(len(texts)), first
    about = sum(first[:, c] @ (rows - texts[c]) ** 2 for c in classes) / len(rows)
    surest = [np.argsort(-first[:, c])[:8] for c in classes]
    means = unit(np.array([first[surest[c], c] @ rows[surest[c]] for c in classes]))
    variances = np.full((len(texts), rows.shape[1]), 1 / rows.shape[1])
    if alpha is not None:
        means, variances = texts, np.tile(about, (len(texts), 1))
    for _ in range(10):
        density = [multivariate_normal(means[c], np.diag(variances[c])).logpdf(rows) for c in classes]
        for _ in range(5):
            logits = np.log(first) + np.array(density).T / 50 + (graph @ assigned + graph.T @ assigned) / 6
            assigned = zero_shot(logits, np.eye(len(texts)), 1.0)
        own = np.array([assigned[:, c] @ rows / assigned[:, c].sum() for c in classes])
        if alpha is None:
            means = unit(own)
            spread = sum(assigned[:, c] @ (rows - means[c]) ** 2 for c in classes) / assigned.sum()
            variances = np.tile(spread, (len(texts), 1))
            continue
        counts = np.bincount(assigned.argmax(axis=1), minlength=len(texts))
        beta = (counts / (counts + alpha))[:, None]
        means = unit(beta * own + (1 - beta) * texts)
        spread = np.array([assigned[:, c] @ (rows - means[c]) ** 2 / assigned[:, c].sum() for c in classes])
        variances = beta * spread + (1 - beta) * (about + (texts - means) ** 2)
    return assigned, means, variances


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
@pytest.mark.parametrize("scale", [8.0, 100.0])
def test_both_against_a_loop(scale, dtype):
    rows, _, texts = crowd(counts=(20, 12, 9))
    rows = rows.astype(dtype)  # halves are widened before they are made unit rows
    wide = unit(rows.astype(float))
    for found, slow in [
        (trans_clip(rows, texts, scale=scale), slow_mixture(wide, texts, scale)),
        (stat_a(rows, texts, scale=scale, alpha=3.0), slow_mixture(wide, texts, scale, alpha=3.0)),
    ]:  # fmt: skip
        np.testing.assert_allclose(found.probabilities, slow[0], atol=1e-9)
        np.testing.assert_allclose(found.means, slow[1], atol=1e-9)
        np.testing.assert_allclose(np.broadcast_to(found.variances, slow[2].shape), slow[2], atol=1e-9)


def test_twins_are_neighbours_and_nothing_is_its_own():
    rows = unit(np.random.default_rng(0).normal(size=(10, 4)))
    rows[7] = rows[2]
    places, cosines = transductive._graph(rows)
    assert not (places == np.arange(10)[:, None]).any()
    assert places[7, 0] == 2
    assert cosines[7, 0] == pytest.approx(1.0)


def slow_stream(rows, texts, scale, alpha, beta):
    """TDA written out: kept rows are chosen again from all rows so far."""
    found, seen = [], []
    for row in rows:
        p = zero_shot(row[None], texts, scale)[0]
        entropy = -sum(q * np.log(q) for q in p if q > 0)
        seen.append((int(p.argmax()), entropy, row, p))
        scores = scale * texts @ row
        for label in range(len(texts)):
            mine = sorted((item for item in seen if item[0] == label), key=lambda item: item[1])
            for _, _, key, _ in mine[:3]:
                scores[label] += alpha * np.exp(-beta * (1 - row @ key))
            doubtful = [item for item in mine if 0.2 < item[1] / np.log2(len(texts)) < 0.5]
            for _, _, key, q in doubtful[:2]:
                scores -= 0.117 * np.exp(-(1 - row @ key)) * ((q > 0.03) & (q < 1))
        found.append(scores)
    return np.array(found)


def test_the_cache_of_a_stream_against_a_loop():
    rows, _, texts = crowd(counts=(15, 15, 15))
    cache = OnlineCache(texts, scale=8.0)
    # a stream may come in parts, one of them without any picture
    found = np.concatenate([cache.scores(rows[:20]), cache.scores(rows[:0]), cache.scores(rows[20:])])
    np.testing.assert_allclose(found, slow_stream(rows, texts, 8.0, 2.0, 5.0), rtol=1e-9)


def test_an_empty_weight_leaves_zero_shot():
    rows, _, texts = crowd()
    np.testing.assert_allclose(OnlineCache(texts, alpha=0.0, negative=0.0).scores(rows), 100 * rows @ texts.T)


def test_views_that_are_one_picture_vote_as_zero_shot():
    rows, _, texts = crowd()
    for row in rows[:20]:
        assert counted_vote(np.tile(row, (64, 1)), texts)[0] == np.argmax(texts @ row)


def test_the_surest_view_decides_alone_or_a_tie():
    texts = np.eye(3)
    views = unit(np.array([[1, 0.9, 0], [0.1, 1, 0], [1, 0.3, 0], [0, 0.2, 1.0]]))
    sure = np.sort(zero_shot(views, texts, 10.0).max(axis=1))
    assert counted_vote(views, texts, scale=10.0, share=0.01)[0] == 1
    assert counted_vote(views, texts, scale=10.0, share=0.5)[0] == 1  # classes 1 and 2, one vote each
    assert counted_vote(views, texts, scale=10.0, share=1.0)[0] == 0
    assert counted_vote(views, texts, scale=10.0, share=0.5) == (1, 0.5)
    assert counted_vote(views[:, ::-1], texts, scale=10.0, share=0.5) == (
        1,
        0.5,
    )  # classes 1 and 0: the surer, not the first
    assert sure[0] < sure[-1]
    with pytest.raises(ValueError):
        counted_vote(views[:0], texts)


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


def test_seen_pictures_help_where_texts_are_off():
    rows, labels, texts = crowd(counts=(80, 80, 80), off=1.6)
    before = ((rows @ texts.T).argmax(axis=1) == labels).mean()
    assert (adapt(rows, texts, scale=20.0).labels == labels).mean() > before
    assert (OnlineGaussians(texts, 20.0, sharpness=10.0).scores(rows).argmax(axis=1) == labels).mean() > before
