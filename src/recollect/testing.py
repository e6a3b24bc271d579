"""Checks for sources, encoders, classifiers and stores of your own, and small ones to test with.

Each check raises `AssertionError` with a sentence that says which promise is broken.

>>> from recollect.testing import HashEncoder, SampleList, check_encoder, check_source
>>> check_source(SampleList.of_pictures("three", 3))
>>> check_encoder(HashEncoder(width=8))
"""

import hashlib
import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.base import clone
from torch import Tensor

from recollect.classifiers.heads.base import EmbeddingClassifier
from recollect.core.types import NO_LABEL, Encoder, ImageLike, Kind, Sample, Source
from recollect.data.sources.images import BrokenImageError
from recollect.index.conformance import check_store as check_store


@dataclass(eq=False)
class SampleList(Source):
    """A source of the samples in a list.

    Attributes:
        name: of the source.
        samples: in order.
        kind: of all of them.
        class_names: in label order.
    """

    name: str
    samples: Sequence[Sample]
    kind: Kind = "caption"
    class_names: tuple[str, ...] = ()

    @classmethod
    def of_pictures(cls, name: str, count: int, size: int = 16, seed: int = 0) -> "SampleList":
        """``count`` captioned pictures of noise, the same for the same seed."""
        draw = np.random.default_rng(seed)
        pictures = draw.integers(0, 256, (count, size, size, 3), dtype=np.uint8)
        return cls(
            name,
            [
                Sample(picture, (f"noise number {number}",), NO_LABEL, name, "caption", str(number))
                for number, picture in enumerate(pictures)
            ],
        )

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]


@dataclass(frozen=True)
class HashEncoder(Encoder):
    """Embeds pictures and texts by their bytes alone: equal ones alike, others at random.

    Attributes:
        width: of an embedding.
        salt: another salt is another model.
    """

    width: int = 16
    salt: str = ""

    @property
    def fingerprint(self) -> str:
        return f"hash-{self.width}-{self.salt}"

    def embed_images(self, images: Tensor | Sequence[ImageLike]) -> Tensor:
        return self._embed([np.ascontiguousarray(image).tobytes() for image in images])

    def embed_texts(self, texts: Sequence[str], prefix: Kind | None = None) -> Tensor:
        return self._embed([text.encode() for text in texts])

    def _embed(self, contents: Sequence[bytes]) -> Tensor:
        rows = np.empty((len(contents), self.width), dtype=np.float32)
        for row, content in zip(rows, contents, strict=True):
            digest = hashlib.blake2b(self.salt.encode() + b"\0" + content, digest_size=8).digest()
            row[:] = np.random.default_rng(int.from_bytes(digest, "big")).standard_normal(self.width)
        return torch.nn.functional.normalize(torch.from_numpy(rows), dim=1)


def check_source(source: Source, *, samples: int = 20) -> None:
    """Check that ``source`` keeps what `Source` promises, on its first samples.

    Args:
        samples: how many to read; each is read several times.

    Raises:
        AssertionError: naming the promise that is broken.
    """
    assert isinstance(source, Source), f"{type(source).__name__} derives from Source"
    assert source.name, "a source has a name"
    assert source.kind in ("caption", "label"), f"kind is caption or label, not {source.kind!r}"
    assert source.fingerprint == source.fingerprint, "the fingerprint is the same each time"
    count = min(samples, len(source))
    read = {index: _read(source, index) for index in range(count)}
    there = {index: sample for index, sample in read.items() if sample is not None}
    ids = [sample.id for sample in there.values()]
    assert len(set(ids)) == len(ids), "ids are unique within a source"
    for index, sample in there.items():
        _check_sample(source, index, sample)
    rows = np.array(list(there), dtype=np.int64)
    if source.reads_blocks:
        block = source.read_block(rows)
        assert [sample.id for sample in block] == ids, "read_block gives the samples of the indices, in order"
    if not source.endless:
        assert source.labels.shape == (len(source),), "labels has one entry a sample"
        assert all(int(source.labels[index]) == sample.label for index, sample in there.items()), (
            "labels are the samples'"
        )
    if source.makes_batches:
        images, texts, labels = source.batch(rows, 0)
        assert len(images) == len(texts) == len(labels) == len(rows), "batch has a row for each index"
        again = source.batch(rows, 0)
        assert torch.equal(images, again[0]), "batch is a function of indices and seed"
    if not source.endless:
        _check_end(source)


def _read(source: Source, index: int) -> Sample | None:
    try:
        return source[index]
    except BrokenImageError:
        return None


def _check_sample(source: Source, index: int, sample: Sample) -> None:
    where = f"sample {index}"
    assert sample.source == source.name, f"{where} names its source"
    assert sample.kind == source.kind, f"{where} is of the source's kind"
    assert sample.label == NO_LABEL or sample.label >= 0, f"{where}: a label is an index, or NO_LABEL"
    if source.class_names and sample.label != NO_LABEL:
        assert sample.label < len(source.class_names), f"{where}: its label has a class name"
    again = source.read(index)
    assert again.id == sample.id, f"{where} has the same id each time"
    assert again.texts == sample.texts == tuple(source.texts(index)), f"{where}: texts() are its texts"
    assert np.array_equal(np.asarray(again.image), np.asarray(sample.image)), f"{where} is the same picture each time"
    assert source.read(index, extra=False).texts == sample.texts, f"{where} without extra is otherwise the same"
    assert source.facts(index) == source.facts(index), f"{where} has the same facts each time"
    stored = source.original(index)
    key = source.picture_key(index, stored)
    assert key == source.picture_key(index, stored), f"{where} has the same key each time"
    assert key is None or key, f"{where}: a key is a name, or None"
    if isinstance(stored, bytes):
        Image.open(io.BytesIO(stored)).verify()


def _check_end(source: Source) -> None:
    try:
        source[len(source)]
    except (IndexError, BrokenImageError):
        return
    raise AssertionError("behind the last sample there is an IndexError, so that a loop over the source ends")


def check_encoder(encoder: Encoder, images: Sequence[ImageLike] | None = None) -> None:
    """Check that ``encoder`` keeps what `Encoder` promises.

    Args:
        images: what it can embed; pictures of noise by default.

    Raises:
        AssertionError: naming the promise that is broken.
    """
    assert isinstance(encoder, Encoder), f"{type(encoder).__name__} derives from Encoder"
    pictures = images or [sample.image for sample in SampleList.of_pictures("noise", 5, 32).samples]
    assert encoder.fingerprint == encoder.fingerprint, "the fingerprint is the same each time"
    assert encoder.scale is None or encoder.scale > 0, "scale is a positive factor, or None"
    _check_embedding("embed_images", encoder.embed_images, pictures, encoder.width)
    _check_embedding("embed_texts", encoder.embed_texts, ["a cat", "a dog", ""], encoder.width)
    if encoder.base is not None:
        refined = encoder.refine_images(encoder.base.embed_images(pictures))
        assert torch.allclose(refined, encoder.embed_images(pictures), atol=1e-5), "refine_images refines the base's"


def _check_embedding(name: str, embed: Callable[[Any], Tensor], some: Sequence[Any], width: int) -> None:
    made = embed(some)
    assert made.shape == (len(some), width), f"{name} returns (n, width)"
    assert made.dtype == torch.float32, f"{name} returns float32"
    assert made.device.type == "cpu", f"{name} returns its embeddings on the CPU"
    assert not made.requires_grad, f"{name} keeps no graph"
    assert torch.allclose(made.norm(dim=1), torch.ones(len(some)), atol=1e-5), f"{name} returns unit vectors"
    assert torch.allclose(made, embed(some), atol=1e-6), f"{name} gives the same each time"
    one = torch.cat([embed(some[row : row + 1]) for row in range(len(some))])
    assert torch.allclose(made, one, atol=1e-4), f"{name}: a row does not depend on the others"
    assert embed([]).shape == (0, width), f"{name} of nothing is (0, width)"


def check_estimator(estimator: EmbeddingClassifier) -> None:
    """Check a few-shot classifier beyond scikit-learn's own checks, which it should pass too.

    It survives `clone` and pickling, separates easy clusters, and its scores, probabilities and predictions agree.

    Raises:
        AssertionError: naming the promise that is broken.
    """
    draw = np.random.default_rng(0)
    labels = np.arange(60) % 3
    points = draw.normal(size=(60, 8)) * 0.35 + np.eye(8)[labels]
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    names = np.array(["ant", "bee", "cat"])[labels]
    fresh = clone(estimator)
    if "text_features" in fresh.get_params():
        fresh.set_params(text_features=np.eye(3, 8))
    fitted = fresh.fit(points, names)
    assert fitted is fresh, "fit returns the estimator"
    scores = fitted.scores(points)
    assert scores.shape == (60, 3), "scores are (queries, classes)"
    assert np.isfinite(scores).all(), "scores are finite"
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.scores(points), scores), "a pickled copy scores alike"
    predictions = fitted.predict(points)
    assert (fitted.classes_[scores.argmax(axis=1)] == predictions).all(), "predictions are the best scores"
    assert np.allclose(fitted.predict_proba(points).sum(axis=1), 1), "probabilities add up to one"
    assert (predictions == names).mean() > 0.9, "easy clusters are told apart"
