import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from recollect.data.transforms import ImageTransform


def noise(height, width, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize(("height", "width"), [(300, 400), (224, 224), (64, 64), (101, 333), (500, 231)])
def test_evaluation_matches_clip_preprocessing(height, width):
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    image = noise(height, width)
    expected = CLIPImageProcessorPil()(image, return_tensors="np")["pixel_values"][0]
    np.testing.assert_allclose(ImageTransform(size=224)(image).numpy(), expected, atol=1e-5)


def test_squashing_matches_siglip_preprocessing():
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    image = noise(200, 300)
    half = (0.5, 0.5, 0.5)
    expected = SiglipImageProcessorPil()(image, return_tensors="np")["pixel_values"][0]
    np.testing.assert_allclose(ImageTransform(224, half, half, fit="squash")(image).numpy(), expected, atol=1e-5)


@given(
    height=st.integers(1, 80), width=st.integers(1, 80), size=st.integers(1, 40), training=st.booleans(),
    fit=st.sampled_from(["crop", "squash"]), seed=st.integers(0, 9),
)  # fmt: skip
def test_any_picture_becomes_a_square_of_the_given_size(height, width, size, training, fit, seed):
    transform = ImageTransform(size=size, training=training, scale=(0.1, 1.0), flip=True, fit=fit)
    image = transform(noise(height, width), np.random.default_rng(seed))
    assert image.shape == (3, size, size)
    assert torch.isfinite(image).all()


def test_a_strip_is_cropped_before_it_is_resized():
    strip = Image.new("RGB", (60_000, 2), (10, 20, 30))
    # Resizing before cropping would take 4.5 GB.
    assert ImageTransform(size=224).pixels(strip).tolist()[0][0] == [10, 20, 30]


def test_crops_have_the_given_area_and_ratio():
    # Red counts columns and green rows, so a crop's pixels show its position.
    columns, rows = np.meshgrid(np.arange(200), np.arange(200))
    image = Image.fromarray(np.stack([columns, rows, rows * 0], axis=-1).astype(np.uint8))
    transform = ImageTransform(size=200, training=True, scale=(0.2, 0.6), ratio=(0.5, 2.0), resample="bilinear")
    areas, ratios = [], []
    for seed in range(200):
        pixels = transform.pixels(image, np.random.default_rng(seed)).astype(float)
        width, height = (np.ptp(pixels[:, :, channel]) + 1 for channel in (0, 1))
        areas.append(width * height / 200**2)
        ratios.append(width / height)
    assert 0.19 < min(areas) < 0.25
    assert 0.55 < max(areas) < 0.62
    assert np.mean(areas) == pytest.approx(0.4, abs=0.03)
    assert 0.48 < min(ratios) < 0.6
    assert 1.7 < max(ratios) < 2.1
    assert np.mean(np.log(ratios)) == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize("size", [(40, 40), (64, 27), (27, 64), (90, 9)])
def test_a_crop_of_the_full_area_is_the_whole_picture(size):
    """It is resized with the same antialiasing."""
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8))
    whole = ImageTransform(size=32, training=True, scale=(1.0, 1.0)).pixels(picture, np.random.default_rng(1))
    np.testing.assert_array_equal(whole, ImageTransform(size=32, fit="squash").pixels(picture))


def test_flipping_affects_half_of_the_pictures_and_is_off_by_default():
    image = Image.fromarray(np.repeat(np.arange(64, dtype=np.uint8)[None, :, None], 3, axis=2).repeat(64, axis=0))

    def rising(transform, seed):
        pixels = transform.pixels(image, np.random.default_rng(seed)).astype(int)
        return pixels[5, -1, 0] > pixels[5, 0, 0]

    flipping = [rising(ImageTransform(size=16, training=True, flip=True), seed) for seed in range(200)]
    assert 70 < sum(flipping) < 130
    assert all(rising(ImageTransform(size=16, training=True), seed) for seed in range(50))


def test_training_crops_are_determined_by_the_generator():
    transform, image = ImageTransform(size=8, training=True), noise(30, 40)
    first, again, other = (transform(image, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    with pytest.raises(ValueError, match="needs a generator"):
        transform(image)


def test_the_key_changes_with_every_option_that_affects_pixels():
    keys = [ImageTransform().key, ImageTransform(size=10).key, ImageTransform(fit="squash").key,
            ImageTransform(resample="bilinear").key, ImageTransform(mean=(0.5, 0.5, 0.5)).key,
            ImageTransform(std=(0.5, 0.5, 0.5)).key, ImageTransform(training=True).key,
            ImageTransform(training=True, flip=True).key,
            ImageTransform(training=True, scale=(0.1, 1.0)).key]  # fmt: skip
    assert len(set(keys)) == len(keys)
    assert ImageTransform(flip=True).key == ImageTransform().key  # an evaluation image is never flipped


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size"),
        ({"scale": (0.0, 1.0)}, "scale"),
        ({"scale": (0.9, 0.5)}, "scale"),
        ({"ratio": (2.0, 1.0)}, "ratio"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        ImageTransform(**options)
