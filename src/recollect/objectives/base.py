"""The base objectives as modules that own their temperature and bias: CLIP, SigLIP, UniCL."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from recollect.objectives.shards import WHOLE, Shard
from recollect.objectives.sigmoid import SIGMOID
from recollect.objectives.softmax import LABEL, SOFTMAX
from recollect.objectives.terms import BaseLoss, ImageSet, Losses, Partners
from recollect.objectives.tiles import Form, check_pairs, full_precision

OBJECTIVES: Mapping[str, BaseLoss] = {
    "sigmoid": SIGMOID,
    "softmax": SOFTMAX,
    "label": LABEL,
}
"""Every base loss by name; one line adds one."""


def smoothed() -> list[str]:
    """The base losses that label smoothing is defined for."""
    return [name for name, loss in OBJECTIVES.items() if loss.smooths]


Base = str
"""The name of a base loss."""

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
    """Temperature and bias of one loss term, for whichever base.

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
        """The temperature and bias as they are now."""
        return self.log_scale.exp().item(), None if self.bias is None else self.bias.item()

    def set_of(self, images: Tensor, weight: float, log_scale: Tensor | None = None) -> ImageSet:
        """These images under this term's temperature (or another, where temperatures are tied)."""
        scale = (self.log_scale if log_scale is None else log_scale).exp()
        return ImageSet(images, scale, scale.new_zeros(()) if self.bias is None else self.bias, weight)

    def losses(
        self, sets: list[ImageSet], texts: Tensor, labels: Tensor | None, marks: Tensor | None, shard: Shard
    ) -> Losses:
        """The weighted sum of the base loss over several sets of images, and each, of all processes, without graph."""
        total, losses = self.loss.losses(sets, Partners(texts, labels, marks, self.form, shard))
        return total, list(shard.total(torch.stack(losses)))


def smoothing_slope(images: ImageSet, texts: Tensor, smoothing: float, shard: Shard = WHOLE) -> Tensor:
    """What label smoothing adds to a contrastive loss, sigmoid or softmax (after Szegedy et al., 2016).

    The target of a pair becomes ``1 - s`` and that of each other text of the batch ``s / (B - 1)``. Both losses are
    linear in their targets, so that this adds ``s/B sum_i (l_ii - mean_{j != i} l_ij)`` with the logits ``l``: no B × B
    tensor is needed. It is the same for texts over images, so softmax, the mean of both directions, has it once.
    """
    everything = shard.gather(texts)
    own = torch.linalg.vecdot(images.images, texts)
    others = (images.images @ everything.sum(0) - own) / (len(everything) - 1)
    return smoothing * images.scale * (own - others).sum() / len(everything)


class Objective(nn.Module, ABC):
    """What training minimises: from the raw embeddings of a batch to a loss, with parameters of its own.

    `recollect.training.train` takes any; `ContrastiveObjective` and `ContextObjective` are those of the recipes.

    Attributes:
        needs: what else than images and texts `forward` must be given: ``labels``, ``views``, ``context``.
    """

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def temperatures(self) -> list[nn.Parameter]:
        """Parameters that take no weight decay and a learning rate of their own."""
        return list(self.parameters())

    def scale_and_bias(self) -> tuple[float, float | None] | None:
        """The inverse temperature and bias that are saved with the model; None where the loss has none."""
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
        marks: Int[Tensor, "batch marks"] | None = None,
        context_marks: Int[Tensor, "rows marks"] | None = None,
        seed: int = 0,
        shard: Shard = WHOLE,
    ) -> tuple[Tensor, Report]:
        """The loss of a batch of raw tower outputs.

        Args:
            images: raw image embeddings.
            texts: raw text embeddings; row i describes image i.
            labels: the class of each sample; negative where it has none.
            views: raw embeddings of a second view of each image.
            context: raw embeddings of a separate batch to attend to.
            marks: rows that share a number (not negative) in a column are copies of one sample.
            context_marks: the same of ``context``.
            seed: of whatever is random; each step has its own.
            shard: which rows of the batch these are; the losses of all processes add up to that of the batch.

        Returns:
            The loss (of these rows) and a report (of the batch), which has at least ``loss``.
        """


class ContrastiveObjective(Objective):
    """SigLIP, CLIP or UniCL with a learned temperature (and SigLIP's bias).

    Args:
        base: which loss.
        scale: inverse temperature at the start.
        bias: SigLIP's bias at the start; the other losses have none.
        smoothing: share of a pair's target that the batch's other texts get; see `smoothing_slope`.
        form: see `sigmoid_contrastive`.

    Raises:
        ValueError: an unknown base, a scale that is not positive, or a smoothing outside [0, 1) or of another
            loss than `smoothed` names.
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
            raise ValueError(f"smoothing must lie between 0 and 1, got {smoothing}")
        if smoothing and not self.term.loss.smooths:
            raise ValueError(f"smoothing is for {' and '.join(smoothed())}, not for {base!r}")
        self.smoothing = smoothing

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"labels"} if self.term.loss.labelled else ())

    def scale_and_bias(self) -> tuple[float, float | None]:
        return self.term.scale_and_bias()

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
        own, unit_texts = self.term.set_of(unit(images), 1.0), unit(texts)
        loss, (whole,) = self.term.losses([own], unit_texts, labels, marks, shard)
        if self.smoothing:
            slope = smoothing_slope(own, unit_texts, self.smoothing, shard)
            loss, whole = loss + slope, whole + shard.total(slope.detach())
        report = {"loss": whole, "base_loss": whole, "scale": self.term.log_scale.detach().exp()}
        if self.term.bias is not None:
            report["bias"] = self.term.bias.detach().clone()
        return loss, report
