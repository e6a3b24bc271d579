"""Small random dual encoders of three families, and episode batches over random pictures."""

import copy

import numpy as np
import pytest
import torch

from models.conftest import MAKERS
from recollect.core.types import Sample, Source
from recollect.efsa.batch import EpisodeBatch, EpisodeQuery, number_texts
from recollect.index.source import source_index
from recollect.models import TransformersEncoder
from recollect.models.transformers.encoder import quiet
from recollect.models.transformers.processors import transform_of

WORDS = "red green blue small large snowman umbrella queen left right of a above the river bridge tree car"


def sentences(number, seed=0):
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS.split(), size=generator.integers(2, 8))) for _ in range(number)]


@pytest.fixture(scope="session")
def make_encoder():
    """Return a function that copies a small random encoder, by family and seed."""
    encoders = {}

    def make(family, seed=7):
        if (family, seed) not in encoders:
            with quiet(), torch.random.fork_rng():
                torch.manual_seed(seed)
                model, processor = MAKERS[family]()
            transform = transform_of(processor.image_processor, family)
            encoders[family, seed] = TransformersEncoder(model.eval(), processor, transform)
        return copy.deepcopy(encoders[family, seed])

    return make


@pytest.fixture(params=["clip", "vit_bert", "siglip"])
def family(request):
    return request.param


@pytest.fixture
def encoder(make_encoder, family):
    return make_encoder(family).double()


@pytest.fixture
def make_episode_batch():
    """Return a factory of batches whose queries share pictures; candidates may lack a caption or a picture."""

    def make(encoder, queries=3, k=5, pictures=7, seed=0, holes=False, repeats=False):
        generator = np.random.default_rng(seed)
        size = encoder.transform.size
        pixels = torch.from_numpy(generator.normal(size=(pictures, 3, size, size)))
        images = np.stack([generator.permutation(pictures)[:k] for _ in range(queries)])
        captions = sentences(pictures, seed + 1)
        if repeats:
            captions[1] = captions[0]
            captions[4] = captions[3]
        owned: list[str | None] = list(captions)
        if holes:
            owned[2] = None
        wordings, numbers = number_texts(owned)
        texts = np.array(numbers)[images]
        if holes:
            images[0, 1] = -1
            images[1, :2] = -1
        texts_of_queries = tuple(sentences(queries, seed + 2))
        queries = tuple(EpisodeQuery(((text, 1.0),)) for text in texts_of_queries)
        return EpisodeBatch(queries, pixels, torch.from_numpy(images), wordings, torch.from_numpy(texts))

    return make


class Pictures(Source):
    """Source of random pictures; those listed in `lost` raise FileNotFoundError."""

    kind = "caption"
    class_names = ()

    def __init__(self, texts, size=16, seed=3):
        generator = np.random.default_rng(seed)
        self.name, self._texts, self.lost, self.read_count = "pictures", texts, set(), 0
        self._pixels = generator.integers(0, 256, size=(len(texts), size, size, 3), dtype=np.uint8)

    @property
    def fingerprint(self):
        return f"pictures-{len(self._texts)}"

    def __len__(self):
        return len(self._texts)

    def __getitem__(self, index):
        self.read_count += 1
        if index in self.lost:
            raise FileNotFoundError(f"{index}.png")
        extra = {"domain": "odd" if index % 2 else "even"}
        return Sample(self._pixels[index], self._texts[index], -1, self.name, "caption", f"picture-{index}", extra)

    def texts(self, index):
        return self._texts[index]

    def values(self, key):
        return [("odd" if index % 2 else "even") if key == "domain" else None for index in range(len(self))]


@pytest.fixture
def pictures():
    return Pictures([(text, f"a picture of {text}") for text in sentences(24, seed=9)])


@pytest.fixture
def make_index(pictures):
    """Return a factory of indexes over 24 pictures, with their own captions by default."""

    def make(encoder, captions=None):
        own = [pictures.texts(row)[0] for row in range(24)]
        return source_index(encoder, pictures, own if captions is None else captions)

    return make
