"""Perceptual hashes: 64 bits of how a picture looks, which resizing and encoding again hardly change."""

import numpy as np
from PIL import Image
from scipy.fft import dctn

from recollect.core.types import ImageLike

_EDGE, _KEPT = 32, 8


def phash_of(image: ImageLike) -> str:
    """Which of the 64 lowest cosine frequencies of the gray picture are above their median (pHash; Zauner, 2010).

    Returns:
        16 hexadecimal digits; empty for what is not a picture, or where all pixels are equal.
    """
    if isinstance(image, np.ndarray):
        if image.ndim != 3:
            return ""
        image = Image.fromarray(image)
    gray = np.asarray(image.convert("L").resize((_EDGE, _EDGE), Image.Resampling.BOX), dtype=np.float64)
    if np.ptp(gray) == 0:
        return ""
    low = dctn(gray, norm="ortho")[:_KEPT, :_KEPT].reshape(-1)
    bits = low > np.median(low[1:])  # the first is the mean brightness
    bits[0] = False
    return np.packbits(bits).tobytes().hex()
