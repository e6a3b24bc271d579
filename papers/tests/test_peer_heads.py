"""Heads near the texts: where they start, what holds them, and that the minimum is the minimum."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from classifiers.worlds import unit, world
from recollect.classifiers import GaussianDiscriminant, LinearProbe
from recollect.classifiers.heads.holdout import HoldOut
from recollect.classifiers.heads.mixture import discriminant
from recollect.testing import check_estimator
from recollect_papers.peers import probes, together
from recollect_papers.peers.ape import ApeClassifier, ApeTrained
from recollect_papers.peers.clip_adapter import ClipAdapter
from recollect_papers.peers.probes import ClassAdaptiveProbe, LinearProbePlusPlus, ResidualMap
from recollect_papers.peers.timo import Timo
from recollect_papers.peers.tip_adapter_f import TipAdapterF
from recollect_papers.peers.tip_x import TipX


@pytest.mark.parametrize("model", [ClassAdaptiveProbe(epochs=0), ResidualMap(epochs=0, penalty=1.0),
                                   ClassAdaptiveProbe(factor=1e9, epochs=10)], ids=str)  # fmt: skip
def test_untrained_or_held_fast_a_head_is_zero_shot(model):
    support, labels, queries, _, texts = world()
    found = model.set_params(text_features=texts).fit(support, labels).scores(queries)
    np.testing.assert_allclose(found, 100 * queries @ texts.T, rtol=1e-4, atol=1e-3)


def test_a_large_penalty_keeps_the_map_at_the_identity():
    support, labels, _, _, texts = world()
    model = ResidualMap(texts, penalty=1e6, epochs=100).fit(support, labels)
    assert np.abs(model.map_ - np.eye(12)).max() < 5e-3
    free = ResidualMap(texts, penalty=0.0, epochs=100).fit(support, labels)
    assert np.abs(free.map_ - np.eye(12)).max() > 2e-2


def test_clap_holds_a_class_the_more_the_better_its_text():
    support, labels, _, _, texts = world()
    model = ClassAdaptiveProbe(texts, factor=1.0, epochs=5).fit(support, labels)
    zero_shot = np.exp(100 * support @ texts.T)
    zero_shot /= zero_shot.sum(axis=1, keepdims=True)
    expected = [zero_shot[labels == label, label].mean() for label in range(4)]
    np.testing.assert_allclose(model.lambda_, expected)


@pytest.mark.parametrize("factor", [10.0, 1000.0])
def test_clap_ends_at_the_minimum_of_its_loss(factor):
    """For any factor; an implicit step that ignores the momentum would have a tenth of the effect."""
    support, labels, _, _, texts = world((8,) * 4, noise=1.5, seed=2)
    texts = unit(texts + 0.3 * texts[[1, 2, 3, 0]])
    images, anchors, own = torch.tensor(support), torch.tensor(texts), torch.tensor(labels)
    sure = torch.softmax(100 * images @ anchors.T, dim=1)[torch.arange(32), own]
    kept = torch.stack([sure[own == label].mean() for label in range(4)])

    def loss(flat):
        weights = torch.tensor(flat.reshape(texts.shape), requires_grad=True)
        logits = 100 * images @ torch.nn.functional.normalize(weights, dim=1).T
        value = torch.nn.functional.cross_entropy(logits, own)
        value = value + factor * (kept * ((weights - anchors) ** 2).sum(dim=1)).mean()
        value.backward()
        return value.item(), weights.grad.numpy().ravel()

    slow = minimize(loss, texts.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 2000}).x.reshape(texts.shape)
    model = ClassAdaptiveProbe(texts, factor=factor, learning_rate=0.01).fit(support, labels)
    np.testing.assert_allclose(model.coef_, unit(slow), atol=2e-3)
    assert np.abs(unit(slow) - texts).max() > 0.01


@pytest.mark.parametrize("counts", [(5, 6, 7, 8), (2, 1, 3, 2)])
@pytest.mark.parametrize("kind", [ClassAdaptiveProbe, LinearProbePlusPlus, ResidualMap])
def test_models_of_folds_are_trained_together_and_once_with_the_outcome_of_each_alone(kind, counts, monkeypatch):
    """And in a space of more directions than there are examples, in as many numbers as there are examples."""
    monkeypatch.setattr(kind, "_values", lambda self, labels: (0.1, 0.3))
    model = kind() if kind is LinearProbePlusPlus else kind(epochs=20)
    support, labels, queries, _, texts = world(counts, noise=3.0)
    wide = np.linalg.qr(np.random.default_rng(0).normal(size=(60, 12)))[0].T
    asked = clone(model).set_params(text_features=texts).fit(support, labels)
    alone = clone(asked).set_params(**asked._chosen()).fit(support, labels)
    far = clone(asked).set_params(text_features=texts @ wide).fit(support @ wide, labels)
    others = ((alone, queries),) if kind is ResidualMap else ((alone, queries), (far, queries @ wide))
    for other, rows in others:
        assert other._chosen() == asked._chosen()
        np.testing.assert_allclose(other.loo_scores_, asked.loo_scores_, atol=2e-3)
        np.testing.assert_allclose(other.scores(rows), asked.scores(queries), atol=2e-3)
    assert asked._on_folds is None  # no longer needed, and of the size of the model times the folds


TRAINED = [
    ClassAdaptiveProbe(epochs=15), LinearProbePlusPlus(), ResidualMap(epochs=15), ClipAdapter(epochs=4, batch=8),
    TipAdapterF(epochs=4), ApeTrained(epochs=4),
]  # fmt: skip


@pytest.mark.parametrize("shots", [1, 3, 6])
@pytest.mark.parametrize("kind", TRAINED, ids=lambda model: type(model).__name__)
def test_fits_beside_each_other_are_those_of_each_alone(kind, shots, monkeypatch):
    """Several draws, with their folds, strengths and stand-ins; also where a stack holds only two of them."""
    support, labels, queries, _, texts = world((3 * shots,) * 4, noise=2.0)
    draws = [np.concatenate([np.flatnonzero(labels == own)[draw::3] for own in range(4)]) for draw in range(3)]
    alone = [clone(kind).set_params(text_features=texts).fit(support[rows], labels[rows]) for rows in draws]
    for most in (together.MOST_STACKED, 2 * len(draws[0]) * 12):
        monkeypatch.setattr(together, "MOST_STACKED", most)
        models = [clone(kind).set_params(text_features=texts) for _ in draws]
        together.fit_together(models, [support[rows] for rows in draws], [labels[rows] for rows in draws])
        for one, other in zip(alone, models, strict=True):
            assert one._chosen() == pytest.approx(other._chosen())
            np.testing.assert_allclose(other.scores(queries), one.scores(queries), rtol=1e-4, atol=2e-4)
            np.testing.assert_allclose(other.loo_scores_, one.loo_scores_, rtol=1e-4, atol=2e-4)
            assert other.temperature_ == pytest.approx(one.temperature_, rel=1e-3)
            assert other._on_folds is other._on_stand_ins is None


def test_what_ape_t_says_of_itself_is_said_of_models_trained_as_it_is():
    support, labels, _, _, texts = world((6, 7, 8, 6), noise=2.0)
    model = ApeTrained(texts, epochs=30, learning_rate=0.05).fit(support, labels)
    assert (model.alpha_, model.beta_) != (2.0, 1.0)  # at which it is trained
    for learn, choose in HoldOut.of(labels).folds():
        fold = ApeTrained(texts, epochs=30, learning_rate=0.05).fit(support[learn], labels[learn])
        fold.alpha_, fold.beta_ = model.alpha_, model.beta_
        np.testing.assert_allclose(model.loo_scores_[choose], fold.scores(support[choose]), rtol=1e-4, atol=1e-4)


def test_training_improves_on_zero_shot():
    support, labels, queries, asked, texts = world((12,) * 4, queries=200, noise=1.3)
    texts = unit(texts + 0.8 * texts[[1, 2, 3, 0]])
    before = ((queries @ texts.T).argmax(axis=1) == asked).mean()
    for model in (ClassAdaptiveProbe(texts, factor=0.0, epochs=60), LinearProbePlusPlus(texts, ridge=1e-3),
                  ResidualMap(texts, penalty=0.01, epochs=60)):  # fmt: skip
        assert (model.fit(support, labels).predict(queries) == asked).mean() > before


def test_lp_plus_plus_is_at_its_minimum_whatever_the_optimiser():
    support, labels, queries, _, texts = world((3, 4, 3), width=6)
    ridge = 0.05
    model = LinearProbePlusPlus(texts, ridge=ridge).fit(support, labels)
    start, alphas = model.start(support, labels)

    def loss(moved):
        shift, stretch, bias = moved[:18].reshape(3, 6), moved[18:21], moved[21:]
        total = 0.0
        for row, label in zip(support, labels, strict=True):
            logits = [row @ (start[c] + shift[c] + alphas[c] * (1 + stretch[c]) * texts[c]) + bias[c] for c in range(3)]
            total -= logits[label] - np.log(np.sum(np.exp(logits)))
        return total / len(labels) + ridge / 2 * ((shift**2).sum() + (stretch**2).sum() + (bias**2).sum())

    slow = minimize(loss, np.zeros(24), method="BFGS", options={"gtol": 1e-6})
    shift, stretch, bias = slow.x[:18].reshape(3, 6), slow.x[18:21], slow.x[21:]
    scores = queries @ (start + shift + (alphas * (1 + stretch))[:, None] * texts).T + bias
    found = model.scores(queries)
    np.testing.assert_allclose(found - found.mean(1, keepdims=True), scores - scores.mean(1, keepdims=True), atol=2e-3)


@pytest.mark.parametrize("ridge", [1e-4, 1e-2])
def test_lp_plus_plus_gets_to_its_minimum_in_time_and_so_knows_no_order_of_classes(ridge):
    support, labels, queries, _, texts = world((1, 2, 9, 4), queries=50, seed=5)
    model = LinearProbePlusPlus(texts, ridge=ridge).fit(support, labels)
    assert model.n_iter_ < model.max_iter
    renamed = np.array([2, 0, 3, 1])
    other = LinearProbePlusPlus(texts[np.argsort(renamed)], ridge=ridge).fit(support, renamed[labels])
    # flat along some directions: the loss stops falling by 1e-12 of itself where scores still move by 1e-3 of theirs
    np.testing.assert_allclose(
        other.scores(queries)[:, renamed], model.scores(queries), atol=5e-3 * np.abs(model.scores(queries)).max()
    )


@pytest.mark.parametrize("ridge", [1e-4, 1e-1])
def test_lp_plus_plus_of_classes_far_apart_hangs_on_no_rounding(ridge):
    """Examples, classes or channels in another order: sums of the same numbers with other last digits."""
    support, labels, queries, _, texts = world((4, 5, 3, 6, 4), width=20, queries=300, seed=4)
    model = LinearProbePlusPlus(texts, ridge=ridge).fit(support, labels)
    wanted = model.scores(queries)
    order, turned = np.random.default_rng(0).permutation(len(labels)), np.arange(5)[::-1]
    channels = np.arange(20)[::-1]
    others = (
        LinearProbePlusPlus(texts, ridge=ridge).fit(support[order], labels[order]).scores(queries),
        LinearProbePlusPlus(texts[turned], ridge=ridge).fit(support, turned[labels]).scores(queries)[:, turned],
        LinearProbePlusPlus(texts[:, channels], ridge=ridge).fit(support[:, channels], labels)
        .scores(queries[:, channels]),
        LinearProbePlusPlus(texts * (1 + 1e-9), ridge=ridge).fit(support, labels).scores(queries),
    )  # fmt: skip
    for found in others:
        np.testing.assert_array_equal(found.argmax(axis=1), wanted.argmax(axis=1))
        np.testing.assert_allclose(found, wanted, atol=2e-6 * np.abs(wanted).max())


def prompts(texts, count, seed=0):
    noise = np.random.default_rng(seed).normal(size=(len(texts), count, texts.shape[1]))
    return unit(texts[:, None] + 0.3 * noise)


def test_timo_with_one_prompt_keeps_the_text_and_without_sharpness_takes_the_mean():
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


def test_timo_adds_the_nearest_prompts_as_samples_again_from_the_first():
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


def test_timo_chooses_by_what_it_held_out_and_names_prompts_that_do_not_fit():
    support, labels, queries, asked, texts = world((8,) * 4, queries=100)
    model = Timo(prompts(texts, 6)).fit(support, labels)
    assert model.gamma_ in (1.0, 5.0, 20.0, 50.0, 100.0)
    assert (model.predict(queries) == asked).mean() > 0.7
    with pytest.raises(ValueError):
        Timo(prompts(texts[:3], 6)).fit(support, labels)


def test_timo_as_published_has_its_gamma_all_prompts_and_the_best_of_nine_weights():
    support, labels, queries, _, texts = world((6, 6, 6), noise=1.5)
    several = prompts(texts, 4)
    model = Timo(several, preset="published").fit(support, labels)
    fixed = [Timo(several, alpha=10.0**power, gamma=50.0, prompts=1.0).fit(support, labels) for power in range(-4, 5)]
    assert (model.gamma_, model.prompts_) == (50.0, 1.0)
    best = fixed[int(np.argmax([each.loo_accuracy_ for each in fixed]))]
    assert model.alpha_ == best.alpha_
    np.testing.assert_allclose(model.scores(queries), best.scores(queries))


@pytest.mark.parametrize("shots", [1, 5])
def test_a_residual_map_as_published_is_held_by_one_over_the_shots(shots):
    support, labels, queries, _, texts = world((shots,) * 3)
    model = ResidualMap(texts, epochs=4, preset="published").fit(support, labels)
    assert model.penalty_ == 1 / shots
    given = ResidualMap(texts, epochs=4, penalty=1 / shots).fit(support, labels)
    np.testing.assert_array_equal(model.scores(queries), given.scores(queries))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", [Timo, ResidualMap])
def test_an_unknown_preset_is_refused(kind):
    support, labels, _, _, texts = world((2, 2))
    with pytest.raises(ValueError):
        kind(texts, preset="paper").fit(support, labels)


def test_of_choices_that_are_right_alike_the_first_is_taken():
    """Clusters so far apart that everything is right."""
    support, labels, _, _, texts = world((2, 2, 2), noise=0.05)
    timo = Timo(prompts(texts, 2)).fit(support, labels)
    assert timo.loo_accuracy_ == 1
    assert (timo.gamma_, timo.prompts_) == (1.0, 0.5)
    assert ClassAdaptiveProbe(texts, epochs=1).fit(support, labels).factor_ == 10.0
    assert LinearProbe(strengths=(0.1, 1.0, 10.0)).fit(support, labels).C_ == 0.1


def test_lp_plus_plus_reads_examples_block_by_block_to_the_same_minimum(monkeypatch):
    support, labels, queries, _, texts = world((5, 6, 7, 8))
    whole = LinearProbePlusPlus(texts, ridge=0.01).fit(support, labels)
    monkeypatch.setattr(probes, "_LOGITS", 20)  # five examples at a time
    parts = LinearProbePlusPlus(texts, ridge=0.01).fit(support, labels)
    np.testing.assert_allclose(parts.scores(queries), whole.scores(queries), rtol=1e-5, atol=1e-6)


def test_lp_plus_plus_starts_its_texts_weight_off_zero_where_they_say_nothing():
    """From exactly 0 it could not move."""
    support, labels = np.repeat(np.eye(4, 6)[:2], 2, axis=0), np.repeat([0, 1], 2)
    model = LinearProbePlusPlus(np.eye(6)[4:], ridge=0.1, max_iter=5).fit(support, labels)
    assert model.start(support, labels)[1].tolist() == [1e-3, 1e-3]


def test_a_class_whose_spread_is_one_examples_is_held_out_as_if_fitted_without_it():
    """Without that example all are copies, and nothing is left to measure a spread by."""
    support, labels, _, _, texts = world((6, 6, 6), noise=0.0)
    support[0] = unit(support[0] + 0.1 * np.arange(12))
    model = GaussianDiscriminant(texts, alpha=1.0).fit(support, labels)
    alone = GaussianDiscriminant(texts, alpha=1.0).fit(support[1:], labels[1:]).scores(support[:1])
    np.testing.assert_allclose(model.loo_scores_[:1], alone, rtol=1e-6)


@pytest.mark.parametrize("model", [GaussianDiscriminant(alpha=1.0), Timo(gamma=50.0, prompts=1.0, alpha=1.0)], ids=str)
@pytest.mark.parametrize("copies", [1, 3])
def test_copies_of_one_example_have_no_spread_whatever_the_precision(model, copies):
    support, labels, queries, _, texts = world((1, 1, 1, 1), width=48, queries=30)
    rows, own = np.tile(support, (copies, 1)), np.tile(labels, copies)
    given = None if isinstance(model, Timo) else texts
    wanted = model.set_params(text_features=given).fit(support, labels).scores(queries)
    for scaled in (rows * 1000 / 999.7, rows.astype(np.float32)):
        found = clone(model).fit(scaled, own).scores(queries.astype(scaled.dtype))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


PEERS = [
    ApeClassifier(), ApeTrained(epochs=3), ClassAdaptiveProbe(factor=1.0, epochs=10, learning_rate=0.01),
    ClipAdapter(epochs=3, batch=64), LinearProbePlusPlus(ridge=0.01), ResidualMap(penalty=0.1, epochs=10),
    Timo(), TipAdapterF(epochs=4), TipX(),
]  # fmt: skip


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("model", PEERS, ids=lambda model: type(model).__name__)
def test_a_peer_is_an_estimator_as_recollects_own_are(model):
    check_estimator(model)


def zero_rows(estimator):
    return {"check_estimators_dtypes": "feeds rows of zeros; an embedding without direction is refused"}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:.*not unit-norm.*")
@parametrize_with_checks(PEERS, expected_failed_checks=zero_rows)
def test_scikit_learn_accepts_a_peer(estimator, check):
    check(estimator)
