"""Find the part of one square picture that another one shows: many pairs at once."""

import numpy as np
from jaxtyping import Float32, Float64

MOST_CROPPED = 0.055
"""Share of a side that a crop may remove, both edges together."""

WHOLE_PART = (0.0, 1.0, 0.0, 1.0)
"""Left, width, top and height of a part that is the whole picture, as shares of its edges."""

_STEPS = 8


def align(
    ones: Float32[np.ndarray, "pairs edge edge"],
    others: Float32[np.ndarray, "pairs edge edge"],
    start: Float64[np.ndarray, "pairs 4"],
) -> Float64[np.ndarray, "pairs 4"]:
    """Find the part of each square that its partner shows, by Gauss-Newton (Lucas and Kanade, 1981) on four numbers.

    Returns:
        Left, width, top, height as shares of the edge; NaN where they leave the range of a small crop.
    """
    found = start.copy()
    moving = np.arange(len(ones))
    for _ in range(_STEPS):
        if not len(moving):
            break
        part = found[moving]
        seen = warped(ones[moving], part)
        slopes = tangents(seen) / part[:, None, [1, 1, 3, 3]]
        left = (others[moving] - seen).reshape(len(moving), -1)
        scale = 2 + 3 * np.median(np.abs(left), axis=1, keepdims=True)
        weighted = (slopes / (1 + (left / scale) ** 2)[..., None]).swapaxes(1, 2)  # marks and noise count for less
        normal = weighted @ slopes
        normal += 1e-3 * np.trace(normal, axis1=1, axis2=2)[:, None, None] / 4 * np.eye(4)
        step = np.linalg.solve(normal, weighted @ left[..., None])[..., 0]
        found[moving] += step
        outside = np.abs(found[moving] - WHOLE_PART).max(1) > 1.5 * MOST_CROPPED
        found[moving[outside]] = np.nan
        moving = moving[~outside & (np.abs(step).max(1) >= 5e-4)]
    return found


def tangents(squares: Float32[np.ndarray, "pairs edge edge"]) -> Float64[np.ndarray, "pairs pixels 4"]:
    """How each pixel changes when the part that a square shows changes in its left edge, width, top edge or height."""
    edge = squares.shape[1]
    places = (np.arange(edge) + 0.5) / edge
    down, right = (edge * slope for slope in np.gradient(squares, axis=(1, 2)))
    return np.stack([right, right * places, down, down * places[:, None]], axis=-1).reshape(len(squares), -1, 4)


def warped(
    squares: Float32[np.ndarray, "#pairs edge edge"], parts: Float64[np.ndarray, "pairs 4"]
) -> Float32[np.ndarray, "pairs edge edge"]:
    """Parts (left, width, top, height) of squares, or of one square, enlarged to its size by linear interpolation."""
    edge = squares.shape[1]
    left, width, top, height = parts.T
    rows, columns = _samples(edge, top, height), _samples(edge, left, width)
    return rows @ squares @ columns.swapaxes(1, 2)


def _samples(
    edge: int, starts: Float64[np.ndarray, " pairs"], lengths: Float64[np.ndarray, " pairs"]
) -> Float32[np.ndarray, "pairs edge edge"]:
    """Matrices that read a row of pixels at evenly spaced places of a part of it, linearly interpolated."""
    places = (starts[:, None] + lengths[:, None] * (np.arange(edge) + 0.5) / edge) * edge - 0.5
    places = np.clip(places, 0, edge - 1)[..., None]
    return np.maximum(0, 1 - np.abs(places - np.arange(edge))).astype(np.float32)


def blurred(images: Float32[np.ndarray, "..."], axes: tuple[int, int]) -> Float32[np.ndarray, "..."]:
    """Binomial blur (1, 2, 1) along two axes."""
    for axis in axes:
        images = np.moveaxis(images, axis, 0)
        padded = np.concatenate([images[:1], images, images[-1:]])
        images = np.moveaxis(0.25 * padded[:-2] + 0.5 * padded[1:-1] + 0.25 * padded[2:], 0, axis)
    return images


def correlation(
    ones: Float32[np.ndarray, "#pairs edge edge"], others: Float32[np.ndarray, "pairs edge edge"]
) -> Float32[np.ndarray, " pairs"]:
    """Of the pixels of each pair, or of one picture with each other."""
    ours, theirs = (each - each.mean((1, 2), keepdims=True) for each in (ones, others))
    norms = np.sqrt((ours**2).sum((1, 2)) * (theirs**2).sum((1, 2)) + 1e-9)
    return (ours * theirs).sum((1, 2)) / norms
