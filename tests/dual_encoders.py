"""Small random dual encoders of three families, and episode batches over random pictures."""

import copy

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    CLIPConfig,
    CLIPModel,
    CLIPProcessor,
    VisionTextDualEncoderConfig,
    VisionTextDualEncoderModel,
    VisionTextDualEncoderProcessor,
    ViTConfig,
)

from recollect.core.types import Sample, Source
from recollect.data.transforms import ImageTransform
from recollect.efsa.batch import EpisodeBatch, EpisodeQuery, number_texts
from recollect.index.source import source_index
from recollect.models import TransformersEncoder, build_model
from recollect.models.tokenizers import train_unigram
from recollect.models.transformers.encoder import quiet
from recollect.models.transformers.processors import processor_of

WORDS = "red green blue small large snowman umbrella queen left right of a above the river bridge tree car"


def sentences(number, seed=0):
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS.split(), size=generator.integers(2, 8))) for _ in range(number)]


def _tower(layers=2):
    return {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": layers, "num_attention_heads": 2}


def _clip():
    tokenizer = train_unigram(sentences(80), 330, 32)
    special = {"bos_token_id": 1, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    text = _tower() | special | {"vocab_size": len(tokenizer), "max_position_embeddings": 32}
    config = CLIPConfig(
        text_config=text, vision_config=_tower() | {"image_size": 16, "patch_size": 4}, projection_dim=20
    )
    transform = ImageTransform(size=16)
    return TransformersEncoder(CLIPModel(config), CLIPProcessor(processor_of(transform), tokenizer), transform)


def _vit_bert():
    tokenizer = train_unigram(sentences(80), 330, 32)
    image = ViTConfig(**_tower(), image_size=16, patch_size=4)
    text = BertConfig(**_tower(), vocab_size=len(tokenizer), max_position_embeddings=32)
    config = VisionTextDualEncoderConfig.from_vision_text_configs(image, text, projection_dim=20)
    transform = ImageTransform(size=16)
    processor = VisionTextDualEncoderProcessor(processor_of(transform), tokenizer)
    return TransformersEncoder(VisionTextDualEncoderModel(config), processor, transform)


def _siglip():
    return build_model("tiny", texts=sentences(80))


MAKERS = {"clip": _clip, "vit_bert": _vit_bert, "siglip": _siglip}


@pytest.fixture(scope="session")
def make_encoder():
    encoders = {}  # one per family, since each trains a tokenizer

    def make(family):
        if family not in encoders:
            with quiet(), torch.random.fork_rng():
                torch.manual_seed(7)
                encoders[family] = MAKERS[family]().eval()
        return copy.deepcopy(encoders[family])

    return make


@pytest.fixture(params=list(MAKERS))
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
