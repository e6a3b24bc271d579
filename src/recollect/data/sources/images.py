"""Reading pictures of any format; a picture that cannot be read is one line that says why."""

import base64
import hashlib
import io
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFile, ImageOps
from PIL.TiffImagePlugin import TiffImageFile

from recollect.core.errors import UserError
from recollect.core.paths import expanduser, files_in
from recollect.core.progress import note
from recollect.core.types import Encoder, ImageLike
from recollect.core.validation import refuse
from recollect.core.words import shortened

with suppress(ImportError):  # iPhones write HEIC
    import pillow_heif

    pillow_heif.register_heif_opener()

MAX_PIXELS = 89_478_485
"""Pillow's own limit (a quarter of a gigabyte of RGB); larger pictures may be decompression bombs."""

BROKEN_SHARE = 0.01
"""Web crawls lose well under 1 % of their pictures to damage; a larger share is a mistake (a wrong column, a failed
copy) that should stop a run at once."""

_NOT_OPENED = frozenset({"BUFR", "GRIB", "HDF5", "MPEG"})
"""Formats that Pillow recognizes but cannot open: weather data, measurements, films."""

PICTURE_ENDINGS = frozenset(
    ending
    for ending, form in Image.registered_extensions().items()
    if form in {*Image.OPEN, "MPO"} - _NOT_OPENED  # an MPO opens as the JPEG that it begins with
)
"""File name endings of pictures that can be read."""

METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Files that describe the pictures of their folder."""

_PHONES = {".heic", ".heif", ".hif", ".jxl", ".svg", ".avif"}
_CAMERAS = {".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2", ".pef"}
_UNREAD_ENDINGS = frozenset(_PHONES | _CAMERAS) - PICTURE_ENDINGS
"""Endings of pictures that Pillow does not open (AVIF only in older versions)."""
_UNREAD = "this image format is not supported. Convert it to JPEG."
_NO_HEIF = "HEIC needs pillow-heif: pip install 'recollect[web]'"

_STRIP = 64  # rows
_ORIENTATION = 0x0112  # the EXIF tag
_BITS, _ZERO, _FORM = 258, 262, 339
"""Tags of a TIFF: bits of a number, what its zero looks like, and what kind of number it is."""
_WHITE, _UNSIGNED, _SIGNED = 0, 1, 2

_RANGES = (2.0**8 - 1, 2.0**16 - 1)
_OVERSHOOT = 1.1
"""How far beyond their range sharpened or resized floats may reach."""


class BrokenImageError(UserError):
    """One picture cannot be read; its message names the file or row."""


def decode(data: bytes | Path, where: str, *, needed: int = 0) -> Image.Image:
    """Decode a picture to RGB, upright.

    Args:
        data: the encoded bytes, or the file that holds them.
        where: name of the picture, for errors.
        needed: shorter side in pixels above which detail is of no use; a JPEG at least twice as large is decoded at
            1/2, 1/4 or 1/8 of its size, several times faster. 0 decodes all of it.

    Raises:
        BrokenImageError: not a picture, cut short, too large, or the file cannot be opened.
    """
    try:
        with Image.open(io.BytesIO(data) if isinstance(data, bytes) else data) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise Image.DecompressionBombError
            if needed and picture.format == "JPEG":
                picture.draft(None, (needed, needed))
            return as_rgb(picture)
    except Image.DecompressionBombError:
        raise BrokenImageError(f"{where}: more than {MAX_PIXELS:,} pixels (a decompression bomb?)") from None
    except FileNotFoundError:
        raise BrokenImageError(f"{where}: no such file") from None
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged bytes
        why = "not a picture" if isinstance(error, Image.UnidentifiedImageError) else f"cannot be read ({error})"
        if isinstance(data, Path) and data.suffix.lower() in _UNREAD_ENDINGS:
            why = _NO_HEIF if data.suffix.lower() in {".heic", ".heif", ".hif"} else _UNREAD
        raise BrokenImageError(f"{where}: {why}") from None


def pixel_digest(image: ImageLike) -> str:
    """Equal for equal pixels, in any encoding."""
    strips = _strips(image) if isinstance(image, Image.Image) else iter([np.asarray(image)])
    first = next(strips)
    shape = (image.height, *first.shape[1:]) if isinstance(image, Image.Image) else first.shape
    made = hashlib.blake2b(f"{shape} {first.dtype}".encode(), digest_size=16)
    for strip in chain([first], strips):
        made.update(np.ascontiguousarray(strip).data)
    return made.hexdigest()


def _strips(image: Image.Image) -> Iterator[np.ndarray]:
    """A picture's rows, some at a time: as one array, a photograph takes longer to copy than to hash."""
    width, height = image.size
    for top in range(0, max(height, 1), _STRIP):
        yield np.asarray(image.crop((0, top, width, min(top + _STRIP, height))))


class PreparedPixels(np.ndarray):
    """Pixels that were cropped and resized for an encoder; its `ImageTransform` leaves them as they are."""


def prepared(encoder: Encoder, image: ImageLike) -> ImageLike:
    """A picture cropped and resized for an encoder, which embeds it as it would the picture itself.

    Done in the thread that decodes a picture, it keeps a block of photographs from taking gigabytes.
    """
    transform: Any = getattr(encoder, "transform", None)
    if not hasattr(transform, "pixels") or (isinstance(image, np.ndarray) and image.ndim == 1):
        return image  # an encoder with preprocessing of its own, or a vector
    pixels: np.ndarray = transform.pixels(image)
    return pixels.view(PreparedPixels)


def reduced(encoder: Encoder, image: ImageLike) -> ImageLike:
    """A large picture averaged over squares of pixels, to no less than an encoder needs (`ImageTransform.needed`).

    Bicubic resizing of a whole photograph takes half as long as decoding it. Changes a cosine by 0.0005 to 0.001 (64
    pictures of 12 megapixels).
    """
    needed = getattr(getattr(encoder, "transform", None), "needed", 0)
    if needed and isinstance(image, Image.Image) and (factor := min(image.size) // needed) >= 2:
        return image.reduce(factor)
    return image


def find_images(folder: Path) -> list[Path]:
    """Every image file under ``folder``, sorted, without hidden ones; an image file is returned as it is.

    Raises:
        UserError: no such folder, or no image in it.
    """
    if folder.is_file():
        ending = folder.suffix.lower()
        refuse(
            (ending in _UNREAD_ENDINGS, f"{folder}: {_UNREAD}"),
            (ending not in PICTURE_ENDINGS, f"{folder}: not an image file (.jpg, .png, .webp, ...)"),
        )
        return [folder]
    refuse((not folder.is_dir(), f"{folder}: no such {'picture' if folder.suffix else 'folder'}"))
    return pictures_among(files_below(folder), folder)


def pictures_among(files: Sequence[Path], folder: Path) -> list[Path]:
    """The pictures among a folder's files; the number of unsupported ones is printed.

    Raises:
        UserError: no file is a picture.
    """
    pictures = [path for path in files if path.suffix.lower() in PICTURE_ENDINGS]
    unread = unread_among(files)
    refuse((not pictures, f"{folder}: contains no image files (.jpg, .png, .webp, ...){unread and f'; {unread}'}"))
    if unread:
        note(f"{folder}: passed over: {unread}")
    return pictures


def unread_among(files: Sequence[Path]) -> str:
    """How many pictures have unsupported formats, and what to do; empty if none."""
    unread = Counter(ending for path in files if (ending := path.suffix.lower()) in _UNREAD_ENDINGS)
    kinds = ", ".join(f"{count:,} {ending}" for ending, count in unread.most_common())
    if unread and set(unread) <= {".heic", ".heif", ".hif"}:
        return f"{kinds}: {_NO_HEIF}"
    return f"{kinds}: {_UNREAD}" if unread else ""


def files_below(folder: Path) -> list[Path]:
    """The files of a folder and its sub-folders, sorted, without hidden ones; unreadable folders are reported.

    Raises:
        UserError: the folder itself cannot be read.
    """
    files, closed = files_in(folder)
    if closed:
        shown = ", ".join(str(path.relative_to(folder)) for path in closed[:3]) + (" …" if len(closed) > 3 else "")
        note(f"{folder}: left out, since they cannot be read: {shown}")
    return files


PictureInput = ImageLike | bytes | io.BufferedIOBase | str | Path
"""A picture in memory, encoded or open to read, its file, or a folder of pictures."""


def as_images(pictures: PictureInput | Sequence[PictureInput]) -> Sequence[ImageLike | Path]:
    """One picture or many, in any usual form, as a sequence of pictures; files are not opened yet.

    Args:
        pictures: a PIL image; a uint8 array (height, width) or ([n,] height, width, channels) with 1, 3 or 4 channels;
            a vector or a matrix of vectors; an encoded picture as bytes, or open to read; a file; a folder, for all
            pictures in it, sorted; or several of these.

    Raises:
        UserError: no such file or folder, or not a picture.
    """
    if isinstance(pictures, str | Path):
        refuse(("://" in str(pictures), f"{pictures}: a URL; pictures are read from files. Download it first."))
        return find_images(Path(expanduser(pictures)))
    if isinstance(pictures, Image.Image | PreparedPixels):
        refuse((isinstance(pictures, Image.Image) and 0 in pictures.size, "a picture without pixels"))
        return [pictures]
    if isinstance(pictures, np.ndarray):
        return _from_array(pictures)
    if isinstance(pictures, bytes):
        return [decode(pictures, "the picture")]
    if isinstance(pictures, io.BufferedIOBase):
        return [decode(pictures.read(), "the picture")]
    if hasattr(pictures, "detach"):  # torch is not imported for this
        raise UserError(
            "a tensor in a list is not a picture. Give arrays, uint8 (height, width, 3); transformed pixels are one "
            "tensor, (n, 3, height, width)."
        )
    if isinstance(pictures, Mapping) or not isinstance(pictures, Iterable):
        what = shortened(pictures)
        raise UserError(f"{what} is not a picture. Give a file, a folder, a PIL image, an array, or a list.")
    return [image for picture in pictures for image in as_images(picture)]


def _from_array(array: np.ndarray) -> list[ImageLike]:
    channels = array.shape[-1] if array.ndim > 2 else 1
    refuse((array.dtype == np.uint8 and 0 in array.shape[-3:], f"an array of {array.shape} has no pixels"))
    if array.dtype == np.uint8 and 2 <= array.ndim <= 4:
        if array.ndim == 2:
            return [np.repeat(array[:, :, None], 3, axis=2)]
        if channels == 3:
            return list(array) if array.ndim == 4 else [array]
        if channels == 1:
            return _from_array(np.repeat(array, 3, axis=-1))
        if channels == 4:
            return [as_rgb(Image.fromarray(each)) for each in (array if array.ndim == 4 else array[None])]
        if array.shape[-3] in {1, 3, 4} and channels > 4:
            order = "0, 2, 3, 1" if array.ndim == 4 else "1, 2, 0"
            raise UserError(f"an array of {array.shape} has its channels first. Give array.transpose({order}).")
    if array.dtype.kind in "fi" and array.ndim in {1, 2}:
        return [array] if array.ndim == 1 else list(array)
    raise UserError(
        f"an array of {array.dtype} {array.shape} is not a picture. Give uint8 (height, width, 3) or (n, height, "
        "width, 3); from values between 0 and 1 make (255 * array).round().astype('uint8')."
    )


def opened(picture: ImageLike | Path) -> ImageLike:
    """The picture; a file is decoded at full size, so that it equals the same picture in memory."""
    return decode(picture, str(picture)) if isinstance(picture, Path) else picture


def as_picture(image: ImageLike) -> Image.Image:
    """One picture in memory as RGB (see `as_rgb`).

    Raises:
        ValueError: an array of another shape or type than uint8 (height, width, 3).
    """
    if isinstance(image, Image.Image):
        return as_rgb(image)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"an image array is (height, width, 3) uint8 or a vector; got {image.shape} {image.dtype}")
    return Image.fromarray(image)


def as_rgb(picture: Image.Image) -> Image.Image:
    """A picture as RGB, rotated by its EXIF tag, 16-bit and 32-bit gray scaled to 8 bits, transparent parts white.
    Idempotent."""
    tags: Mapping[int, Any] = dict(picture.tag_v2) if isinstance(picture, TiffImageFile) else {}
    turned = 1
    with suppress(SyntaxError, struct.error):  # damaged EXIF costs only its rotation
        turned = picture.getexif().get(_ORIENTATION, 1)
    if turned != 1:
        picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I;16") or picture.mode in {"I", "F"}:  # Pillow would clip them to white
        return Image.fromarray(_eight_bits(np.asarray(picture), tags)).convert("RGB")
    if picture.mode in {"RGBA", "LA", "PA", "La", "RGBa"} or "transparency" in picture.info:
        # Composited on white: the color of transparent pixels is arbitrary.
        picture = picture.convert("RGBA")
        page = Image.new("RGBA", picture.size, (255, 255, 255, 255))
        return Image.alpha_composite(page, picture).convert("RGB")
    if picture.mode == "RGB" and (not isinstance(picture, ImageFile.ImageFile) or picture.format == "JPEG"):
        picture.load()  # in place: copying a photograph takes a third as long as decoding it
        return picture
    return picture.convert("RGB")  # loads the pixels, even if the mode is RGB already


def _eight_bits(values: np.ndarray, tags: Mapping[int, Any]) -> np.ndarray:
    """Scale a gray picture of more than eight bits to bytes.

    Up to 16 bits, the largest value of the format is white: 65,535, signed 32,767, 12 bits 4,095. 32-bit values rarely
    use their whole range; the smallest of these ranges that contains them is used: 0 to 1 (floats), 8 bits, 16 bits,
    32 bits. Values outside are clipped, and white-is-zero TIFFs are inverted.

    Args:
        values: int32, uint16 or float32, as Pillow returns them.
        tags: TIFF tags, which define the format; empty for other files.
    """
    bits = tags.get(_BITS, (8 * values.itemsize,))[0]
    signed = tags.get(_FORM, (_UNSIGNED,))[0] == _SIGNED if tags else values.dtype.kind == "i"
    if values.dtype.kind == "f":
        numbers = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
        shades = _in_least(numbers, [1.0, *_RANGES, 2.0**32 - 1], _OVERSHOOT)
    elif bits <= 16:  # the upper eight bits, as Pillow takes of colors
        shades = (values.clip(0) >> (bits - (8 if values.dtype.kind == "u" else 9))).astype(np.uint8)
    elif signed:
        shades = _in_least(values, [*_RANGES, 2.0**31 - 1])
    else:  # Pillow has no unsigned 32-bit mode: the upper half has turned negative
        shades = _in_least(values.astype(np.int32).view(np.uint32), [*_RANGES, 2.0**32 - 1])
    return 255 - shades if tags.get(_ZERO) == _WHITE else shades


def _in_least(values: np.ndarray, ranges: Sequence[float], overshoot: float = 1.0) -> np.ndarray:
    """Scale values to bytes by the smallest of ``ranges`` (from 0) that contains them."""
    top = float(values.max(initial=0))
    full = next((limit for limit in ranges if top <= limit * overshoot), top)
    return np.round((values / full).clip(0, 1) * 255).astype(np.uint8)


def small_jpeg(picture: Image.Image, side: int) -> bytes:
    """The picture as a new JPEG no larger than ``side``. Files of the user are never sent as they are."""
    picture = picture.convert("RGB")
    picture.thumbnail((side, side))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=84)
    return buffer.getvalue()


def jpeg_url(picture: Image.Image, side: int) -> str:
    """`small_jpeg` as a data URL, for pages that are one file."""
    return "data:image/jpeg;base64," + base64.b64encode(small_jpeg(picture, side)).decode()
