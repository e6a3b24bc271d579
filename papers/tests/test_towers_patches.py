"""The patch tower: features that nobody trains, against a slow reference, and the dictionary they come from."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from recollect.core.errors import UserError
from recollect.data.sources import open_source
from recollect.models import build_model, load_model
from recollect.training.loop import train
from recollect.training.options import Data
from recollect.training.recipes import RECIPES
from recollect_papers.towers import patches
from recollect_papers.towers.patches import PatchEncoder, PatchFeatures, PatchTowers
from recollect_papers.towers.small import BagOfWords

captions = pytest.fixture(lambda: ["a photo of a cat", "two red dogs"])

SETTINGS = PatchTowers(BagOfWords(8), size=14, patch=4, stride=3, centroids=7, pool=2, colour=2)


@pytest.fixture
def few_patches(monkeypatch):
    """A fit of a tenth of a second."""
    monkeypatch.setattr(patches, "_PATCHES", 3000)
    monkeypatch.setattr(patches, "_LEARNED_FROM", 2000)


@pytest.fixture
def photos():
    """Smooth noise, whose neighbouring pixels are alike as those of photographs."""
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, (40, 8, 8, 3)).repeat(2, axis=1).repeat(2, axis=2)[:, :14, :14]
    return (0.8 * coarse + 0.2 * generator.integers(0, 256, coarse.shape)).astype(np.uint8)


def reference(features: PatchFeatures, picture: np.ndarray) -> np.ndarray:
    """One picture's features by loops, in float64."""
    s = features.settings
    mean, whitening, centroids = (
        each.numpy().astype(np.float64) for each in (features.mean, features.whitening, features.centroids)
    )
    side = (s.size - s.patch) // s.stride + 1
    found = np.zeros((s.centroids, side, side))
    for row in range(side):
        for column in range(side):
            top, left = row * s.stride, column * s.stride
            patch = picture[top : top + s.patch, left : left + s.patch].astype(np.float64).transpose(2, 0, 1).ravel()
            patch = (patch - patch.mean()) / np.sqrt(patch.var() + 10.0)
            distances = np.linalg.norm((patch - mean) @ whitening - centroids, axis=1)
            found[:, row, column] = np.maximum(distances.mean() - distances, 0)
    half = side // 2
    assert side == 2 * half
    quarters = [found[:, r : r + half, c : c + half].mean((1, 2)) for r in (0, half) for c in (0, half)]
    colours = picture.reshape(2, 7, 2, 7, 3).mean((1, 3)) / 255
    raw = np.concatenate([np.stack(quarters, axis=1).ravel(), colours.transpose(2, 0, 1).ravel()])
    return (raw - features.feature_mean.numpy()) / features.feature_spread.numpy()


def test_features_are_those_of_a_slow_reference(photos, few_patches):
    features = PatchFeatures(SETTINGS)
    features.fit(photos)
    made = features(torch.from_numpy(photos[:5]).permute(0, 3, 1, 2) / 255)
    expected = np.stack([reference(features, photo) for photo in photos[:5]])
    assert made.shape == (5, SETTINGS.features)
    np.testing.assert_allclose(made.numpy(), expected, rtol=2e-3, atol=2e-3)


def test_fitted_patches_are_white_and_features_standard(photos, few_patches):
    features = PatchFeatures(SETTINGS)
    features.fit(photos)
    drawn = patches._normalised(patches._draw_patches(photos, SETTINGS.patch)).double()
    white = (drawn - features.mean.double()) @ features.whitening.double()
    variances = torch.linalg.eigvalsh(torch.cov(drawn.T))
    expected = (variances / (variances + 0.1)).sort().values  # whitening (C + 0.1)^-1/2 leaves c / (c + 0.1)
    torch.testing.assert_close(torch.linalg.eigvalsh(torch.cov(white.T)).sort().values, expected, rtol=1e-3, atol=1e-3)
    made = features(torch.from_numpy(photos).permute(0, 3, 1, 2) / 255)
    torch.testing.assert_close(made.mean(0), torch.zeros(SETTINGS.features), rtol=0, atol=1e-4)
    assert ((made.std(0, correction=0) - 1).abs() < 0.01).float().mean() > 0.9  # but for entries that never vary


def test_centroids_are_the_means_of_what_is_nearest_to_them():
    """Well apart, so that a dozen rounds settle: the fixed point of Lloyd's algorithm."""
    generator = torch.Generator().manual_seed(0)
    centres = 20 * torch.randn(5, 6, generator=generator)
    points = centres.repeat(200, 1) + torch.randn(1000, 6, generator=generator)
    found = patches._k_means(points, 5)
    nearest = torch.cdist(points.double(), found.double()).argmin(1)
    for number in nearest.unique():
        torch.testing.assert_close(found[number], points[nearest == number].mean(0), rtol=1e-4, atol=1e-4)


def test_the_dictionary_depends_on_the_pictures_and_not_on_the_seed(photos, few_patches, captions):
    def fitted(seed, pictures):
        torch.manual_seed(99 + seed)
        encoder = build_model("patches", texts=captions, seed=seed)
        encoder.fit(list(pictures))
        return encoder

    one, other, third = fitted(0, photos), fitted(1, photos), fitted(0, photos[:20])
    assert one.stem_fingerprint("image") == other.stem_fingerprint("image") != third.stem_fingerprint("image")
    assert one.fingerprint != other.fingerprint, "the heads differ"
    assert one.fingerprint == fitted(0, photos).fingerprint


def test_a_tower_without_a_dictionary_says_so(captions, few_patches):
    encoder = build_model("patches", texts=captions)
    with pytest.raises(UserError, match="was not fitted to pictures yet"):
        encoder.embed_images(torch.zeros(1, 3, 32, 32))
    assert isinstance(encoder, PatchEncoder)
    for colour in (255, (200, 30, 30)):  # white, and red: no patch differs from another
        with pytest.raises(UserError, match="of one and the same colour"):
            PatchFeatures(SETTINGS).fit(np.full((5, 14, 14, 3), colour, dtype=np.uint8))
    with pytest.raises(UserError, match="there are none"):
        encoder.fit([])


def test_only_the_head_learns_and_dropout_is_kept(photos, few_patches, captions, tmp_path):
    encoder = build_model("patches", texts=captions)
    encoder.fit(list(photos))
    encoder.set_dropout(0.5)
    heads = {id(parameter) for parameter in encoder.head_parameters("image")}
    image = {id(parameter) for parameter in encoder.tower_parameters("image") if parameter.requires_grad}
    assert image == heads
    opened = load_model(encoder.save(tmp_path / "model"), "cpu")
    assert opened.settings.dropout == 0.5
    assert [module.p for module in opened.image_tower.modules() if isinstance(module, torch.nn.Dropout)] == [0.5]
    torch.testing.assert_close(opened.embed_images(list(photos[:3])), encoder.embed_images(list(photos[:3])))


@pytest.fixture
def pairs(tmp_path, monkeypatch):
    """Thirty pictures of noise with a caption each; the cache is the test's own."""
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    folder, random = tmp_path / "pairs", np.random.default_rng(0)
    folder.mkdir()
    lines = []
    for number in range(30):
        Image.fromarray(random.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(folder / f"{number}.png")
        lines.append(json.dumps({"path": f"{number}.png", "captions": [f"noise number {number} in many colours"]}))
    (folder / "pairs.jsonl").write_text("\n".join(lines))
    return folder / "pairs.jsonl"


def test_patches_are_fitted_trained_and_opened_as_any_model(pairs, few_patches, tmp_path):
    recipe = replace(RECIPES["siglixp-locked"](), steps=3, batch_size=16, data=Data(captions=(str(pairs),)))
    one, again, other = (
        load_model(train(replace(recipe, seed=seed), tmp_path / name, device="cpu"), "cpu")
        for name, seed in (("one", 0), ("two", 0), ("three", 1))
    )
    assert one.fingerprint == again.fingerprint != other.fingerprint
    assert one.stem_fingerprint("image") == other.stem_fingerprint("image"), "seeds share features"


def test_a_dictionary_is_fitted_once_for_all_seeds_and_text_towers(pairs, few_patches, monkeypatch):
    source = open_source(str(pairs))
    one, two = (build_model("patches", texts=["noise"], seed=seed) for seed in (0, 1))
    with monkeypatch.context() as nowhere:
        nowhere.setenv("RECOLLECT_CACHE", "/proc/none")
        one.prepare((source,))  # what cannot be kept is fitted each time
    one.prepare((source,))
    monkeypatch.setattr(patches.PatchFeatures, "fit", None)
    for other in (two, build_model("patches-transformer", texts=["noise"], seed=0)):
        other.prepare((source,))
        assert one.stem_fingerprint("image") == other.stem_fingerprint("image")


@pytest.mark.parametrize("setting", sorted(patches.MAKE_FEATURES))
def test_another_setting_of_the_features_is_another_dictionary(setting, pairs, monkeypatch):
    source, fitted = open_source(str(pairs)), []
    monkeypatch.setattr(patches.PatchFeatures, "fit", lambda *_: fitted.append(setting))
    before = build_model("patches", texts=["noise"])
    before.prepare((source,))
    settings = before.dictionary.settings
    before.dictionary.settings = replace(settings, **{setting: getattr(settings, setting) + 1})
    before.prepare((source,))
    assert len(fitted) == 2
