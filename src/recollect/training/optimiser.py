"""AdamW with the parameter groups of contrastive training, and the learning rate schedule."""

import math

from torch import nn
from torch.optim import AdamW

from recollect.objectives import Objective
from recollect.training.options import Optimiser
from recollect.training.ranks import is_split
from recollect.training.step import Towers


def learning_rate(options: Optimiser, step: int, steps: int) -> float:
    """The learning rate of update ``step`` (from 1) out of ``steps``: linear warm-up, then a cosine to 0."""
    warmup = max(1, round(options.warmup * steps))
    rise = min(1.0, step / warmup)
    fall = 0.5 * (1 + math.cos(math.pi * max(0, step - 1 - warmup) / max(1, steps - warmup)))
    return options.learning_rate * rise * fall


def build_optimiser(model: Towers, objective: Objective, options: Optimiser) -> AdamW:
    """AdamW over all trainable parameters in three groups: decayed, not decayed, temperatures.

    Parameters that are split over processes get groups of their own, since a fused step takes only one kind. Each group
    carries ``factor``, its learning rate multiplier.
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
        fused=True,  # one pass over the weights; on a CPU the loop is bound by memory bandwidth
    )


def set_learning_rate(optimiser: AdamW, rate: float) -> None:
    """Set the learning rate of every group to its multiple of ``rate``."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group["factor"]


def parameters(optimiser: AdamW) -> dict[str, nn.Parameter]:
    """All trainable parameters, by name."""
    return {
        name: parameter
        for group in optimiser.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
    }
