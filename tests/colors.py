"""Single-color pictures, and an encoder that maps a color and its name to the same vector."""

import numpy as np
import torch
from PIL import Image

from recollect.core.types import Encoder

COLORS = {"red": (200, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 200)}


class ColorEncoder(Encoder):
    """Embed a picture as its mean color relative to gray."""

    width = 3
    fingerprint = "color"
    scale = 10.0

    def embed_images(self, images):
        means = np.stack([np.asarray(image, dtype=np.float32).reshape(-1, 3).mean(0) - 90 for image in images])
        return torch.nn.functional.normalize(torch.from_numpy(means), dim=1)

    def embed_texts(self, texts, prefix=None):
        rows = [next((rgb for name, rgb in COLORS.items() if name in text), (130, 120, 110)) for text in texts]
        return torch.nn.functional.normalize(torch.tensor(rows, dtype=torch.float32) - 90, dim=1)


def shade(color, seed, spread=30, size=(32, 24)):
    generator = np.random.default_rng(seed)
    base = np.clip(np.array(color) + generator.integers(-spread, spread + 1, size=3), 0, 255)
    noise = generator.integers(-15, 16, size=(size[1], size[0], 3))
    return Image.fromarray(np.clip(base + noise, 0, 255).astype(np.uint8))


def paint(path, color, seed, spread=30):
    path.parent.mkdir(parents=True, exist_ok=True)
    shade(color, seed, spread).save(path)
