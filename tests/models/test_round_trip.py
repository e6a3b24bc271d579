"""What is saved opens in transformers alone and gives the same embeddings."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from recollect.models import build_model, load_model

PLAIN = """
import json, sys
import numpy as np
import torch
from PIL import Image
from transformers import AutoModel, AutoProcessor

folder, pictures, texts, padding, out = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4], sys.argv[5]
model, processor = AutoModel.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)
images = [Image.fromarray(picture) for picture in np.load(pictures)]
length = {"max_length": model.config.text_config.max_position_embeddings}.get(padding)
tokens = processor.tokenizer(texts, padding=padding, truncation=True, max_length=length, return_tensors="pt")
with torch.no_grad():
    found = [
        model.get_image_features(**processor.image_processor(images, return_tensors="pt")).pooler_output,
        model.get_text_features(**tokens).pooler_output,
    ]
assert not any(name.split(".")[0] == "recollect" for name in sys.modules)
np.savez(out, *(torch.nn.functional.normalize(each, dim=1).numpy() for each in found))
"""
"""A program of somebody who does not have this package."""


@pytest.fixture
def squares():
    return np.random.default_rng(0).integers(0, 256, (3, 40, 40, 3), dtype=np.uint8)


def in_plain_transformers(folder, squares, texts, padding, tmp_path):
    np.save(tmp_path / "pictures.npy", squares)
    words = [folder, tmp_path / "pictures.npy", json.dumps(texts), padding, tmp_path / "found.npz"]
    subprocess.run([sys.executable, "-c", PLAIN, *map(str, words)], check=True, capture_output=True)
    found = np.load(tmp_path / "found.npz")
    return torch.from_numpy(found["arr_0"]), torch.from_numpy(found["arr_1"])


def assert_same(encoder, folder, squares, texts, padding, tmp_path):
    images, captions = in_plain_transformers(folder, squares, texts, padding, tmp_path)
    pictures = [Image.fromarray(square) for square in squares]
    torch.testing.assert_close(encoder.embed_images(pictures), images, atol=1e-5, rtol=0)
    torch.testing.assert_close(encoder.embed_texts(texts), captions, atol=1e-5, rtol=0)


@pytest.mark.parametrize("which", ["clip", "siglip", "vit_bert", "swin_clip"])
def test_a_checkpoint_saved_here_is_the_same_in_plain_transformers(checkpoint, which, squares, captions, tmp_path):
    encoder = load_model(checkpoint(which), "cpu")
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    encoder.save(tmp_path / "model")
    padding = "max_length" if which == "siglip" else "longest"
    assert_same(encoder, tmp_path / "model", squares, captions, padding, tmp_path)


def test_a_preset_is_the_same_in_plain_transformers(squares, captions, tmp_path):
    encoder = build_model("tiny", texts=captions * 20, seed=0).eval()
    encoder.save(tmp_path / "model")
    assert_same(encoder, tmp_path / "model", squares, captions, "max_length", tmp_path)


@pytest.mark.parametrize("which", ["clip", "vit_bert", "swin_clip", "siglip"])
def test_a_saved_model_opens_here_with_the_same_fingerprint(checkpoint, which, captions, tmp_path):
    encoder = load_model(checkpoint(which), "cpu")
    encoder.save(tmp_path / "model")
    again = load_model(tmp_path / "model", "cpu")
    assert again.fingerprint == encoder.fingerprint
    torch.testing.assert_close(again.embed_texts(captions), encoder.embed_texts(captions), atol=0, rtol=0)


@pytest.mark.parametrize("which", ["clip", "vit_bert", "swin_clip", "siglip"])
def test_with_prefix_tokens_plain_transformers_still_opens_it(checkpoint, which, squares, captions, tmp_path):
    encoder = load_model(checkpoint(which), "cpu")
    before = encoder.embed_texts(captions)
    encoder.add_prefixes(("caption", "label"))
    with torch.no_grad():  # as if they had been trained: far from where they start
        encoder.encode_texts(encoder.tokenize(captions, "caption"))
    encoder.save(tmp_path / "model")
    torch.testing.assert_close(encoder.embed_texts(captions), before, atol=1e-6, rtol=0)
    padding = "max_length" if which == "siglip" else "longest"
    assert_same(encoder, tmp_path / "model", squares, captions, padding, tmp_path)
