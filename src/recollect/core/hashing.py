"""Random numbers by place: row ``index`` of a stream is the same, drawn alone or in a batch."""

from typing import Any

import numpy as np
from scipy.special import ndtri

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: the step of SplitMix64's counter."""


def splitmix64(state: Any) -> Any:
    """SplitMix64's output function, a bijection of 64 bits without visible structure (Steele et al., 2014).

    Args:
        state: uint64, a number or an array.
    """
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def uniforms(key: int, indices: np.ndarray, count: int) -> np.ndarray:
    """``count`` numbers in (0, 1) for each index.

    Args:
        key: of the stream, from `derive_seed`.
        indices: non-negative integers (n,).

    Returns:
        float32 (n, count).
    """
    with np.errstate(over="ignore"):
        rows = splitmix64(np.uint64(key) + (indices.astype(np.uint64) + np.uint64(1)) * GOLDEN)
        places = rows[:, None] + (np.arange(count, dtype=np.uint64) + np.uint64(1)) * GOLDEN
        bits = splitmix64(places) >> np.uint64(41)  # 23 bits: with the half below, exact in float32 and never 0 or 1
    return (bits.astype(np.float32) + np.float32(0.5)) * np.float32(2**-23)


def normals(key: int, indices: np.ndarray, count: int) -> np.ndarray:
    """``count`` standard normal numbers for each index, float32 (n, count)."""
    return ndtri(uniforms(key, indices, count))


def integers(uniform: np.ndarray, count: int) -> np.ndarray:
    """Integers 0 … count − 1 from numbers in (0, 1)."""
    return (uniform * count).astype(np.int64).clip(0, count - 1)
