"""Conformance checks for your own sources, encoders, classifiers and stores, and small ones to use in tests.

A failed check raises `AssertionError` with a message that states the requirement.

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
    """A source backed by a list of samples.

    Attributes:
        name: name of the source.
        samples: samples, in order.
        kind: kind of all samples.
        class_names: class names, in label order.
    """

    name: str
    samples: Sequence[Sample]
    kind: Kind = "caption"
    class_names: tuple[str, ...] = ()

    @classmethod
    def of_pictures(cls, name: str, count: int, size: int = 16, seed: int = 0) -> "SampleList":
        """Create ``count`` captioned pictures of noise, reproducible by seed."""
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
    """Maps equal pictures or texts to equal embeddings, and different ones to unrelated random embeddings.

    Attributes:
        width: embedding width.
        salt: different salts stand for different models.
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
    """Check that ``source`` meets the requirements of `Source`, on its first samples.

    Args:
        source: source to check.
        samples: number of samples to read; each is read several times.

    Raises:
        AssertionError: a requirement is not met; the message states it.
    """
    assert isinstance(source, Source), f"{type(source).__name__} must derive from Source"
    assert source.name, "a source must have a name"
    assert source.kind in ("caption", "label"), f"kind must be caption or label, not {source.kind!r}"
    assert source.fingerprint == source.fingerprint, "the fingerprint must not change between calls"
    count = min(samples, len(source))
    read = {index: _read(source, index) for index in range(count)}
    readable = {index: sample for index, sample in read.items() if sample is not None}
    ids = [sample.id for sample in readable.values()]
    assert len(set(ids)) == len(ids), "ids must be unique within a source"
    for index, sample in readable.items():
        _check_sample(source, index, sample)
    rows = np.array(list(readable), dtype=np.int64)
    if source.reads_blocks:
        block = source.read_block(rows)
        assert [sample.id for sample in block] == ids, "read_block must return the samples at the indices, in order"
    if not source.endless:
        assert source.labels.shape == (len(source),), "labels must have one entry per sample"
        equal = all(int(source.labels[index]) == sample.label for index, sample in readable.items())
        assert equal, "labels must equal the samples' labels"
    if source.makes_batches:
        images, texts, labels = source.batch(rows, 0)
        assert len(images) == len(texts) == len(labels) == len(rows), "batch must have one row per index"
        again = source.batch(rows, 0)
        assert torch.equal(images, again[0]), "batch must depend only on indices and seed"
    if not source.endless:
        _check_end(source)


def _read(source: Source, index: int) -> Sample | None:
    try:
        return source[index]
    except BrokenImageError:
        return None


def _check_sample(source: Source, index: int, sample: Sample) -> None:
    where = f"sample {index}"
    assert sample.source == source.name, f"{where}: source must be the name of the source"
    assert sample.kind == source.kind, f"{where}: kind must be the source's kind"
    assert sample.label == NO_LABEL or sample.label >= 0, f"{where}: label must be a class index or NO_LABEL"
    if source.class_names and sample.label != NO_LABEL:
        assert sample.label < len(source.class_names), f"{where}: label must have a class name"
    again = source.read(index)
    assert again.id == sample.id, f"{where}: the id must not change between reads"
    assert again.texts == sample.texts == tuple(source.texts(index)), f"{where}: texts() must equal the sample's texts"
    same_image = np.array_equal(np.asarray(again.image), np.asarray(sample.image))
    assert same_image, f"{where}: the picture must not change between reads"
    assert source.read(index, extra=False).texts == sample.texts, f"{where}: texts must not depend on extra"
    assert source.facts(index) == source.facts(index), f"{where}: facts must not change between calls"
    stored = source.original(index)
    key = source.picture_key(index, stored)
    assert key == source.picture_key(index, stored), f"{where}: the picture key must not change between calls"
    assert key is None or key, f"{where}: the picture key must be None or a non-empty string"
    if isinstance(stored, bytes):
        Image.open(io.BytesIO(stored)).verify()


def _check_end(source: Source) -> None:
    try:
        source[len(source)]
    except (IndexError, BrokenImageError):
        return
    raise AssertionError("reading past the last sample must raise IndexError, which ends a loop over the source")


def check_encoder(encoder: Encoder, images: Sequence[ImageLike] | None = None) -> None:
    """Check that ``encoder`` meets the requirements of `Encoder`.

    Args:
        encoder: encoder to check.
        images: images it can embed (default: pictures of noise).

    Raises:
        AssertionError: a requirement is not met; the message states it.
    """
    assert isinstance(encoder, Encoder), f"{type(encoder).__name__} must derive from Encoder"
    pictures = images or [sample.image for sample in SampleList.of_pictures("noise", 5, 32).samples]
    assert encoder.fingerprint == encoder.fingerprint, "the fingerprint must not change between calls"
    assert encoder.scale is None or encoder.scale > 0, "scale must be positive or None"
    _check_embedding("embed_images", encoder.embed_images, pictures, encoder.width)
    _check_embedding("embed_texts", encoder.embed_texts, ["a cat", "a dog", ""], encoder.width)
    if encoder.base is not None:
        refined = encoder.refine_images(encoder.base.embed_images(pictures))
        equal = torch.allclose(refined, encoder.embed_images(pictures), atol=1e-5)
        assert equal, "refine_images must map the base's embeddings to those of embed_images"


def _check_embedding(name: str, embed: Callable[[Any], Tensor], inputs: Sequence[Any], width: int) -> None:
    rows = embed(inputs)
    assert rows.shape == (len(inputs), width), f"{name} must return (n, width)"
    assert rows.dtype == torch.float32, f"{name} must return float32"
    assert rows.device.type == "cpu", f"{name} must return embeddings on the CPU"
    assert not rows.requires_grad, f"{name} must return detached embeddings"
    assert torch.allclose(rows.norm(dim=1), torch.ones(len(inputs)), atol=1e-5), f"{name} must return unit vectors"
    assert torch.allclose(rows, embed(inputs), atol=1e-6), f"{name} must return the same embeddings each time"
    single = torch.cat([embed(inputs[row : row + 1]) for row in range(len(inputs))])
    assert torch.allclose(rows, single, atol=1e-4), f"{name}: a row must not depend on the other rows"
    assert embed([]).shape == (0, width), f"{name} must return (0, width) for no inputs"


def check_estimator(estimator: EmbeddingClassifier) -> None:
    """Check a few-shot classifier, in addition to scikit-learn's own checks.

    It must support `clone` and pickling, separate easy clusters, and have consistent scores, probabilities and
    predictions.

    Raises:
        AssertionError: a requirement is not met; the message states it.
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
    assert fitted is fresh, "fit must return the estimator"
    scores = fitted.scores(points)
    assert scores.shape == (60, 3), "scores must be (queries, classes)"
    assert np.isfinite(scores).all(), "scores must be finite"
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.scores(points), scores), "a pickled copy must return the same scores"
    predictions = fitted.predict(points)
    assert (fitted.classes_[scores.argmax(axis=1)] == predictions).all(), "predictions must be the highest scores"
    assert np.allclose(fitted.predict_proba(points).sum(axis=1), 1), "probabilities must sum to one"
    assert (predictions == names).mean() > 0.9, "at least 90 % of easy clusters must be classified correctly"
