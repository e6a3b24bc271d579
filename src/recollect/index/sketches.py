"""Tell quickly which pictures may be near-identical, from about a kilobyte of each, so that few are decoded again.

Three tests, each ten times as expensive as the one before and each on what passed it:

1. The 16 x 16 luma correlates.
2. To first order, no small crop explains the difference (the tangent distance of Simard, LeCun and Denker, 1993): what
   remains in the worst 4 x 4 block is large relative to the contrast there, or the mean color of a block differs.
3. The same after the squares were aligned by iteration.

Blocks at the border are left out, since there a crop shows what the other picture does not have. Edits of real pictures
reach two thirds of the limits.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Int8, Int64, UInt8

from recollect.index.alignment import WHOLE_PART, align, blurred, correlation, tangents, warped

EDGE, GRID = 32, 8
_CORRELATION = 0.85
"""Re-encodings reach 0.99, small crops of photographs 0.96 and of text 0.89, light marks 0.94."""
_FIRST_ORDER, _ALIGNED, _COLOR = 6.5, 2.4, 3.5
_FLOOR, _CONTRAST = 2.0, 0.25
_COLOR_FLOOR, _COLOR_SHARE = 9.0, 0.12
_AT_ONCE = 512


@dataclass(frozen=True)
class Sketches:
    """What `may_be_near_identical` reads of each picture.

    Attributes:
        luma: 0 to 255.
        color: mean chroma of blocks, halved.
        gray: whether a picture has no color; then colors are not compared.
    """

    luma: UInt8[np.ndarray, "pictures 32 32"]
    color: Int8[np.ndarray, "pictures 8 8 2"]
    gray: Bool[np.ndarray, " pictures"]

    @classmethod
    def empty(cls, count: int) -> "Sketches":
        """Room for this many."""
        shape = (count, EDGE, EDGE)
        return cls(np.zeros(shape, np.uint8), np.zeros((count, GRID, GRID, 2), np.int8), np.zeros(count, bool))

    def put(self, place: int, square: Float32[np.ndarray, "32 32 3"], gray: bool) -> None:
        """Keep a picture's luma and chroma."""
        self.luma[place] = np.clip(np.rint(square[..., 0]), 0, 255)
        pixels = EDGE // GRID
        self.color[place] = square[..., 1:].reshape(GRID, pixels, GRID, pixels, 2).mean((1, 3)) / 2
        self.gray[place] = gray

    def may_be_near_identical(self, one: int, others: Int64[np.ndarray, " others"]) -> Bool[np.ndarray, " others"]:
        """Whether each of the others may show the same as this one: false where `near_identical` would be."""
        kept = np.zeros(len(others), dtype=bool)
        for start in range(0, len(others), _AT_ONCE):
            rows = np.arange(start, min(start + _AT_ONCE, len(others)))
            rows = rows[correlation(_halved(self._luma(one)), _halved(self._luma(others[rows]))) >= _CORRELATION]
            rows = rows[self._colors_agree(one, others[rows])]
            rows = rows[self._explained_by_a_crop(one, others[rows])]
            kept[rows[self._agree_when_aligned(one, others[rows])]] = True
        return kept

    def _luma(self, places: "int | Int64[np.ndarray, ' places']") -> Float32[np.ndarray, "places 32 32"]:
        return np.asarray(self.luma[np.atleast_1d(places)], dtype=np.float32)

    def _colors_agree(self, one: int, others: Int64[np.ndarray, " others"]) -> Bool[np.ndarray, " others"]:
        ours, theirs = 2.0 * self.color[[one]], 2.0 * self.color[others]
        strength = np.maximum(np.abs(ours).max(-1), np.abs(theirs).max(-1))
        differs = np.abs(ours - theirs).max(-1) / (_COLOR_FLOOR + _COLOR_SHARE * strength)
        agree: Bool[np.ndarray, " others"] = (differs[:, 1:-1, 1:-1] <= _COLOR).all((1, 2))
        return agree | (self.gray[one] != self.gray[others])

    def _explained_by_a_crop(self, one: int, others: Int64[np.ndarray, " others"]) -> Bool[np.ndarray, " others"]:
        ours, theirs = (blurred(self._luma(places), (1, 2)) for places in (one, others))
        basis = np.linalg.qr(tangents(ours)[0])[0].astype(np.float32)
        difference = (theirs - ours).reshape(len(others), EDGE * EDGE)
        left = (difference - (difference @ basis) @ basis.T).reshape(theirs.shape)
        return _worst_block(left, _contrast(ours), _contrast(theirs)) <= _FIRST_ORDER

    def _agree_when_aligned(self, one: int, others: Int64[np.ndarray, " others"]) -> Bool[np.ndarray, " others"]:
        ours, theirs = self._luma(one), self._luma(others)
        same_frame = _worst_block(ours - theirs, _contrast(ours), _contrast(theirs))
        blurry_ours, blurry_theirs = ours, theirs
        for _ in range(4):
            blurry_ours, blurry_theirs = blurred(blurry_ours, (1, 2)), blurred(blurry_theirs, (1, 2))
        start = np.tile(np.array(WHOLE_PART), (len(others), 1))
        parts = align(np.broadcast_to(blurry_ours, theirs.shape), blurry_theirs, start)
        found = ~np.isnan(parts).any(1)
        ours = warped(ours, np.where(found[:, None], parts, WHOLE_PART))
        aligned = np.where(found, _worst_block(ours - theirs, _contrast(ours), _contrast(theirs)), np.inf)
        return np.minimum(same_frame, aligned) <= _ALIGNED


def _halved(squares: Float32[np.ndarray, "pictures 32 32"]) -> Float32[np.ndarray, "pictures 16 16"]:
    return squares.reshape(len(squares), 16, 2, 16, 2).mean((2, 4))


def _in_blocks(squares: Float32[np.ndarray, "pictures 32 32"]) -> Float32[np.ndarray, "pictures 8 4 8 4"]:
    return squares.reshape(len(squares), GRID, EDGE // GRID, GRID, EDGE // GRID)


def _contrast(squares: Float32[np.ndarray, "pictures 32 32"]) -> Float32[np.ndarray, "pictures 8 8"]:
    return _in_blocks(squares).std((2, 4))


def _worst_block(
    difference: Float32[np.ndarray, "pictures 32 32"],
    ours: Float32[np.ndarray, "#pictures 8 8"],
    theirs: Float32[np.ndarray, "pictures 8 8"],
) -> Float32[np.ndarray, " pictures"]:
    """The largest difference of an inner block, relative to the contrast around it."""
    contrast = np.maximum(ours, theirs)
    inner = slice(1, GRID - 1)
    around = [contrast[:, row : row + GRID - 2, column : column + GRID - 2] for row in range(3) for column in range(3)]
    luma = np.sqrt((_in_blocks(difference) ** 2).mean((2, 4)))[:, inner, inner]
    worst: Float32[np.ndarray, " pictures"] = (luma / (_FLOOR + _CONTRAST * np.max(around, axis=0))).max((1, 2))
    return worst
