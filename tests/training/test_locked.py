"""Training on the cached features of a frozen tower."""

import json
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image

from recollect.core.errors import UserError
from recollect.core.types import NO_LABEL, Sample, Source
from recollect.data.batches.mixture import DataMix
from recollect.data.batches.stream import BatchStream
from recollect.data.sources import open_source
from recollect.data.sources.columns import Columns
from recollect.models import build_model, load_model
from recollect.objectives import ContrastiveObjective
from recollect.training import feature_store, locked
from recollect.training.feature_store import FeatureStore
from recollect.training.locked import lock_source
from recollect.training.locked_towers import LockedTowers, TextFeatures, possible_texts
from recollect.training.loop import train
from recollect.training.options import Data, Model
from recollect.training.recipes import RECIPES
from recollect.training.step import Inputs, train_step
from run_files import weights


@pytest.fixture
def pairs(tmp_path) -> Path:
    """JSON lines of thirty noise pictures with two captions each."""
    folder, random = tmp_path / "pairs", np.random.default_rng(0)
    folder.mkdir()
    lines = []
    for number in range(30):
        Image.fromarray(random.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(folder / f"{number}.png")
        captions = [f"noise number {number} in many colors", f"a picture called {number}"]
        lines.append(json.dumps({"path": f"{number}.png", "captions": captions}))
    (folder / "pairs.jsonl").write_text("\n".join(lines))
    return folder / "pairs.jsonl"


def pictures(source):
    return [source[index].image for index in range(len(source))]


def recipe_for(start, pairs, **model):
    recipe = replace(RECIPES["siglixp-tiny"](), steps=3, batch_size=16, log_every=1, checkpoint_every=2)
    return replace(recipe, model=Model(str(start), **model), data=Data(captions=(str(pairs),)))


def test_features_match_the_tower_and_the_head_turns_them_into_embeddings(pairs, start):
    encoder, source = load_model(start, "cpu"), open_source(str(pairs))
    kept = lock_source(encoder, source)
    torch.testing.assert_close(kept.features[:, 0], encoder.pooled_images(pictures(source)))
    raw = LockedTowers(encoder.eval()).encode_images(kept.features[:, 0])
    embeddings = torch.nn.functional.normalize(raw.detach(), dim=1)
    torch.testing.assert_close(embeddings, encoder.embed_images(pictures(source)), rtol=1e-4, atol=1e-5)
    assert kept.texts(3) == source.texts(3)
    assert kept[3].image.shape == (96,)
    assert len(kept) == 30


def test_a_step_on_features_gives_the_gradients_of_a_step_on_pixels(pairs, start):
    encoder, source = load_model(start, "cpu"), open_source(str(pairs))
    kept = lock_source(encoder, source)
    encoder.lock("image")
    tokens = encoder.tokenize([source.texts(index)[0] for index in range(30)])
    pixels = torch.stack([encoder.transform(picture) for picture in pictures(source)])

    def gradients(model, images):
        encoder.zero_grad()
        train_step(model, ContrastiveObjective("sigmoid"), Inputs(images, tokens))
        return {name: each.grad.clone() for name, each in encoder.named_parameters() if each.grad is not None}

    by_pixels, by_features = gradients(encoder, pixels), gradients(LockedTowers(encoder), kept.features[:, 0])
    assert any(name.startswith("model.vision_model.head.mlp") for name in by_features)
    assert not any("encoder" in name for name in by_features if "vision_model" in name)
    torch.testing.assert_close(by_features, by_pixels, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("parts", ["image", "both"])
def test_a_locked_checkpoint_is_saved_complete_with_only_its_heads_changed(parts, pairs, start, tmp_path):
    folder = train(recipe_for(start, pairs, locked=parts), tmp_path / "run", device="cpu")
    before, after = (weights(each) for each in (start, folder))
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert {name for name in moved if name.startswith("vision_model.")} == {
        name for name in before if name.startswith(("vision_model.head.mlp", "vision_model.head.layernorm"))
    }
    inside = {name for name in moved if name.startswith("text_model.") and not name.startswith("text_model.head.")}
    assert bool(inside) == (parts == "image")
    assert {"text_model.head.weight", "text_model.head.bias"} <= moved
    from transformers import AutoModel

    assert torch.equal(
        AutoModel.from_pretrained(folder).state_dict()["text_model.head.weight"], after["text_model.head.weight"]
    )


def test_an_image_tower_that_is_frozen_and_locked_does_not_learn(pairs, start, tmp_path):
    """This is LiT."""
    folder = train(recipe_for(start, pairs, locked="image", freeze="image"), tmp_path / "run", device="cpu")
    before, after = (weights(each) for each in (start, folder))
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith("vision_model."))
    assert any(not torch.equal(before[name], after[name]) for name in before if name.startswith("text_model."))


def test_a_second_run_uses_cached_features(pairs, start, tmp_path, monkeypatch):
    recipe = recipe_for(start, pairs, locked="both")
    train(recipe, tmp_path / "one", device="cpu")

    def embed(*_):
        raise AssertionError("cached features were computed again")

    monkeypatch.setattr(locked, "_embed", embed)
    monkeypatch.setattr("recollect.models.DualEncoder.pooled_texts", embed)
    train(replace(recipe, seed=5), tmp_path / "two", device="cpu")


@pytest.mark.parametrize("damage", ["flip", "cut", "foreign"])
def test_a_damaged_feature_file_is_recreated(damage, pairs, start, tmp_path):
    encoder, source = load_model(start, "cpu"), open_source(str(pairs))
    expected = lock_source(encoder, source).features.clone()
    (file,) = (tmp_path / "cache" / "features").iterdir()
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[-100] ^= 4
    file.unlink()  # the first result has it memory-mapped
    file.write_bytes({"flip": bytes(flipped), "cut": whole[:-50], "foreign": b"not a tensor"}[damage])
    assert torch.equal(lock_source(encoder, source).features, expected)
    assert file.read_bytes() == whole


def test_features_are_cached_by_stem_and_transform(pairs, start):
    encoder, source = load_model(start, "cpu"), open_source(str(pairs))
    first = lock_source(encoder, source)
    with torch.no_grad():
        next(encoder.head_parameters("image")).add_(1.0)
    assert lock_source(encoder, source).fingerprint == first.fingerprint
    encoder.transform = replace(encoder.transform, fit="crop")
    assert lock_source(encoder, source).fingerprint != first.fingerprint


def test_views_are_the_picture_and_random_crops(pairs, start):
    encoder, source = load_model(start, "cpu"), open_source(str(pairs))
    one, three = lock_source(encoder, source), lock_source(encoder, source, views=3)
    torch.testing.assert_close(three.features[:, 0], one.features[:, 0])
    assert not torch.isclose(three.features[:, 1], three.features[:, 0]).all(1).any()
    assert not torch.isclose(three.features[:, 1], three.features[:, 2]).all(1).any()
    smaller = replace(encoder.training_transform(), scale=(0.1, 0.2))
    other = lock_source(encoder, source, views=3, crops=smaller)  # must not reuse cached views of larger crops
    torch.testing.assert_close(other.features[:, 0], one.features[:, 0])
    assert not torch.isclose(other.features[:, 1], three.features[:, 1]).all(1).any()
    assert len({each.fingerprint for each in (one, three, other)}) == 3
    drawn = [three.batch(np.array([4]), seed)[0][0] for seed in range(20)]
    which = {int((three.features[4] == features).all(1).nonzero()[0, 0]) for features in drawn}
    assert which == {0, 1, 2}


def test_all_captions_of_a_sample_are_drawn(pairs, start):
    kept = lock_source(load_model(start, "cpu"), open_source(str(pairs)))
    drawn = {kept.batch(np.array([7]), seed)[1][0] for seed in range(20)}
    assert drawn == set(kept.texts(7))
    rows = np.array([5, 2, 9])
    features, texts, labels = kept.batch(rows, 3)
    assert torch.equal(features, kept.features[torch.from_numpy(rows), 0])
    assert all(text in kept.texts(int(row)) for row, text in zip(rows, texts, strict=True))
    assert labels.tolist() == [-1, -1, -1]
    assert kept.batch(rows[1:2], 3)[1] == texts[1:2], "a row's caption must not depend on its batch"


def test_unreadable_pictures_are_skipped(pairs, start, capsys):
    (pairs.parent / "11.png").write_bytes(b"no picture")
    source, encoder = open_source(str(pairs)), load_model(start, "cpu")
    kept = lock_source(encoder, source, broken_share=0.5)
    assert len(kept) == 29
    assert 11 not in kept.indices
    assert kept.texts(11) == source.texts(12)
    assert "11.png" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"1 of 30 images of .* cannot be read"):
        lock_source(encoder, source, store=FeatureStore(pairs.parent / "elsewhere"))


class MissingCaption(Source):
    """Three pictures, the second without a caption."""

    name = "missing-caption"

    def __len__(self):
        return 3

    def __getitem__(self, index):
        picture = np.full((40, 40, 3), 80 * index, dtype=np.uint8)
        return Sample(picture, () if index == 1 else (f"number {index}",), NO_LABEL, self.name, self.kind, str(index))


def test_pictures_without_a_caption_are_skipped(start):
    encoder, source = load_model(start, "cpu"), MissingCaption()
    kept = lock_source(encoder, source)
    assert kept.indices.tolist() == [0, 2]
    torch.testing.assert_close(kept.features[:, 0], encoder.pooled_images([source[0].image, source[2].image]))


def test_class_synonyms_are_used_even_if_the_first_class_has_none(pairs, start):
    lines = [json.dumps({"path": f"{n}.png", "label": "cat" if n < 9 else "dog", "others": ["hound"] if n > 8 else []})
             for n in range(18)]  # fmt: skip
    (pairs.parent / "classes.jsonl").write_text("\n".join(lines))
    columns = Columns(label="label", synonyms="others")
    source = open_source(str(pairs.parent / "classes.jsonl"), kind="label", columns=columns)
    kept = lock_source(load_model(start, "cpu"), source)
    stream = BatchStream(DataMix((kept,)), 18, None)
    texts = stream.batch(0).texts
    assert [sum(name in text for text in texts) for name in ("cat", "hound")] == [9, 9]
    assert set(texts) <= set(possible_texts(kept))


def test_cached_texts_are_embedded_with_the_prefix_of_their_kind(pairs, start):
    encoder = load_model(start, "cpu")
    encoder.add_prefixes(("caption", "label"))
    kept = lock_source(encoder, open_source(str(pairs)))
    captions = ("a picture called 3", "noise number 4 in many colors")
    found = TextFeatures(encoder, (kept,))(captions, ("caption", "caption"))
    torch.testing.assert_close(found, encoder.pooled_texts(captions, "caption"))
    assert not torch.allclose(found, encoder.pooled_texts(captions, "label"), atol=1e-4)


def test_possible_texts_include_every_template_of_every_class(start):
    encoder, source = load_model(start, "cpu"), open_source("glyphs:labels")
    small = locked.LockedSource(source, np.arange(50), torch.zeros(50, 1, 4), "none")
    texts = set(possible_texts(small))
    assert len(texts) == 80 * len(set(source.class_names))
    assert f"a photo of a {source.class_names[0]}." in texts
    assert small.batch(np.arange(3), 0)[2].tolist() == source.labels[:3].tolist()
    assert encoder.pooled_texts(sorted(texts)[:2]).shape == (2, 64)


def test_a_generated_source_is_embedded_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(locked, "GENERATED_ROWS", 40)
    kept = lock_source(build_model("glyph-random", texts=["a"]), open_source("glyphs:captions"))
    assert len(kept) == 40
    assert kept.labels.tolist() == [-1] * 40
    assert kept.batch(np.array([3, 39]), 0)[1] == [kept.texts(3)[0], kept.texts(39)[0]]


def test_a_full_feature_cache_gives_an_error_with_its_size_and_setting(pairs, start, monkeypatch):
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(feature_store, "save_file", full)
    with pytest.raises(UserError, match=r"MiB of features .* RECOLLECT_CACHE"):
        lock_source(load_model(start, "cpu"), open_source(str(pairs)))
