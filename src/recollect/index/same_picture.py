"""Decide from pixels whether two pictures are the same one: decoded pictures in, decision out.

*Identical* pictures have equal decoded pixels (`data.sources.images.pixel_digest` compares them without keeping them).

*Near-identical* pictures (`near_identical`) show the same shot: one is the other encoded again (JPEG, WebP, a palette),
resized without changing its proportions, converted to gray, cropped by up to `MOST_CROPPED` of a side, or carries a
faint watermark (a strong one makes it another picture: two lines of text differ as much). Two shots of one thing, two
frames of a burst, two products in front of the same background and two screenshots with different text are not
near-identical, however close they are.

The decision is about pairs and is not transitive: compare every picture with the one to keep, never along a chain of
neighbors.

How it works. Both pictures are reduced to squares of 32, 64 and 128 pixels (as far as the smaller picture has twice
that resolution), aligned, and cut into 8 x 8 blocks. In every block the difference must be small *relative to the
contrast there*, and the worst block decides: an average over a white background would hide that the shoes in front of
it differ. Screenshots are compared once more, at up to 512 pixels, in places of 8 x 8 pixels, so that one other line
of text is noticed. `may_be_near_identical` rejects most pairs beforehand from a kilobyte of each picture.
Thresholds were set by hand; ``benchmarks/duplicates.py`` measures them (results/bench/duplicates-pixels.json).
"""

from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float32, Float64, UInt8
from PIL import Image

from recollect.core.types import ImageLike

MOST_CROPPED = 0.055
"""Share of a side that a crop may remove, both edges together."""

_SIZES = (32, 64, 128)
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

_BLOCK, _BLOCK_OF_CROP, _CORRELATION = 0.7, 0.6, 0.95
"""The largest difference of a block, and the least correlation of the fine structure (luma minus its local mean).
Alignment also brings frames of a burst closer, so crops are tolerated less."""
_COARSER = 2.5
"""At coarser sizes than the finest a block may differ by this factor more: text averages to an even gray there."""

_PLACE, _FLAT_CONTRAST, _FLAT_SHARE, _BUSY_CONTRAST = 8, 3.0, 0.1, 8.0
_OUTLIER, _OUTLIER_FLOOR, _MOST_IN_A_PLACE = 7.0, 0.05, 0.9
"""Screenshots and drawings have flat areas. There no place of `_PLACE` pixels may differ by more than this factor times
what most busy places differ by: encoding changes all lines of a text, an edit only one. Re-encodings reach 3.9 times
and a score of 0.8; another line starts at 13 times, or where it was encoded again, at a score of 1."""

_SKETCH_CORRELATION, _SKETCH_BLOCK = 0.85, 2.4
"""Limits of `may_be_near_identical`; edits of real pictures reach two thirds of them. Re-encodings correlate by 0.99,
small crops of photographs by 0.96 and of text by 0.89, light marks by 0.94."""
_AT_ONCE = 512

Window = tuple[float, float, float, float]
"""Window of a picture: left, width, top and height as shares of its width and height."""

_WHOLE: Window = (0.0, 1.0, 0.0, 1.0)


class PreparedPicture:
    """A picture reduced for comparison; at most 4 MB, whatever its size.

    Args:
        picture: decoded, upright, RGB: a PIL image or a uint8 array (height, width, 3).
    """

    def __init__(self, picture: ImageLike) -> None:
        image = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
        self.width, self.height = image.size  # of the original
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

    def square(self, edge: int, part: Window = _WHOLE) -> Float32[np.ndarray, "edge edge 3"]:
        """Luma and chroma of a part of the picture as a slightly blurred square."""
        kept = part == _WHOLE and edge <= _SIZES[-1]
        if kept and edge in self._squares:
            return self._squares[edge]
        image = self._image if edge <= _SIZES[-1] else self._fine
        left, width, top, height = part
        box = (left * image.width, top * image.height, (left + width) * image.width, (top + height) * image.height)
        rgb = np.asarray(image.resize((edge, edge), Image.Resampling.BICUBIC, box=box), dtype=np.float32)
        red, green, blue = rgb[..., 0], rgb[..., 1], rgb[..., 2]
        luma = 0.299 * red + 0.587 * green + 0.114 * blue
        made = _blurred(np.stack([luma, 0.564 * (blue - luma), 0.713 * (red - luma)], axis=-1), (0, 1))
        if kept:
            self._squares[edge] = made
        return made


def near_identical(one: PreparedPicture, other: PreparedPicture) -> bool:
    """Whether two pictures are the same one, encoded, resized, converted to gray, slightly cropped or faintly marked.

    Symmetric. See the module for what counts.
    """
    lumas = [each.square(32)[..., 0] for each in (one, other)]
    if min(one.edge, other.edge) < _SMALLEST or min(luma.std() for luma in lumas) < _LEAST_CONTRAST:
        return False
    if (other.width * other.height, lumas[1].mean()) > (one.width * one.height, lumas[0].mean()):
        one, other = other, one  # alignment depends on the order
    if _proportions_agree(one, other, _WHOLE) and _agree(one, other, (_WHOLE, _WHOLE), _BLOCK):
        return True
    aligned = _aligned(one, other)
    return aligned is not None and _agree(one, other, aligned, _BLOCK_OF_CROP)


def _agree(one: PreparedPicture, other: PreparedPicture, parts: tuple[Window, Window], most: float) -> bool:
    """Whether two parts show the same at every size."""
    finest = min(one.edge, other.edge) / _OVERSAMPLING
    edges = [edge for edge in _SIZES if edge <= finest] or [_SIZES[0]]
    color = one.gray == other.gray
    for edge in edges:
        ours, theirs = one.square(edge, parts[0]), other.square(edge, parts[1])
        block = _relative_differences(ours[..., 0], theirs[..., 0], edge // _GRID)[0].max()
        detail = _correlation(_detail(ours[..., 0]), _detail(theirs[..., 0]))
        limit = most if edge == edges[-1] else _COARSER * most
        if block > limit or detail < _CORRELATION or (color and _chroma_difference(ours, theirs) > 1):
            return False
    for edge in reversed(_TEXT_SIZES):
        if edge <= finest:
            return not _one_place_differs(one.square(edge, parts[0]), other.square(edge, parts[1]))
    return True


def _relative_differences(
    ours: Float32[np.ndarray, "*#pairs edge edge"], theirs: Float32[np.ndarray, "*#pairs edge edge"], pixels: int
) -> tuple[Float32[np.ndarray, "*pairs grid grid"], Float32[np.ndarray, "*pairs grid grid"]]:
    """The difference in luma of each block, relative to the contrast around it; and that contrast."""
    one, other, left = (_blocks(each, pixels) for each in (ours, theirs, ours - theirs))
    contrast = _largest_around(np.maximum(one.std((-2, -1)), other.std((-2, -1))))
    return np.sqrt((left**2).mean((-2, -1))) / (_FLOOR + _CONTRAST * contrast), contrast


def _chroma_difference(one: Float32[np.ndarray, "edge edge 3"], other: Float32[np.ndarray, "edge edge 3"]) -> float:
    """The largest difference of a block in mean chroma, relative to its strength."""
    ours, theirs = (_blocks(np.moveaxis(each, -1, 0)[1:], len(each) // _GRID).mean((-2, -1)) for each in (one, other))
    strength = np.maximum(np.abs(ours), np.abs(theirs)).max(0)
    return float((np.abs(ours - theirs).max(0) / (_CHROMA_FLOOR + _CHROMA_SHARE * strength)).max())


def _one_place_differs(one: Float32[np.ndarray, "edge edge 3"], other: Float32[np.ndarray, "edge edge 3"]) -> bool:
    """Whether two aligned screenshots or drawings differ in one place far more than elsewhere."""
    differs, contrast = _relative_differences(one[..., 0], other[..., 0], _PLACE)
    busy = contrast >= _BUSY_CONTRAST
    if (contrast < _FLAT_CONTRAST).mean() < _FLAT_SHARE or not busy.any():
        return False
    usual = _OUTLIER * (_OUTLIER_FLOOR + np.percentile(differs[busy], 75))
    return bool(differs.max() > min(usual, _MOST_IN_A_PLACE))


def _proportions_agree(one: PreparedPicture, other: PreparedPicture, part: Window) -> bool:
    """Whether a part of one picture has the proportions of another picture, up to rounding to whole pixels."""
    off = abs(np.log(one.width * part[1] * other.height / (one.height * part[3] * other.width)))
    rounding = 1 / min(one.width, other.width) + 1 / min(one.height, other.height)
    return bool(off <= 0.005 + rounding)


def _aligned(one: PreparedPicture, other: PreparedPicture) -> tuple[Window, Window] | None:
    """The parts of two pictures that show the same, if one of them contains the other.

    A crop has fewer pixels. Two pictures of the same size whose frames differ by more than a pixel are frames of a
    burst or of a film.
    """
    found = np.array([_WHOLE])
    levels = [(32, 4, 0.95), (64, 1, 0.9)]  # coarse first: fine text repeats within a few pixels
    levels += [(edge, 1, 0.9) for edge in _TEXT_SIZES[1:] if _OVERSAMPLING * edge <= min(one.edge, other.edge)]
    for edge, blurs, least in levels:
        ours, theirs = (_blurred(each.square(edge)[None, ..., 0], (1, 2), blurs) for each in (one, other))
        if edge == 32 and _centred_correlation(ours, theirs)[0] < _ALIGNABLE:
            return None
        found = _align(ours, theirs, found)
        if np.isnan(found).any() or _centred_correlation(_warped(ours, found), theirs)[0] < least:
            return None
    left, width, top, height = found[0].tolist()
    off = (left, top, 1 - left - width, 1 - top - height)
    if max(abs(1 - width), abs(1 - height)) > MOST_CROPPED:
        return None
    slack = 0.4 / 64
    if (one.width, one.height) == (other.width, other.height):
        slack = 1.0 / min(one.width, one.height)
        if max(map(abs, off)) > slack:
            return None
    if min(off) >= -slack:
        part = _clipped(left, width, top, height)
        return (part, _WHOLE) if _proportions_agree(one, other, part) else None
    if max(off) <= slack:
        part = _clipped(-left / width, 1 / width, -top / height, 1 / height)
        return (_WHOLE, part) if _proportions_agree(other, one, part) else None
    return None


def sketch(picture: PreparedPicture) -> UInt8[np.ndarray, "32 32"]:
    """A kilobyte of a picture, from which most pairs are told apart without decoding a picture again."""
    return np.clip(np.rint(picture.square(32)[..., 0]), 0, 255).astype(np.uint8)


def may_be_near_identical(
    one: UInt8[np.ndarray, "32 32"], others: UInt8[np.ndarray, "others 32 32"]
) -> Bool[np.ndarray, " others"]:
    """Whether each of the other sketches may show the same as this one: false only where `near_identical` would be.

    It may if its luma correlates, and after alignment the worst of the inner blocks differs little. Blocks at the
    border are left out: there a crop shows what the other picture does not have.
    """
    kept = np.zeros(len(others), dtype=bool)
    ours = one[None].astype(np.float32)
    for start in range(0, len(others), _AT_ONCE):
        theirs = others[start : start + _AT_ONCE].astype(np.float32)
        halves = (each.reshape(-1, 16, 2, 16, 2).mean((2, 4)) for each in (ours, theirs))
        rows = np.flatnonzero(_centred_correlation(*halves) >= _SKETCH_CORRELATION)
        kept[start + rows] = _agree_when_aligned(ours, theirs[rows])
    return kept


def _agree_when_aligned(
    ours: Float32[np.ndarray, "1 32 32"], theirs: Float32[np.ndarray, "others 32 32"]
) -> Bool[np.ndarray, " others"]:
    same_frame = _worst_inner_block(ours, theirs)
    smooth = np.broadcast_to(_blurred(ours, (1, 2), 4), theirs.shape)
    parts = _align(smooth, _blurred(theirs, (1, 2), 4), np.tile(_WHOLE, (len(theirs), 1)))
    found = ~np.isnan(parts).any(1)
    aligned = _worst_inner_block(_warped(ours, np.where(found[:, None], parts, _WHOLE)), theirs)
    agree: Bool[np.ndarray, " others"] = np.minimum(same_frame, np.where(found, aligned, np.inf)) <= _SKETCH_BLOCK
    return agree


def _worst_inner_block(
    ours: Float32[np.ndarray, "#pairs 32 32"], theirs: Float32[np.ndarray, "pairs 32 32"]
) -> Float32[np.ndarray, " pairs"]:
    return _relative_differences(ours, theirs, 32 // _GRID)[0][:, 1:-1, 1:-1].max((1, 2))


def _align(
    ones: Float32[np.ndarray, "pairs edge edge"],
    others: Float32[np.ndarray, "pairs edge edge"],
    start: Float64[np.ndarray, "pairs 4"],
) -> Float64[np.ndarray, "pairs 4"]:
    """Find the part of each square that its partner shows, by Gauss-Newton (Lucas and Kanade, 1981) on four numbers.

    Returns:
        A `Window` per pair; NaN where it leaves the range of a small crop.
    """
    found, edge = start.copy(), ones.shape[1]
    places = (np.arange(edge) + 0.5) / edge
    moving = np.arange(len(ones))
    for _ in range(8):
        if not len(moving):
            break
        part = found[moving]
        seen = _warped(ones[moving], part)
        down, right = (edge * slope for slope in np.gradient(seen, axis=(1, 2)))
        slopes = np.stack([right, right * places, down, down * places[:, None]], axis=-1).reshape(len(seen), -1, 4)
        slopes = slopes / part[:, None, [1, 1, 3, 3]]
        left = (others[moving] - seen).reshape(len(moving), -1)
        scale = 2 + 3 * np.median(np.abs(left), axis=1, keepdims=True)
        weighted = (slopes / (1 + (left / scale) ** 2)[..., None]).swapaxes(1, 2)  # marks and noise count for less
        normal = weighted @ slopes
        normal += 1e-3 * np.trace(normal, axis1=1, axis2=2)[:, None, None] / 4 * np.eye(4)
        step = np.linalg.solve(normal, weighted @ left[..., None])[..., 0]
        found[moving] += step
        outside = np.abs(found[moving] - _WHOLE).max(1) > 1.5 * MOST_CROPPED
        found[moving[outside]] = np.nan
        moving = moving[~outside & (np.abs(step).max(1) >= 5e-4)]
    return found


def _warped(
    squares: Float32[np.ndarray, "#pairs edge edge"], parts: Float64[np.ndarray, "pairs 4"]
) -> Float32[np.ndarray, "pairs edge edge"]:
    """Parts of squares, or of one square, enlarged to its size by linear interpolation."""
    edge = squares.shape[1]
    left, width, top, height = (each[:, None] for each in parts.T)
    centers = (np.arange(edge) + 0.5) / edge

    def samples(start: np.ndarray, length: np.ndarray) -> np.ndarray:
        places = np.clip((start + length * centers) * edge - 0.5, 0, edge - 1)[..., None]
        return np.maximum(0, 1 - np.abs(places - np.arange(edge))).astype(np.float32)

    return np.asarray(samples(top, height) @ squares @ samples(left, width).swapaxes(1, 2))


def _blurred(images: Float32[np.ndarray, "..."], axes: tuple[int, int], times: int = 1) -> Float32[np.ndarray, "..."]:
    """Binomial blur (1, 2, 1) along two axes."""
    for axis in times * axes:
        images = np.moveaxis(images, axis, 0)
        padded = np.concatenate([images[:1], images, images[-1:]])
        images = np.moveaxis(0.25 * padded[:-2] + 0.5 * padded[1:-1] + 0.25 * padded[2:], 0, axis)
    return images


def _centred_correlation(
    ones: Float32[np.ndarray, "#pairs edge edge"], others: Float32[np.ndarray, "pairs edge edge"]
) -> Float32[np.ndarray, " pairs"]:
    """Of the pixels of each pair, or of one picture with each other."""
    ours, theirs = (each - each.mean((1, 2), keepdims=True) for each in (ones, others))
    norms = np.sqrt((ours**2).sum((1, 2)) * (theirs**2).sum((1, 2)) + 1e-9)
    return (ours * theirs).sum((1, 2)) / norms


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    return float((one * other).sum() / np.sqrt((one**2).sum() * (other**2).sum() + 1e-9))


def _detail(luma: Float32[np.ndarray, "edge edge"]) -> Float32[np.ndarray, "edge edge"]:
    """Luma without its local mean."""
    return luma - _blurred(luma, (0, 1), 4)


def _may_be_text(image: Image.Image) -> bool:
    """Whether a picture has flat areas as screenshots and drawings have, so that one place may decide."""
    luma = np.asarray(image.convert("L").resize((256, 256), Image.Resampling.BOX), dtype=np.float32)
    flat = _largest_around(_blocks(luma, _PLACE).std((-2, -1))) < _FLAT_CONTRAST
    return bool(flat.mean() >= _FLAT_SHARE / 2)


def _reduced(image: Image.Image, edge: int) -> Image.Image:
    scale = min(1.0, edge / max(1.0, (image.width * image.height) ** 0.5))
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image if size == image.size else image.resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0)


def _clipped(left: float, width: float, top: float, height: float) -> Window:
    """What of a part is within the picture."""
    x, y = max(left, 0.0), max(top, 0.0)
    return x, min(left + width, 1.0) - x, y, min(top + height, 1.0) - y


def _blocks(squares: np.ndarray, pixels: int) -> np.ndarray:
    """Squares (..., edge, edge) cut into (..., grid, grid, pixels, pixels)."""
    grid = squares.shape[-1] // pixels
    return squares.reshape(*squares.shape[:-2], grid, pixels, grid, pixels).swapaxes(-3, -2)


def _largest_around(values: np.ndarray) -> np.ndarray:
    """The largest of each block of (..., grid, grid) and its eight neighbors."""
    grid = values.shape[-1]
    padded = np.pad(values, [(0, 0)] * (values.ndim - 2) + [(1, 1), (1, 1)], mode="edge")
    return np.max([padded[..., row : row + grid, col : col + grid] for row in range(3) for col in range(3)], axis=0)
