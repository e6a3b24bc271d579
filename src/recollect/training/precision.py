"""Precision of the towers: float32, TF32, bfloat16 or float16. Weights, loss and optimizer stay float32."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from recollect.core.options import Precision

_AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Return a context that autocasts to half precision if requested."""
    dtype = _AUTOCAST.get(precision)
    return torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None)


@contextmanager
def tensor_cores(precision: Precision) -> Iterator[None]:
    """Allow TF32 in the towers' float32 products on a GPU, if requested.

    Objectives switch it off for their own products (`recollect.objectives.tiles.no_autocast`).
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
    """Loss scaling against underflow of float16 gradients (Micikevicius et al., 2018, section 3.2).

    The factor is halved when a gradient is not finite (and the step skipped), and doubled after `_PATIENCE` finite
    steps.

    Attributes:
        factor: a power of two, so scaling never rounds; 1 if the precision needs no scaling.
        good: finite steps since the factor last changed.
    """

    factor: float = 1.0
    good: int = 0

    @classmethod
    def of(cls, precision: Precision) -> "LossScale":
        """Return the initial scale for a precision."""
        return cls(2.0**16) if precision == "float16" else cls()

    @property
    def may_shrink(self) -> bool:
        """Whether a non-finite gradient may be caused by the scale."""
        return self.factor > 1

    def after(self, finite: bool) -> "LossScale":
        """Return the scale for the next step."""
        if self.factor == 1.0 and self.good == 0 and finite:
            return self
        if not finite:
            return LossScale(self.factor / 2)
        return LossScale(self.factor * 2) if self.good + 1 >= _PATIENCE else LossScale(self.factor, self.good + 1)


_PATIENCE = 2000
