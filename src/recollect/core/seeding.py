"""Deterministic random numbers: seeds and generators derived from a purpose, and counter-based streams.

Row ``index`` of a stream (`uniforms`, `normals`) is the same whether it is drawn alone or in a batch.
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
    """Return a 63-bit seed that depends only on the parts, and on all of them.

    The seed is the same on every machine and in every process (unlike ``hash``). ``derive_seed(0, "batch", 7)`` and
    ``derive_seed(0, "batch", 8)`` share no structure, so streams for neighboring steps are independent.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def text_key(text: str) -> int:
    """Return a number that is equal for texts that differ only in case and spaces."""
    return derive_seed("caption", " ".join(text.split()).casefold())


def fold_of_text(text: str, folds: int) -> int:
    """Return the fold (0 … folds − 1) of a text; texts with the same `text_key` are in the same fold."""
    return derive_seed("fold", text_key(text)) % folds


def numpy_generator(*parts: int | str) -> np.random.Generator:
    """Return a NumPy generator seeded by `derive_seed`."""
    return np.random.default_rng(derive_seed(*parts))


def torch_generator(*parts: int | str) -> torch.Generator:
    """Return a CPU torch generator seeded by `derive_seed`."""
    import torch

    generator = torch.Generator()
    generator.manual_seed(derive_seed(*parts))
    return generator


def seed_default_generators(seed: int) -> None:
    """Call `torch.manual_seed`, or a version that is a hundred times faster on machines without an accelerator.

    For each kind of accelerator that is missing, `torch.manual_seed` queues a seed together with a formatted traceback.
    """
    import torch

    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def splitmix64(state: Any) -> Any:
    """Apply the output function of SplitMix64, a bijection of 64 bits (Steele et al., 2014).

    Args:
        state: uint64 number or array.
    """
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def uniforms(key: int, indices: np.ndarray, count: int) -> np.ndarray:
    """Draw ``count`` uniform numbers in (0, 1) for each index.

    Args:
        key: key of the stream, from `derive_seed`.
        indices: non-negative integers (n,).

    Returns:
        float32 (n, count).
    """
    with np.errstate(over="ignore"):
        rows = splitmix64(np.uint64(key) + (indices.astype(np.uint64) + np.uint64(1)) * GOLDEN)
        counters = rows[:, None] + (np.arange(count, dtype=np.uint64) + np.uint64(1)) * GOLDEN
        bits = splitmix64(counters) >> np.uint64(41)  # 23 bits: adding 0.5 is exact in float32 and avoids 0 and 1
    return (bits.astype(np.float32) + np.float32(0.5)) * np.float32(2**-23)


def normals(key: int, indices: np.ndarray, count: int) -> np.ndarray:
    """Draw ``count`` standard normal numbers for each index, float32 (n, count)."""
    from scipy.special import ndtri

    return np.asarray(ndtri(uniforms(key, indices, count)))


def integers(uniform: np.ndarray, count: int) -> np.ndarray:
    """Map uniform numbers in (0, 1) to integers 0 … count − 1."""
    return (uniform * count).astype(np.int64).clip(0, count - 1)
