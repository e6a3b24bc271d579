"""Perceptual hashes: sixty-four bits of how a picture looks, which resizing and encoding again hardly change."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64, UInt64
from PIL import Image
from scipy.fft import dctn

from recollect.core.types import ImageLike

_EDGE, _KEPT = 32, 8


def look_of(image: ImageLike) -> str:
    """Which of the 64 lowest cosine frequencies of the grey picture lie above their median (pHash; Zauner, 2010).

    Returns:
        16 hexadecimal digits; empty for what is no picture, or where every pixel is the same.
    """
    if isinstance(image, np.ndarray):
        if image.ndim != 3:
            return ""
        image = Image.fromarray(image)
    grey = np.asarray(image.convert("L").resize((_EDGE, _EDGE), Image.Resampling.BOX), dtype=np.float64)
    if np.ptp(grey) == 0:
        return ""
    low = dctn(grey, norm="ortho")[:_KEPT, :_KEPT].reshape(-1)
    bits = low > np.median(low[1:])  # the first is the mean brightness
    bits[0] = False
    return np.packbits(bits).tobytes().hex()


def looks_array(looks: Sequence[str]) -> UInt64[np.ndarray, " n"]:
    """Hashes as numbers, for `bits_apart`; an empty one is 0."""
    return np.array([int(look, 16) if look else 0 for look in looks], dtype=np.uint64)


def bits_apart(one: UInt64[np.ndarray, " n"], other: UInt64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """In how many bits two hashes differ, element by element."""
    return np.bitwise_count(one ^ other).astype(np.int64)
