"""Random numbers as a pure function of what they are for: seeds, generators, and streams that are read by place.

Row ``index`` of a stream (`uniforms`, `normals`) is the same, drawn alone or in a batch.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: the step of SplitMix64's counter."""


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends on every part, and on nothing else.

    The same on every machine, process and run (unlike ``hash``); ``derive_seed(0, "batch", 7)`` and
    ``derive_seed(0, "batch", 8)`` share no structure, so streams for neighboring steps are independent.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def text_key(text: str) -> int:
    """A number that two texts share if they are the same but for case and spaces."""
    return derive_seed("caption", " ".join(text.split()).casefold())


def text_fold(text: str, folds: int) -> int:
    """Which of ``folds`` parts a text belongs to, from 0 on; texts that share a `text_key` share it."""
    return derive_seed("fold", text_key(text)) % folds


def numpy_generator(*parts: int | str) -> np.random.Generator:
    """A NumPy generator seeded by `derive_seed`."""
    return np.random.default_rng(derive_seed(*parts))


def torch_generator(*parts: int | str) -> torch.Generator:
    """A CPU torch generator seeded by `derive_seed`."""
    import torch

    generator = torch.Generator()
    generator.manual_seed(derive_seed(*parts))
    return generator


def seed_default_generators(seed: int) -> None:
    """`torch.manual_seed`, at a hundredth of its price where there is nothing but a CPU.

    Of every kind of accelerator that is not there it keeps the seed for later, each with the call's traceback as text.
    """
    import torch

    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


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
    from scipy.special import ndtri

    return np.asarray(ndtri(uniforms(key, indices, count)))


def integers(uniform: np.ndarray, count: int) -> np.ndarray:
    """Integers 0 … count − 1 from numbers in (0, 1)."""
    return (uniform * count).astype(np.int64).clip(0, count - 1)
