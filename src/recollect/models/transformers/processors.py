"""Conversion between transformers' image processors and `ImageTransform`, which needs no torchvision."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import transformers
from PIL import Image

from recollect.core.errors import UserError, user_errors
from recollect.data.transforms import ImageTransform

Setting = Callable[..., Any]
Three = tuple[float, float, float]

_RESAMPLE: dict[int, Literal["bilinear", "bicubic"]] = {2: "bilinear", 3: "bicubic"}
_TOLERANCE = 0.01
"""Mean difference of the test picture's pixels, as a fraction of their range; a shift by one pixel is below it."""


def transform_of(processor: Any, name: str) -> ImageTransform:
    """Return the transform equivalent to an image processor.

    Raises:
        UserError: the processor does something that `ImageTransform` does not support.
    """

    def setting(key: str, default: Any = None) -> Any:
        value = getattr(processor, key, None)
        return default if value is None else value

    if not setting("do_resize", True):
        raise _unsupported(name, "does not resize pictures")
    if setting("do_rescale", True) is not True:
        raise _unsupported(name, "does not scale pixels to 0…1")
    if setting("do_pad", False):
        raise _unsupported(name, "pads pictures")
    patches, patch = int(setting("max_num_patches", 0)), int(setting("patch_size", 0))
    size, resized, fit = _size_and_fit(setting, name)
    resample = _RESAMPLE.get(int(setting("resample", 3)))
    if resample is None:
        raise _unsupported(name, f"resizes with PIL's filter {setting('resample')}")
    mean, std = _mean_and_std(setting)
    transform = ImageTransform(
        size=size, mean=mean, std=std, fit=fit, resample=resample, patch=patch * (patches > 0), patches=patches,
        resized=resized if resized != size else 0,
    )  # fmt: skip
    if not (transform.packs or _agree(transform, processor, name)):
        raise _unsupported(name, "prepares a test picture differently than its settings say")
    return transform


def _agree(transform: ImageTransform, processor: Any, name: str) -> bool:
    """Whether both prepare a picture equally; some processors have steps without a setting, or settings of their own.

    LeViT enlarges pictures before the crop; MobileViT swaps the color channels and does not normalize.
    """
    side = transform.resized or transform.size
    across, down = np.meshgrid(np.linspace(0, 255, 2 * side), np.linspace(0, 255, 3 * side // 2))
    picture = Image.fromarray(np.stack([across, down, 255 - across], axis=2).astype(np.uint8))
    with user_errors(f"{name}: its image processor fails"):
        expected = processor(picture, return_tensors="pt")["pixel_values"][0].float().numpy()
    found = transform(picture).numpy()
    return found.shape == expected.shape and bool(np.abs(found - expected).mean() < _TOLERANCE * np.ptp(expected))


def _mean_and_std(setting: Setting) -> tuple[Three, Three]:
    """Return the per-channel mean and standard deviation of the processor's total normalization, for pixels in 0…1.

    This includes ALIGN's rescaling of bytes to -1…1 (``rescale_offset``) and EfficientNet's second division by the
    standard deviation (``include_top``).
    """
    brightness = setting("rescale_factor", 1 / 255) * 255
    offset = 1.0 if setting("rescale_offset", False) else 0.0
    mean, std = _three(setting("image_mean", 0.5)), _three(setting("image_std", 0.5))
    added = tuple(offset + (each if setting("do_normalize", True) else 0.0) for each in mean)
    times = bool(setting("do_normalize", True)) + bool(setting("include_top", False))
    return _three([each / brightness for each in added]), _three([each**times / brightness for each in std])


def _size_and_fit(setting: Setting, name: str) -> tuple[int, int, Literal["crop", "squash", "patches"]]:
    """Return the output size, the size that pictures are resized to before cropping, and the fit."""
    if setting("max_num_patches"):  # NaFlex preserves the aspect ratio; this is the size of a square picture
        side = math.isqrt(int(setting("max_num_patches"))) * int(setting("patch_size"))
        return side, side, "patches"
    size = setting("size")
    crop = setting("crop_size") if setting("do_center_crop", False) else None
    shorter, square = _entry(size, "shortest_edge"), _square(size)
    if shorter is not None and setting("crop_pct") is not None:  # ConvNeXt and ResNet
        return (shorter, int(shorter / setting("crop_pct")), "crop") if shorter < 384 else (shorter, shorter, "squash")
    cut = None if crop is None else _square(crop)
    if shorter is not None and cut is not None and cut <= shorter:
        return cut, shorter, "crop"
    if square is not None and crop is None:
        return square, square, "squash"
    if square is not None and cut is not None and cut <= square:
        return cut, square, "squash"
    cropped = f" and crops {_describe(crop)}" if crop is not None else ""
    raise _unsupported(name, f"resizes to {_describe(size)}{cropped}")


def _square(size: Any) -> int | None:
    high, wide = _entry(size, "height"), _entry(size, "width")
    return high if high is not None and high == wide else None


def _entry(size: Any, key: str) -> int | None:
    value = size.get(key) if isinstance(size, Mapping) else getattr(size, key, None)
    return None if value is None else int(value)


def _describe(size: Any) -> str:
    keys = ("height", "width", "shortest_edge", "longest_edge")
    return " ".join(f"{key} {_entry(size, key)}" for key in keys if _entry(size, key) is not None)


def _three(value: Any) -> tuple[float, float, float]:
    values = tuple(float(entry) for entry in value) if hasattr(value, "__len__") else (float(value),) * 3
    return values if len(values) == 3 else (values[0],) * 3


def _unsupported(name: str, what: str) -> UserError:
    return UserError(
        f"{name}: its image processor {what}, which is not supported. Transform the images with the processor and "
        "embed the pixels with transformers, or edit preprocessor_config.json."
    )


def processor_of(transform: ImageTransform) -> Any:
    """Return the image processor equivalent to ``transform`` in evaluation."""
    size = {"height": transform.size, "width": transform.size}
    resample = next(number for number, word in _RESAMPLE.items() if word == transform.resample)
    common = {"image_mean": list(transform.mean), "image_std": list(transform.std), "resample": resample}
    if transform.fit == "squash" and not transform.resized:
        return transformers.SiglipImageProcessorPil(size=size, **common)
    shorter = transform.resized or transform.size
    return transformers.CLIPImageProcessorPil(size={"shortest_edge": shorter}, crop_size=size, **common)
