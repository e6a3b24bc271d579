"""Exponential moving average of the weights (EMA), which often embeds better than the last weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from recollect.training.sharded import part_like


class Averages:
    """EMA of parameters, in float32.

    Args:
        parameters: by name.
        decay: maximum decay; step t uses at most (1 + t) / (10 + t), so that the random start is forgotten.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self.parameters, self.decay = dict(parameters), decay
        self.means = {name: parameter.detach().float().clone() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the means after step ``step`` (counted from 1)."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        for name, mean in self.means.items():
            mean.lerp_(self.parameters[name].detach().float(), share)

    def tensors(self) -> dict[str, Tensor]:
        """The means, by name, for a checkpoint."""
        return dict(self.means)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what `tensors` returned; missing means stay as they are."""
        for name, mean in self.means.items():
            if name in tensors:
                mean.copy_(part_like(tensors[name], mean))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Swap the means into the model while the block runs."""
        kept = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        try:
            self._set(self.means)
            yield
        finally:
            self._set(kept)

    @torch.no_grad()
    def _set(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(values[name])
