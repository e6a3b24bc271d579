"""Published few-shot heads: properties, special cases and scikit-learn's conformance checks."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from classifiers.worlds import unit, world
from recollect.classifiers import LinearProbe
from recollect.classifiers.heads.holdout import HoldOut
from recollect.testing import check_estimator
from recollect_papers.peers.ape import ApeClassifier, ApeTrained
from recollect_papers.peers.mixtures import DualMemory, GaussianDiscriminant, discriminant
from recollect_papers.peers.proker import PublishedProKeR
from recollect_papers.peers.timo import Timo
from recollect_papers.peers.tip_x import TipX
from recollect_papers.peers.trained import ClipAdapter, TipAdapterF


def test_held_out_scores_of_ape_t_are_of_models_trained_in_the_same_way():
    support, labels, _, _, texts = world((6, 7, 8, 6), noise=2.0)
    model = ApeTrained(texts, epochs=30, learning_rate=0.05).fit(support, labels)
    assert (model.alpha_, model.beta_) != (2.0, 1.0)  # the values used in training
    for learn, choose in HoldOut.of(labels).folds():
        fold = ApeTrained(texts, epochs=30, learning_rate=0.05).fit(support[learn], labels[learn])
        fold.alpha_, fold.beta_ = model.alpha_, model.beta_
        np.testing.assert_allclose(model.loo_scores_[choose], fold.scores(support[choose]), rtol=1e-4, atol=1e-4)


def test_training_improves_on_zero_shot():
    support, labels, queries, asked, texts = world((12,) * 4, queries=200, noise=1.3)
    texts = unit(texts + 0.8 * texts[[1, 2, 3, 0]])
    before = ((queries @ texts.T).argmax(axis=1) == asked).mean()
    for model in (ClipAdapter(texts), ApeTrained(texts), TipAdapterF(texts)):
        assert (model.fit(support, labels).predict(queries) == asked).mean() > before


def prompts(texts, count, seed=0):
    noise = np.random.default_rng(seed).normal(size=(len(texts), count, texts.shape[1]))
    return unit(texts[:, None] + 0.3 * noise)


def test_timo_with_one_prompt_uses_the_text_and_without_sharpness_the_mean():
    support, labels, _, _, texts = world()
    np.testing.assert_allclose(Timo(texts, gamma=20.0).fit(support, labels).weighed_, texts)
    several = prompts(texts, 5)
    flat = Timo(several, gamma=0.0, prompts=1.0, alpha=1.0).fit(support, labels)
    np.testing.assert_allclose(flat.weighed_, unit(several.mean(axis=1)))
    sharp = Timo(several, gamma=1e6, prompts=1.0, alpha=1.0).fit(support, labels)
    for label in range(4):
        best = np.argmax(several[label] @ support[labels == label].mean(axis=0))
        np.testing.assert_allclose(sharp.weighed_[label], several[label, best])


def test_timo_without_prompts_in_the_support_is_the_discriminant():
    support, labels, queries, _, texts = world()
    timo = Timo(prompts(texts, 4), alpha=0.0, gamma=1.0, prompts=0.0).fit(support, labels).scores(queries)
    gda = GaussianDiscriminant(texts, alpha=1.0, scale=0.0).fit(support, labels).scores(queries)
    np.testing.assert_allclose(timo, gda)


def test_timo_adds_the_nearest_prompts_as_samples_and_repeats_them():
    support, labels, queries, _, texts = world()
    several = prompts(texts, 3)
    rows, own = [*support], [*labels]
    for label in range(4):
        match = several[label] @ unit(support[labels == label].mean(axis=0))
        for place in [*np.argsort(-match), *np.argsort(-match)][:5]:
            rows.append(several[label, place] * match[place])
            own.append(label)
    weights, bias = discriminant(np.array(rows), np.array(own), 4)
    found = Timo(several, alpha=0.0, gamma=1.0, prompts=5 / 3).fit(support, labels).scores(queries)
    np.testing.assert_allclose(found, queries @ weights.T + bias)


def test_timo_chooses_by_held_out_examples_and_rejects_mismatched_prompts():
    support, labels, queries, asked, texts = world((8,) * 4, queries=100)
    model = Timo(prompts(texts, 6)).fit(support, labels)
    assert model.gamma_ in (1.0, 5.0, 20.0, 50.0, 100.0)
    assert (model.predict(queries) == asked).mean() > 0.7
    with pytest.raises(ValueError):
        Timo(prompts(texts[:3], 6)).fit(support, labels)


def test_ties_between_choices_take_the_first():
    """All choices are perfect on well-separated clusters."""
    support, labels, _, _, texts = world((2, 2, 2), noise=0.05)
    timo = Timo(prompts(texts, 2)).fit(support, labels)
    assert timo.loo_accuracy_ == 1
    assert (timo.gamma_, timo.prompts_) == (1.0, 0.5)
    assert LinearProbe(strengths=(0.1, 1.0, 10.0)).fit(support, labels).C_ == 0.1


def test_leaving_out_the_only_distinct_example_equals_fitting_without_it():
    """Without that example all are copies, and the variance is zero."""
    support, labels, _, _, texts = world((6, 6, 6), noise=0.0)
    support[0] = unit(support[0] + 0.1 * np.arange(12))
    model = GaussianDiscriminant(texts, alpha=1.0).fit(support, labels)
    alone = GaussianDiscriminant(texts, alpha=1.0).fit(support[1:], labels[1:]).scores(support[:1])
    np.testing.assert_allclose(model.loo_scores_[:1], alone, rtol=1e-6)


@pytest.mark.parametrize("model", [GaussianDiscriminant(alpha=1.0), Timo(gamma=50.0, prompts=1.0, alpha=1.0)], ids=str)
@pytest.mark.parametrize("copies", [1, 3])
def test_copies_of_one_example_have_zero_variance_in_any_precision(model, copies):
    support, labels, queries, _, texts = world((1, 1, 1, 1), width=48, queries=30)
    rows, own = np.tile(support, (copies, 1)), np.tile(labels, copies)
    given = None if isinstance(model, Timo) else texts
    wanted = model.set_params(text_features=given).fit(support, labels).scores(queries)
    for scaled in (rows * 1000 / 999.7, rows.astype(np.float32)):
        found = clone(model).fit(scaled, own).scores(queries.astype(scaled.dtype))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


PEERS = [
    GaussianDiscriminant(), DualMemory(), ApeClassifier(), ApeTrained(epochs=3), ClipAdapter(epochs=3, batch=64),
    PublishedProKeR(), Timo(), TipAdapterF(epochs=4), TipX(),
]  # fmt: skip


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("model", PEERS, ids=lambda model: type(model).__name__)
def test_peers_pass_recollects_estimator_checks(model):
    check_estimator(model)


def zero_rows(estimator):
    return {"check_estimators_dtypes": "uses rows of zeros, which are rejected"}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:.*not unit-norm.*")
@parametrize_with_checks(PEERS, expected_failed_checks=zero_rows)
def test_peers_pass_scikit_learns_checks(estimator, check):
    check(estimator)
