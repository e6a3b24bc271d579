"""Helpers of the blockwise losses: tiles, precision, and the choice between dense and blockwise."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

Form = Literal["auto", "dense", "blockwise"]
"""How to compute a B × B interaction: as one matrix, tile by tile without storing tiles, or whichever is faster."""

BLOCKWISE_FROM = 1024
"""Batch size from which blockwise is faster, and chosen by ``auto`` (benchmarks/bench.py)."""


def resolve(form: Form, rows: int) -> Literal["dense", "blockwise"]:
    """Resolve ``auto`` for this batch size.

    Raises:
        ValueError: an unknown form.
    """
    if form == "auto":
        return "blockwise" if rows >= BLOCKWISE_FROM else "dense"
    if form not in {"dense", "blockwise"}:
        raise ValueError(f"form must be 'auto', 'dense' or 'blockwise', got {form!r}")
    return form


def tile_size(device: torch.device) -> int:
    """Return the edge length of a tile: small enough for a CPU's cache, large enough to keep an accelerator busy."""
    return 512 if device.type == "cpu" else 4096


def tiles(rows: int, size: int) -> Iterator[slice]:
    """Yield consecutive slices of ``size`` rows; the last may be shorter."""
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def full_precision(tensor: Tensor) -> Tensor:
    """Promote half precision to float32; leave float32 and float64 alone."""
    return tensor.float() if tensor.dtype in {torch.float16, torch.bfloat16} else tensor


def scalar(number: Tensor | float, like: Tensor) -> Tensor:
    """Return a number, or a tensor with one entry, as a tensor without dimensions."""
    if isinstance(number, Tensor):
        return number.reshape(())
    return torch.tensor(number, dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)


def accumulator(like: Tensor) -> Tensor:
    """Return a zero for summing many tiles, in float64 if the device supports it."""
    return torch.zeros((), dtype=like.dtype if like.device.type == "mps" else torch.float64, device=like.device)


def add_up(tile: Tensor, like: Tensor) -> Tensor:
    """Sum rows in the tile's dtype, then in the accumulator's: a wider tile took 10 to 25 % of SigLIP's time."""
    return tile.sum(1).sum(dtype=like.dtype)


@contextmanager
def no_autocast(device: torch.device) -> Iterator[None]:
    """Disable autocast and TF32, which would round the logits, while the block runs."""
    matmul = torch.backends.cuda.matmul
    rounds = device.type == "cuda" and matmul.allow_tf32
    if rounds:
        matmul.allow_tf32 = False
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        if rounds:
            matmul.allow_tf32 = True


def check_pairs(images: Tensor, texts: Tensor) -> None:
    """Check that ``images`` and ``texts`` are matrices of the same shape.

    Raises:
        ValueError: with both shapes.
    """
    if images.ndim != 2 or images.shape != texts.shape:
        shapes = f"{tuple(images.shape)} and {tuple(texts.shape)}"
        raise ValueError(f"images and texts must be matrices of the same shape, got {shapes}")
