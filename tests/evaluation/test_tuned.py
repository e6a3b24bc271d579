"""Tuning methods in the few-shot protocol."""
# ruff: noqa: F401, F811

from dataclasses import dataclass

import numpy as np
import pytest

from classifiers.conftest import make_encoder
from recollect.classifiers.heads import trust
from recollect.classifiers.heads.base import EmbeddingClassifier
from recollect.classifiers.heads.calibration import expected_calibration_error
from recollect.classifiers.tuning import LabeledPictures, TwoStageTuning
from recollect.core.errors import UserError
from recollect.core.types import Sample
from recollect.evaluation.few_shot import few_shot
from recollect.evaluation.few_shot_protocol import Protocol, nested_supports
from recollect.evaluation.tasks.classification import ClassificationTask
from recollect.evaluation.tuned import TuningRequest, tuned_answers
from recollect.testing import SampleList

NAMES = ("red", "green", "blue")


def colored(name, size, seed):
    """Return noisy pictures in one color each."""
    pictures = np.random.default_rng(seed).integers(0, 200, (size, 32, 32, 3), dtype=np.uint8)
    for index, picture in enumerate(pictures):
        picture[..., index % 3] = 255
    samples = [Sample(each, (), index % 3, name, "label", str(index)) for index, each in enumerate(pictures)]
    return SampleList(name, samples, "label", NAMES)


@pytest.fixture(scope="session")
def clip(make_encoder):
    return make_encoder("clip")


@pytest.fixture
def colors():
    support, query = colored("support", 12, 0), colored("query", 9, 1)
    return ClassificationTask("colors", support, query, NAMES, ("a photo of a {}.",))


def test_tuned_results_match_the_method_run_alone(clip, colors):
    request = TuningRequest(("2sfs", "maple"), effort=0.005)
    result = few_shot(clip, colors, Protocol(("prototype",), (1, 2), (0, 3)), model="m", tuning=request)
    keys = [(row["method"], row["shots"], row["seed"]) for row in result.rows if row["method"] != "prototype"]
    assert keys == [(name, shots, seed) for name in ("2sfs", "maple") for shots in (1, 2) for seed in (0, 3)]
    rows = nested_supports(colors.support.labels, 3, 2, 3).ravel()
    shots = LabeledPictures([colors.support[row].image for row in rows.tolist()], rows % 3, NAMES)
    alone = TwoStageTuning(effort=0.005, seed=3).fit(clip, shots)
    right = alone.scores([colors.query[row].image for row in range(9)]).argmax(axis=1) == np.arange(9) % 3
    (row,) = (row for row in result.rows if (row["method"], row["shots"], row["seed"]) == ("2sfs", 2, 3))
    assert row["value"] == pytest.approx(100 * right.mean())
    assert 0 <= row["ece"] <= 100
    assert result.settings["tuning"]["2sfs"]["steps_per_shot"] == 300
    assert result.file_name != few_shot(clip, colors, Protocol(("prototype",), (1, 2), (0, 3)), model="m").file_name


def test_held_out_shots_are_scored_by_models_tuned_without_them(clip, colors, monkeypatch):
    monkeypatch.setattr(trust, "MIN_EXAMPLES", 6)
    request, plain = (TuningRequest(("2sfs",), effort=0.005, held_out=held) for held in (True, False))
    one, two = few_shot(clip, colors, Protocol((), (1, 2), (0,)), model="m", tuning=request).rows
    assert "loo" not in one  # one shot cannot be held out
    rows = nested_supports(colors.support.labels, 3, 2, 0)
    pictures = [colors.support[row].image for row in rows.ravel().tolist()]
    right = 0
    for held in (slice(0, 3), slice(3, 6)):  # one per class; the other three are the training examples
        learned = LabeledPictures(pictures[3:] if held.start == 0 else pictures[:3], np.arange(3), NAMES)
        scores = TwoStageTuning(effort=0.005, seed=0).fit(clip, learned).scores(pictures[held])
        right += (scores.argmax(axis=1) == np.arange(3)).sum()
    assert two["loo"] == pytest.approx(100 * right / 6)
    assert (two["coverage"], two["set_size"]) == (100.0, 3.0)  # six examples cannot rule out a class
    files = {few_shot(clip, colors, Protocol((), (1,), (0,)), model="m", tuning=each).file_name
             for each in (request, plain)}  # fmt: skip
    assert len(files) == 2


def test_trust_figures_of_tuned_models_match_those_of_embedding_classifiers():
    """A classifier on embeddings with the same held-out and test scores is the reference."""
    random = np.random.default_rng(0)
    support_labels, labels = np.repeat(np.arange(3), 12), random.integers(3, size=40)
    known, tested = (random.normal(size=(len(each), 3)) + 1.5 * np.eye(3)[each] for each in (support_labels, labels))

    class FixedScores(EmbeddingClassifier):
        def _fit(self, support, labels):
            pass

        def _scores(self, queries):
            return tested

        def _held_out(self, support, labels, plan):
            return known

    rows = random.normal(size=(36, 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    reference = FixedScores().fit(rows, support_labels)
    sets = reference.predict_set(rows[:1])
    wanted = {
        "loo": reference.loo_accuracy_, "ece": expected_calibration_error(reference.predict_proba(rows[:1]), labels),
        "coverage": sets[np.arange(40), labels].mean(), "set_size": sets.sum() / 40 / 100,
    }  # fmt: skip
    row = tuned_answers(tested, labels, (known, support_labels)).figures(labels, "top-1")
    assert {key: row[key] for key in wanted} == pytest.approx({key: 100 * value for key, value in wanted.items()})
    assert 0.8 < wanted["coverage"] < 1 < sets.sum() / 40 < 3


def test_methods_may_use_the_whole_support_unlabeled(clip, colors):
    read = []

    @dataclass(frozen=True)
    class Reader(TwoStageTuning):
        def fit(self, encoder, shots):
            read.append((len(shots.pictures), len(shots.unlabeled)))
            return super().fit(encoder, shots)

    known = {"reader": lambda effort, flip, seed: Reader(effort=effort, flip=flip, seed=seed)}
    request = TuningRequest(("reader",), effort=0.005, held_out=True, known=known)
    (row,) = few_shot(clip, colors, Protocol((), (2,), (0,)), model="m", tuning=request).rows
    assert (row["method"], "loo" in row) == ("reader", False)  # six examples are too few for an accuracy
    assert read == [(6, 12), (3, 9), (3, 9)]  # held-out examples are not among the unlabeled ones


def test_invalid_requests_are_rejected(clip, colors, encoder, task):
    with pytest.raises(UserError):
        TuningRequest(("cocoop",))
    with pytest.raises(UserError):
        TuningRequest(("2sfs",), effort=0.0)
    with pytest.raises(UserError):
        few_shot(encoder, task, Protocol((), (1,), (0,)), model="m", tuning=TuningRequest(("2sfs",)))
