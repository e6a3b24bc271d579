"""Zero-shot methods that read a whole folder without labels: limits, symmetries, and plain loops."""
# ruff: noqa: F401, F811

from dataclasses import replace

import numpy as np
import pytest

from classifiers.worlds import unit
from evaluation.conftest import encoder, task
from recollect.core.errors import UserError
from recollect.evaluation.zero_shot import zero_shot as measured
from recollect_papers.peers import unlabelled
from recollect_papers.peers.unlabelled import UNLABELLED_METHODS, stat_a, trans_clip


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
        monkeypatch.setattr(unlabelled, "LIKELIHOOD_SCALE", 0.0)
        monkeypatch.setattr(
            unlabelled, "_graph", lambda rows: (np.zeros((len(rows), 3), dtype=int), np.zeros((len(rows), 3)))
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
        with pytest.raises(ValueError):
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


def test_every_method_is_measured_next_to_the_prompt_ensemble(encoder, task):
    plain = measured(encoder, task, model="m")
    found = measured(encoder, task, model="m", methods=tuple(UNLABELLED_METHODS))
    assert found.rows[: len(plain.rows)] == plain.rows
    others = found.rows[len(plain.rows) :]
    assert [row["method"] for row in others] == [name for name in UNLABELLED_METHODS for _ in range(2)]
    assert all(row["value"] > 60 for row in others if row["metric"] == "top-1")  # four classes
    assert all(0 <= row["ece"] <= 100 for row in others if row["metric"] == "top-1")
    assert found.file_name != plain.file_name
    with pytest.raises(UserError, match="'tpt'"):
        measured(encoder, task, model="m", methods=("tpt",))


def test_a_method_reads_no_label_of_a_tested_picture(encoder, task):
    asked = task.query

    class Shuffled(type(asked)):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            return replace(sample, label=(sample.label + 1) % 4)

    other = Shuffled(asked.name, size=asked.size, seed=asked.seed)
    right = measured(encoder, task, model="m", methods=tuple(UNLABELLED_METHODS)).rows
    wrong = measured(encoder, replace(task, query=other), model="m", methods=tuple(UNLABELLED_METHODS)).rows
    for one, shifted in zip(right, wrong, strict=True):
        assert one["value"] + shifted["value"] <= 100 + 1e-9  # the same predictions cannot be right under both
