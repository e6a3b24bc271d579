"""Towers split into a stem that can be locked and a head that keeps learning."""

import json
import shutil

import torch

from recollect.models import build_model, load_model


def test_stem_and_head_together_give_the_embeddings(checkpoint, family, pixels, captions):
    encoder = load_model(checkpoint(family), "cpu")
    tokens = encoder.tokenize(captions)
    with torch.no_grad():
        features = encoder.pool_images(pixels)
        torch.testing.assert_close(encoder.project_images(features), encoder.encode_images(pixels))
        assert features.ndim == 2
        words = encoder.pool_texts(tokens)
        torch.testing.assert_close(encoder.project_texts(words), encoder.encode_texts(tokens))
    assert list(encoder.head_parameters("image"))
    assert list(encoder.head_parameters("text"))


def test_only_the_heads_of_a_locked_checkpoint_learn(checkpoint, family, pixels, captions):
    encoder = load_model(checkpoint(family), "cpu")
    encoder.lock("image")
    encoder.lock("text")
    heads = {id(parameter) for tower in ("image", "text") for parameter in encoder.head_parameters(tower)}
    learning = {id(parameter) for parameter in encoder.parameters() if parameter.requires_grad}
    assert learning == heads
    with torch.no_grad():
        features, words = encoder.pool_images(pixels), encoder.pool_texts(encoder.tokenize(captions))
    (encoder.project_images(features).square().sum() + encoder.project_texts(words).square().sum()).backward()
    touched = {id(parameter) for parameter in encoder.parameters() if parameter.grad is not None}
    assert touched == heads


def test_a_stem_fingerprint_changes_with_the_stem_but_not_with_the_head(checkpoint, family):
    encoder = load_model(checkpoint(family), "cpu")
    for tower in ("image", "text"):
        before, other = encoder.stem_fingerprint(tower), {"image": "text", "text": "image"}[tower]
        kept = encoder.stem_fingerprint(other)
        with torch.no_grad():
            next(encoder.head_parameters(tower)).add_(1.0)
            encoder.set_scale(33.0, -1.0)
            assert encoder.stem_fingerprint(tower) == before
            heads = {id(parameter) for parameter in encoder.head_parameters(tower)}
            next(each for each in encoder.tower_parameters(tower) if id(each) not in heads).add_(1e-3)
        assert encoder.stem_fingerprint(tower) != before
        assert encoder.stem_fingerprint(other) == kept


def test_fingerprints_change_with_the_activation_function(checkpoint, tmp_path):
    """The weights do not show it, but a checkpoint with a corrected activation embeds differently."""
    folder = shutil.copytree(checkpoint("clip"), tmp_path / "clip")
    before, config = load_model(folder, "cpu"), json.loads((folder / "config.json").read_text())
    config["vision_config"]["hidden_act"] = "gelu"
    (folder / "config.json").write_text(json.dumps(config))
    after = load_model(folder, "cpu")
    assert after.fingerprint != before.fingerprint
    assert after.stem_fingerprint("image") != before.stem_fingerprint("image")


def test_a_stem_fingerprint_changes_with_prefixes_and_transform(captions):
    encoder = build_model("tiny", texts=captions)
    image, text = encoder.stem_fingerprint("image"), encoder.stem_fingerprint("text")
    encoder.add_prefixes(("label",))
    assert encoder.stem_fingerprint("image") == image
    assert encoder.stem_fingerprint("text") != text
    encoder.transform = encoder.training_transform()
    assert encoder.stem_fingerprint("image") != image
