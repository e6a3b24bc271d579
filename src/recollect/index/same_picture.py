"""Decide from pixels whether two pictures are the same one: decoded pictures in, decision out.

*Identical* pictures have equal decoded pixels (`data.sources.images.pixel_digest` compares them without keeping them).

*Near-identical* pictures (`near_identical`) show the same shot: one is the other encoded again (JPEG, WebP, a palette),
resized without changing its proportions, converted to gray, cropped by up to `MOST_CROPPED` of a side, or carries a
faint watermark (a strong one makes it another picture: two lines of text differ as much). Two shots of one thing, two
frames of a burst, two products in front of the same background and two screenshots with different text are not
near-identical, however close they are.

The decision is about pairs and is not transitive: compare every picture with the one that would stay, never along a
chain of neighbors.

How it works. Both pictures are reduced to squares of 32, 64 and 128 pixels (as far as the smaller picture has twice
that resolution), aligned, and cut into 8 x 8 blocks. In every block the difference must be small *relative to the
contrast there*, and the worst block decides: an average over a white background would hide that the shoes in front of
it differ. Screenshots are compared once more, at up to 512 pixels, in places of 8 x 8 pixels, so that one other line
of text is noticed.
Thresholds were set by hand; ``benchmarks/duplicates.py`` measures them (results/bench/duplicates-pixels.json).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float32
from PIL import Image

from recollect.core.types import ImageLike
from recollect.index.alignment import MOST_CROPPED, WHOLE_PART, align, blurred, correlation, warped

SIZES = (32, 64, 128)
"""Edges of the squares on which pictures are compared."""
_TEXT_SIZES = (128, 256, 512)
"""The same for screenshots and drawings, which are compared once more at the finest size that both allow."""

_WORKING, _WORKING_FOR_TEXT = 256, 1024
"""Pictures are first reduced to about these edges (the square root of their area)."""
_OVERSAMPLING = 1.9
"""A size is compared only if both pictures have this many times its resolution: finer detail is encoding noise."""
_SMALLEST = 24
"""Pictures below this edge are compared by identity alone."""
_GRID = 8

_FLOOR, _CONTRAST = 2.0, 0.25
"""A difference of this many gray levels plus this share of the local contrast scores 1."""
_CHROMA_FLOOR, _CHROMA_SHARE = 9.0, 0.12
_LEAST_CONTRAST = 5.0
"""Standard deviation in gray levels below which a picture shows too little to tell it from others."""
_GRAY = 2.0
_ALIGNABLE = 0.6
"""Correlation of strongly blurred pictures from which it is worth aligning them."""


@dataclass(frozen=True)
class Limits:
    """What a pair must satisfy at every size.

    Attributes:
        block: largest block difference relative to local contrast, in luma.
        chroma: the same for the mean color of a block.
        correlation: smallest correlation of the fine structure (luma minus its local mean).
    """

    block: float
    chroma: float
    correlation: float


SAME_FRAME = Limits(block=0.7, chroma=1.0, correlation=0.95)
"""For pictures whose edges coincide, at the finest size."""

CROPPED = Limits(block=0.6, chroma=1.0, correlation=0.95)
"""For pictures that were aligned first. Alignment also brings frames of a burst closer, so less is tolerated."""

_PLACE, _FLAT_CONTRAST, _FLAT_SHARE, _BUSY_CONTRAST = 8, 3.0, 0.1, 8.0
_OUTLIER, _OUTLIER_FLOOR, _MOST_IN_A_PLACE = 7.0, 0.05, 0.9
"""Screenshots and drawings have flat areas. There no place of `_PLACE` pixels may differ by more than this factor times
what most busy places differ by: encoding changes all lines of a text, an edit only one. Re-encodings reach 3.9 times
and a score of 0.8; another line starts at 13 times, or where it was encoded again, at a score of 1."""

_COARSER = 2.5
"""At coarser sizes than the finest a block may differ by this factor more: text averages to an even gray there."""


class PreparedPicture:
    """A picture reduced for comparison; at most 4 MB, whatever its size.

    Args:
        picture: decoded, upright, RGB: a PIL image or a uint8 array (height, width, 3).
    """

    def __init__(self, picture: ImageLike) -> None:
        image = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
        self.width, self.height = image.size
        """Of the original."""
        fine = _reduced(image.convert("RGB"), _WORKING_FOR_TEXT)
        self._image = _reduced(fine, _WORKING)
        self._fine = fine if _may_be_text(fine) else self._image
        self._squares: dict[int, Float32[np.ndarray, "edge edge 3"]] = {}

    @property
    def edge(self) -> float:
        """Square root of the area of the finest working copy, in pixels."""
        return float((self._fine.width * self._fine.height) ** 0.5)

    @cached_property
    def gray(self) -> bool:
        """Whether it has no color at all."""
        return bool(np.abs(self.square(64)[..., 1:]).max() <= _GRAY)

    @cached_property
    def contrast(self) -> float:
        """Standard deviation of its luma, in gray levels."""
        return float(self.square(32)[..., 0].std())

    @cached_property
    def mean(self) -> float:
        """Mean luma."""
        return float(self.square(32)[..., 0].mean())

    def square(self, edge: int, window: "Window | None" = None) -> Float32[np.ndarray, "edge edge 3"]:
        """Luma and chroma of the picture, or of a part of it, as a slightly blurred square."""
        whole = Window(0, 0, 1, 1)
        if window not in (None, whole) or edge > SIZES[-1]:
            return self._read(edge, window or whole)
        if edge not in self._squares:
            self._squares[edge] = self._read(edge, whole)
        return self._squares[edge]

    def _read(self, edge: int, window: "Window") -> Float32[np.ndarray, "edge edge 3"]:
        image = self._image if edge <= SIZES[-1] else self._fine
        width, height = image.size
        box = (window.left * width, window.top * height, window.right * width, window.bottom * height)
        rgb = np.asarray(image.resize((edge, edge), Image.Resampling.BICUBIC, box=box), dtype=np.float32)
        red, green, blue = rgb[..., 0], rgb[..., 1], rgb[..., 2]
        luma = 0.299 * red + 0.587 * green + 0.114 * blue
        return blurred(np.stack([luma, 0.564 * (blue - luma), 0.713 * (red - luma)], axis=-1), (0, 1))


def _may_be_text(image: Image.Image) -> bool:
    """Whether a picture has flat areas as screenshots and drawings have, so that one place may decide."""
    luma = np.asarray(image.convert("L").resize((256, 256), Image.Resampling.BOX), dtype=np.float32)
    flat = _largest_around(_blocks(luma, _PLACE)[..., 0].std((2, 3))) < _FLAT_CONTRAST
    return bool(flat.mean() >= _FLAT_SHARE / 2)


def _reduced(image: Image.Image, edge: int) -> Image.Image:
    scale = min(1.0, edge / max(1.0, (image.width * image.height) ** 0.5))
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image if size == image.size else image.resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0)


@dataclass(frozen=True)
class Window:
    """A part of a picture; edges as shares of its width and height."""

    left: float
    top: float
    right: float
    bottom: float

    def clipped(self) -> "Window":
        """The part of it that is within the picture."""
        return Window(max(self.left, 0.0), max(self.top, 0.0), min(self.right, 1.0), min(self.bottom, 1.0))


def near_identical(one: PreparedPicture, other: PreparedPicture) -> bool:
    """Whether two pictures are the same one, encoded, resized, converted to gray, slightly cropped or faintly marked.

    Symmetric. See the module for what counts.
    """
    if min(one.edge, other.edge) < _SMALLEST or min(one.contrast, other.contrast) < _LEAST_CONTRAST:
        return False
    if (other.width * other.height, other.mean) > (one.width * one.height, one.mean):
        one, other = other, one  # alignment depends on the order
    whole = Window(0, 0, 1, 1)
    if _proportions_agree(one, other, whole) and _agree(one, other, (whole, whole), SAME_FRAME):
        return True
    aligned = _aligned(one, other)
    return aligned is not None and _agree(one, other, aligned, CROPPED)


def _agree(one: PreparedPicture, other: PreparedPicture, windows: "tuple[Window, Window]", limits: Limits) -> bool:
    edges = [edge for edge in SIZES if _OVERSAMPLING * edge <= min(one.edge, other.edge)] or [SIZES[0]]
    color = one.gray == other.gray
    for edge in edges:
        found = measure(one.square(edge, windows[0]), other.square(edge, windows[1]))
        most = limits.block if edge == edges[-1] else _COARSER * limits.block
        if found.block > most or found.correlation < limits.correlation or (color and found.chroma > limits.chroma):
            return False
    for edge in reversed(_TEXT_SIZES):
        if _OVERSAMPLING * edge <= min(one.edge, other.edge):
            return not one_place_differs(one.square(edge, windows[0]), other.square(edge, windows[1]))
    return True


def one_place_differs(one: Float32[np.ndarray, "edge edge 3"], other: Float32[np.ndarray, "edge edge 3"]) -> bool:
    """Whether two aligned screenshots or drawings differ in one place far more than elsewhere."""
    ours, theirs = (_blocks(each[..., :1], _PLACE)[..., 0] for each in (one, other))
    contrast = _largest_around(np.maximum(ours.std((2, 3)), theirs.std((2, 3))))
    busy = contrast >= _BUSY_CONTRAST
    if (contrast < _FLAT_CONTRAST).mean() < _FLAT_SHARE or not busy.any():
        return False
    differs = np.sqrt(((ours - theirs) ** 2).mean((2, 3))) / (_FLOOR + _CONTRAST * contrast)
    usual = _OUTLIER * (_OUTLIER_FLOOR + np.percentile(differs[busy], 75))
    return bool(differs.max() > min(usual, _MOST_IN_A_PLACE))


def measure(one: Float32[np.ndarray, "edge edge 3"], other: Float32[np.ndarray, "edge edge 3"]) -> Limits:
    """How far two aligned squares differ, in the terms of `Limits`."""
    ours, theirs = (_blocks(each, len(each) // _GRID) for each in (one, other))
    difference = ours - theirs
    luma = np.sqrt((difference[..., 0] ** 2).mean((2, 3)))
    contrast = _largest_around(np.maximum(ours[..., 0].std((2, 3)), theirs[..., 0].std((2, 3))))
    chroma = np.abs(difference[..., 1:].mean((2, 3))).max(-1)
    strength = np.maximum(np.abs(ours[..., 1:].mean((2, 3))), np.abs(theirs[..., 1:].mean((2, 3)))).max(-1)
    return Limits(
        float((luma / (_FLOOR + _CONTRAST * contrast)).max()),
        float((chroma / (_CHROMA_FLOOR + _CHROMA_SHARE * strength)).max()),
        _correlation(_detail(one[..., 0]), _detail(other[..., 0])),
    )


def _proportions_agree(one: PreparedPicture, other: PreparedPicture, window: Window) -> bool:
    """Whether a part of one picture has the proportions of another picture, up to rounding to whole pixels."""
    width, height = one.width * (window.right - window.left), one.height * (window.bottom - window.top)
    off = abs(np.log(width * other.height / (height * other.width)))
    rounding = 1 / min(one.width, other.width) + 1 / min(one.height, other.height)
    return bool(off <= 0.005 + rounding)


def _aligned(one: PreparedPicture, other: PreparedPicture) -> tuple[Window, Window] | None:
    """The parts of two pictures that show the same, if one of them contains the other.

    A crop has fewer pixels. Two pictures of the same size whose frames differ by more than a pixel are frames of a
    burst or of a film.
    """
    found = np.array([WHOLE_PART])
    levels = [(32, 4, 0.95), (64, 1, 0.9)]  # coarse first: fine text repeats within a few pixels
    levels += [(edge, 1, 0.9) for edge in _TEXT_SIZES[1:] if _OVERSAMPLING * edge <= min(one.edge, other.edge)]
    for edge, blurs, least in levels:
        ours, theirs = (each.square(edge)[None, ..., 0] for each in (one, other))
        for _ in range(blurs):
            ours, theirs = blurred(ours, (1, 2)), blurred(theirs, (1, 2))
        if edge == 32 and correlation(ours, theirs)[0] < _ALIGNABLE:
            return None
        found = align(ours, theirs, found)
        if np.isnan(found).any() or correlation(warped(ours, found), theirs)[0] < least:
            return None
    left, width, top, height = found[0].tolist()
    inside = Window(left, top, left + width, top + height)
    off = (left, top, 1 - inside.right, 1 - inside.bottom)
    slack = 0.4 / 64
    if max(abs(1 - width), abs(1 - height)) > MOST_CROPPED:
        return None
    if (one.width, one.height) == (other.width, other.height):
        slack = 1.0 / min(one.width, one.height)
        if max(map(abs, off)) > slack:
            return None
    whole = Window(0, 0, 1, 1)
    if min(off) >= -slack:
        window = inside.clipped()
        return (window, whole) if _proportions_agree(one, other, window) else None
    if max(off) <= slack:
        window = Window(-left / width, -top / height, (1 - left) / width, (1 - top) / height).clipped()
        return (whole, window) if _proportions_agree(other, one, window) else None
    return None


def _detail(luma: Float32[np.ndarray, "edge edge"]) -> Float32[np.ndarray, "edge edge"]:
    """Luma without its local mean."""
    smooth = luma
    for _ in range(4):
        smooth = blurred(smooth, (0, 1))
    return luma - smooth


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    return float((one * other).sum() / np.sqrt((one**2).sum() * (other**2).sum() + 1e-9))


def _blocks(square: np.ndarray, pixels: int) -> np.ndarray:
    """(grid, grid, pixels, pixels, channels)."""
    grid = len(square) // pixels
    return square.reshape(grid, pixels, grid, pixels, -1).swapaxes(1, 2)


def _largest_around(values: np.ndarray) -> np.ndarray:
    """The largest of each block and its eight neighbors."""
    padded, grid = np.pad(values, 1, mode="edge"), len(values)
    return np.max([padded[row : row + grid, col : col + grid] for row in range(3) for col in range(3)], axis=0)
