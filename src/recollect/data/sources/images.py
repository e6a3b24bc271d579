"""Decoding pictures of any format, with one-line errors."""

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
"""Pillow's default limit (a quarter of a gigabyte of RGB); larger pictures may be decompression bombs."""

BROKEN_SHARE = 0.01
"""Maximum fraction of broken pictures. Web crawls have well under 1 %; more indicates a mistake, such as a wrong column
or a failed copy, that should stop a run at once."""

_DETECT_ONLY = frozenset({"BUFR", "GRIB", "HDF5", "MPEG"})
"""Formats that Pillow recognizes but cannot open: weather data, measurements, video."""

PICTURE_ENDINGS = frozenset(
    ending
    for ending, form in Image.registered_extensions().items()
    if form in {*Image.OPEN, "MPO"} - _DETECT_ONLY  # an MPO is opened as its first JPEG
)
"""File name extensions of supported pictures."""

METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Files that describe the pictures of their folder."""

_PHONES = {".heic", ".heif", ".hif", ".jxl", ".svg", ".avif"}
_CAMERAS = {".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2", ".pef"}
_UNSUPPORTED = frozenset(_PHONES | _CAMERAS) - PICTURE_ENDINGS
"""Extensions of pictures that Pillow cannot open (AVIF only in older versions)."""
_UNSUPPORTED_HINT = "this image format is not supported. Convert it to JPEG."
_HEIF_HINT = "HEIC needs pillow-heif: pip install 'recollect[web]'"

_STRIP_ROWS = 64
_ORIENTATION = 0x0112  # the EXIF tag
_BITS_TAG, _ZERO_TAG, _FORMAT_TAG = 258, 262, 339
"""TIFF tags BitsPerSample, PhotometricInterpretation and SampleFormat."""
_WHITE_IS_ZERO, _UNSIGNED, _SIGNED = 0, 1, 2

_RANGES = (2.0**8 - 1, 2.0**16 - 1)
_OVERSHOOT = 1.1
"""Factor by which sharpened or resized floats may exceed their range."""


class BrokenImageError(UserError):
    """Unreadable picture; the message names the file or row."""


def decode(data: bytes | Path, where: str, *, needed: int = 0) -> Image.Image:
    """Decode a picture to upright RGB.

    Args:
        data: encoded bytes, or a file.
        where: name of the picture, for errors.
        needed: shorter side in pixels that the caller needs; a JPEG at least twice as large is decoded at 1/2, 1/4 or
            1/8 of its size, which is several times faster. 0 decodes at full size.

    Raises:
        BrokenImageError: the data is not a picture, truncated or too large, or the file cannot be opened.
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
    except Exception as error:  # Pillow's decoders raise almost any exception on damaged data
        why = "not a picture" if isinstance(error, Image.UnidentifiedImageError) else f"cannot be read ({error})"
        if isinstance(data, Path) and data.suffix.lower() in _UNSUPPORTED:
            why = _HEIF_HINT if data.suffix.lower() in {".heic", ".heif", ".hif"} else _UNSUPPORTED_HINT
        raise BrokenImageError(f"{where}: {why}") from None


def pixel_digest(image: ImageLike) -> str:
    """Return a digest of the pixels, independent of the file format."""
    strips = _strips(image) if isinstance(image, Image.Image) else iter([np.asarray(image)])
    first = next(strips)
    shape = (image.height, *first.shape[1:]) if isinstance(image, Image.Image) else first.shape
    digest = hashlib.blake2b(f"{shape} {first.dtype}".encode(), digest_size=16)
    for strip in chain([first], strips):
        digest.update(np.ascontiguousarray(strip).data)
    return digest.hexdigest()


def _strips(image: Image.Image) -> Iterator[np.ndarray]:
    """Yield a few rows at a time; copying a whole photograph to an array takes longer than hashing it."""
    width, height = image.size
    for top in range(0, max(height, 1), _STRIP_ROWS):
        yield np.asarray(image.crop((0, top, width, min(top + _STRIP_ROWS, height))))


class PreparedPixels(np.ndarray):
    """Pixels already cropped and resized for an encoder; its `ImageTransform` returns them unchanged."""


def prepare_image(encoder: Encoder, image: ImageLike) -> ImageLike:
    """Crop and resize a picture for an encoder without changing its embedding.

    Doing this in the decoding thread keeps a block of photographs from taking gigabytes.
    """
    transform: Any = getattr(encoder, "transform", None)
    if not hasattr(transform, "pixels") or (isinstance(image, np.ndarray) and image.ndim == 1):
        return image  # the encoder has its own preprocessing, or the image is a vector
    pixels: np.ndarray = transform.pixels(image)
    return pixels.view(PreparedPixels)


def find_images(folder: Path) -> list[Path]:
    """Return all image files below ``folder``, sorted, without hidden files; ``folder`` may also be an image file.

    Raises:
        UserError: the folder does not exist or contains no images.
    """
    if folder.is_file():
        ending = folder.suffix.lower()
        refuse(
            (ending in _UNSUPPORTED, f"{folder}: {_UNSUPPORTED_HINT}"),
            (ending not in PICTURE_ENDINGS, f"{folder}: not an image file (.jpg, .png, .webp, ...)"),
        )
        return [folder]
    refuse((not folder.is_dir(), f"{folder}: no such {'picture' if folder.suffix else 'folder'}"))
    return filter_pictures(files_below(folder), folder)


def filter_pictures(files: Sequence[Path], folder: Path) -> list[Path]:
    """Return the pictures among a folder's files, and print the number of unsupported pictures.

    Raises:
        UserError: none of the files is a supported picture.
    """
    pictures = [path for path in files if path.suffix.lower() in PICTURE_ENDINGS]
    unread = describe_unsupported(files)
    refuse((not pictures, f"{folder}: contains no image files (.jpg, .png, .webp, ...){unread and f'; {unread}'}"))
    if unread:
        note(f"{folder}: skipped {unread}")
    return pictures


def describe_unsupported(files: Sequence[Path]) -> str:
    """Describe the pictures with unsupported formats and what to do about them; empty if there are none."""
    counts = Counter(ending for path in files if (ending := path.suffix.lower()) in _UNSUPPORTED)
    kinds = ", ".join(f"{count:,} {ending}" for ending, count in counts.most_common())
    if counts and set(counts) <= {".heic", ".heif", ".hif"}:
        return f"{kinds}: {_HEIF_HINT}"
    return f"{kinds}: {_UNSUPPORTED_HINT}" if counts else ""


def files_below(folder: Path) -> list[Path]:
    """Return the files of a folder and its subfolders, sorted, without hidden files; report the folders left out.

    Raises:
        UserError: the folder itself cannot be read.
    """
    files, *skipped = files_in(folder)
    for paths, what in zip(skipped, ("because they cannot be read", "links to folders"), strict=True):
        if paths:
            shown = ", ".join(str(path.relative_to(folder)) for path in paths[:3]) + (" …" if len(paths) > 3 else "")
            note(f"{folder}: skipped {what}: {shown}")
    return files


PictureInput = ImageLike | bytes | io.BufferedIOBase | str | Path
"""A picture in memory, encoded bytes, an open file, a path, or a folder of pictures."""


def as_images(pictures: PictureInput | Sequence[PictureInput]) -> Sequence[ImageLike | Path]:
    """Convert one or more pictures to a sequence of pictures; paths are not opened.

    Args:
        pictures: a PIL image; a uint8 array (height, width) or ([n,] height, width, channels) with 1, 3 or 4 channels;
            a vector or a matrix of vectors; an encoded picture as bytes or an open file; a path; a folder, for all its
            pictures, sorted; or several of these.

    Raises:
        UserError: a file or folder does not exist, or an item is not a picture.
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
    if hasattr(pictures, "detach"):  # a tensor; avoids importing torch
        raise UserError(
            "a tensor in a list is not a picture. Pass uint8 arrays (height, width, 3), or transformed pixels as a "
            "single tensor (n, 3, height, width)."
        )
    if isinstance(pictures, Mapping) or not isinstance(pictures, Iterable):
        what = shortened(pictures)
        raise UserError(f"{what} is not a picture. Pass a file, a folder, a PIL image, an array, or a list.")
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
            raise UserError(f"an array of {array.shape} has its channels first. Pass array.transpose({order}).")
    if array.dtype.kind in "fi" and array.ndim in {1, 2}:
        return [array] if array.ndim == 1 else list(array)
    raise UserError(
        f"an array of {array.dtype} {array.shape} is not a picture. Pass uint8 (height, width, 3) or (n, height, "
        "width, 3); convert values between 0 and 1 with (255 * array).round().astype('uint8')."
    )


def decode_full_size(picture: ImageLike | Path) -> ImageLike:
    """Return the picture, decoding a file at full size so that it equals the same picture in memory."""
    return decode(picture, str(picture)) if isinstance(picture, Path) else picture


def as_picture(image: ImageLike) -> Image.Image:
    """Convert a picture in memory to RGB (see `as_rgb`).

    Raises:
        ValueError: an array is not uint8 (height, width, 3).
    """
    if isinstance(image, Image.Image):
        return as_rgb(image)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(
            f"an image array must be uint8 (height, width, 3) or a vector; got {image.shape} {image.dtype}"
        )
    return Image.fromarray(image)


def as_rgb(picture: Image.Image) -> Image.Image:
    """Convert to RGB: rotate by EXIF, scale 16-bit and 32-bit gray to 8 bits, composite on white. Idempotent."""
    tags: Mapping[int, Any] = dict(picture.tag_v2) if isinstance(picture, TiffImageFile) else {}
    orientation = 1
    with suppress(SyntaxError, struct.error):  # with damaged EXIF, only the rotation is lost
        orientation = picture.getexif().get(_ORIENTATION, 1)
    if orientation != 1:
        picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I;16") or picture.mode in {"I", "F"}:  # Pillow would clip them to white
        return Image.fromarray(_eight_bits(np.asarray(picture), tags)).convert("RGB")
    if picture.mode in {"RGBA", "LA", "PA", "La", "RGBa"} or "transparency" in picture.info:
        # The color of fully transparent pixels is arbitrary, so composite on white.
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
    bits = tags.get(_BITS_TAG, (8 * values.itemsize,))[0]
    signed = tags.get(_FORMAT_TAG, (_UNSIGNED,))[0] == _SIGNED if tags else values.dtype.kind == "i"
    if values.dtype.kind == "f":
        numbers = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
        shades = _scale_to_bytes(numbers, [1.0, *_RANGES, 2.0**32 - 1], _OVERSHOOT)
    elif bits <= 16:  # the upper eight bits, as Pillow does for colors
        shades = (values.clip(0) >> (bits - (8 if values.dtype.kind == "u" else 9))).astype(np.uint8)
    elif signed:
        shades = _scale_to_bytes(values, [*_RANGES, 2.0**31 - 1])
    else:  # Pillow has no unsigned 32-bit mode, so the upper half is negative
        shades = _scale_to_bytes(values.astype(np.int32).view(np.uint32), [*_RANGES, 2.0**32 - 1])
    return 255 - shades if tags.get(_ZERO_TAG) == _WHITE_IS_ZERO else shades


def _scale_to_bytes(values: np.ndarray, ranges: Sequence[float], overshoot: float = 1.0) -> np.ndarray:
    """Scale values to bytes by the smallest of ``ranges`` (from 0) that contains them."""
    top = float(values.max(initial=0))
    full = next((limit for limit in ranges if top <= limit * overshoot), top)
    return np.round((values / full).clip(0, 1) * 255).astype(np.uint8)


def small_jpeg(picture: Image.Image, side: int) -> bytes:
    """Encode a picture as a JPEG of at most ``side`` pixels, so that original files are never sent."""
    picture = picture.convert("RGB")
    picture.thumbnail((side, side))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=84)
    return buffer.getvalue()


def jpeg_url(picture: Image.Image, side: int) -> str:
    """Return `small_jpeg` as a data URL, for single-file pages."""
    return "data:image/jpeg;base64," + base64.b64encode(small_jpeg(picture, side)).decode()
