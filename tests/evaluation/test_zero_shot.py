from dataclasses import replace

import numpy as np
import pytest
import torch

from recollect.classifiers.heads.calibration import expected_calibration_error
from recollect.evaluation.features import class_text_features
from recollect.evaluation.few_shot_protocol import accuracy
from recollect.evaluation.tasks.classification import ClassificationTask
from recollect.evaluation.zero_shot import _top_5, zero_shot
from recollect.testing import HashEncoder, SampleList


def test_zero_shot_accuracy_is_the_share_of_queries_nearest_to_their_class_text(encoder, task):
    result = zero_shot(encoder, task, model="m", seed=5)
    right = 0
    for index in range(len(task.query)):
        sample = task.query[index]
        image = encoder.embed_images([sample.image])[0].numpy()
        scores = []
        for name in task.class_names:
            texts = [encoder.embed_texts([template.format(name)])[0].numpy() for template in task.templates]
            mean = np.mean(texts, axis=0)
            scores.append(image @ mean / np.linalg.norm(mean))
        right += int(np.argmax(scores) == sample.label)
    assert result.rows[0]["metric"] == "top-1"
    assert result.rows[0]["value"] == pytest.approx(100 * right / len(task.query))
    assert 40 < result.rows[0]["value"] < 100
    assert result.seed == 5


def test_the_prefix_reaches_the_text_tower_and_the_result(encoder, task):
    result = zero_shot(encoder, task, model="m", prefix="label")
    assert result.settings["prefix"] == "label"
    assert result.rows != zero_shot(encoder, task, model="m").rows


@pytest.mark.parametrize("classes", [5, 6])
def test_top_5_is_reported_for_more_than_five_classes(classes):
    pictures = SampleList.of_pictures("some", classes).samples
    names = tuple(f"class {label}" for label in range(classes))
    labeled = [replace(each, kind="label", label=label, texts=()) for label, each in enumerate(pictures)]
    source = SampleList("some", labeled, "label", names)
    rows = zero_shot(HashEncoder(), ClassificationTask("some", source, source, names, ("{}",))).rows
    assert ("top-5" in [row["metric"] for row in rows]) == (classes > 5)


def test_mean_per_class_weighs_all_classes_equally():
    labels = np.array([0] * 9 + [1])
    predictions = np.zeros(10, dtype=int)
    assert accuracy(predictions, labels) == 90
    assert accuracy(predictions, labels, "mean per class") == 50


def test_the_calibration_error_uses_the_models_probabilities(encoder, task):
    (row,) = (row for row in zero_shot(encoder, task, model="m").rows if row["metric"] == "top-1")
    texts = class_text_features(encoder, task)
    images = torch.stack([encoder.embed_images([task.query[index].image])[0] for index in range(len(task.query))])
    logits = 100 * images.double().numpy() @ texts.T  # CLIP's scale, since this encoder stores none
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    assert row["ece"] == pytest.approx(100 * expected_calibration_error(shares, task.query.labels), abs=1e-3)


def test_top_5_breaks_ties_by_class_order():
    assert _top_5(np.zeros((8, 8)), np.arange(8)) == 100 * 5 / 8
    assert [_top_5(np.zeros((1, 8)), np.array([label])) for label in (0, 4, 5, 7)] == [100, 100, 0, 0]
