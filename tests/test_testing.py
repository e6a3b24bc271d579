"""The checks of `recollect.testing` accept correct sources, encoders and classifiers, and reject broken ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from recollect.classifiers import EmbeddingClassifier
from recollect.core.types import Sample
from recollect.data.sources import open_source
from recollect.data.sources.subset import Joined, Subset
from recollect.models import build_model
from recollect.testing import HashEncoder, SampleList, check_encoder, check_estimator, check_source
from recollect_papers.worlds import SOURCES
from recollect_papers.worlds.arrays import ArraySource


@pytest.mark.parametrize("name", SOURCES)
def test_every_built_in_source_passes(name):
    check_source(open_source(name), samples=4)


def test_composed_sources_pass():
    three = SampleList.of_pictures("three", 3)
    check_source(three)
    check_source(Subset(three, np.array([2, 0]), name="two"))
    check_source(Joined((three, SampleList.of_pictures("others", 2, seed=1))))
    check_source(ArraySource("arrays", np.eye(4, dtype=np.float32), np.arange(4) % 2, ("even", "odd"), "here"))


def test_a_source_needs_only_two_methods():
    three = SampleList.of_pictures("three", 3)
    other = SampleList.of_pictures("three", 3, seed=1)
    assert three.fingerprint == SampleList.of_pictures("three", 3).fingerprint != other.fingerprint
    assert three.labels.tolist() == [-1, -1, -1]
    assert three.texts(1) == ("noise number 1",)
    assert three.example_texts(np.array([2, 0])) == ["noise number 2", "noise number 0"]
    assert three.values("domain") == [None] * 3
    assert [sample.id for sample in three.read_block(np.array([1, 2]))] == ["1", "2"]


BROKEN_SOURCES = {
    "ids must be unique": lambda sample: replace(sample, id="same"),
    "source must be the name": lambda sample: replace(sample, source="other"),
    "must be the source's kind": lambda sample: replace(sample, kind="label"),
    "the picture must not change": lambda sample: replace(sample, image=np.random.default_rng().random((2, 2, 3))),
}


@pytest.mark.parametrize("rule", BROKEN_SOURCES)
def test_a_broken_source_is_rejected(rule):
    class Broken(SampleList):
        def __getitem__(self, index: int) -> Sample:
            return BROKEN_SOURCES[rule](super().__getitem__(index))

    good = SampleList.of_pictures("three", 3)
    with pytest.raises(AssertionError, match=rule):
        check_source(Broken(good.name, good.samples))


def test_encoders_pass():
    check_encoder(HashEncoder(8))
    model = build_model("vector-mlp", texts=["a cat", "a dog"])
    check_encoder(model, [np.random.default_rng(row).normal(size=192).astype(np.float32) for row in range(3)])


class UnnormalizedEncoder(HashEncoder):
    def _embed(self, contents):
        return 2 * super()._embed(contents)


class BatchDependentEncoder(HashEncoder):
    def _embed(self, contents):
        rows = super()._embed(contents)
        return torch.nn.functional.normalize(rows + rows.sum(0), dim=1)


@pytest.mark.parametrize(
    ("encoder", "rule"),
    [(UnnormalizedEncoder(), "unit vectors"), (BatchDependentEncoder(), "must not depend on the other")],
)
def test_a_broken_encoder_is_rejected(encoder, rule):
    with pytest.raises(AssertionError, match=rule):
        check_encoder(encoder)


class Voting(EmbeddingClassifier):
    """Vote of the two nearest examples: integer scores with many ties."""

    def _fit(self, support, labels):
        self.support_, self.labels_ = support, labels

    def _scores(self, queries):
        nearest = np.argsort(-queries @ self.support_.T, axis=1)[:, :2]
        return np.eye(len(self.classes_), dtype=int)[self.labels_[nearest]].sum(axis=1)


class LogVoting(Voting):
    def _scores(self, queries):
        with np.errstate(divide="ignore"):
            return np.log(super()._scores(queries))


def test_tied_scores_pass_and_infinite_scores_are_rejected():
    check_estimator(Voting())
    with pytest.raises(AssertionError, match="finite"):
        check_estimator(LogVoting())
