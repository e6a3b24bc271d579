"""The patch tower: features that nobody trains, against a slow reference, and the dictionary they come from."""

import numpy as np
import pytest
import torch

from recollect.core.errors import UserError
from recollect.models import PatchEncoder, build_model, load_model, patches
from recollect.models.patches import PatchFeatures, PatchTowers
from recollect.models.small import BagOfWords

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
        return build_model("patches", texts=captions, pictures=list(pictures), seed=seed)

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
    encoder = build_model("patches", texts=captions, pictures=list(photos))
    encoder.set_dropout(0.5)
    heads = {id(parameter) for parameter in encoder.head_parameters("image")}
    image = {id(parameter) for parameter in encoder.tower_parameters("image") if parameter.requires_grad}
    assert image == heads
    opened = load_model(encoder.save(tmp_path / "model"), "cpu")
    assert opened.settings.dropout == 0.5
    assert [module.p for module in opened.image_tower.modules() if isinstance(module, torch.nn.Dropout)] == [0.5]
    torch.testing.assert_close(opened.embed_images(list(photos[:3])), encoder.embed_images(list(photos[:3])))
