"""Random numbers as a pure function of what they are for."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends on every part, and on nothing else.

    The same on every machine, process and run (unlike ``hash``); ``derive_seed(0, "batch", 7)`` and
    ``derive_seed(0, "batch", 8)`` share no structure, so streams for neighbouring steps are independent.
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
