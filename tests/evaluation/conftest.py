import hashlib

import numpy as np
import pytest
import torch

from recollect.core.types import Encoder, Sample
from recollect.evaluation.tasks.classification import ClassificationTask
from recollect.testing import SampleList


def vector_source(name="vectors", size=40, seed=0, noise=0.3):
    """Return a source of vectors instead of images, around one direction per class."""
    samples = []
    for index in range(size):
        vector = np.random.default_rng([seed, index]).normal(size=8) * noise
        vector[index % 4] += 1
        domain = {"domain": "odd" if index % 2 else "even"}
        samples.append(Sample(vector.astype(np.float32), (), index % 4, name, "label", f"row-{index}", domain))
    return SampleList(name, samples, "label", tuple(f"class {index}" for index in range(4)))


class VectorEncoder(Encoder):
    """Normalizes vectors, and embeds a text by the class number in it."""

    width = 8

    def __init__(self, salt=""):
        self.salt = salt
        self.calls = 0

    @property
    def fingerprint(self):
        return f"vector-encoder-{self.salt}"

    def embed_images(self, images):
        self.calls += 1
        return torch.nn.functional.normalize(torch.from_numpy(np.stack(images)), dim=1)

    def embed_texts(self, texts, prefix=None):
        rows = []
        for text in texts:
            digits = [int(character) for character in text if character.isdigit()]
            seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
            noise = np.random.default_rng(seed).normal(size=self.width) * 0.1
            rows.append(np.eye(self.width)[digits[0]] + noise + (5 * np.eye(self.width)[7] if prefix else 0))
        return torch.nn.functional.normalize(torch.tensor(np.array(rows), dtype=torch.float32), dim=1)


@pytest.fixture
def source():
    return vector_source()


@pytest.fixture
def encoder():
    return VectorEncoder()


@pytest.fixture
def task():
    support, query = vector_source("support", size=160), vector_source("query", size=100, seed=1)
    return ClassificationTask("vectors", support, query, support.class_names, ("a photo of {}.", "a drawing of {}."))
