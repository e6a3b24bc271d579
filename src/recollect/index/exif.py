"""Facts from a picture's file: size, date taken and camera."""

import io
import re
from contextlib import suppress
from typing import Any

from PIL import Image

from recollect.core.types import ImageLike

_GPS, _LENS, _EXPOSURE, _APERTURE, _ISO, _FOCAL = 0x8825, 0xA434, 0x829A, 0x829D, 0x8827, 0x920A
_EXIF, _ORIGINAL, _CHANGED, _MAKER, _MODEL = 0x8769, 0x9003, 0x0132, 0x010F, 0x0110
_TIME = re.compile(r"(\d{4})[:-](\d\d)[:-](\d\d)[ T](\d\d):(\d\d):(\d\d)")


def picture_facts(image: ImageLike, encoded: bytes | None) -> dict[str, Any]:
    """Return width, height, taken and camera of a decoded, upright picture; EXIF is read from the encoded bytes."""
    vector = not isinstance(image, Image.Image) and image.ndim != 3
    height, width = (0, 0) if vector else image.size[::-1] if isinstance(image, Image.Image) else image.shape[:2]
    taken, camera = _exif(encoded) if encoded and not vector else ("", "")
    return {"width": width, "height": height, "taken": taken, "camera": camera}


def _exif(encoded: bytes) -> tuple[str, str]:
    try:
        with Image.open(io.BytesIO(encoded)) as picture:
            exif = picture.getexif()
            inner = exif.get_ifd(_EXIF)
    except Exception:  # Pillow raises many types on malformed EXIF; the picture itself is fine
        return "", ""
    found = _TIME.match(str(inner.get(_ORIGINAL) or exif.get(_CHANGED) or ""))
    taken = "{}-{}-{}T{}:{}:{}".format(*found.groups()) if found and found[1] != "0000" else ""
    maker, model = (str(exif.get(tag) or "").strip("\0 ") for tag in (_MAKER, _MODEL))
    camera = model if model.lower().startswith(maker.lower()) else f"{maker} {model}"
    return taken, camera.strip()


def exif_table(encoded: bytes) -> dict[str, str]:
    """Return lens, exposure, aperture, ISO, focal length and place of a photograph, omitting missing values."""
    found: dict[str, str] = {}
    with suppress(Exception):  # as in `_exif`
        with Image.open(io.BytesIO(encoded)) as picture:
            exif = picture.getexif()
            inner, place = exif.get_ifd(_EXIF), exif.get_ifd(_GPS)
        found |= {"lens": str(inner.get(_LENS, "")).strip("\0 "), "ISO": str(inner.get(_ISO, ""))}
        if exposure := _number(inner.get(_EXPOSURE)):
            found["exposure"] = f"1/{1 / exposure:.0f} s" if exposure < 1 else f"{exposure:g} s"
        if aperture := _number(inner.get(_APERTURE)):
            found["aperture"] = f"f/{aperture:g}"
        if focal := _number(inner.get(_FOCAL)):
            found["focal length"] = f"{focal:g} mm"
        found["place"] = f"{_degrees(place[2])}° {place.get(1, 'N')}, {_degrees(place[4])}° {place.get(3, 'E')}"
    return {name: value for name, value in found.items() if value}


def _number(value: Any) -> float:
    """Convert an EXIF value to float; 0 if it is missing or not a number."""
    try:
        return float(value)
    except (TypeError, ValueError, ZeroDivisionError):
        return 0.0


def _degrees(parts: tuple[float, float, float]) -> str:
    return f"{sum(float(part) / 60**power for power, part in enumerate(parts)):.5f}"
