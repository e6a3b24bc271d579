"""Preprocessing of pictures for a model."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from PIL import Image
from torch import Tensor

from recollect.core.types import ImageLike
from recollect.data.sources.images import PreparedPixels, as_picture

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

_FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
_CROP_ATTEMPTS = 10


@dataclass(frozen=True)
class ImageTransform:
    """Crop, resize with antialiasing and normalize, without torchvision.

    For evaluation, ``fit="crop"`` resizes the shorter side to ``size`` and crops the center (CLIP), ``"squash"``
    resizes both sides to ``size`` (SigLIP), and ``"patches"`` keeps the aspect ratio and cuts the picture into at most
    ``patches`` squares (SigLIP 2 NaFlex, see `pack`). Training uses Inception's random resized crop. 1-d vectors pass
    unchanged.

    Attributes:
        size: height and width of the result; for ``"patches"``, of a square picture.
        mean, std: normalization of each channel, with pixels in 0…1.
        training: random crop (and flip) instead of the evaluation fit.
        scale: minimum and maximum fraction of the picture's area in a training crop; (1, 1) disables cropping if
            ``ratio`` is a range.
        ratio: minimum and maximum width/height of a training crop.
        flip: mirror half of the training images; off by default because it breaks text, maps and "left of".
        fit: how evaluation handles pictures that are not square.
        resample: interpolation.
        patch, patches: patch size in pixels and maximum number of patches, for ``"patches"``.
        resized: size before the center crop in evaluation, if larger than ``size`` (ALIGN: 346 and 289); 0 means
            ``size``.
    """

    size: int = 224
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD
    training: bool = False
    scale: tuple[float, float] = (0.5, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = False
    fit: Literal["crop", "squash", "patches"] = "crop"
    resample: Literal["bicubic", "bilinear"] = "bicubic"
    patch: int = 0
    patches: int = 0
    resized: int = 0

    def __post_init__(self) -> None:
        valid = (
            self.size >= 1
            and 0 < self.scale[0] <= self.scale[1] <= 1
            and 0 < self.ratio[0] <= self.ratio[1]
            and (not self.resized or (self.resized >= self.size and not self.packs))
            and (not self.packs or (self.patch >= 2 and self.patches >= 1))
        )
        if not valid:
            raise ValueError(f"invalid sizes: {self}")

    @property
    def packs(self) -> bool:
        """Whether pictures keep their aspect ratio and become rows of patches."""
        return self.fit == "patches"

    @property
    def key(self) -> str:
        """Description of all settings that affect the result; part of the cache key of features."""
        mean, std = (",".join(f"{value:.8g}" for value in values) for values in (self.mean, self.std))
        common = f"{self.size} {self.resample} mean={mean} std={std}"
        common += f" patches={self.patches}x{self.patch}" if self.packs else ""
        if not self.training:
            return f"evaluation {self.fit} {common}" + (f" resized={self.resized}" if self.resized else "")
        low, high = (",".join(f"{value:.8g}" for value in values) for values in (self.scale, self.ratio))
        return f"training scale={low} ratio={high} flip={self.flip} {common}"

    @property
    def needed(self) -> int:
        """Shorter side in pixels above which more resolution has almost no effect.

        In evaluation, this is twice the resized side: decoding JPEGs at that size changes the starter's embeddings by
        0.0001 to 0.0007 in cosine, and below it by 0.001 to 0.004 (a dozen photographs of 12 megapixels).
        """
        if self.training:
            return math.ceil(self.size / math.sqrt(self.scale[0]))
        return 2 * (self.resized or self.size)

    def __call__(
        self, image: ImageLike, generator: np.random.Generator | None = None
    ) -> Float[Tensor, "3 size size"] | Float[Tensor, "rows entries"] | Float[Tensor, " width"]:
        """Transform one image.

        Args:
            image: a PIL image of any mode (see `as_rgb`), (height, width, 3) uint8, or a 1-d vector.
            generator: random generator for crop and flip; required in training.

        Raises:
            ValueError: no generator in training, or an array with an invalid shape or dtype.
        """
        if isinstance(image, np.ndarray) and image.ndim == 1:
            return torch.from_numpy(image.astype(np.float32))
        return self.normalize(torch.from_numpy(self.pixels(image, generator))[None])[0]

    def pixels(
        self, image: ImageLike, generator: np.random.Generator | None = None
    ) -> UInt8[np.ndarray, "size size 3"] | UInt8[np.ndarray, "rows entries"]:
        """Crop and resize only, returning bytes: a quarter of the memory, to be normalized in batches or on the GPU."""
        if isinstance(image, PreparedPixels):
            return image
        picture = as_picture(image)
        if not self.training:
            if not self.packs:
                return np.array(self._center(picture))
            return self.pack(np.array(picture.resize(self._patched_size(*picture.size), _FILTERS[self.resample])))
        if generator is None:
            raise ValueError("a training transform needs a generator because its crop is random")
        box = self._crop(picture, generator)
        size = self._patched_size(box[2] - box[0], box[3] - box[1]) if self.packs else (self.size, self.size)
        pixels = np.array(picture.resize(size, _FILTERS[self.resample], box=box))
        pixels = pixels[:, ::-1].copy() if self.flip and generator.random() < 0.5 else pixels
        return self.pack(pixels) if self.packs else pixels

    def pack(self, pixels: UInt8[np.ndarray, "rows columns 3"]) -> UInt8[np.ndarray, "patches entries"]:
        """Cut a picture into patches in row-major order, so pictures of all shapes fit in one batch.

        Returns:
            ``patches`` rows of ``3 patch²`` bytes, padded with zero rows, and a last row that starts with the number of
            grid rows and columns, two bytes each.
        """
        high, wide, side = pixels.shape[0] // self.patch, pixels.shape[1] // self.patch, self.patch
        packed = np.zeros((self.patches + 1, 3 * side * side), dtype=np.uint8)
        grid = pixels[: high * side, : wide * side].reshape(high, side, wide, side, 3).transpose(0, 2, 1, 3, 4)
        packed[: high * wide] = grid.reshape(high * wide, -1)
        packed[-1, :4] = (*divmod(high, 256), *divmod(wide, 256))
        return packed

    def normalize(
        self, pixels: UInt8[Tensor, "n size size 3"] | UInt8[Tensor, "n rows entries"]
    ) -> Float[Tensor, "n 3 size size"] | Float[Tensor, "n rows entries"]:
        """Compute ``(pixels / 255 - mean) / std`` on the device of ``pixels``; padding rows of patches become zero."""
        if pixels.ndim == 3:
            return self._normalize_packed(pixels)
        mean = torch.tensor(self.mean, dtype=torch.float32, device=pixels.device).view(3, 1, 1)
        std = torch.tensor(self.std, dtype=torch.float32, device=pixels.device).view(3, 1, 1)
        images = torch.empty(pixels.shape[0], 3, *pixels.shape[1:3], dtype=torch.float32, device=pixels.device)
        images.copy_(pixels.permute(0, 3, 1, 2))
        return images.mul_(1 / (255 * std)).sub_(mean / std)

    def _normalize_packed(self, packed: UInt8[Tensor, "n rows entries"]) -> Float[Tensor, "n rows entries"]:
        both = torch.tensor([self.mean, self.std], dtype=torch.float32, device=packed.device)
        mean, std = both.unbind()
        images = packed.float().unflatten(2, (-1, 3)).mul_(1 / (255 * std)).sub_(mean / std).flatten(2)
        high, wide = patch_grid(packed)
        used = torch.arange(packed.shape[1], device=packed.device) < (high * wide)[:, None]
        images *= used[..., None]
        images[:, -1] = packed[:, -1].float()
        return images

    def _patched_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the largest size in whole patches with this aspect ratio and at most ``patches`` patches.

        Uses the same search as transformers' ``get_image_size_for_max_num_patches``, so published checkpoints get the
        grid they were trained with.
        """

        def grid(scale: float) -> tuple[int, int]:
            wide, tall = (max(1, math.ceil(side * scale / self.patch)) for side in (width, height))
            return wide, tall

        low, high = 1e-6, 100.0
        while high - low >= 1e-5:
            middle = (low + high) / 2
            low, high = (middle, high) if math.prod(grid(middle)) <= self.patches else (low, middle)
        wide, tall = grid(low)
        return wide * self.patch, tall * self.patch

    def _center(self, picture: Image.Image) -> Image.Image:
        side = self.resized or self.size
        if self.fit == "squash":
            return self._cut_out(picture.resize((side, side), _FILTERS[self.resample]))
        width, height = picture.size
        shorter = min(width, height)
        if max(width, height) > 8 * shorter:  # resizing a whole strip could take any amount of memory
            left, top = (max(0, (length - 2 * shorter) // 2) for length in (width, height))
            picture = picture.crop((left, top, width - left, height - top))
            width, height = picture.size
        # Truncated as in CLIP's own preprocessing, so published checkpoints get the pixels they were trained on.
        wide, high = (int(side * length / shorter) for length in (width, height))
        if (wide, high) != (width, height):
            picture = picture.resize((wide, high), _FILTERS[self.resample])
        return self._cut_out(picture)

    def _cut_out(self, picture: Image.Image) -> Image.Image:
        if picture.size == (self.size, self.size):
            return picture
        left, top = ((length - self.size) // 2 for length in picture.size)
        return picture.crop((left, top, left + self.size, top + self.size))

    def _crop(self, picture: Image.Image, generator: np.random.Generator) -> tuple[int, int, int, int]:
        """Return a random crop box: uniform area, log-uniform ratio; if no attempt fits, the largest centered crop."""
        width, height = picture.size
        if self.scale[0] == 1 and self.ratio[0] < self.ratio[1]:
            return 0, 0, width, height
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for u_area, u_ratio, u_left, u_top in generator.random((_CROP_ATTEMPTS, 4)):
            area = (self.scale[0] + u_area * (self.scale[1] - self.scale[0])) * width * height
            aspect = math.exp(low + u_ratio * (high - low))
            wide, tall = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < wide <= width and 0 < tall <= height:
                left, top = int(u_left * (width - wide + 1)), int(u_top * (height - tall + 1))
                return left, top, left + wide, top + tall
        wide = min(width, round(height * self.ratio[1])) or 1
        tall = min(height, round(width / self.ratio[0])) or 1
        left, top = (width - wide) // 2, (height - tall) // 2
        return left, top, left + wide, top + tall


def patch_grid(packed: Tensor) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """Return the grid rows and columns of pictures from `ImageTransform.pack`."""
    counts = packed[:, -1, :4].long()
    return counts[:, 0] * 256 + counts[:, 1], counts[:, 2] * 256 + counts[:, 3]
