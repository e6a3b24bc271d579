"""The interface of a base loss: several sets of images scored against the same texts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from recollect.objectives.shards import Shard
from recollect.objectives.tiles import Form


class LossInputs(NamedTuple):
    """One set of images to score against the texts, with its temperature, bias and weight in the total loss."""

    images: Tensor
    scale: Tensor
    bias: Tensor
    weight: float


class Targets(NamedTuple):
    """Texts and labels that images are scored against; this process's rows.

    Attributes:
        texts: unit-norm (n, width); row i describes image i.
        labels: int64 (n,), negative for samples without a class; None without labels.
        duplicate_ids: int64 (n, columns); rows that share a non-negative number in any column are copies of one
            sample.
        form: dense or blockwise.
        shard: this process's part of the batch.
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
    """A base loss L(x, t), minimized alone or with context (LIxP, Eq. 6).

    To add a loss, write its function in a new file and list it in `recollect.objectives.OBJECTIVES`.

    Attributes:
        losses: scores each set of images against the targets; the sum over processes is the batch's loss.
        name: name of models trained with this loss.
        name_with_context: name of models trained with this loss and context.
        biased: whether the logits have a learned bias.
        labeled: whether labels are required.
        smooths: whether label smoothing is supported (`recollect.objectives.base.smoothing_slope`); requires a loss
            that is linear in its targets.
    """

    losses: Callable[[list[LossInputs], Targets], Losses]
    name: str
    name_with_context: str
    biased: bool = False
    labeled: bool = False
    smooths: bool = False


def weighted_sum(sets: list[LossInputs], losses: list[Tensor]) -> Losses:
    """Return the weighted sum of the losses, and each loss detached."""
    total = sum((one.weight * loss for one, loss in zip(sets, losses, strict=True)), losses[0].new_zeros(()))
    return total, [loss.detach() for loss in losses]
