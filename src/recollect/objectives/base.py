"""The base objectives as modules that own their temperature and bias: CLIP, SigLIP, UniCL."""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from recollect.objectives.shards import WHOLE, Shard, find_copies
from recollect.objectives.sigmoid import SigmoidTerm, sigmoid_sides
from recollect.objectives.softmax import label_contrastive, softmax_contrastive
from recollect.objectives.tiles import Form, check_pairs, full_precision

Base = Literal["sigmoid", "softmax", "label"]
"""SigLIP's pairwise sigmoid, CLIP's softmax, or UniCL's softmax over classes."""

Report = dict[str, Tensor]
"""Scalars without graph, by name."""


def logarithm(value: float) -> nn.Parameter:
    """A temperature as the exponential of a learned scalar, which keeps it positive and its steps relative.

    Raises:
        ValueError: ``value`` is not positive.
    """
    if not value > 0:
        raise ValueError(f"a temperature or scale must be positive, got {value}")
    return nn.Parameter(torch.tensor(math.log(value)))


def unit(embeddings: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
    """Normalised rows, at least float32."""
    return functional.normalize(full_precision(embeddings), dim=1)


class LossTerms(nn.Module):
    """Temperature and bias of one loss term, for whichever base."""

    def __init__(self, base: Base, scale: float, bias: float, form: Form) -> None:
        super().__init__()
        if base not in {"sigmoid", "softmax", "label"}:
            raise ValueError(f"base must be 'sigmoid', 'softmax' or 'label', got {base!r}")
        self.base = base
        self.form: Form = form
        self.log_scale = logarithm(scale)
        self.bias = nn.Parameter(torch.tensor(float(bias))) if base == "sigmoid" else None

    def side(self, images: Tensor, weight: float, log_scale: Tensor | None = None) -> SigmoidTerm:
        """These images under this term's temperature (or another, where temperatures are tied)."""
        scale = (self.log_scale if log_scale is None else log_scale).exp()
        return SigmoidTerm(images, scale, scale.new_zeros(()) if self.bias is None else self.bias, weight)


def weighted_losses(
    base: Base,
    sides: list[SigmoidTerm],
    texts: Tensor,
    labels: Tensor | None,
    form: Form,
    marks: Tensor | None = None,
    shard: Shard = WHOLE,
) -> tuple[Tensor, list[Tensor]]:
    """The weighted sum of one base loss over several sets of images, and each loss, of all processes, without graph.

    Raises:
        ValueError: the base is ``label`` and there are no labels.
    """
    if base == "label" and labels is None:
        raise ValueError("the 'label' objective needs labels; use -1 for samples that have none")
    if base == "sigmoid":
        total, losses = sigmoid_sides(sides, texts, find_copies(marks, shard), form=form, shard=shard)
    else:
        losses = []
        for side in sides:
            if base == "label" and labels is not None:
                loss = label_contrastive(side.images, texts, labels, side.scale, marks=marks, form=form, shard=shard)
            else:
                loss = softmax_contrastive(side.images, texts, side.scale, marks=marks, form=form, shard=shard)
            losses.append(loss)
        total = sum((side.weight * loss for side, loss in zip(sides, losses, strict=True)), texts.new_zeros(()))
    return total, list(shard.total(torch.stack([loss.detach() for loss in losses])))


class ContrastiveObjective(nn.Module):
    """SigLIP, CLIP or UniCL with a learned temperature (and SigLIP's bias).

    Args:
        base: which loss.
        scale: inverse temperature at the start.
        bias: SigLIP's bias at the start; the other losses have none.
        form: see `sigmoid_contrastive`.

    Raises:
        ValueError: an unknown base, or a scale that is not positive.
    """

    def __init__(
        self, base: Base = "sigmoid", *, scale: float = 10.0, bias: float = -10.0, form: Form = "auto"
    ) -> None:
        super().__init__()
        self.term = LossTerms(base, scale, bias, form)

    @property
    def needs(self) -> frozenset[str]:
        """What else than images and texts ``forward`` must be given."""
        return frozenset({"labels"} if self.term.base == "label" else ())

    def temperatures(self) -> list[nn.Parameter]:
        """Parameters that take no weight decay and a learning rate of their own."""
        return list(self.parameters())

    def forward(
        self,
        images: Float[Tensor, "batch width"],
        texts: Float[Tensor, "batch width"],
        *,
        labels: Int[Tensor, " batch"] | None = None,
        views: Float[Tensor, "batch width"] | None = None,
        context: Float[Tensor, "rows width"] | None = None,
        marks: Int[Tensor, "batch marks"] | None = None,
        context_marks: Int[Tensor, "rows marks"] | None = None,
        seed: int = 0,
        shard: Shard = WHOLE,
    ) -> tuple[Tensor, Report]:
        """The loss of a batch of raw tower outputs.

        Args:
            images: raw image embeddings.
            texts: raw text embeddings; row i describes image i.
            labels: classes, for UniCL; negative where a sample is a caption.
            views: unused, as are ``context`` and ``seed``; they are there so that all objectives are called alike.
            marks: rows that share a number (not negative) in a column are copies of one sample: no negatives of each
                other.
            shard: which rows of the batch these are; the losses of all processes add up to that of the batch.

        Returns:
            The loss (of these rows) and a report (of the batch) with ``loss``, ``base_loss``, ``scale`` and, for
            SigLIP, ``bias``.
        """
        check_pairs(images, texts)
        sides = [self.term.side(unit(images), 1.0)]
        loss, (whole,) = weighted_losses(self.term.base, sides, unit(texts), labels, self.term.form, marks, shard)
        report = {"loss": whole, "base_loss": whole, "scale": self.term.log_scale.detach().exp()}
        if self.term.bias is not None:
            report["bias"] = self.term.bias.detach().clone()
        return loss, report
