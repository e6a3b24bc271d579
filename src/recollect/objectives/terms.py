"""What a base loss is: how several sets of images are held against the same texts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from recollect.objectives.shards import Shard
from recollect.objectives.tiles import Form


class ImageSet(NamedTuple):
    """One set of images that is held against the texts, with its own temperature, bias and weight."""

    images: Tensor
    scale: Tensor
    bias: Tensor
    weight: float


class Partners(NamedTuple):
    """What the images of a batch are held against, of this process; texts are unit-norm.

    Attributes:
        texts: (n, width); row i describes image i.
        labels: int64 (n,), negative where a sample has no class; None where none were given.
        marks: int64 (n, marks); rows that share a number (not negative) in a column are copies of one sample.
        form: dense or block-wise.
        shard: which rows of the batch these are.
    """

    texts: Tensor
    labels: Tensor | None
    marks: Tensor | None
    form: Form
    shard: Shard


Losses = tuple[Tensor, list[Tensor]]
"""The weighted sum of one loss over several sets of images, of these rows and with graph, and each loss, without."""


@dataclass(frozen=True)
class BaseLoss:
    """A base loss L(x, t), which training minimises by itself or with context (LIxP, Eq. 6).

    To add one is to write its function in a file of its own and to name it in `recollect.objectives.OBJECTIVES`.

    Attributes:
        losses: the loss of each set of images against the partners. The losses of all processes add up to that of the
            batch.
        name: what a model trained by it is called.
        name_with_context: the same with the context objective.
        biased: whether its logits have a learned bias.
        labelled: whether it needs labels.
        smooths: whether it is a sum of logits times targets and of what no target touches, so that label smoothing is
            `recollect.objectives.base.smoothing_slope`.
    """

    losses: Callable[[list[ImageSet], Partners], Losses]
    name: str
    name_with_context: str
    biased: bool = False
    labelled: bool = False
    smooths: bool = False


def weighted_sum(sets: list[ImageSet], losses: list[Tensor]) -> Losses:
    """The losses of the sets by their weights, and each without graph."""
    total = sum((one.weight * loss for one, loss in zip(sets, losses, strict=True)), losses[0].new_zeros(()))
    return total, [loss.detach() for loss in losses]
