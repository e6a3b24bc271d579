"""Saved models open in plain transformers and give the same embeddings."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from recollect.core.errors import UserError
from recollect.models import build_model, load_model


@pytest.fixture
def squares():
    return np.random.default_rng(0).integers(0, 256, (3, 40, 40, 3), dtype=np.uint8)


@pytest.fixture
def assert_same_in_plain_transformers(plain_transformers, squares):
    """Return a function that saves a model and compares its embeddings with plain transformers."""

    def compare(encoder, texts, folder, prefix=None):
        encoder.save(folder)
        words = "".join(encoder.prefixes[prefix]) if prefix else ""
        read = [words + text for text in texts]
        images, captions = plain_transformers(folder, squares, read, encoder.text.padding)
        pictures = [Image.fromarray(square) for square in squares]
        torch.testing.assert_close(encoder.embed_images(pictures), images, atol=1e-5, rtol=0)
        torch.testing.assert_close(encoder.embed_texts(texts, prefix), captions, atol=1e-5, rtol=0)

    return compare


def perturbed(encoder):
    """Perturb all weights in place."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return encoder


def test_a_saved_checkpoint_gives_the_same_embeddings_here_and_in_plain_transformers(
    checkpoint, family, captions, assert_same_in_plain_transformers, tmp_path
):
    encoder = perturbed(load_model(checkpoint(family), "cpu"))
    assert_same_in_plain_transformers(encoder, captions, tmp_path / "model")
    loaded = load_model(tmp_path / "model", "cpu")
    assert loaded.fingerprint == encoder.fingerprint
    assert torch.equal(loaded.embed_texts(captions), encoder.embed_texts(captions))


@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_a_preset_gives_the_same_embeddings_in_plain_transformers(
    preset, captions, assert_same_in_plain_transformers, tmp_path
):
    encoder = perturbed(build_model(preset, texts=captions * 20, seed=0).eval())
    assert_same_in_plain_transformers(encoder, captions, tmp_path / "model")


def test_prefix_tokens_work_the_same_in_plain_transformers(
    checkpoint, family, captions, assert_same_in_plain_transformers, tmp_path
):
    encoder = load_model(checkpoint(family), "cpu")
    encoder.add_prefixes(("caption", "label"))
    perturbed(encoder)
    for prefix in (None, "label"):
        assert_same_in_plain_transformers(encoder, captions, tmp_path / f"model-{prefix}", prefix)


def test_embedding_does_not_affect_saved_files(captions, tmp_path):
    encoder = build_model("tiny", texts=captions, seed=0)
    encoder.save(tmp_path / "before")
    encoder.embed_texts(captions)
    encoder.save(tmp_path / "after")
    for file in (tmp_path / "before").iterdir():
        assert (tmp_path / "after" / file.name).read_bytes() == file.read_bytes()
    listed = list(json.loads((tmp_path / "after" / "checksums.json").read_text())["files"])
    assert listed == sorted(listed), "the order of a set differs between processes"


def test_saving_never_overwrites_an_existing_folder(captions, tmp_path):
    encoder = build_model("vector-linear", texts=captions)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="model"):
        encoder.save(tmp_path / "model")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["notes.txt"]
