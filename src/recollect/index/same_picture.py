"""Near-identity of pictures, decided from their decoded pixels.

*Identical* pictures have equal decoded pixels (compared by `data.sources.images.pixel_digest`).

*Near-identical* pictures (`near_identical`) show the same shot: one is a copy of the other that was re-encoded (JPEG,
WebP, a palette), resized at constant aspect ratio, converted to gray, cropped by up to `_MAX_CROP_SHARE` of a side, or
faintly watermarked (a strong watermark changes as much as a different line of text). Two shots of the same object, two
frames of a burst, two products on the same background and two screenshots with different text are not near-identical.

Near-identity is not transitive: compare every picture with the one to keep, never along a chain of neighbors.

Method: both pictures are reduced to squares of 32, 64 and 128 pixels (as far as the smaller picture has about twice
that resolution), aligned, and cut into 8 x 8 blocks. The difference in every block must be small *relative to its
contrast*, and the worst block decides: an average over a white background would hide that the shoes in front of it
differ. Screenshots and drawings are also compared at up to 512 pixels in cells of 8 x 8 pixels, to detect a change in
one line of text. `may_be_near_identical` first rejects most pairs from one kilobyte per picture. Thresholds were set by
hand; ``benchmarks/duplicates.py`` measures their accuracy (results/bench/duplicates-pixels.json).
"""

from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float32, Float64, UInt8
from PIL import Image

from recollect.core.types import ImageLike

_MAX_CROP_SHARE = 0.055
"""Maximum share of a side that a crop may remove, both edges together."""

_SIZES = (32, 64, 128)
"""Edges of the squares on which pictures are compared."""
_TEXT_SIZES = (128, 256, 512)
"""Edges for the extra comparison of screenshots and drawings; the finest that both pictures allow is used."""

_WORKING, _WORKING_FOR_TEXT = 256, 1024
"""Pictures are first reduced to about these edges (the square root of their area)."""
_OVERSAMPLING = 1.9
"""A size is used only if both pictures have this many times its resolution: finer detail is encoding noise."""
_MIN_EDGE = 24
"""Pictures with a smaller edge are never near-identical."""
_GRID = 8

_FLOOR, _CONTRAST = 2.0, 0.25
"""A difference of this many gray levels plus this share of the local contrast scores 1."""
_CHROMA_FLOOR, _CHROMA_SHARE = 9.0, 0.12
_MIN_CONTRAST = 5.0
"""Standard deviation in gray levels below which a picture is too uniform to compare."""
_GRAY = 2.0
_MIN_ALIGNABLE = 0.6
"""Minimum correlation of strongly blurred pictures to try aligning them."""

_MAX_BLOCK, _MAX_BLOCK_OF_CROP, _MIN_CORRELATION = 0.7, 0.6, 0.95
"""Maximum difference of a block, and minimum correlation of the fine structure (luma minus its local mean). The limit
for crops is stricter, since alignment also brings frames of a burst closer."""
_COARSER = 2.5
"""Factor on the maximum block difference at sizes other than the finest, where text averages to an even gray."""

_CELL, _FLAT_CONTRAST, _FLAT_SHARE, _BUSY_CONTRAST = 8, 3.0, 0.1, 8.0
_OUTLIER, _OUTLIER_FLOOR, _MAX_CELL = 7.0, 0.05, 0.9
"""Screenshots and drawings have flat areas. In these pictures no cell of `_CELL` pixels may differ by more than this
factor times the difference of most busy cells: encoding changes all lines of a text, an edit only one. Re-encodings
reach a factor of 3.9 and a score of 0.8; a changed line starts at a factor of 13 or, if re-encoded, at a score of 1."""

_SKETCH_CORRELATION, _SKETCH_BLOCK = 0.85, 2.4
"""Limits of `may_be_near_identical`; edits of real pictures reach two thirds of them. Correlations: re-encodings 0.99,
small crops of photographs 0.96, crops of text 0.89, light marks 0.94."""
_BATCH = 512

Window = tuple[float, float, float, float]
"""Left, width, top and height of a window, as fractions of the picture's width and height."""

_WHOLE: Window = (0.0, 1.0, 0.0, 1.0)


class PreparedPicture:
    """A picture reduced for comparison, at most 4 MB.

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
        """Square root of the area of the largest reduced copy, in pixels."""
        return float((self._fine.width * self._fine.height) ** 0.5)

    @cached_property
    def gray(self) -> bool:
        """Whether the picture is grayscale."""
        return bool(np.abs(self.square(64)[..., 1:]).max() <= _GRAY)

    def square(self, edge: int, part: Window = _WHOLE) -> Float32[np.ndarray, "edge edge 3"]:
        """Return luma and chroma of a window of the picture as a slightly blurred square."""
        cached = part == _WHOLE and edge <= _SIZES[-1]
        if cached and edge in self._squares:
            return self._squares[edge]
        image = self._image if edge <= _SIZES[-1] else self._fine
        left, width, top, height = part
        box = (left * image.width, top * image.height, (left + width) * image.width, (top + height) * image.height)
        rgb = np.asarray(image.resize((edge, edge), Image.Resampling.BICUBIC, box=box), dtype=np.float32)
        red, green, blue = rgb[..., 0], rgb[..., 1], rgb[..., 2]
        luma = 0.299 * red + 0.587 * green + 0.114 * blue
        square = _blurred(np.stack([luma, 0.564 * (blue - luma), 0.713 * (red - luma)], axis=-1), (0, 1))
        if cached:
            self._squares[edge] = square
        return square


def near_identical(one: PreparedPicture, other: PreparedPicture) -> bool:
    """Return whether one picture is a re-encoded, resized, gray, slightly cropped or faintly marked copy of the other.

    Symmetric. See the module docstring for the definition.
    """
    lumas = [each.square(32)[..., 0] for each in (one, other)]
    if min(one.edge, other.edge) < _MIN_EDGE or min(luma.std() for luma in lumas) < _MIN_CONTRAST:
        return False
    if (other.width * other.height, lumas[1].mean()) > (one.width * one.height, lumas[0].mean()):
        one, other = other, one  # alignment depends on the order
    if _proportions_agree(one, other, _WHOLE) and _agree(one, other, (_WHOLE, _WHOLE), _MAX_BLOCK):
        return True
    aligned = _aligned(one, other)
    return aligned is not None and _agree(one, other, aligned, _MAX_BLOCK_OF_CROP)


def _agree(one: PreparedPicture, other: PreparedPicture, parts: tuple[Window, Window], max_block: float) -> bool:
    """Return whether two windows match at every size."""
    finest = min(one.edge, other.edge) / _OVERSAMPLING
    edges = [edge for edge in _SIZES if edge <= finest] or [_SIZES[0]]
    color = one.gray == other.gray
    for edge in edges:
        ours, theirs = one.square(edge, parts[0]), other.square(edge, parts[1])
        block = _relative_differences(ours[..., 0], theirs[..., 0], edge // _GRID)[0].max()
        detail = _correlation(_detail(ours[..., 0]), _detail(theirs[..., 0]))
        limit = max_block if edge == edges[-1] else _COARSER * max_block
        if block > limit or detail < _MIN_CORRELATION or (color and _chroma_difference(ours, theirs) > 1):
            return False
    for edge in reversed(_TEXT_SIZES):
        if edge <= finest:
            return not _one_cell_differs(one.square(edge, parts[0]), other.square(edge, parts[1]))
    return True


def _relative_differences(
    ours: Float32[np.ndarray, "*#pairs edge edge"], theirs: Float32[np.ndarray, "*#pairs edge edge"], pixels: int
) -> tuple[Float32[np.ndarray, "*pairs grid grid"], Float32[np.ndarray, "*pairs grid grid"]]:
    """Return the luma difference of each block relative to the contrast around it, and that contrast."""
    one, other, residual = (_blocks(each, pixels) for each in (ours, theirs, ours - theirs))
    contrast = _max_with_neighbors(np.maximum(one.std((-2, -1)), other.std((-2, -1))))
    return np.sqrt((residual**2).mean((-2, -1))) / (_FLOOR + _CONTRAST * contrast), contrast


def _chroma_difference(one: Float32[np.ndarray, "edge edge 3"], other: Float32[np.ndarray, "edge edge 3"]) -> float:
    """Return the largest difference of a block's mean chroma, relative to its strength."""
    ours, theirs = (_blocks(np.moveaxis(each, -1, 0)[1:], len(each) // _GRID).mean((-2, -1)) for each in (one, other))
    strength = np.maximum(np.abs(ours), np.abs(theirs)).max(0)
    return float((np.abs(ours - theirs).max(0) / (_CHROMA_FLOOR + _CHROMA_SHARE * strength)).max())


def _one_cell_differs(one: Float32[np.ndarray, "edge edge 3"], other: Float32[np.ndarray, "edge edge 3"]) -> bool:
    """Return whether two aligned screenshots or drawings differ in one cell far more than elsewhere."""
    differs, contrast = _relative_differences(one[..., 0], other[..., 0], _CELL)
    busy = contrast >= _BUSY_CONTRAST
    if (contrast < _FLAT_CONTRAST).mean() < _FLAT_SHARE or not busy.any():
        return False
    usual = _OUTLIER * (_OUTLIER_FLOOR + np.percentile(differs[busy], 75))
    return bool(differs.max() > min(usual, _MAX_CELL))


def _proportions_agree(one: PreparedPicture, other: PreparedPicture, part: Window) -> bool:
    """Return whether a window of one picture has the aspect ratio of the other picture, up to rounding to pixels."""
    off = abs(np.log(one.width * part[1] * other.height / (one.height * part[3] * other.width)))
    rounding = 1 / min(one.width, other.width) + 1 / min(one.height, other.height)
    return bool(off <= 0.005 + rounding)


def _aligned(one: PreparedPicture, other: PreparedPicture) -> tuple[Window, Window] | None:
    """Return the matching windows of two pictures if one contains the other, else None.

    Pictures of equal size must align within one pixel: a crop has fewer pixels, so larger offsets mean two frames of a
    burst or film.
    """
    found = np.array([_WHOLE])
    levels = [(32, 4, 0.95), (64, 1, 0.9)]  # coarse first: fine text repeats within a few pixels
    levels += [(edge, 1, 0.9) for edge in _TEXT_SIZES[1:] if _OVERSAMPLING * edge <= min(one.edge, other.edge)]
    for edge, blurs, least in levels:
        ours, theirs = (_blurred(each.square(edge)[None, ..., 0], (1, 2), blurs) for each in (one, other))
        if edge == 32 and _centered_correlation(ours, theirs)[0] < _MIN_ALIGNABLE:
            return None
        found = _align(ours, theirs, found)
        if np.isnan(found).any() or _centered_correlation(_warped(ours, found), theirs)[0] < least:
            return None
    left, width, top, height = found[0].tolist()
    off = (left, top, 1 - left - width, 1 - top - height)
    if max(abs(1 - width), abs(1 - height)) > _MAX_CROP_SHARE:
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
    """Return a one-kilobyte thumbnail for `may_be_near_identical`."""
    return np.clip(np.rint(picture.square(32)[..., 0]), 0, 255).astype(np.uint8)


def may_be_near_identical(
    one: UInt8[np.ndarray, "32 32"], others: UInt8[np.ndarray, "others 32 32"]
) -> Bool[np.ndarray, " others"]:
    """Return which of the other sketches may be near-identical; intended to be false only if `near_identical` is.

    A pair passes if its luma correlates and, after alignment, the worst inner block differs little. Border blocks are
    ignored, since a crop lacks part of them.
    """
    kept = np.zeros(len(others), dtype=bool)
    ours = one[None].astype(np.float32)
    for start in range(0, len(others), _BATCH):
        theirs = others[start : start + _BATCH].astype(np.float32)
        halves = (each.reshape(-1, 16, 2, 16, 2).mean((2, 4)) for each in (ours, theirs))
        rows = np.flatnonzero(_centered_correlation(*halves) >= _SKETCH_CORRELATION)
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
    """Find the window of each square that its partner shows: Gauss-Newton over four parameters (Lucas-Kanade, 1981).

    Returns:
        A `Window` per pair; NaN if it exceeds the range of a small crop.
    """
    found, edge = start.copy(), ones.shape[1]
    centers = (np.arange(edge) + 0.5) / edge
    moving = np.arange(len(ones))
    for _ in range(8):
        if not len(moving):
            break
        part = found[moving]
        seen = _warped(ones[moving], part)
        down, right = (edge * slope for slope in np.gradient(seen, axis=(1, 2)))
        slopes = np.stack([right, right * centers, down, down * centers[:, None]], axis=-1).reshape(len(seen), -1, 4)
        slopes = slopes / part[:, None, [1, 1, 3, 3]]
        residual = (others[moving] - seen).reshape(len(moving), -1)
        scale = 2 + 3 * np.median(np.abs(residual), axis=1, keepdims=True)
        weighted = (slopes / (1 + (residual / scale) ** 2)[..., None]).swapaxes(1, 2)  # downweight marks and noise
        normal = weighted @ slopes
        normal += 1e-3 * np.trace(normal, axis1=1, axis2=2)[:, None, None] / 4 * np.eye(4)
        step = np.linalg.solve(normal, weighted @ residual[..., None])[..., 0]
        found[moving] += step
        outside = np.abs(found[moving] - _WHOLE).max(1) > 1.5 * _MAX_CROP_SHARE
        found[moving[outside]] = np.nan
        moving = moving[~outside & (np.abs(step).max(1) >= 5e-4)]
    return found


def _warped(
    squares: Float32[np.ndarray, "#pairs edge edge"], parts: Float64[np.ndarray, "pairs 4"]
) -> Float32[np.ndarray, "pairs edge edge"]:
    """Return windows of squares (or of one shared square), enlarged to full size by linear interpolation."""
    edge = squares.shape[1]
    left, width, top, height = (each[:, None] for each in parts.T)
    centers = (np.arange(edge) + 0.5) / edge

    def samples(start: np.ndarray, length: np.ndarray) -> np.ndarray:
        positions = np.clip((start + length * centers) * edge - 0.5, 0, edge - 1)[..., None]
        return np.maximum(0, 1 - np.abs(positions - np.arange(edge))).astype(np.float32)

    return np.asarray(samples(top, height) @ squares @ samples(left, width).swapaxes(1, 2))


def _blurred(images: Float32[np.ndarray, "..."], axes: tuple[int, int], times: int = 1) -> Float32[np.ndarray, "..."]:
    """Apply a binomial blur (1, 2, 1) along two axes."""
    for axis in times * axes:
        images = np.moveaxis(images, axis, 0)
        padded = np.concatenate([images[:1], images, images[-1:]])
        images = np.moveaxis(0.25 * padded[:-2] + 0.5 * padded[1:-1] + 0.25 * padded[2:], 0, axis)
    return images


def _centered_correlation(
    ones: Float32[np.ndarray, "#pairs edge edge"], others: Float32[np.ndarray, "pairs edge edge"]
) -> Float32[np.ndarray, " pairs"]:
    """Return the pixel correlation of each pair, or of one picture with each of the others."""
    ours, theirs = (each - each.mean((1, 2), keepdims=True) for each in (ones, others))
    norms = np.sqrt((ours**2).sum((1, 2)) * (theirs**2).sum((1, 2)) + 1e-9)
    return (ours * theirs).sum((1, 2)) / norms


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    return float((one * other).sum() / np.sqrt((one**2).sum() * (other**2).sum() + 1e-9))


def _detail(luma: Float32[np.ndarray, "edge edge"]) -> Float32[np.ndarray, "edge edge"]:
    """Return luma minus its local mean."""
    return luma - _blurred(luma, (0, 1), 4)


def _may_be_text(image: Image.Image) -> bool:
    """Return whether a picture has flat areas like a screenshot or drawing."""
    luma = np.asarray(image.convert("L").resize((256, 256), Image.Resampling.BOX), dtype=np.float32)
    flat = _max_with_neighbors(_blocks(luma, _CELL).std((-2, -1))) < _FLAT_CONTRAST
    return bool(flat.mean() >= _FLAT_SHARE / 2)


def _reduced(image: Image.Image, edge: int) -> Image.Image:
    scale = min(1.0, edge / max(1.0, (image.width * image.height) ** 0.5))
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image if size == image.size else image.resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0)


def _clipped(left: float, width: float, top: float, height: float) -> Window:
    """Clip a window to the picture."""
    x, y = max(left, 0.0), max(top, 0.0)
    return x, min(left + width, 1.0) - x, y, min(top + height, 1.0) - y


def _blocks(squares: np.ndarray, pixels: int) -> np.ndarray:
    """Cut squares (..., edge, edge) into blocks (..., grid, grid, pixels, pixels)."""
    grid = squares.shape[-1] // pixels
    return squares.reshape(*squares.shape[:-2], grid, pixels, grid, pixels).swapaxes(-3, -2)


def _max_with_neighbors(values: np.ndarray) -> np.ndarray:
    """Return the maximum over each entry of (..., grid, grid) and its eight neighbors."""
    grid = values.shape[-1]
    padded = np.pad(values, [(0, 0)] * (values.ndim - 2) + [(1, 1), (1, 1)], mode="edge")
    return np.max([padded[..., row : row + grid, col : col + grid] for row in range(3) for col in range(3)], axis=0)
