"""Precision and recall of the pixel-level test for identical pictures, on pairs created from real pictures.

    python benchmarks/duplicates.py ../shared/data

Positive pairs: a picture and an edited version. Negative pairs: the most similar different pictures of a source (by
pixels), screenshots that differ in one line of text, frames of a burst, and scenes in which one object moved. The
thresholds of `recollect.index.same_picture` were chosen on the sources in `CHOSEN_ON`; `TESTED_ON` is the test set.
"""

import io
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow.parquet as pq
from PIL import Image, ImageDraw, ImageFont

from recollect.cli.parser import Arg
from recollect.core.files import write_json
from recollect.core.progress import progress
from recollect.index.duplicates import HASH_BITS
from recollect.index.picture import phash_of
from recollect.index.same_picture import PreparedPicture, near_identical
from recording import script_options, this_command

CHOSEN_ON = (
    "fashion", "pacs sketch", "flickr8k", "caltech101", "windows", "grocery", "pacs cartoon", "terminals", "documents",
)  # fmt: skip
TESTED_ON = ("coco_captions", "butterfly10", "imagenette", "flowers12", "resisc12", "chats")
TWINS = {
    ("fashion", 2671, 2672), ("fashion", 2695, 2696), ("caltech101", 375, 415), ("caltech101", 391, 407),
    ("caltech101", 865, 869), ("caltech101", 889, 911), ("caltech101", 893, 894), ("pacs cartoon", 303, 342),
    ("pacs cartoon", 1004, 1098), ("butterfly10", 7, 23), ("butterfly10", 338, 341), ("flowers12", 286, 297),
    ("flowers12", 517, 524), ("flowers12", 257, 265), ("flowers12", 287, 300), ("flowers12", 538, 541),
    ("flowers12", 424, 438), ("flowers12", 359, 368), ("flowers12", 573, 587), ("flowers12", 346, 360),
}  # fmt: skip
"""Pairs of rows of a source that show the same picture, found by inspection and excluded from the negatives."""

Edit = Callable[[Image.Image], Image.Image]


@dataclass(frozen=True)
class Options:
    """Command-line options.

    Attributes:
        data: folder with the Parquet files of pictures.
        rows: maximum number of pictures per source to search for similar pairs.
        edited: number of pictures per source to which every edit is applied.
        near: number of negative pairs per source.
        out: JSON file for the figures.
    """

    data: Annotated[Path, Arg(place="DATA")]
    rows: int = 3_000
    edited: int = 60
    near: int = 500
    out: Path = Path("results/bench/duplicates-pixels.json")


def encoded(image: Image.Image, form: str, **options: int) -> Image.Image:
    """Encode an image in a file format, and decode it."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return Image.open(io.BytesIO(buffer.getvalue())).convert("RGB")


def resized(image: Image.Image, factor: float) -> Image.Image:
    """Scale an image by ``factor``."""
    size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    return image.resize(size, Image.Resampling.LANCZOS)


def cropped(image: Image.Image, share: float) -> Image.Image:
    """Crop this share of the width or height, at least one pixel, at each edge."""
    x, y = max(1, round(image.width * share)), max(1, round(image.height * share))
    return image.crop((x, y, image.width - x, image.height - y))


def marked(image: Image.Image, alpha: int) -> Image.Image:
    """Add a line of white text in a corner."""
    over = Image.new("RGBA", image.size, (0, 0, 0, 0))
    draw, font = ImageDraw.Draw(over), ImageFont.load_default(max(6, image.height // 14))
    _, _, right, bottom = draw.textbbox((0, 0), "(c) photo", font=font)
    place = image.width - right - 2, image.height - bottom - 2
    draw.text(place, "(c) photo", font=font, fill=(255, 255, 255, alpha))
    return Image.alpha_composite(image.convert("RGBA"), over).convert("RGB")


EDITS: dict[str, Edit] = {
    **{f"JPEG {q}": lambda image, q=q: encoded(image, "JPEG", quality=q) for q in (30, 50, 75, 95)},
    **{f"WebP {q}": lambda image, q=q: encoded(image, "WEBP", quality=q) for q in (50, 80)},
    **{f"resized {f:.0%}": lambda image, f=f: resized(image, f) for f in (0.5, 0.7, 1.3, 2.0)},
    "resized 50%, JPEG 60": lambda image: encoded(resized(image, 0.5), "JPEG", quality=60),
    "GIF": lambda image: encoded(image, "GIF"),
    "palette of 256": lambda image: image.quantize(256).convert("RGB"),
    "web palette": lambda image: image.convert("P").convert("RGB"),
    "gray": lambda image: image.convert("L").convert("RGB"),
    "gray, JPEG 75": lambda image: encoded(image.convert("L"), "JPEG", quality=75),
    "crop of 2%": lambda image: cropped(image, 0.02),
    "crop of 2%, JPEG 75": lambda image: encoded(cropped(image, 0.02), "JPEG", quality=75),
    "watermark, half transparent": lambda image: marked(image, 128),
    "watermark, opaque": lambda image: marked(image, 255),
}


def pictures(options: Options, source: str) -> list[Image.Image]:
    """Return the pictures of a Parquet file or one of its domains, or generated screenshots."""
    if source in DRAWN:
        return [DRAWN[source](seed, False) for seed in range(120)]
    name, _, domain = source.partition(" ")
    table = pq.read_table(options.data / f"{name}.parquet")
    domains = table["domain"].to_pylist() if domain else [""] * len(table)
    rows = [row for row, each in enumerate(domains) if each == domain][: options.rows]
    return [Image.open(io.BytesIO(table["image"][row].as_py())).convert("RGB") for row in rows]


def screenshot(seed: int, dark: bool, other_line: bool = False) -> Image.Image:
    """Draw a window or a terminal with text, optionally with one line changed."""
    generator = np.random.default_rng([seed, dark])
    size = (320, 480) if dark else (480, 320)
    back, ink = ((20, 20, 24), (200, 220, 200)) if dark else ((255, 255, 255), (20, 20, 20))
    image = Image.new("RGB", size, back)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(12)
    left = 6 if dark else 100
    if not dark:
        draw.rectangle((0, 0, size[0], 28), fill=(60, 90, 160))
        draw.rectangle((0, 28, 90, size[1]), fill=(235, 235, 240))
    changed = int(generator.integers(1, 12))
    for line, y in enumerate(range(40, size[1] - 16, 18)):
        letters = ["".join(map(chr, generator.integers(97, 123, generator.integers(2, 8)))) for _ in range(6)]
        if other_line and line == changed:
            letters.reverse()
        draw.text((left, y), " ".join(letters), fill=ink, font=font)
    return image


def document(seed: int, other_line: bool) -> Image.Image:
    """Draw a full screen of text, optionally with the words of one line reversed."""
    generator = np.random.default_rng([seed, 2])
    image = Image.new("RGB", (1600, 1000), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(14)
    changed = int(generator.integers(2, 44))
    for line, y in enumerate(range(40, 960, 20)):
        words = ["".join(map(chr, generator.integers(97, 123, generator.integers(2, 9)))) for _ in range(14)]
        if other_line and line == changed:
            words.reverse()
        draw.text((60, y), " ".join(words), fill=(20, 20, 20), font=font)
    return image


def chat(seed: int, other_line: bool) -> Image.Image:
    """Draw a phone screen of messages in colored boxes, optionally with one message changed."""
    generator = np.random.default_rng([seed, 3])
    image = Image.new("RGB", (1080, 1920), (230, 221, 212))
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(40)
    draw.rectangle((0, 0, 1080, 150), fill=(0, 128, 105))
    changed, y = int(generator.integers(1, 12)), 180
    for message in range(14):
        letters = ["".join(map(chr, generator.integers(97, 123, generator.integers(2, 8)))) for _ in range(5)]
        if other_line and message == changed:
            letters.reverse()
        left = 40 if generator.integers(2) else 240
        draw.rounded_rectangle((left, y, left + 800, y + 90), 24, fill="white" if left == 40 else (217, 253, 211))
        draw.text((left + 30, y + 20), " ".join(letters), fill=(30, 30, 30), font=font)
        y += 120
    return image


DRAWN: dict[str, Callable[[int, bool], Image.Image]] = {
    "windows": lambda seed, other: screenshot(seed, dark=False, other_line=other),
    "terminals": lambda seed, other: screenshot(seed, dark=True, other_line=other),
    "documents": document,
    "chats": chat,
}


def noisy(image: Image.Image, seed: int) -> Image.Image:
    """Add sensor noise."""
    noise = np.random.default_rng(seed).normal(size=(image.height, image.width, 1)) * 3
    return Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8))


def negatives(
    options: Options, source: str, images: list[Image.Image]
) -> Iterator[tuple[str, Image.Image, Image.Image]]:
    """Yield pairs of different but similar pictures, each with its kind."""
    for one, other in nearest(images, options.near):
        if (source, one, other) not in TWINS:
            yield "most similar pictures", images[one], images[other]
    if source in DRAWN:
        for seed, image in enumerate(images):
            yield "one other line of text", image, DRAWN[source](seed, True)
            other = encoded(DRAWN[source](seed, True), "JPEG", quality=80)
            yield "one other line of text, JPEG 80", image, other
        return
    generator = np.random.default_rng(0)
    for number in range(options.edited):
        image, patch = (images[int(row)] for row in generator.choice(len(images), 2, replace=False))
        width, height = image.size
        edge = max(3, round(0.05 * width))
        frames = [image.crop((edge + x, edge, width - edge + x, height - edge)) for x in (0, edge)]
        yield "burst", noisy(frames[0], number), noisy(frames[1], number + 1)
        side = max(5, round(min(width, height) * generator.uniform(0.1, 0.22)))
        scenes = [image.copy(), image.copy()]
        for scene in scenes:
            place = int(generator.integers(width - side)), int(generator.integers(height - side))
            scene.paste(patch.resize((side, side), Image.Resampling.LANCZOS), place)
        yield "an object moved", noisy(scenes[0], number), noisy(scenes[1], number + 1)


def nearest(images: list[Image.Image], count: int) -> list[tuple[int, int]]:
    """Return the pairs whose pixels differ least, relative to their contrast."""
    rows = np.stack(
        [np.asarray(each.resize((32, 32), Image.Resampling.BOX), np.float32).reshape(-1) for each in images]
    )
    square, contrast = (rows**2).sum(1), rows.var(1)
    distances = square[:, None] + square - 2 * rows @ rows.T
    distances /= np.minimum(contrast[:, None], contrast) + 20
    distances[np.tril_indices(len(distances))] = np.inf
    best = np.argpartition(distances.reshape(-1), count)[:count]
    return [divmod(int(each), len(images)) for each in best]


def main() -> None:
    """Measure, print and write."""
    options = script_options(Options)
    report = {"format": 1, "command": this_command()}
    for part, sources in {"chosen_on": CHOSEN_ON, "tested_on": TESTED_ON}.items():
        found: dict[str, list[bool]] = defaultdict(list)
        wrong: dict[str, list[bool]] = defaultdict(list)
        hashed: list[bool] = []
        for source in sources:
            images = pictures(options, source)
            drawn = np.random.default_rng(1).permutation(len(images))[: options.edited].tolist()
            with progress(f"pairs of {source}", len(drawn), "pictures") as counter:
                for row in drawn:
                    prepared, phash = PreparedPicture(images[row]), int(phash_of(images[row]) or "0", 16)
                    for name, edit in EDITS.items():
                        edited = edit(images[row])
                        found[name].append(near_identical(prepared, PreparedPicture(edited)))
                        hashed.append((phash ^ int(phash_of(edited) or "0", 16)).bit_count() <= HASH_BITS)
                    counter.advance(1)
            for kind, one, other in negatives(options, source, images):
                wrong[f"{source}: {kind}"].append(near_identical(PreparedPicture(one), PreparedPicture(other)))
        right, false = (sum(itertools.chain(*each.values())) for each in (found, wrong))
        report[part] = {
            "sources": list(sources),
            "positive_pairs": sum(map(len, found.values())),
            "negative_pairs": sum(map(len, wrong.values())),
            "precision": round(right / (right + false), 5),
            "recall": {name: round(float(np.mean(each)), 4) for name, each in found.items()},
            "called_the_same": {kind: sum(each) for kind, each in wrong.items()},
            "within_the_hash": round(float(np.mean(hashed)), 4),
        }
        print(json.dumps(report[part], indent=2), flush=True)
    write_json(options.out, report)


if __name__ == "__main__":
    main()
