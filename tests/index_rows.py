"""Random index rows, a deterministic encoder, and small pictures."""

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from recollect import testing
from recollect.core.types import Sample, Source
from recollect.data.sources.images import BrokenImageError
from recollect.index import File, Rows

WIDTH = 8


def unit(values):
    return (values / np.linalg.norm(values, axis=-1, keepdims=True)).astype(np.float32)


def random_unit(generator, *shape):
    return unit(generator.normal(size=shape))


def make_rows(count, first=0, width=WIDTH, captions=None):
    """Return rows with every field filled; row ``i`` does not depend on ``first``.

    Row ``i`` has ``captions`` captions (default: ``i % 4``).
    """
    numbers = range(first, first + count)
    counts = [number % 4 if captions is None else captions for number in numbers]
    draws = [np.random.default_rng([1, number]) for number in numbers]
    return Rows(
        ids=[f"row {number}" for number in numbers],
        image_vectors=unit(np.array([draw.normal(size=width) for draw in draws]).reshape(count, width)),
        captions=[
            tuple(f"picture {number} of {'a cat' if j % 2 else 'an owl'}, {j}" for j in range(each))
            for number, each in zip(numbers, counts, strict=True)
        ],
        caption_vectors=[
            unit(draw.normal(size=(each, width))) if each else np.zeros((0, width), dtype=np.float32)
            for draw, each in zip(draws, counts, strict=True)
        ],
        files=[
            [File(("emoji", "birds")[number % 2], f"{number}.png", f"/pictures/{number}.png", "/pictures")]
            for number in numbers
        ],
        labels=[["cat", "pet"] if number % 3 else [] for number in numbers],
        folder=["Norway/Bergen" if number % 2 else "" for number in numbers],
        taken=[f"20{number % 30:02}-07-01T12:00:00" if number % 5 else "" for number in numbers],
        width=[100 + number for number in numbers],
        height=[0] * count,
        images=[bytes([number % 256, 1]) if number % 3 else None for number in numbers],
        metadata=[
            {"year": 2000 + number, "domain": f"d{number % 3}", "good": number % 4 == 0}
            | ({"rare": "it's", "note": 'two\nlines\tand \\ "one"'} if number % 5 == 0 else {})
            for number in numbers
        ],
    )


class HashEncoder(testing.HashEncoder):
    """Encoder that counts the pictures it embeds."""

    def __init__(self, salt="a", width=WIDTH):
        super().__init__(width, salt)
        self.__dict__["images"] = 0  # the class is frozen

    @property
    def fingerprint(self):
        return f"model-{self.salt}"

    def embed_images(self, images):
        self.__dict__["images"] += len(images)
        return super().embed_images(images)


@dataclass
class Pictures(Source):
    """Small pictures with two captions each; some may be broken, and they may repeat every ``same`` rows."""

    size: int = 40
    name: str = "pictures"
    broken: tuple[int, ...] = ()
    same: int | None = None
    shift: int = 0

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index in self.broken:
            raise BrokenImageError(f"{self.name}, row {index}: not a picture")
        number = self.shift + (index % self.same if self.same else index)
        pixels = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        texts = (f"caption {number}", f"other words for {number}")
        return Sample(pixels, texts, -1, self.name, "caption", str(index), {"number": number})


def scene(number, size=96):
    """Return a picture of rectangles; noise would not survive encoding."""
    draw = np.random.default_rng(number)
    image = Image.new("RGB", (size, size), tuple(draw.integers(0, 256, 3).tolist()))
    pen = ImageDraw.Draw(image)
    for _ in range(6):
        corners = np.sort(draw.integers(0, size, (2, 2)), axis=0).reshape(-1).tolist()
        pen.rectangle(corners, fill=tuple(draw.integers(0, 256, 3).tolist()))
    return image


def write_picture(path, number, size=8):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (size, size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path
