"""Near-identical pictures by their pixels: edits of a picture count, similar pictures do not."""

import io
import itertools
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageDraw, ImageFont

from recollect.index.duplicates import near_identical_groups
from recollect.index.same_picture import PreparedPicture, may_be_near_identical, near_identical, sketch

FASHION = Path(__file__).parents[3] / "shared" / "data" / "fashion.parquet"


def photo(seed, size=(240, 180)):
    """Return smooth color gradients with shapes, as detailed as a photograph."""
    generator = np.random.default_rng(seed)
    clouds = generator.integers(30, 220, (6, 8, 3)).astype(np.uint8)
    image = Image.fromarray(clouds).resize(size, Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for _ in range(25):
        x, y, r = generator.integers(0, size[0]), generator.integers(0, size[1]), generator.integers(4, 30)
        draw.ellipse((x - r, y - r, x + r, y + r), fill=tuple(generator.integers(0, 255, 3).tolist()))
    return image


def product(seed, size=160):
    """Return a shoe-like outline on white; most pixels are the same for all seeds."""
    generator = np.random.default_rng(seed)
    image = Image.new("RGB", (4 * size, 4 * size), "white")
    draw = ImageDraw.Draw(image)
    bend = generator.uniform(-0.04, 0.04, 6)
    outline = [(0.2, 0.6), (0.35, 0.42), (0.5, 0.45), (0.8, 0.55), (0.82, 0.66), (0.2, 0.66)]
    points = [(4 * size * (x + b), 4 * size * y) for (x, y), b in zip(outline, bend, strict=True)]
    draw.polygon(points, fill=tuple(generator.integers(20, 90, 3).tolist()))
    for step in range(5):
        x = 4 * size * (0.35 + 0.05 * step + generator.uniform(-0.02, 0.02))
        draw.line((x, 4 * size * 0.47, x + 60, 4 * size * 0.6), fill="lightgray", width=9)
    return image.resize((size, size), Image.Resampling.LANCZOS)


def document(seed, reversed_line=None, size=(1600, 1000)):
    """Return a screenful of text, optionally with one line's words in reverse order."""
    generator = np.random.default_rng(seed)
    image = Image.new("RGB", size, "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(14)
    draw.rectangle((0, 0, size[0], 28), fill=(60, 90, 160))
    for line, y in enumerate(range(40, size[1] - 16, 20)):
        count = int(generator.integers(10, 22))
        words = ["".join(map(chr, generator.integers(97, 123, generator.integers(2, 9)))) for _ in range(count)]
        draw.text((60, y), " ".join(words[::-1] if line == reversed_line else words), fill=(20, 20, 20), font=font)
    return image


def screenshot(seed, reversed_line=None):
    return document(seed, reversed_line, size=(480, 320))


def frame_of(image, right=0):
    """Return a noisy frame of a burst, shifted ``right`` pixels to the right."""
    frame = image.crop((12 + right, 9, image.width - 12 + right, image.height - 9))
    noise = np.random.default_rng(right).normal(size=(frame.height, frame.width, 1)) * 3
    return Image.fromarray((np.asarray(frame) + noise).clip(0, 255).astype(np.uint8))


def night(seed):
    generator = np.random.default_rng(seed)
    sky = np.full((160, 240, 3), (8.0, 10.0, 18.0)) + generator.normal(size=(160, 240, 3)) * 2
    for _ in range(60):
        sky[generator.integers(160), generator.integers(240)] += generator.exponential(60)
    return Image.fromarray(sky.clip(0, 255).astype(np.uint8))


def encoded(image, form, **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return Image.open(io.BytesIO(buffer.getvalue())).convert("RGB")


def scaled(image, factor):
    return image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.LANCZOS)


def cropped(image, share):
    x, y = round(image.width * share), round(image.height * share)
    return image.crop((x, y, image.width - x, image.height - y))


EDITS = {
    "JPEG 30": lambda image: encoded(image, "JPEG", quality=30),
    "JPEG 95": lambda image: encoded(image, "JPEG", quality=95),
    "WebP 50": lambda image: encoded(image, "WEBP", quality=50),
    "half the size": lambda image: scaled(image, 0.5),
    "twice the size": lambda image: scaled(image, 2.0),
    "GIF": lambda image: encoded(image, "GIF"),
    "palette": lambda image: image.quantize(256).convert("RGB"),
    "gray": lambda image: image.convert("L").convert("RGB"),
    "2 % crop": lambda image: cropped(image, 0.02),
    "2 % crop on one side": lambda image: image.crop((round(0.02 * image.width), 0, image.width, image.height)),
    "2 % crop, resized": lambda image: scaled(cropped(image, 0.02), 0.7),
}


def reader(pictures):
    return lambda places: [partial(pictures.__getitem__, place) for place in places]


def sketches_match(one, other):
    return bool(may_be_near_identical(sketch(one), sketch(other)[None])[0])


def same(one, other):
    one, other = PreparedPicture(one), PreparedPicture(other)
    result = near_identical(one, other)
    assert result == near_identical(other, one)
    assert not result or (sketches_match(one, other) and sketches_match(other, one))
    return result


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("make", [photo, product, screenshot])
def test_edits_of_a_picture_are_near_identical(make, edit):
    assert all(same(make(seed), EDITS[edit](make(seed))) for seed in range(2))


@pytest.mark.parametrize("make", [photo, product, screenshot, night])
def test_pictures_of_similar_things_are_not_near_identical(make):
    pictures = [PreparedPicture(make(seed)) for seed in range(8)]
    assert not any(near_identical(one, other) for one in pictures for other in pictures if one is not other)


def test_screenshots_that_differ_in_one_line_are_different():
    assert not any(same(screenshot(seed), screenshot(seed, reversed_line=5)) for seed in range(4))


def test_large_documents_that_differ_in_one_line_are_different():
    original, changed = document(0), document(0, reversed_line=7)
    assert not same(original, changed)
    assert not same(original, encoded(changed, "JPEG", quality=80))
    assert same(original, encoded(original, "JPEG", quality=50))
    assert same(original, scaled(original, 0.6))


def messages(changed=None):
    """Return a phone's screen of messages, optionally with one of them changed."""
    generator = np.random.default_rng(3)
    image = Image.new("RGB", (1080, 1920), (230, 221, 212))
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(40)
    for number in range(14):
        words = ["".join(map(chr, generator.integers(97, 123, generator.integers(2, 8)))) for _ in range(5)]
        left, top = (40, 240)[number % 2], 180 + 120 * number
        draw.rounded_rectangle((left, top, left + 800, top + 90), 24, fill=("white", (217, 253, 211))[number % 2])
        text = " ".join(words[::-1] if number == changed else words)
        draw.text((left + 30, top + 20), text, fill=(30, 30, 30), font=font)
    return image


def test_cropped_screenshots_are_aligned_well_enough_to_compare_text():
    for edit in ("2 % crop", "2 % crop on one side"):
        assert same(messages(), EDITS[edit](messages()))
        assert not same(messages(), EDITS[edit](messages(changed=5)))


def test_frames_of_a_burst_are_different_pictures():
    assert not any(same(frame_of(photo(seed)), frame_of(photo(seed), right=6)) for seed in range(4))


def test_pictures_with_a_moved_object_are_different():
    for seed in range(4):
        frames = []
        for place in ((40, 40), (150, 100)):
            frame = photo(seed)
            ImageDraw.Draw(frame).rectangle((*place, place[0] + 24, place[1] + 24), fill="white")
            frames.append(frame)
        assert not same(*frames)


def test_recolored_pictures_are_different_but_gray_versions_are_not():
    recolored = Image.merge("RGB", [band.point(lambda v, f=f: min(255, int(v * f))) for band, f in
                                    zip(photo(3).split(), (1.3, 1.0, 0.5), strict=True)])  # fmt: skip
    assert not same(photo(3), recolored)
    assert same(product(1), product(1).convert("L").convert("RGB"))


def test_blank_pictures_are_never_near_identical():
    assert not same(Image.new("RGB", (90, 60), (40, 40, 40)), Image.new("RGB", (180, 120), (41, 40, 40)))
    assert not same(Image.new("RGB", (1, 1)), photo(0))


def test_groups_contain_only_matches_of_the_picture_kept_and_no_chains():
    """Each crop matches the one before, but the first and the last do not match."""
    crops = [photo(5, (400, 300))]
    while len(crops) < 6:
        crops.append(cropped(crops[-1], 0.013))
    assert all(same(one, other) for one, other in itertools.pairwise(crops))
    assert not same(crops[0], crops[-1])
    pairs = np.array([(one, other) for one in range(6) for other in range(one + 1, 6)])
    groups, _ = near_identical_groups(pairs, reader(crops), {place: (False, place) for place in range(6)})
    for first, *others in groups:
        assert all(same(crops[first], crops[other]) for other in others)
        assert first == min([first, *others]), "the largest is kept"
    assert len(groups) >= 2


def test_annotations_then_color_then_size_decide_which_picture_is_kept():
    original = photo(1, (400, 300))
    pictures = [original.convert("L").convert("RGB"), scaled(original, 0.5), original, encoded(original, "JPEG")]
    pairs = np.array([(one, other) for one in range(4) for other in range(one + 1, 4)])
    first = [near_identical_groups(pairs, reader(pictures), {place: (place not in annotated, place) for place in
             range(4)})[0][0][0] for annotated in ((), (1,))]  # fmt: skip
    assert first == [2, 1]


@pytest.mark.skipif(not FASHION.exists(), reason="no shop pictures")
def test_different_shop_pictures_are_not_duplicates():
    """Products on white look alike; a handful share a photograph."""
    column = pq.read_table(FASHION, columns=["image"])["image"][2500:2700]
    pictures = [PreparedPicture(Image.open(io.BytesIO(each.as_py())).convert("RGB")) for each in column]
    sketches = np.stack([sketch(picture) for picture in pictures])
    pairs = list[tuple[int, int]]()
    for one in range(len(pictures)):
        others = np.arange(one + 1, len(pictures))
        pairs += [(one, other) for other in others[may_be_near_identical(sketches[one], sketches[others])].tolist()]
    assert len(pairs) < len(pictures), "most pairs are rejected by their sketches alone"
    assert sum(near_identical(pictures[one], pictures[other]) for one, other in pairs) <= 4
