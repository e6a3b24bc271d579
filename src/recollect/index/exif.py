"""What a picture's file says about it: size, when it was taken, and with which camera."""

import io
import re
from dataclasses import dataclass

from PIL import Image

from recollect.core.types import ImageLike

_EXIF, _ORIGINAL, _CHANGED, _MAKER, _MODEL = 0x8769, 0x9003, 0x0132, 0x010F, 0x0110
_TIME = re.compile(r"(\d{4})[:-](\d\d)[:-](\d\d)[ T](\d\d):(\d\d):(\d\d)")


@dataclass(frozen=True)
class PictureFacts:
    """As in `recollect.index.rows.Picture`."""

    width: int = 0
    height: int = 0
    taken: str = ""
    camera: str = ""


def picture_facts(image: ImageLike, encoded: bytes | None) -> PictureFacts:
    """Facts of a picture.

    Args:
        image: decoded and upright; a vector has no facts.
        encoded: the bytes it was decoded from.
    """
    if not isinstance(image, Image.Image) and image.ndim != 3:
        return PictureFacts()
    width, height = image.size if isinstance(image, Image.Image) else (image.shape[1], image.shape[0])
    taken, camera = _exif(encoded) if encoded else ("", "")
    return PictureFacts(width, height, taken, camera)


def _exif(encoded: bytes) -> tuple[str, str]:
    try:
        with Image.open(io.BytesIO(encoded)) as picture:
            exif = picture.getexif()
            inner = exif.get_ifd(_EXIF)
    except Exception:  # Pillow raises nearly anything on odd EXIF, which costs nothing but these facts
        return "", ""
    found = _TIME.match(str(inner.get(_ORIGINAL) or exif.get(_CHANGED) or ""))
    taken = "{}-{}-{}T{}:{}:{}".format(*found.groups()) if found and found[1] != "0000" else ""
    maker, model = (str(exif.get(tag) or "").strip("\0 ") for tag in (_MAKER, _MODEL))
    camera = model if model.lower().startswith(maker.lower()) else f"{maker} {model}"
    return taken, camera.strip()
