"""A broken picture does not stop an evaluation: it is skipped, listed and counted."""

import numpy as np
import pytest

from recollect.core.errors import UserError
from recollect.core.types import Sample
from recollect.data.sources.images import BrokenImageError
from recollect.evaluation.features import FeatureCache, image_features
from recollect.evaluation.few_shot import few_shot
from recollect.evaluation.few_shot_protocol import Protocol
from recollect.evaluation.retrieval import retrieval
from recollect.evaluation.tasks.classification import ClassificationTask
from recollect.evaluation.tasks.retrieval import RetrievalTask
from recollect.testing import HashEncoder, SampleList


class Damaged(SampleList):
    """A source with unreadable samples."""

    broken = frozenset()

    def __getitem__(self, index: int) -> Sample:
        if index in self.broken:
            raise BrokenImageError(f"{self.name}, row {index}: cut short")
        return super().__getitem__(index)

    @property
    def fingerprint(self):
        return f"{self.name} {len(self)} {sorted(self.broken)}"

    @property
    def labels(self):
        return np.array([sample.label for sample in self.samples])


def damaged(name, count, broken, classes=2):
    pictures = np.random.default_rng(len(name)).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    samples = [Sample(each, (), row % classes, name, "label", str(row)) for row, each in enumerate(pictures)]
    source = Damaged(name, samples, "label", tuple(f"class {number}" for number in range(classes)))
    source.broken = frozenset(broken)
    return source


def test_broken_pictures_have_no_features(tmp_path, capfd):
    source = damaged("set", 40, {3, 39})
    whole = image_features(HashEncoder(), damaged("set", 40, ()))
    for _ in range(2):  # computed, then cached
        result = image_features(HashEncoder(), source, FeatureCache(tmp_path), block=16)
        readable = [row for row in range(40) if row not in source.broken]
        assert result.rows.tolist() == readable
        assert result.ids == tuple(map(str, readable))
        np.testing.assert_array_equal(result.labels, whole.labels[readable])
        np.testing.assert_array_equal(result.images, whole.images[readable])
    printed = capfd.readouterr().err
    assert "set, row 3: cut short; skipped" in printed
    assert "skipped 2 of 40 images that cannot be read" in printed


def test_too_many_broken_pictures_stop_the_evaluation():
    with pytest.raises(UserError, match=r"more than 10\.0%"):
        image_features(HashEncoder(), damaged("set", 40, range(6)))


def test_shots_are_drawn_from_the_readable_examples():
    query, names = damaged("query", 20, {0}), ("class 0", "class 1")
    settings = Protocol(("prototype",), (1, 2, 4), (0, 1))
    whole = [row for row in range(30) if row != 4]
    without = SampleList("support", [damaged("support", 30, ()).samples[row] for row in whole], "label", names)
    result, expected = (
        few_shot(HashEncoder(), ClassificationTask("t", support, query, names, ("{}",)), settings, model="m")
        for support in (damaged("support", 30, {4}), without)
    )
    assert [row["value"] for row in result.rows] == [row["value"] for row in expected.rows]
    assert result.settings["queries"] == 19


def test_retrieval_leaves_broken_pictures_out_of_the_pool():
    count = 30
    source = damaged("pool", count, {7})
    texts = tuple(f"text {row}" for row in range(count))
    task = RetrievalTask("pool", source, texts, tuple((row,) for row in range(count)), ("d",) * count, (False,) * count)
    readable = [row for row in range(count) if row != 7]
    remaining = SampleList("pool", [source.samples[row] for row in readable], "label", source.class_names)
    fewer = RetrievalTask(
        "pool", remaining, tuple(texts[row] for row in readable), tuple((row,) for row in range(count - 1)),
        ("d",) * (count - 1), (False,) * (count - 1),
    )  # fmt: skip
    result, expected = (retrieval(HashEncoder(), each, model="m") for each in (task, fewer))
    assert result.rows == expected.rows
