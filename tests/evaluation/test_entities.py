"""Entity recognition: seen and unseen classes compete with each other."""

import shutil

import numpy as np
import pytest
import torch

from index_rows import unit
from recollect.core.errors import UserError
from recollect.core.types import Encoder, Sample
from recollect.evaluation.entities import best_and_confidence, entities, open_entities
from recollect.evaluation.tasks.classification import ClassificationTask
from recollect.testing import SampleList

NAMES = ("a cat", "an owl", "a fox", "a newt")


class Axes(Encoder):
    width, fingerprint = 4, "axes"

    def embed_images(self, images):
        return torch.from_numpy(np.stack(images))

    def embed_texts(self, texts, prefix=None):
        return torch.eye(4)[[NAMES.index(text) for text in texts]]


def task(shown):
    """Return a task with unit vectors as pictures, from pairs of the true class and the class that each looks like."""
    samples = [
        Sample(np.eye(4, dtype=np.float32)[looks], (), label, "pictures", "label", str(number))
        for number, (label, looks) in enumerate(shown)
    ]
    support, query = (SampleList("pictures", each, "label", NAMES) for each in ([], samples))
    return ClassificationTask("entities", support, query, NAMES, ("{}",))


def test_seen_and_unseen_classes_are_scored_separately_among_all_candidates():
    seen = np.array([True, True, False, False])
    # Seen: three of four right. Unseen: one right, one mistaken for another unseen class, two for seen ones.
    shown = [(0, 0), (0, 0), (1, 1), (1, 3), (2, 2), (2, 3), (3, 0), (3, 1)]
    result = entities(Axes(), task(shown), seen, model="m", seed=3)
    assert [row["metric"] for row in result.rows] == ["seen", "unseen", "harmonic mean"]
    assert [row["value"] for row in result.rows] == pytest.approx([75, 25, 2 / (1 / 75 + 1 / 25)])
    # One cosine of 1 and three of 0 at CLIP's scale of 100: every prediction is certain, so the ECE is the error rate.
    assert [row["ece"] for row in result.rows] == pytest.approx([25, 75, 50])
    assert (result.settings["classes"], result.settings["unseen classes"]) == (4, 2)
    assert (result.settings["queries"], result.settings["unseen queries"]) == (8, 4)


def test_best_and_confidence_match_a_softmax_over_all_candidates(monkeypatch):
    random = np.random.default_rng(0)
    images, texts = (unit(random.normal(size=(n, 6))) for n in (7, 23))
    texts[[20, 21, 9]] = texts[4], texts[4], texts[5]  # ties within and across blocks go to the first
    scores = images.astype(np.float64) @ texts.T.astype(np.float64)
    expected = np.exp(9 * scores) / np.exp(9 * scores).sum(axis=1, keepdims=True)
    monkeypatch.setattr("recollect.evaluation.entities._IMAGE_BLOCK", 3)
    monkeypatch.setattr("recollect.evaluation.entities._TEXT_BLOCK", 5)
    rows, confidence = best_and_confidence(images, texts, 9.0)
    np.testing.assert_array_equal(rows, expected.argmax(axis=1))
    # scale times the rounding of a cosine of six float32 products, in the exponent of each term
    np.testing.assert_allclose(confidence, expected.max(axis=1), rtol=9 * 8 * 2**-23)


def test_entities_of_the_train_split_are_seen(tmp_path):
    from PIL import Image

    for split, names in (("train", ("cat", "owl")), ("test", ("newt", "owl"))):
        for name in names:
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("RGB", (8, 8), (40, 80, 120)).save(tmp_path / split / name / "0.png")
    opened, seen = open_entities(str(tmp_path), "train", "test", ("{}",))
    assert dict(zip(opened.class_names, seen.tolist(), strict=True)) == {"cat": True, "newt": False, "owl": True}
    assert len(opened.query) == 4
    shutil.rmtree(tmp_path / "test" / "newt")
    with pytest.raises(UserError):
        open_entities(str(tmp_path), "train", "test", ("{}",))


def test_other_pictures_models_or_seen_classes_change_the_file_name():
    seen, shown = np.array([True, True, False, False]), [(0, 0), (1, 1), (2, 2), (3, 3)]
    other = Axes()
    other.fingerprint = "other axes"
    results = [
        entities(Axes(), task(shown), seen, model="m"),
        entities(Axes(), task(shown[::-1]), seen, model="m"),
        entities(Axes(), task(shown), ~seen, model="m"),
        entities(other, task(shown), seen, model="m"),
    ]
    assert len({result.file_name for result in results}) == 4
    assert entities(Axes(), task(shown), seen, model="m").file_name == results[0].file_name
