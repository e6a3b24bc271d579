"""Small towers of studies."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from recollect.models import build_model, load_model
from recollect.testing import check_encoder

NAMES = (
    "vector-mlp",
    "vector-linear",
    "glyph-random",
    "glyph-strong",
    "tiny-conv",
)
PROGRAM = """
import sys
import torch
from recollect.models import load_model
from safetensors.torch import load_file, save_file

torch.set_num_threads(int(sys.argv[1]))
# Copied, because kernels give slightly different results for other memory alignments.
given = {name: tensor.clone() for name, tensor in load_file(sys.argv[2]).items()}
for folder in sys.argv[3:]:
    model = load_model(folder, "cpu")
    images = model.embed_images(given["vectors" if "vector" in folder else "pixels"])
    texts = model.embed_texts(["a cat", "two red dogs", "nothing known"], "label")
    save_file({"images": images, "texts": texts}, folder + "/found.safetensors")
"""


@pytest.fixture
def given():
    generator = torch.Generator().manual_seed(0)
    return {
        "vectors": torch.randn(3, 192, generator=generator),
        "pixels": torch.randn(3, 3, 32, 32, generator=generator),
    }


def inputs(name, given):
    return given["vectors" if name.startswith("vector") else "pixels"]


@pytest.fixture
def captions():
    return ["a photo of a cat", "a photo of a car", "two red dogs and a small tree", "a large blue umbrella", "a cat"]


def test_small_models_give_identical_results_in_another_process(given, captions, tmp_path):
    from safetensors.torch import load_file, save_file

    save_file(given, tmp_path / "given.safetensors")
    models = {name: build_model(name, texts=captions, prefixes=("label",), seed=1) for name in NAMES}
    folders = [str(models[name].save(tmp_path / name)) for name in NAMES]
    words = [sys.executable, "-c", PROGRAM, str(torch.get_num_threads()), str(tmp_path / "given.safetensors"), *folders]
    # Same number of threads and memory alignment, which determine the order of sums.
    subprocess.run(words, check=True, env=os.environ | {"PYTHONHASHSEED": "7"})
    for name, model in models.items():
        found = load_file(tmp_path / name / "found.safetensors")
        assert torch.equal(found["images"], model.embed_images(inputs(name, given)))
        assert torch.equal(found["texts"], model.embed_texts(["a cat", "two red dogs", "nothing known"], "label"))
        assert load_model(tmp_path / name, "cpu").fingerprint == model.fingerprint


@pytest.mark.parametrize("name", NAMES)
def test_a_small_model_is_an_encoder(name, given, captions):
    vectors = list(given["vectors"].numpy()) if name.startswith("vector") else None
    check_encoder(build_model(name, texts=captions), vectors)


def test_a_bag_of_words_sums_its_word_vectors(captions):
    """Compared with a loop in float64; unknown words and padding add nothing."""
    encoder = build_model("vector-linear", texts=captions).double()
    table, head = encoder.word_vectors.weight, encoder.text_head
    numbers = {word: number for number, word in enumerate(encoder.words, start=1)}
    for text in (*captions, "A cat, a CAT and a zebra!", "zebra"):
        total = torch.zeros(table.shape[1], dtype=torch.float64)
        for word in text.lower().replace(",", "").replace("!", "").split():
            if word in numbers:
                total = total + table[numbers[word]]
        raw = encoder.encode_texts(encoder.tokenize([text, "a large blue umbrella above a tree"]))[0]
        torch.testing.assert_close(raw, head(total), rtol=0, atol=1e-12)


def test_random_filters_are_frozen_and_the_head_is_trained(given, captions):
    encoder = build_model("glyph-random", texts=captions)
    encoder.encode_images(given["pixels"]).square().sum().backward()
    learned = {name for name, parameter in encoder.image_tower.named_parameters() if parameter.grad is not None}
    assert learned == {"1.weight", "1.bias"}


def test_pictures_and_their_pixels_have_equal_embeddings(captions):
    encoder = build_model("glyph-strong", texts=captions)
    pictures = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    pixels = torch.stack([encoder.transform(picture) for picture in pictures])
    torch.testing.assert_close(encoder.embed_images(list(pictures)), encoder.embed_images(pixels))
    by_hand = (pictures.astype(np.float64) / 255 - 0.45) / 0.3
    torch.testing.assert_close(pixels.double(), torch.from_numpy(by_hand.transpose(0, 3, 1, 2)), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_stem_and_head_give_the_embedding(name, given, captions):
    encoder = build_model(name, texts=captions).eval()
    pixels = inputs(name, given)
    with torch.no_grad():
        torch.testing.assert_close(encoder.project_images(encoder.pool_images(pixels)), encoder.encode_images(pixels))
