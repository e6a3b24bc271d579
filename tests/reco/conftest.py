"""An index of random pictures with one caption each, and pairs of the same kind."""

import hashlib

import numpy as np
import pytest
import torch

from index_rows import Pictures
from recollect.core.types import Encoder
from recollect.index import Index
from recollect.reco.pairs import Pairs

WIDTH = 16
MODEL = "model-a"


def unit(values):
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def make_pairs(count, first=0, width=WIDTH, model=MODEL, seed=0):
    """Pair ``i`` is the same whatever ``first`` is."""
    numbers = range(first, first + count)
    vectors = [np.random.default_rng([seed, number]).normal(size=(2, width)) for number in numbers]
    both = np.array(vectors).reshape(count, 2, width)
    captions = [f"picture {number} of {'a cat' if number % 2 else 'an owl'}" for number in numbers]
    return Pairs(unit(both[:, 0]), unit(both[:, 1]), captions, [f"row {number}" for number in numbers], model)


@pytest.fixture
def pairs():
    """Makes pairs: ``pairs(count, first=0, width=16, model="model-a", seed=0)``."""
    return make_pairs


@pytest.fixture
def on_disk(tmp_path):
    """Forty pictures in a folder."""
    return make_pairs(40).index().save(tmp_path / "disk")


class HashEncoder(Encoder):
    """Embeds pictures by their pixels and texts by their letters; nothing is random."""

    width = WIDTH

    def __init__(self, salt="a"):
        self.salt = salt

    @property
    def fingerprint(self):
        return f"model-{self.salt}"

    def embed_images(self, images):
        return self._unit([np.asarray(image, dtype=np.float32).tobytes() for image in images])

    def embed_texts(self, texts, prefix=None):
        return self._unit([text.encode() for text in texts])

    def _unit(self, contents):
        seeds = [int.from_bytes(hashlib.blake2b(each, digest_size=8).digest(), "big") for each in contents]
        rows = np.array([np.random.default_rng(seed).normal(size=WIDTH) for seed in seeds]).reshape(-1, WIDTH)
        return torch.nn.functional.normalize(torch.tensor(rows).float(), dim=1)


@pytest.fixture
def encoder():
    return HashEncoder()


@pytest.fixture
def other_encoder():
    return HashEncoder("b")


@pytest.fixture
def pictures():
    """Makes sources of pictures."""
    return Pictures


@pytest.fixture
def built(tmp_path, encoder):
    """An index of forty pictures with one caption each."""
    from recollect.index import IngestOptions

    return Index.build(
        Pictures(40), encoder, out=tmp_path / "index", precision="float32", options=IngestOptions(captions="first")
    )
