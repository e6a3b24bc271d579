"""In which numbers the towers compute: float32, TF32, bfloat16 or float16; weights, loss and optimiser stay float32."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

Precision = Literal["float32", "tf32", "bfloat16", "float16"]

_AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Let matrix products compute in half precision while the block runs, where that was asked for."""
    dtype = _AUTOCAST.get(precision)
    return torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None)


@contextmanager
def tensor_cores(precision: Precision) -> Iterator[None]:
    """Let a GPU's float32 products of the towers round their factors to TF32 while the block runs.

    The objectives switch it off for their own (`recollect.objectives.tiles.no_autocast`).
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@dataclass(frozen=True)
class LossScale:
    """By what a loss is multiplied before the backward pass, so that gradients in float16 do not vanish.

    Micikevicius et al. (2018), section 3.2: halved when a gradient is not finite, whose step is left out, and doubled
    after `_PATIENCE` good steps.

    Attributes:
        factor: a power of two, so that nothing is rounded; 1 where the precision needs none.
        good: steps since it last changed.
    """

    factor: float = 1.0
    good: int = 0

    @classmethod
    def of(cls, precision: Precision) -> "LossScale":
        """Where a run in this precision begins."""
        return cls(2.0**16) if precision == "float16" else cls()

    @property
    def may_shrink(self) -> bool:
        """Whether a gradient that is not finite may be the factor's fault."""
        return self.factor > 1

    def after(self, finite: bool) -> "LossScale":
        """The next step's, where this one's gradient was finite or not."""
        if self.factor == 1.0 and self.good == 0 and finite:
            return self
        if not finite:
            return LossScale(self.factor / 2)
        return LossScale(self.factor * 2) if self.good + 1 >= _PATIENCE else LossScale(self.factor, self.good + 1)


_PATIENCE = 2000
