"""The interface of a base loss: several sets of images scored against the same texts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from recollect.objectives.shards import Shard
from recollect.objectives.tiles import Form


class LossInputs(NamedTuple):
    """One set of images to score against the texts, with its own temperature, bias and weight in the total."""

    images: Tensor
    scale: Tensor
    bias: Tensor
    weight: float


class Targets(NamedTuple):
    """What the images are scored against; this process's rows, with unit-norm texts.

    Attributes:
        texts: (n, width); row i describes image i.
        labels: int64 (n,), negative for samples without a class; None without labels.
        duplicate_ids: int64 (n, columns); rows that share a non-negative number in any column are copies of one
            sample.
        form: dense or blockwise.
        shard: which rows of the batch these are.
    """

    texts: Tensor
    labels: Tensor | None
    duplicate_ids: Tensor | None
    form: Form
    shard: Shard


Losses = tuple[Tensor, list[Tensor]]
"""The weighted sum over all sets (with gradients), and the loss of each set (detached); this process's rows only."""


@dataclass(frozen=True)
class BaseLoss:
    """A base loss L(x, t), minimized on its own or together with context (LIxP, Eq. 6).

    To add a loss, write its function in a new file and list it in `recollect.objectives.OBJECTIVES`.

    Attributes:
        losses: scores each set of images against the targets. Summed over all processes, this is the loss of the batch.
        name: what to call a model trained with it.
        name_with_context: what to call one trained with context.
        biased: whether its logits have a learned bias.
        labeled: whether it needs labels.
        smooths: whether it is linear in its targets, so that label smoothing is
            `recollect.objectives.base.smoothing_slope`.
    """

    losses: Callable[[list[LossInputs], Targets], Losses]
    name: str
    name_with_context: str
    biased: bool = False
    labeled: bool = False
    smooths: bool = False


def weighted_sum(sets: list[LossInputs], losses: list[Tensor]) -> Losses:
    """Weighted sum of the losses, and each loss detached."""
    total = sum((one.weight * loss for one, loss in zip(sets, losses, strict=True)), losses[0].new_zeros(()))
    return total, [loss.detach() for loss in losses]
