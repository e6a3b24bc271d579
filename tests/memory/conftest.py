"""Memories of random pairs on every kind of store, and an encoder of which everything is known."""

import hashlib
import io
import shutil
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image

from recollect.core.types import EncoderBase, Sample, Source
from recollect.memory import Memory, Pairs

WIDTH = 16
MODEL = "model-a"


def unit(values):
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def picture(number, size=8):
    pixels = np.random.default_rng(number).integers(0, 256, (size, size, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def make_pairs(count, first=0, width=WIDTH, model=MODEL, seed=0):
    """Rows with every field filled; row ``i`` is the same whatever ``first`` is."""
    vectors = [np.random.default_rng([seed, number]).normal(size=(2, width)) for number in range(first, first + count)]
    both = np.array(vectors).reshape(count, 2, width)
    numbers = range(first, first + count)
    return Pairs(
        ids=[f"row {number}" for number in numbers],
        image_vectors=unit(both[:, 0]),
        text_vectors=unit(both[:, 1]),
        captions=[f"picture {number} of {'a cat' if number % 2 else 'an owl'}" for number in numbers],
        model=model,
        sources=[("emoji", "birds")[number % 2] for number in numbers],
        metadata=[
            {"year": 2000 + number, "domain": f"d{number % 3}", "good": number % 4 == 0}
            | ({"rare": "it's"} if number % 5 == 0 else {})
            for number in numbers
        ],
        images=[picture(number) for number in numbers],
        paths=[None] * count,
        origins=["o"] * count,
        ordinals=np.arange(first, first + count),
        digests=[f"digest {number}" for number in numbers],
    )


@pytest.fixture
def address(request, tmp_path):
    """Where a memory may be made: a folder, or a collection for tests that ask for both by ``indirect``.

    What a place does is checked of each by `test_backends.py`; `Memory` asks all of them the same way.
    """
    kind = getattr(request, "param", "lance")
    return str(tmp_path / "memory") if kind == "lance" else f"milvus://{tmp_path}/lite.db/pairs"


def fill(address, *counts):
    memory, first = Memory.create(address, width=WIDTH, model=MODEL, model_name="the model"), 0
    for count in counts:
        memory.add(make_pairs(count, first=first))
        first += count
    return memory


@pytest.fixture(scope="session")
def forty(tmp_path_factory):
    """Forty rows in a folder, in one commit or in two: to be copied, which takes a tenth of the time."""
    folder = tmp_path_factory.mktemp("forty")
    fill(folder / "one", 40), fill(folder / "two", 25, 15)
    return folder


@pytest.fixture
def memory(address, forty):
    """Forty rows."""
    if address.startswith("milvus://"):
        return fill(address, 25, 15)
    return Memory.open(shutil.copytree(forty / "two", address))


@pytest.fixture
def on_disk(tmp_path, forty):
    """Forty rows in a folder."""
    return Memory.open(shutil.copytree(forty / "one", tmp_path / "disk"))


@pytest.fixture
def pairs():
    """Makes rows: ``pairs(count, first=0, width=16, model="model-a", seed=0)``."""
    return make_pairs


@dataclass
class Pictures(Source):
    """Small pictures with captions; some may be broken, some the same."""

    size: int = 40
    name: str = "pictures"
    broken: tuple[int, ...] = ()
    same: int | None = None
    kind = "caption"
    class_names = ()

    @property
    def fingerprint(self):
        return f"{self.name}-{self.size}-{self.broken}-{self.same}"

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        from recollect.data.sources.images import BrokenImageError

        if index in self.broken:
            raise BrokenImageError(f"{self.name}, row {index}: not a picture")
        number = index % self.same if self.same else index
        pixels = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        texts = (f"caption {number}", f"other words for {number}")
        return Sample(pixels, texts, -1, self.name, "caption", str(index), {"number": index, "domain": "even"})


class HashEncoder(EncoderBase):
    """Embeds a picture by its mean colours, a text by its letters; nothing is random."""

    width = WIDTH

    def __init__(self, salt="a"):
        self.salt = salt
        self.images = 0

    @property
    def fingerprint(self):
        return f"model-{self.salt}"

    def embed_images(self, images):
        self.images += len(images)
        return self._unit([np.asarray(image, dtype=np.float32).tobytes() for image in images])

    def embed_texts(self, texts, prefix=None):
        return self._unit([text.encode() for text in texts])

    def _unit(self, contents):
        rows = [
            np.random.default_rng(int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")).normal(
                size=WIDTH
            )
            for content in contents
        ]
        return torch.nn.functional.normalize(torch.tensor(np.array(rows).reshape(-1, WIDTH)).float(), dim=1)


@pytest.fixture
def pictures():
    """Makes sources of pictures."""
    return Pictures


@pytest.fixture
def encoder():
    return HashEncoder()


@pytest.fixture
def other_encoder():
    return HashEncoder("b")
