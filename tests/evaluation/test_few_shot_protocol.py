"""The few-shot protocol, against fitting every estimator separately."""

from dataclasses import replace

import numpy as np
import pytest

from index_rows import unit
from recollect.classifiers.heads.calibration import expected_calibration_error
from recollect.classifiers.heads.methods import FEW_SHOT_METHODS
from recollect.core.errors import UserError
from recollect.evaluation import few_shot_protocol as engine
from recollect.evaluation.few_shot_protocol import FewShotTask, Protocol, nested_supports, run_protocol
from recollect_papers.peers.ape import ApeTrained
from recollect_papers.peers.timo import Timo
from recollect_papers.peers.trained import ClipAdapter


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Train for few steps, since these tests are about the protocol."""
    monkeypatch.setitem(FEW_SHOT_METHODS, "ape-t", lambda texts, scale: ApeTrained(texts, epochs=3, scale=scale))
    monkeypatch.setitem(
        FEW_SHOT_METHODS, "clip-adapter", lambda texts, scale: ClipAdapter(texts, epochs=5, scale=scale)
    )


SHOTS = (1, 2, 5)
SEEDS = (0, 3)


@pytest.fixture(scope="module")
def task():
    random = np.random.default_rng(0)
    classes, width = 6, 16
    centers = random.standard_normal((classes, width))
    labels = random.permutation(np.repeat(np.arange(classes), [5, 6, 7, 8, 9, 10]))
    query_labels = random.integers(classes, size=150)
    query_labels[query_labels == 5] = np.where(random.random((query_labels == 5).sum()) < 0.5, 5, 0)  # unbalanced

    def around(which, noise):
        return unit(centers[which] + noise * random.standard_normal((len(which), width)))

    return FewShotTask(
        around(labels, 1.5),
        labels,
        around(query_labels, 1.5),
        query_labels,
        around(np.arange(classes), 1.0),
        scale=20.0,
    )


def fitted_alone(task, name, shots, seed):
    """Fit the estimator outside the protocol."""
    rows = nested_supports(task.support_labels, len(task.texts), SHOTS[-1], seed)[:shots].ravel()
    return FEW_SHOT_METHODS[name](task.texts, task.scale).fit(task.support[rows], task.support_labels[rows])


def test_methods_that_weigh_prompts_get_those_of_the_task(task):
    noise = np.random.default_rng(3).standard_normal((len(task.texts), 5, task.texts.shape[1]))
    prompts = unit((task.texts[:, None] + noise).reshape(-1, noise.shape[2])).reshape(noise.shape).astype(np.float32)
    several = replace(task, prompts=prompts)
    (row,) = run_protocol(several, Protocol(("timo",), (4,), (0,)))
    rows = nested_supports(task.support_labels, len(task.texts), 4, 0).ravel()
    alone = Timo(prompts).fit(task.support[rows], task.support_labels[rows]).predict(task.queries)
    assert row["value"] == pytest.approx(100 * (alone == task.query_labels).mean())
    plain = Protocol(("tip-adapter",), (4,), (0,))
    assert run_protocol(several, plain)[0]["value"] == run_protocol(task, plain)[0]["value"]


@pytest.mark.parametrize("name", FEW_SHOT_METHODS)
def test_every_method_matches_its_estimator_fitted_alone(task, name):
    """If an estimator's best two scores are equal up to rounding, either class may be predicted."""
    labels = task.query_labels
    metrics = ("top-1", "mean per class")
    results = {metric: run_protocol(task, Protocol((name,), SHOTS, SEEDS, metric)) for metric in metrics}
    cases = [(0, 0)] if name == "zero-shot" else [(shots, seed) for shots in SHOTS for seed in SEEDS]
    assert all([(row["shots"], row["seed"]) for row in rows] == cases for rows in results.values())
    for place, (shots, seed) in enumerate(cases):
        scores = fitted_alone(task, name, max(shots, 1), seed).scores(task.queries)
        right, best = scores.argmax(axis=1) == labels, np.sort(scores, axis=1)
        tied = best[:, -1] - best[:, -2] <= 1e-5 * np.ptp(scores)
        for metric, rows in results.items():
            low, high = (100 * share(each, labels, metric) for each in (right & ~tied, right | tied))
            assert low - 1e-9 <= rows[place]["value"] <= high + 1e-9
            assert rows[place]["metric"] == metric


def share(right, labels, metric):
    return right.mean() if metric == "top-1" else np.mean([right[labels == each].mean() for each in np.unique(labels)])


def test_the_block_size_changes_no_result(task, monkeypatch):
    monkeypatch.setattr(engine, "SET_ALPHA", 0.4)  # five examples can rule out a class
    names = ("prototype", "tip-adapter-cv", "softmax", "softmax+zero-shot", "gda")
    whole = run_protocol(task, Protocol(names, SHOTS, SEEDS))
    monkeypatch.setattr(engine, "MAX_BLOCK_SCORES", 1_000)
    small = run_protocol(task, Protocol(names, SHOTS, SEEDS))
    for one, other in zip(whole, small, strict=True):
        assert one == pytest.approx(other, abs=1e-4)  # confidences have other last digits in blocks of another size
    assert [row["value"] for row in whole] == [row["value"] for row in small]


@pytest.mark.parametrize("name", ["prototype", "tip-adapter-cv", "softmax+zero-shot", "gda", "proker"])
def test_trust_is_measured_on_the_queries(task, name):
    (row,) = run_protocol(task, Protocol((name,), (5,), (3,)))
    model = fitted_alone(task, name, 5, 3)
    error = expected_calibration_error(model.predict_proba(task.queries), task.query_labels)
    sets = model.predict_set(task.queries, 0.1)
    covered = sets[np.arange(len(sets)), task.query_labels].mean()
    assert row["ece"] == pytest.approx(100 * error, abs=1e-3)
    assert (row["coverage"], row["set_size"]) == pytest.approx((100 * covered, sets.sum(axis=1).mean()), abs=0.7)
    assert row["loo"] == pytest.approx(100 * model.loo_accuracy_)


def test_one_shot_and_zero_shot_have_no_held_out_figures(task):
    rows = {row["method"]: row for row in run_protocol(task, Protocol(("zero-shot", "linear-probe"), (1,), (0,)))}
    for name in ("loo", "coverage", "set_size"):
        assert name not in rows["linear-probe"], "no example can be held out"
        assert name not in rows["zero-shot"]
    assert 0 <= rows["zero-shot"]["ece"] <= 100


def test_the_models_scale_reaches_the_methods_that_need_it(task):
    protocol = Protocol(("softmax", "tip-adapter", "proker", "softmax+zero-shot"), (5,), (0, 3))
    same, other = (
        {(row["method"], row["seed"]): row["value"] for row in run_protocol(replace(task, scale=scale), protocol)}
        for scale in (20.0, 100.0)
    )
    assert {name for name, seed in same if same[name, seed] != other[name, seed]} == {"softmax+zero-shot"}


def test_supports_are_nested_and_have_the_right_classes():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(4), 9))
    order = nested_supports(labels, 4, 7, seed=1)
    assert order.shape == (7, 4)
    assert len(np.unique(order)) == 28
    assert (labels[order] == np.arange(4)).all()
    np.testing.assert_array_equal(order[:3], nested_supports(labels, 4, 3, seed=1))
    assert (order != nested_supports(labels, 4, 7, seed=2)).any()


def test_short_classes_contribute_all_their_examples(task):
    """Equal to each estimator fitted separately on the available examples; larger classes keep their draws."""
    short = np.concatenate([np.flatnonzero(task.support_labels != 1), np.flatnonzero(task.support_labels == 1)[:3]])
    few = replace(task, support=task.support[short], support_labels=task.support_labels[short])
    protocol = Protocol(("prototype", "softmax", "proker"), (2, 5), (0, 1), short_classes="all")
    results = {(row["method"], row["shots"], row["seed"]): row["value"] for row in run_protocol(few, protocol)}
    for (name, shots, seed), value in results.items():
        order = nested_supports(few.support_labels, few.classes, 5, seed, "all")
        assert (order[:, 1] >= 0).tolist() == [True, True, True, False, False]
        rows = order[:shots].ravel()
        rows = rows[rows >= 0]
        estimator = FEW_SHOT_METHODS[name](few.texts, few.scale).fit(few.support[rows], few.support_labels[rows])
        assert value == pytest.approx(100 * (estimator.predict(few.queries) == few.query_labels).mean())
    with pytest.raises(ValueError, match="class 1"):
        run_protocol(few, Protocol(("prototype",), (5,), (0,)))
    assert "short_classes" not in Protocol(("prototype",)).settings()


@pytest.mark.parametrize("shots", [(), (0, 1), (2, 1), (1, 1)])
def test_shots_must_be_positive_and_ascending(shots):
    with pytest.raises(UserError):
        Protocol(("prototype",), shots, (0,))


def test_embeddings_that_are_not_finite_or_of_another_width_are_errors(task):
    broken = task.queries.copy()
    broken[3, 2] = np.nan
    with pytest.raises(ValueError):
        FewShotTask(task.support, task.support_labels, broken, task.query_labels, task.texts)
    with pytest.raises(ValueError):
        FewShotTask(task.support[:, :10], task.support_labels, task.queries, task.query_labels, task.texts)
