"""The engine gives what fitting every estimator by itself gives; supports are nested, classes and draws as asked."""

from dataclasses import replace

import numpy as np
import pytest

from recollect.classifiers.heads import engine
from recollect.classifiers.heads.calibration import expected_calibration_error
from recollect.classifiers.heads.engine import run_protocol
from recollect.classifiers.heads.methods import FEW_SHOT_METHODS, PAPER_METHODS
from recollect.classifiers.heads.protocol import FewShotTask, Protocol, nested_supports
from recollect.core.errors import UserError
from recollect_papers.peers.ape import ApeTrained
from recollect_papers.peers.timo import Timo
from recollect_papers.peers.trained import ClipAdapter, LinearProbePlusPlus


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Trained methods with few steps: what is tested is the engine."""
    monkeypatch.setitem(FEW_SHOT_METHODS, "ape-t", lambda texts, scale: ApeTrained(texts, epochs=3, scale=scale))
    monkeypatch.setitem(FEW_SHOT_METHODS, "lp++", lambda texts, scale: LinearProbePlusPlus(texts, 0.01))
    monkeypatch.setitem(
        FEW_SHOT_METHODS, "clip-adapter", lambda texts, scale: ClipAdapter(texts, epochs=5, scale=scale)
    )


SHOTS = (1, 2, 5)
SEEDS = (0, 3)


def unit(matrix):
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def task():
    random = np.random.default_rng(0)
    classes, width = 6, 16
    centres = random.standard_normal((classes, width))
    labels = random.permutation(np.repeat(np.arange(classes), [5, 6, 7, 8, 9, 10]))
    asked = random.integers(classes, size=150)
    asked[asked == 5] = np.where(random.random((asked == 5).sum()) < 0.5, 5, 0)  # unbalanced

    def around(which, noise):
        return unit(centres[which] + noise * random.standard_normal((len(which), width)))

    return FewShotTask(
        around(labels, 1.5), labels, around(asked, 1.5), asked, around(np.arange(classes), 1.0), scale=20.0
    )


_ALONE = {}


def by_itself(task, name, shots, seed):
    """Predictions of the estimator fitted as its user would fit it, once for both metrics."""
    if (name, shots, seed) not in _ALONE:
        _ALONE[name, shots, seed] = _predicted(task, name, shots, seed)
    return _ALONE[name, shots, seed]


def _predicted(task, name, shots, seed):
    rows = nested_supports(task.support_labels, len(task.texts), SHOTS[-1], seed)[:shots].ravel()
    estimator = FEW_SHOT_METHODS[name](task.texts, task.scale).fit(task.support[rows], task.support_labels[rows])
    return estimator.predict(task.queries)


def test_prompts_are_weighed_where_the_task_has_them(task):
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
@pytest.mark.parametrize("metric", ["top-1", "mean per class"])
def test_every_method_gives_what_its_estimator_gives_alone(task, name, metric):
    found = run_protocol(task, Protocol((name,), SHOTS, SEEDS, metric))
    expected = {}
    for shots, seed in [(0, 0)] if name == "zero-shot" else [(shots, seed) for seed in SEEDS for shots in SHOTS]:
        right = by_itself(task, name, max(shots, 1), seed) == task.query_labels
        classes = [right[task.query_labels == label].mean() for label in np.unique(task.query_labels)]
        expected[shots, seed] = 100 * float(right.mean() if metric == "top-1" else np.mean(classes))
    assert {(row["shots"], row["seed"]): row["value"] for row in found} == pytest.approx(expected, abs=1e-9)
    assert {row["metric"] for row in found} == {metric}


def test_the_tasks_are_neither_solved_nor_hopeless(task):
    known = (*PAPER_METHODS, "zero-shot", "gda", "proker", "linear-probe")
    values = [row["value"] for row in run_protocol(task, Protocol(known, SHOTS, SEEDS)) if row["shots"] != 1]
    assert 40 < min(values) < max(values) < 90


def test_the_block_decides_memory_not_figures(task, monkeypatch):
    monkeypatch.setattr(engine, "SET_QUERIES", 20)  # every eighth query has a set, wherever a block begins
    monkeypatch.setattr(engine, "SET_ALPHA", 0.4)  # at which five examples can rule a class out
    names = ("prototype", "tip-adapter-cv", "softmax", "softmax+zero-shot", "gda")
    whole, small = (run_protocol(task, Protocol(names, SHOTS, SEEDS, memory=memory)) for memory in (2**28, 4_000))
    for one, other in zip(whole, small, strict=True):
        assert one == pytest.approx(other, abs=1e-4)  # confidences have other last digits in blocks of another size
    assert [row["value"] for row in whole] == [row["value"] for row in small]


@pytest.mark.parametrize("name", ["prototype", "tip-adapter-cv", "softmax+zero-shot", "gda", "proker"])
def test_trust_is_measured_on_the_queries(task, name):
    (row,) = run_protocol(task, Protocol((name,), (5,), (3,)))
    rows = nested_supports(task.support_labels, len(task.texts), 5, 3).ravel()
    model = FEW_SHOT_METHODS[name](task.texts, task.scale).fit(task.support[rows], task.support_labels[rows])
    error = expected_calibration_error(model.predict_proba(task.queries), task.query_labels)
    kept = model.predict_set(task.queries, 0.1)
    held = kept[np.arange(len(kept)), task.query_labels].mean()
    assert row["ece"] == pytest.approx(100 * error, abs=1e-3)
    assert (row["coverage"], row["set_size"]) == pytest.approx((100 * held, kept.sum(axis=1).mean()), abs=0.7)
    assert row["loo"] == pytest.approx(100 * model.loo_accuracy_)


def test_one_shot_has_nothing_left_out_and_zero_shot_no_sets(task):
    rows = {row["method"]: row for row in run_protocol(task, Protocol(("zero-shot", "gda"), (1,), (0,)))}
    for name in ("loo", "coverage", "set_size"):
        assert name not in rows["gda"], "no example can be held out, so there are no such figures"
        assert name not in rows["zero-shot"]
    assert 0 <= rows["zero-shot"]["ece"] <= 100


def test_the_models_scale_reaches_the_methods_that_need_it(task):
    other = replace(task, scale=100.0)
    protocol = Protocol(tuple(FEW_SHOT_METHODS), (5,), SEEDS)
    same, changed = ({row["method"]: row["value"] for row in run_protocol(each, protocol)} for each in (task, other))
    differ = {name for name in FEW_SHOT_METHODS if same[name] != changed[name]}
    without = {"zero-shot", "prototype", "tip-adapter", "tip-adapter-cv", "plurality", "softmax", "linear-probe"}
    assert not differ & (without | {"proker", "proker-published"})
    assert "softmax+zero-shot" in differ


def test_supports_are_nested_and_from_their_classes():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(4), 9))
    order = nested_supports(labels, 4, 7, seed=1)
    assert order.shape == (7, 4)
    assert len(np.unique(order)) == 28
    assert (labels[order] == np.arange(4)).all()
    np.testing.assert_array_equal(order[:3], nested_supports(labels, 4, 3, seed=1))
    assert (order != nested_supports(labels, 4, 7, seed=2)).any()


def test_a_class_with_fewer_examples_gives_all_that_it_has(task):
    """Equal to each estimator fitted separately on the available examples; larger classes keep their draws."""
    short = np.concatenate([np.flatnonzero(task.support_labels != 1), np.flatnonzero(task.support_labels == 1)[:3]])
    few = FewShotTask(
        task.support[short], task.support_labels[short], task.queries, task.query_labels, task.texts, task.scale
    )
    protocol = Protocol(("prototype", "softmax", "proker"), (2, 5), (0, 1), short_classes="all")
    found = {(row["method"], row["shots"], row["seed"]): row["value"] for row in run_protocol(few, protocol)}
    for (name, shots, seed), value in found.items():
        order = nested_supports(few.support_labels, few.classes, 5, seed, "all")
        assert (order[:, 1] >= 0).tolist() == [True, True, True, False, False]
        rows = order[:shots].ravel()
        rows = rows[rows >= 0]
        estimator = FEW_SHOT_METHODS[name](few.texts, few.scale).fit(few.support[rows], few.support_labels[rows])
        assert value == pytest.approx(100 * (estimator.predict(few.queries) == few.query_labels).mean())
    with pytest.raises(ValueError, match="class 1"):
        run_protocol(few, Protocol(("prototype",), (5,), (0,)))
    assert "short_classes" not in Protocol(("prototype",)).settings()


def test_seeds_draw_every_example_equally_often():
    labels = np.repeat(np.arange(2), 5)
    drawn = np.concatenate([nested_supports(labels, 2, 2, seed).ravel() for seed in range(2000)])
    counts = np.bincount(drawn, minlength=10)
    assert np.abs(counts - 800).max() < 5 * np.sqrt(2000 * 0.4 * 0.6)


def test_rows_come_in_the_order_of_the_methods(task):
    rows = run_protocol(task, Protocol(("softmax", "zero-shot", "prototype"), (1, 2), (0, 1)))
    assert [(row["method"], row["shots"], row["seed"]) for row in rows] == [
        ("softmax", 1, 0), ("softmax", 1, 1), ("softmax", 2, 0), ("softmax", 2, 1),
        ("zero-shot", 0, 0),
        ("prototype", 1, 0), ("prototype", 1, 1), ("prototype", 2, 0), ("prototype", 2, 1),
    ]  # fmt: skip


def test_progress_counts_every_query_of_every_method(task):
    seen = []
    run_protocol(task, Protocol(("prototype", "gda"), SHOTS, SEEDS), seen.append)
    assert sum(seen) == len(task.queries) * len(SHOTS) * len(SEEDS) * 2


def test_more_shots_than_a_class_has(task):
    with pytest.raises(ValueError, match="class 0"):
        run_protocol(task, Protocol(("prototype",), (1, 6), (0,)))


@pytest.mark.parametrize("shots", [(), (0, 1), (2, 1), (1, 1)])
def test_shots_ascend_from_one(shots):
    with pytest.raises(UserError):
        Protocol(("prototype",), shots, (0,))


def test_an_unknown_method_is_named_with_those_there_are():
    with pytest.raises(UserError, match="'knn'"):
        Protocol(("knn",))


def test_embeddings_that_are_not_finite_or_do_not_fit(task):
    broken = task.queries.copy()
    broken[3, 2] = np.nan
    with pytest.raises(ValueError):
        FewShotTask(task.support, task.support_labels, broken, task.query_labels, task.texts)
    with pytest.raises(ValueError):
        FewShotTask(task.support[:, :10], task.support_labels, task.queries, task.query_labels, task.texts)
