"""What the block-wise forms share: tiles, precision, and which form to take."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

Form = Literal["auto", "dense", "blockwise"]
"""How a B × B interaction is computed: one matrix that autograd keeps, tiles of which none is kept, or by size."""

BLOCKWISE_FROM = 1024
"""Rows from which ``auto`` takes the block-wise form: it was faster from there on (benchmarks/objectives.py)."""


def resolve(form: Form, rows: int) -> Literal["dense", "blockwise"]:
    """The form that ``auto`` stands for at this size.

    Raises:
        ValueError: an unknown form.
    """
    if form == "auto":
        return "blockwise" if rows >= BLOCKWISE_FROM else "dense"
    if form not in {"dense", "blockwise"}:
        raise ValueError(f"form must be 'auto', 'dense' or 'blockwise', got {form!r}")
    return form


def tile_size(device: torch.device) -> int:
    """Edge of a tile: on a CPU one that stays in cache, on an accelerator one that fills it."""
    return 512 if device.type == "cpu" else 4096


def tiles(rows: int, size: int) -> Iterator[slice]:
    """Consecutive slices of ``size`` rows; the last may be shorter."""
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def full_precision(tensor: Tensor) -> Tensor:
    """At least float32: losses of half-precision embeddings are computed in float32, float64 stays."""
    return tensor.float() if tensor.dtype in {torch.float16, torch.bfloat16} else tensor


def accumulator(like: Tensor) -> Tensor:
    """A zero that sums of many tiles add up in: float64, where the device has it."""
    return torch.zeros((), dtype=like.dtype if like.device.type == "mps" else torch.float64, device=like.device)


def add_up(tile: Tensor, like: Tensor) -> Tensor:
    """Sum of a tile, of the accumulator's type: each row, which is short, in its own precision, then those in that.

    Summed at once, a tile is first copied in the wider type, which took a tenth to a quarter of SigLIP's time.
    """
    return tile.sum(1).sum(dtype=like.dtype)


@contextmanager
def no_autocast(device: torch.device) -> Iterator[None]:
    """Keep autocast and TF32 from rounding the logits of a loss, in forward and block-wise backward alike."""
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
    """Raise unless ``images`` and ``texts`` are matrices of the same shape.

    Raises:
        ValueError: they are not; both shapes are named.
    """
    if images.ndim != 2 or images.shape != texts.shape:
        raise ValueError(
            f"images and texts must be matrices of one shape, got {tuple(images.shape)} and {tuple(texts.shape)}"
        )
