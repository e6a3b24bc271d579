"""AdamW with the parameter groups of contrastive training, its learning rate schedule, and averaged weights."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from recollect.objectives import Objective
from recollect.training.options import Optimizer
from recollect.training.ranks import is_split
from recollect.training.sharded import part_like
from recollect.training.step import Towers


def learning_rate(options: Optimizer, step: int, steps: int) -> float:
    """Return the learning rate of update ``step`` (from 1) out of ``steps``: linear warm-up, then cosine decay to 0."""
    warmup = max(1, round(options.warmup * steps))
    rise = min(1.0, step / warmup)
    fall = 0.5 * (1 + math.cos(math.pi * max(0, step - 1 - warmup) / max(1, steps - warmup)))
    return options.learning_rate * rise * fall


def build_optimizer(model: Towers, objective: Objective, options: Optimizer) -> AdamW:
    """Build AdamW over all trainable parameters in three groups: decayed, not decayed, temperatures.

    Parameters split over processes form separate groups, since a fused step cannot mix them with whole ones. The
    ``factor`` of a group is its learning rate multiplier.
    """
    temperatures = {id(parameter) for parameter in objective.temperatures()}
    groups: dict[tuple[str, bool], list[tuple[str, nn.Parameter]]] = {
        (kind, split): [] for kind in ("decayed", "plain", "temperatures") for split in (False, True)
    }
    for room, module in (("model", model), ("objective", objective)):
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                kind = "decayed" if parameter.ndim > 1 else "plain"
                kind = "temperatures" if id(parameter) in temperatures else kind
                groups[kind, is_split(parameter)].append((f"{room}.{name}", parameter))
    return AdamW(
        [
            {
                "params": members,
                "weight_decay": options.weight_decay if kind == "decayed" else 0.0,
                "factor": options.temperature_factor if kind == "temperatures" else 1.0,
            }
            for (kind, _), members in groups.items()
            if members
        ],
        lr=options.learning_rate,
        betas=(options.beta1, options.beta2),
        fused=True,  # one pass over the weights; on a CPU, memory bandwidth is the bottleneck
    )


def set_learning_rate(optimizer: AdamW, rate: float) -> None:
    """Set the learning rate of every group to its multiple of ``rate``."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["factor"]


def parameters(optimizer: AdamW) -> dict[str, nn.Parameter]:
    """Return all trainable parameters, by name."""
    return {
        name: parameter
        for group in optimizer.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
    }


class Averages:
    """Exponential moving average of weights (EMA), in float32; often gives better embeddings than the last weights.

    Args:
        weights: parameters and running statistics, by name.
        decay: maximum decay; step t uses at most (1 + t) / (10 + t), which discounts the initial weights.
    """

    def __init__(self, weights: Mapping[str, Tensor], decay: float) -> None:
        self.weights, self.decay = dict(weights), decay
        self.means = {name: weight.detach().float().clone() for name, weight in self.weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the means after step ``step`` (counted from 1)."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        for name, mean in self.means.items():
            mean.lerp_(self.weights[name].detach().float(), share)

    def tensors(self) -> dict[str, Tensor]:
        """Return the means, by name, for a checkpoint."""
        return dict(self.means)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load means saved by `tensors`; missing ones stay unchanged."""
        for name, mean in self.means.items():
            if name in tensors:
                mean.copy_(part_like(tensors[name], mean))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Swap the means into the model while the block runs."""
        last = {name: weight.detach().clone() for name, weight in self.weights.items()}
        try:
            self._set(self.means)
            yield
        finally:
            self._set(last)

    @torch.no_grad()
    def _set(self, values: Mapping[str, Tensor]) -> None:
        for name, weight in self.weights.items():
            weight.copy_(values[name])
