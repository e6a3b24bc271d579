"""Learning a class from clicks, against refits, a slow optimizer and simulations."""

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.metrics import average_precision_score

from index_rows import unit
from recollect.classifiers.clicks.active_learning import farthest_first, next_to_label
from recollect.classifiers.clicks.cutoff import cut_off, platt, plausible, stop_rule
from recollect.classifiers.clicks.model import WEAK_WEIGHT, ClickModel
from recollect.classifiers.heads.trust import unknown_rule


def pool(rows=3000, classes=12, width=32, seed=0, spread=1.2):
    generator = np.random.default_rng(seed)
    centers = generator.normal(size=(classes, width))
    labels = generator.integers(classes, size=rows)
    text = unit(centers[0] + 2 * generator.normal(size=width))
    return unit(centers[labels] + spread * generator.normal(size=(rows, width))), labels == 0, text


def clicked(model, truth, count, batch=10):
    marks = {}
    while len(marks) < count:
        fit = model.fit(marks)
        for row in next_to_label(model, fit, batch).tolist():
            marks[row] = 1 if truth[row] else -1
    return marks


def slow_scores(model, marks, settings, left=None):
    """Solve the same ridge regression on centered rows in float64, with one clicked row left out."""
    rows = [row for row in sorted(marks) if row != left]
    weak = [row for row in model._weak.tolist() if row not in marks]
    every = rows + weak
    x = model.pool.astype(np.float64) - model.pool.astype(np.float64).mean(0)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.array([marks[row] for row in rows] + [-1.0] * len(weak))
    weights = np.array([1.0] * len(rows) + [WEAK_WEIGHT] * len(weak))
    kernel = np.exp(settings.sharpness * (x[every] @ x[every].T - 1)) + np.diag(settings.ridge / weights)
    z = model.prior.astype(np.float64)
    alpha = np.linalg.solve(kernel, y - settings.prior * z[every])
    return np.exp(settings.sharpness * (x @ x[every].T - 1)) @ alpha + settings.prior * z


def test_scores_and_leave_one_out_scores_match_plain_solves():
    rows, truth, text = pool(400)
    model = ClickModel(rows, text)
    marks = clicked(model, truth, 40)
    fit = model.fit(marks)
    np.testing.assert_allclose(fit.scores, slow_scores(model, marks, fit.settings), atol=2e-3)
    for place, row in enumerate(fit.rows.tolist()):
        expected = slow_scores(model, marks, fit.settings, left=row)[row]
        assert fit.left_out[place] == pytest.approx(expected, abs=1e-5)


def test_a_direction_shared_by_all_pictures_changes_no_score():
    rows, truth, _ = pool(400)
    shared = np.full((400, 1), 3.0, dtype=np.float32)  # a common direction, as real embeddings have
    with_shared = np.concatenate([rows, shared], axis=1) / np.sqrt(10.0)
    models = ClickModel(rows), ClickModel(with_shared.astype(np.float32))
    marks = clicked(models[0], truth, 40)
    plain, shifted = (model.fit(marks) for model in models)
    assert plain.settings == shifted.settings
    np.testing.assert_allclose(plain.scores, shifted.scores, atol=1e-3)
    assert set(next_to_label(models[0], plain, 10)) == set(next_to_label(models[1], shifted, 10))


def test_identical_pictures_get_the_same_score():
    rows = np.tile(np.array([[0.6, 0.8]], np.float32), (30, 1))
    scores = ClickModel(rows).fit({0: 1, 1: -1, 2: 1}).scores
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(scores, scores[0], atol=1e-2)


def test_caching_between_clicks_changes_no_score():
    rows, truth, text = pool(500)
    model = ClickModel(rows, text)
    marks = clicked(model, truth, 30)
    undone = dict(list(marks.items())[:-3])
    cached, fresh = model.fit(undone), ClickModel(rows, text).fit(undone)
    assert cached.settings == fresh.settings
    np.testing.assert_allclose(cached.scores, fresh.scores, atol=1e-5)


def test_the_chosen_settings_minimize_the_leave_one_out_error():
    rows, truth, text = pool(400)
    model = ClickModel(rows, text)
    marks = clicked(model, truth, 40)
    fit = model.fit(marks)

    def loss(settings):
        left = np.array([slow_scores(model, marks, settings, left=row)[row] for row in fit.rows.tolist()])
        error = (left - fit.marks) ** 2
        return error[fit.marks > 0].mean() + error[fit.marks < 0].mean()

    best = loss(fit.settings)
    for prior in (fit.settings.prior - 0.05, fit.settings.prior + 0.05):
        if 0 <= prior <= 1:
            assert loss(type(fit.settings)(fit.settings.sharpness, fit.settings.ridge, prior)) >= best - 1e-9
    for ridge in (0.03, 3.0):
        assert loss(type(fit.settings)(fit.settings.sharpness, ridge, fit.settings.prior)) >= best - 1e-9


def test_the_text_alone_or_one_click_alone_can_rank():
    rows, truth, text = pool()
    np.testing.assert_array_equal(np.argsort(-ClickModel(rows, text).fit({}).scores)[:50],
                                  np.argsort(-(rows @ text))[:50])  # fmt: skip
    yes = int(np.flatnonzero(truth)[0])
    assert np.argmax(ClickModel(rows).fit({yes: 1}).scores) == yes


def test_sixty_clicks_find_the_class_and_a_good_cutoff():
    precisions, coverages = [], []
    for seed in range(4):
        rows, truth, text = pool(seed=seed)
        model = ClickModel(rows, text)
        fit = model.fit(clicked(model, truth, 60))
        assert average_precision_score(truth, fit.scores) > 0.9 > average_precision_score(truth, rows @ text)
        cut = cut_off(fit)
        precisions.append(truth[cut.above].mean())
        coverages.append(cut.above[truth].mean())
        assert cut.probability[fit.rows].tolist() == (fit.marks > 0).tolist()
    assert np.mean(precisions) > 0.85
    assert np.mean(coverages) > 0.85


def test_the_sigmoid_is_the_maximum_likelihood_fit():
    generator = np.random.default_rng(0)
    marks = np.where(generator.random(60) < 0.5, 1, -1)
    scores, weights = marks + 1.5 * generator.normal(size=60), generator.uniform(0.05, 1, 60)
    yes, no = weights[marks > 0].sum(), weights[marks < 0].sum()
    targets = np.where(marks > 0, (yes + 1) / (yes + 2), 1 / (no + 2))

    def loss(ab):
        z = ab[0] * scores + ab[1]
        return (weights * (np.logaddexp(0, z) - targets * z)).sum()

    slow = minimize(loss, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).x
    np.testing.assert_allclose(platt(scores, marks, weights), slow, atol=1e-4)
    assert platt(-scores, marks, weights)[0] == 0.0
    assert all(np.isfinite(platt(10.0 * marks, marks, np.ones(60))))


def test_clicks_of_one_kind_give_no_cutoff():
    rows, truth, text = pool(300)
    model = ClickModel(rows, text)
    yes = np.flatnonzero(truth)[:5].tolist()
    assert cut_off(model.fit(dict.fromkeys(yes, 1))) is None


def test_two_picks_from_two_clusters_are_one_of_each():
    rows = np.zeros((100, 4), np.float32)
    rows[:50, 0] = rows[50:, 1] = 1
    picks = farthest_first(rows, rows[:0], np.ones(100), 2)
    assert (picks < 50).sum() == 1
    assert len(farthest_first(rows[:3], rows[picks], np.ones(3), 10)) == 3


def test_suggestions_never_repeat():
    rows, truth, text = pool(60)
    model = ClickModel(rows, text)
    marks = {}
    for _ in range(10):
        picks = next_to_label(model, model.fit(marks), 7).tolist()
        assert len(set(picks)) == len(picks)
        assert not set(picks) & set(marks)
        marks |= {row: 1 if truth[row] else -1 for row in picks}
    assert len(marks) == 60
    assert len(next_to_label(model, model.fit(marks), 7)) == 0


def test_stopping_needs_nineteen_clicks_of_each_kind_and_no_surprise_in_the_last_twenty():
    def stops(yes=19, no=19, missed=(), wrong=0):
        marks = np.repeat([1, -1], [yes, no])  # the last click first
        above = marks > 0
        above[list(missed)] = False
        above[yes : yes + wrong] = True
        shuffled = np.random.default_rng(0).permutation(yes + no)  # rows are in the order of the pool
        return stop_rule(marks[shuffled], above[shuffled], np.arange(yes + no)[::-1][shuffled])

    assert stops()
    assert not stops(yes=18)
    assert not stops(no=18)
    assert stops(yes=22, missed=[20, 21])  # the first two clicks on a Yes
    assert not stops(yes=22, missed=[19])
    assert not stops(missed=[0])  # the last click
    assert stops(wrong=2)
    assert not stops(wrong=3)


def test_the_order_of_clicks_is_recorded_and_changes_no_score():
    rows, truth, text = pool(300)
    marks = {7: 1 if truth[7] else -1} | clicked(ClickModel(rows, text), truth, 20)
    fit, other = (ClickModel(rows, text).fit(each) for each in (marks, dict(sorted(marks.items()))))
    assert fit.rows[np.argsort(fit.order)].tolist() == list(marks)
    np.testing.assert_array_equal(fit.scores, other.scores)


def test_precision_and_coverage_are_measured_on_held_out_clicks():
    """The marks are random, so only a model scored on its own clicks would look accurate."""
    generator = np.random.default_rng(3)
    rows = generator.normal(size=(400, 64)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    marks = {row: 1 if generator.random() < 0.5 else -1 for row in range(80)}
    cut = cut_off(ClickModel(rows).fit(marks))
    shares = [share for share in (cut.precision, cut.coverage) if share is not None]
    assert shares
    assert min(shares) < 0.75


def test_a_fifth_of_the_suggestions_are_the_likeliest_pictures():
    rows, truth, text = pool(600)
    model = ClickModel(rows, text)
    fit = model.fit(clicked(model, truth, 40))
    p = cut_off(fit).probability.copy()
    p[fit.rows] = -1
    likeliest = set(np.argsort(-p, kind="stable")[:4].tolist())
    assert likeliest <= set(next_to_label(model, fit, 20).tolist())


def test_with_few_marks_half_the_suggestions_are_the_likeliest_and_half_are_diverse():
    rows, truth, text = pool(600)
    fit = ClickModel(rows, text).fit({int(row): 1 for row in np.flatnonzero(truth)[:2]})
    ranked = [row for row in np.argsort(-fit.scores, kind="stable").tolist() if row not in fit.rows]
    picks = next_to_label(ClickModel(rows, text), fit, 10).tolist()
    assert picks[:5] == ranked[:5]
    assert set(picks[5:]) <= set(ranked[5:105])
    near, known = np.array(ranked[5:105]), [*fit.rows.tolist(), *ranked[:5]]
    centered = ClickModel(rows, text).centered(np.arange(600))
    for pick in picks[5:]:
        nearest = (centered[near] @ centered[known].T).max(axis=1)
        assert pick == near[np.argmin(nearest)]
        known.append(pick)


def test_yes_alone_keeps_most_other_pictures_out():
    alone = listed = right = lost = 0
    for seed in range(4):
        generator = np.random.default_rng(seed)
        centers = unit(generator.normal(size=(20, 48))) + 1.5 * 48**-0.5  # embeddings share a direction
        labels = np.repeat(np.arange(20), 20)
        pool = unit(centers[labels] + 0.2 * generator.normal(size=(400, 48))).astype(np.float32)
        yes, others = np.flatnonzero(labels == 0)[:10], np.flatnonzero(labels == 1)[:10]
        rule = unknown_rule(pool[np.concatenate([yes, others])], np.repeat([0, 1], 10))
        near = ((pool @ rule.means.T).argmax(1) == 0) & ~rule.is_unknown(pool)
        found, missed = plausible(ClickModel(pool, seed=1).fit(dict.fromkeys(yes.tolist(), 1)))
        lost += missed
        assert found[yes].all()
        alone, listed, right = alone + near.sum(), listed + (near & found).sum(), right + (near & found)[:20].sum()
    assert lost <= 2
    assert listed < 0.5 * alone, "the classifier alone only compares labels with one another"
    assert right > 0.9 * 76, "nearly all of the 76 right ones stay"
    assert plausible(ClickModel(pool).fit({0: 1})) is None
