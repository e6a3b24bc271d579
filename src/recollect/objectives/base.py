"""CLIP, SigLIP and UniCL as modules with a learned temperature and bias."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from recollect.objectives.shards import WHOLE, Shard
from recollect.objectives.sigmoid import SIGMOID
from recollect.objectives.softmax import LABEL, SOFTMAX
from recollect.objectives.terms import BaseLoss, Losses, LossInputs, Targets
from recollect.objectives.tiles import Form, check_pairs, full_precision

OBJECTIVES: Mapping[str, BaseLoss] = {
    "sigmoid": SIGMOID,
    "softmax": SOFTMAX,
    "label": LABEL,
}
"""All base losses by name. Add yours here."""


def smoothed() -> list[str]:
    """Return the names of the base losses that support label smoothing."""
    return [name for name, loss in OBJECTIVES.items() if loss.smooths]


Base = str
"""The name of a base loss."""

Report = dict[str, Tensor]
"""Detached scalars by name."""


def logarithm(value: float) -> nn.Parameter:
    """Return the log of ``value`` as a parameter: its exponential stays positive and changes by relative steps.

    Raises:
        ValueError: ``value`` is not positive.
    """
    if not value > 0:
        raise ValueError(f"a temperature or scale must be positive, got {value}")
    return nn.Parameter(torch.tensor(math.log(value)))


def unit(embeddings: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
    """Scale rows to unit norm, in float32 or wider."""
    return functional.normalize(full_precision(embeddings), dim=1)


class LossTerms(nn.Module):
    """Temperature and bias of one loss term.

    Raises:
        ValueError: an unknown base, or a scale that is not positive.
    """

    def __init__(self, base: Base, scale: float, bias: float, form: Form) -> None:
        super().__init__()
        if base not in OBJECTIVES:
            raise ValueError(f"base must be one of {', '.join(map(repr, OBJECTIVES))}, got {base!r}")
        self.base, self.loss = base, OBJECTIVES[base]
        self.form: Form = form
        self.log_scale = logarithm(scale)
        self.bias = nn.Parameter(torch.tensor(float(bias))) if self.loss.biased else None

    def scale_and_bias(self) -> tuple[float, float | None]:
        """Return the current inverse temperature and bias."""
        return self.log_scale.exp().item(), None if self.bias is None else self.bias.item()

    def set_of(self, images: Tensor, weight: float) -> LossInputs:
        """Combine images with this term's temperature and bias."""
        scale = self.log_scale.exp()
        return LossInputs(images, scale, scale.new_zeros(()) if self.bias is None else self.bias, weight)

    def losses(
        self, sets: list[LossInputs], texts: Tensor, labels: Tensor | None, duplicate_ids: Tensor | None, shard: Shard
    ) -> Losses:
        """Return the weighted sum of the base loss over all sets, and each loss detached and summed over processes."""
        total, losses = self.loss.losses(sets, Targets(texts, labels, duplicate_ids, self.form, shard))
        return total, list(shard.total(torch.stack(losses)))


def smoothing_slope(images: LossInputs, texts: Tensor, smoothing: float, shard: Shard = WHOLE) -> Tensor:
    """Return the term that label smoothing adds to a sigmoid or softmax loss (after Szegedy et al., 2016).

    The target of a matching pair becomes ``1 - s`` and that of every other text ``s / (B - 1)``. Both losses are linear
    in their targets, so smoothing adds ``s/B sum_i (l_ii - mean_{j != i} l_ij)`` for logits ``l``, without a B × B
    tensor. The term is the same in both directions of the softmax, so it enters their mean once.
    """
    everything = shard.gather(texts)
    own = torch.linalg.vecdot(images.images, texts)
    others = (images.images @ everything.sum(0) - own) / max(1, len(everything) - 1)  # no others in a batch of one
    return smoothing * images.scale * (own - others).sum() / len(everything) * (len(everything) > 1)


class Objective(nn.Module, ABC):
    """Base class of objectives: maps the raw embeddings of a batch to a loss; may have parameters.

    `recollect.training.train` accepts any subclass; recipes use `ContrastiveObjective` and `ContextObjective`.

    Attributes:
        needs: the extra arguments that `forward` requires: ``labels``, ``views``, ``context``.
    """

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def temperatures(self) -> list[nn.Parameter]:
        """Return the parameters without weight decay and with their own learning rate."""
        return list(self.parameters())

    def scale_and_bias(self) -> tuple[float, float | None] | None:
        """Return the inverse temperature and bias to save with the model; None if the loss has none."""
        return None

    @abstractmethod
    def forward(
        self,
        images: Float[Tensor, "batch width"],
        texts: Float[Tensor, "batch width"],
        *,
        labels: Int[Tensor, "batch ..."] | None = None,
        views: Float[Tensor, "batch width"] | None = None,
        context: Float[Tensor, "rows width"] | None = None,
        duplicate_ids: Int[Tensor, "batch columns"] | None = None,
        context_duplicate_ids: Int[Tensor, "rows columns"] | None = None,
        seed: int = 0,
        shard: Shard = WHOLE,
    ) -> tuple[Tensor, Report]:
        """Compute the loss of a batch of raw tower outputs.

        Args:
            images: raw image embeddings.
            texts: raw text embeddings; row i describes image i.
            labels: class of each sample; negative for none.
            views: raw embeddings of a second view of each image.
            context: raw embeddings of a separate batch to look up.
            duplicate_ids: rows that share a non-negative number in any column are copies of one sample and are not
                negatives of each other.
            context_duplicate_ids: the same for ``context``.
            seed: random seed; must differ between steps.
            shard: this process's part of the batch; the losses of all processes sum to the batch's loss.

        Returns:
            The loss of these rows, and a report on the whole batch with at least ``loss``.
        """


class ContrastiveObjective(Objective):
    """SigLIP, CLIP or UniCL with a learned temperature (and SigLIP's bias).

    Args:
        base: name of the loss in `OBJECTIVES`.
        scale: initial inverse temperature.
        bias: initial bias of SigLIP; the other losses have none.
        smoothing: share of each target given to the other texts of the batch; see `smoothing_slope`.
        form: see `sigmoid_contrastive`.

    Raises:
        ValueError: an unknown base, a scale that is not positive, smoothing outside [0, 1), or smoothing for a loss
            that does not support it (`smoothed`).
    """

    def __init__(
        self,
        base: Base = "sigmoid",
        *,
        scale: float = 10.0,
        bias: float = -10.0,
        smoothing: float = 0.0,
        form: Form = "auto",
    ) -> None:
        super().__init__()
        self.term = LossTerms(base, scale, bias, form)
        if not 0 <= smoothing < 1:
            raise ValueError(f"smoothing must be between 0 and 1, got {smoothing}")
        if smoothing and not self.term.loss.smooths:
            raise ValueError(f"smoothing is for {' and '.join(smoothed())}, not for {base!r}")
        self.smoothing = smoothing

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"labels"} if self.term.loss.labeled else ())

    def scale_and_bias(self) -> tuple[float, float | None]:
        return self.term.scale_and_bias()

    def forward(
        self,
        images: Float[Tensor, "batch width"],
        texts: Float[Tensor, "batch width"],
        *,
        labels: Int[Tensor, " batch"] | None = None,
        duplicate_ids: Int[Tensor, "batch columns"] | None = None,
        shard: Shard = WHOLE,
        **_: Any,
    ) -> tuple[Tensor, Report]:
        """See `Objective.forward`; only UniCL uses ``labels``.

        The report contains ``loss``, ``base_loss``, ``scale`` and, for SigLIP, ``bias``.
        """
        check_pairs(images, texts)
        own, unit_texts = self.term.set_of(unit(images), 1.0), unit(texts)
        loss, (whole,) = self.term.losses([own], unit_texts, labels, duplicate_ids, shard)
        if self.smoothing:
            slope = smoothing_slope(own, unit_texts, self.smoothing, shard)
            loss, whole = loss + slope, whole + shard.total(slope.detach())
        report = {"loss": whole, "base_loss": whole, "scale": self.term.log_scale.detach().exp()}
        if self.term.bias is not None:
            report["bias"] = self.term.bias.detach().clone()
        return loss, report
