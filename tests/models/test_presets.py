"""Presets have the sizes of the models they are named after."""

from functools import cache

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from recollect.core.errors import UserError
from recollect.models import PRESETS, build_model
from recollect.models.tokenizers import train_unigram


@pytest.fixture(scope="module")
def tokenizer_of():
    """Return a factory of tokenizers with a given vocabulary size."""

    @cache
    def make(size):
        tokenizer = train_unigram(["a photo"], 300, 64)
        tokenizer.add_tokens([f"word{number}" for number in range(size - len(tokenizer))])
        assert len(tokenizer) == size
        return tokenizer

    return make


@pytest.fixture
def on_meta(tokenizer_of):
    """Return a function that builds a preset on the meta device."""

    def build(name, vocabulary):
        with torch.device("meta"):
            return PRESETS[name].build(tokenizer_of(vocabulary))[0]

    return build


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def transformer(width, layers, mlp=4):
    """Count parameters of blocks (attention 4 d² + 4 d, MLP 2 m d² + (m + 1) d, norms 4 d) and the final norm."""
    return layers * ((4 + 2 * mlp) * width**2 + (4 + mlp + 1 + 4) * width) + 2 * width


def vit(width, layers, size, patch, mlp=4):
    """Count parameters of patch and position embeddings, blocks, and the pooling head (query, attention, norm, MLP)."""
    places = (size // patch) ** 2
    pool = width + (4 * width**2 + 4 * width) + 2 * width + (2 * mlp * width**2 + (mlp + 1) * width)
    return (3 * patch**2 + 1) * width + places * width + transformer(width, layers, mlp) + pool


def text_tower(width, layers, length, vocabulary, out, mlp=4):
    return (vocabulary + length) * width + transformer(width, layers, mlp) + (width + 1) * out


@pytest.mark.parametrize(
    ("name", "image", "text"),
    [
        ("tiny", (96, 3, 32, 8, 2), (64, 2, 24, 4_000, 96, 2)),
        ("small", (128, 4, 64, 8, 2), (96, 2, 32, 8_000, 128, 2)),
        ("vit-s-16", (384, 12, 256, 16), (384, 12, 64, 32_000, 384)),
        ("vit-b-16", (768, 12, 256, 16), (768, 12, 64, 32_000, 768)),
        ("vit-l-16", (1024, 24, 256, 16), (1024, 24, 64, 32_000, 1024)),
    ],
)
def test_a_preset_has_the_parameter_count_of_its_dimensions(on_meta, name, image, text):
    assert PRESETS[name].vocabulary == text[3]
    model = on_meta(name, text[3])
    assert count(model.vision_model) == vit(*image)
    assert count(model.text_model) == text_tower(*text)
    assert count(model) == vit(*image) + text_tower(*text) + 2  # temperature and bias


@pytest.mark.parametrize(("name", "millions"), [("vit-b-16", 203.20), ("vit-l-16", 652.15)])
def test_base_and_large_match_the_published_siglip_at_256_px(on_meta, name, millions):
    assert round(count(on_meta(name, 32_000)) / 1e6, 2) == millions


def test_swin_t_has_27_5_million_parameters_and_clips_text_tower_63_4(on_meta):
    """28,288,354 with its classifier of 1,000 classes (Liu et al., 2021), 63,428,096 (Radford et al., 2021)."""
    model = on_meta("swin-t", 49_408)
    assert count(model.vision_model) == 28_288_354 - 1000 * (768 + 1)
    assert count(model.text_model) + count(model.text_projection) == 63_428_096
    assert count(model.visual_projection) == 768 * 512


@pytest.mark.parametrize("name", ["tiny", "vector-mlp", "glyph-random"])
def test_a_seed_determines_the_model_regardless_of_the_global_generator(name, captions):
    torch.manual_seed(1)
    first = build_model(name, texts=captions, prefixes=("caption",), seed=3)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second = build_model(name, texts=captions, prefixes=("caption",), seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert first.fingerprint == second.fingerprint
    assert build_model(name, texts=captions, prefixes=("caption",), seed=4).fingerprint != first.fingerprint


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("vit-h-14", {"texts": ["a"]}),
        ("tiny", {"texts": None}),
        ("tiny", {"texts": None, "tokenizer": "nowhere/at-all"}),
        ("tiny", {"texts": ["", " "]}),
        ("vector-mlp", {"texts": ["a"], "tokenizer": "nowhere/at-all"}),
    ],
)
def test_an_unknown_preset_and_a_missing_tokenizer_are_rejected(name, given):
    with pytest.raises(UserError):
        build_model(name, **given)


def test_a_given_tokenizer_is_used_but_not_modified(captions):
    tokenizer: PreTrainedTokenizerFast = build_model("tiny", texts=captions).tokenizer
    encoder = build_model("tiny", texts=None, tokenizer=tokenizer, prefixes=("label",))
    assert "<|label|>" in encoder.tokenizer.get_vocab()
    assert "<|label|>" not in tokenizer.get_vocab()
