import hashlib
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from recollect.core.types import Encoder, Sample, Source
from recollect.evaluation.tasks.classification import ClassificationTask


@dataclass
class VectorSource(Source):
    """Images that are vectors around one direction for each class."""

    name: str = "vectors"
    classes: int = 4
    size: int = 40
    width: int = 8
    seed: int = 0
    noise: float = 0.3
    kind = "label"

    @property
    def class_names(self):
        return tuple(f"class {index}" for index in range(self.classes))

    @property
    def fingerprint(self):
        return f"{self.name}-{self.classes}-{self.size}-{self.width}-{self.seed}-{self.noise}"

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        label = index % self.classes
        vector = np.random.default_rng([self.seed, index]).normal(size=self.width) * self.noise
        vector[label] += 1
        extra = {"domain": "odd" if index % 2 else "even"}
        return Sample(vector.astype(np.float32), (), label, self.name, "label", f"row-{index}", extra)


class VectorEncoder(Encoder):
    """Embeds vectors as they are, and a text by the class number in it."""

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
    return VectorSource()


@pytest.fixture
def encoder():
    return VectorEncoder()


@pytest.fixture
def task():
    support, query = VectorSource("support", size=160), VectorSource("query", size=100, seed=1)
    return ClassificationTask("vectors", support, query, support.class_names, ("a photo of {}.", "a drawing of {}."))


@pytest.fixture
def make_source():
    return VectorSource


@pytest.fixture
def make_encoder():
    return VectorEncoder
