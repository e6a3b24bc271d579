"""Zero-shot methods that read a folder, a stream or views, but no labels."""
# ruff: noqa: F401, F811

from dataclasses import replace

import numpy as np
import pytest
import torch

from evaluation.conftest import encoder, task
from recollect.core.errors import UserError
from recollect.core.types import EncoderBase, Sample, Source
from recollect.evaluation.tasks.classification import ClassificationTask
from recollect.evaluation.zero_shot import NamedPictures, zero_shot
from recollect_papers.peers import unlabelled
from recollect_papers.peers.online import OnlineCache
from recollect_papers.peers.unlabelled import UNLABELLED_METHODS, views_of

FOR_VECTORS = tuple(name for name in UNLABELLED_METHODS if name != "zero")
COLOURS = {"red": (220, 20, 20), "green": (20, 220, 20), "blue": (20, 20, 220)}


class Colours(Source):
    """Pictures of one colour with a little noise."""

    name, kind, class_names, fingerprint = "colours", "label", tuple(COLOURS), "colours"

    def __len__(self):
        return 12

    def __getitem__(self, index):
        noise = np.random.default_rng(index).integers(0, 30, (20, 16, 3))
        picture = (np.array(list(COLOURS.values())[index % 3]) + noise).astype(np.uint8)
        return Sample(picture, (), index % 3, self.name, "label", str(index))


class MeanColour(EncoderBase):
    """Embeds a picture by its mean colour."""

    width, fingerprint = 3, "mean colour"

    def __init__(self):
        self.sizes = []

    def embed_images(self, images):
        self.sizes.append(len(images))
        rows = torch.tensor(np.array([np.asarray(image).reshape(-1, 3).mean(axis=0) for image in images]))
        return torch.nn.functional.normalize(rows.float(), dim=1)

    def embed_texts(self, texts, prefix=None):
        return torch.eye(3)[[list(COLOURS).index(text) for text in texts]]


def test_every_method_stands_beside_the_plain_one(encoder, task):
    plain = zero_shot(encoder, task, model="m")
    found = zero_shot(encoder, task, model="m", methods=FOR_VECTORS)
    assert found.rows[: len(plain.rows)] == plain.rows
    others = found.rows[len(plain.rows) :]
    assert [row["method"] for row in others] == [name for name in FOR_VECTORS for _ in range(2)]
    assert {row["reads"] for row in others} == {"folder", "stream"}
    assert all(row["value"] > 60 for row in others if row["metric"] == "top-1")  # four classes
    assert all(0 <= row["ece"] <= 100 for row in others if row["metric"] == "top-1")
    assert found.file_name != plain.file_name


def test_a_method_reads_no_label_of_a_tested_picture(encoder, task):
    asked = task.query

    class Shuffled(type(asked)):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            return replace(sample, label=(sample.label + 1) % 4)

    other = Shuffled(asked.name, size=asked.size, seed=asked.seed)
    right = zero_shot(encoder, task, model="m", methods=FOR_VECTORS).rows
    wrong = zero_shot(encoder, replace(task, query=other), model="m", methods=FOR_VECTORS).rows
    for one, shifted in zip(right, wrong, strict=True):
        assert one["value"] + shifted["value"] <= 100 + 1e-9  # the same predictions cannot be right under both


def test_views_vote_and_are_the_same_each_time():
    encoder, source = MeanColour(), Colours()
    task = ClassificationTask("colours", source, source, source.class_names, ("{}",))
    result = zero_shot(encoder, task, model="m", methods=("zero",))
    assert 0 <= result.rows[-2]["ece"] <= 100
    assert result.rows[-1] == {"method": "zero", "reads": "views", "metric": "mean per class", "value": 100.0}
    assert max(encoder.sizes) == 8 * 64
    first, again = views_of(source, 3), views_of(source, 3)
    assert len(first) == 64
    assert {np.asarray(view).shape for view in first[1:]} == {(16, 16, 3)}
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    assert not np.array_equal(first[1], views_of(source, 3, seed=1)[1])


class OneColour(Colours):
    """The same picture again and again."""

    def __getitem__(self, index):
        return super().__getitem__(0)


def test_each_picture_has_views_of_its_own():
    one, other = (views_of(OneColour(), row) for row in (0, 1))
    assert np.array_equal(one[0], other[0])
    assert not np.array_equal(one[1], other[1])


def test_a_stream_comes_in_an_order_that_the_seed_draws(monkeypatch):
    seen = []

    class Watched(OnlineCache):
        def scores(self, rows):
            seen.append(rows[:, 0].tolist())
            return super().scores(rows)

    rows = np.stack([np.cos(np.arange(30) / 30), np.sin(np.arange(30) / 30)], axis=1)
    found = []
    for seed in (0, 0, 1):
        given = NamedPictures(MeanColour(), Colours(), np.arange(30), rows, np.eye(2), 10.0, seed)
        found.append(unlabelled._stream(Watched)(given))
    assert seen[0] == seen[1] != seen[2]
    assert sorted(seen[0]) == sorted(seen[2]) == sorted(rows[:, 0].tolist())
    assert found[0].labels[:20].tolist() == [0] * 20  # in the order of the pictures again


def test_vectors_have_no_views_and_unknown_methods_are_named(encoder, task):
    with pytest.raises(UserError):
        zero_shot(encoder, task, model="m", methods=("zero",))
    with pytest.raises(UserError, match="'tpt'"):
        zero_shot(encoder, task, model="m", methods=("tpt",))
