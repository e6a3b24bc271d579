"""The context objective: a base loss on embeddings and on their contextualized versions (LIxP, Eq. 6)."""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recollect.objectives.base import Base, LossTerms, Objective, Report, logarithm, unit
from recollect.objectives.context import Attended, attend
from recollect.objectives.shards import WHOLE, Shard, find_copies
from recollect.objectives.terms import LossInputs
from recollect.objectives.tiles import Form, check_pairs, full_precision


class BatchRows(NamedTuple):
    """This process's part of a batch; texts and ``unit_images`` are unit-norm."""

    images: Tensor
    unit_images: Tensor
    texts: Tensor
    labels: Tensor | None
    duplicate_ids: Tensor | None
    shard: Shard

    def numbers(self) -> Tensor:
        """Return the index of each row in the whole batch."""
        return self.shard.first(len(self.images)) + torch.arange(len(self.images), device=self.images.device)


class ContextObjective(Objective):
    """SigLIxP and CLIxP: ``alpha L(x, t; tau_1) + (1 - alpha) L(x_ctx, t; tau_2)`` (LIxP, Eq. 6).

    ``recollect_papers.lixp.ablations`` has a subclass for the paper's ablations.

    Args:
        base: name of the loss L in `OBJECTIVES`.
        alpha: weight of the loss without context; 0.9 in the paper, 0.95 in its longest runs.
        scale: initial tau_1 and tau_2.
        bias: initial value of both biases of the sigmoid loss.
        tau_context: initial value; 1 in the paper (uniform attention), smaller for short runs.
        form: see `contextualize`.

    Raises:
        ValueError: alpha outside [0, 1], or a temperature that is not positive.
    """

    context_term: LossTerms | None

    def __init__(
        self,
        base: Base = "sigmoid",
        alpha: float = 0.9,
        *,
        scale: float = 10.0,
        bias: float = -10.0,
        tau_context: float = 1.0,
        form: Form = "auto",
    ) -> None:
        super().__init__()
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha must be between 0 and 1, got {alpha}")
        self.alpha = alpha
        self.form: Form = form
        self.term = LossTerms(base, scale, bias, form)
        self.context_term = LossTerms(base, scale, bias, form)
        self.log_tau = logarithm(tau_context)

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
        """See `Objective.forward`.

        Copies (``duplicate_ids``) are excluded from each other's context too. The report contains ``loss``,
        ``base_loss``, ``context_loss``, ``scale``, ``scale_context``, ``tau_context``, ``bias``, ``bias_context`` and
        ``effective_neighbors``.

        Raises:
            ValueError: the shapes differ, labels are missing, or the batch has fewer than two rows.
        """
        check_pairs(images, texts)
        rows = BatchRows(full_precision(images), unit(images), unit(texts), labels, duplicate_ids, shard)
        keys, values = shard.gather(rows.unit_images), shard.gather(rows.images)
        copies = find_copies(duplicate_ids, shard)
        attended = attend(
            rows.unit_images, keys, values, self.sharpness(rows), rows.numbers(), copies=copies, form=self.form
        )
        return self.two_losses(rows, [self.term.set_of(rows.unit_images, self.alpha)], attended)

    def sharpness(self, rows: BatchRows) -> Tensor:
        """Return the factor of the attention logits, ``1 / (tau_context sqrt(d))``."""
        return 1 / (self.log_tau.exp() * math.sqrt(rows.images.shape[1]))

    def two_losses(self, rows: BatchRows, sets: list[LossInputs], attended: Attended) -> tuple[Tensor, Report]:
        """Return the weighted losses of the embeddings ``sets`` and their attended values (Eq. 6), and the report."""
        assert self.context_term is not None, "this objective has no context loss"
        sets = [*sets, self.context_term.set_of(unit(attended.values), 1 - self.alpha)]
        loss, parts = self.term.losses(sets, rows.texts, rows.labels, rows.duplicate_ids, rows.shard)
        whole = sum((one.weight * part for one, part in zip(sets, parts, strict=True)), torch.zeros_like(parts[0]))
        return loss, self.report(whole, torch.stack(parts[:-1]).mean(), parts[-1], attended, rows.shard)

    @torch.no_grad()
    def report(self, loss: Tensor, base: Tensor, context: Tensor | None, attended: Attended, shard: Shard) -> Report:
        """Return the report of `forward`; ``context`` is None if the objective has no context loss."""
        report = {"loss": loss, "base_loss": base, "scale": self.term.log_scale.exp()}
        report["tau_context"] = self.log_tau.exp()
        report["effective_neighbors"] = shard.total(attended.entropy.exp().mean()) / shard.size
        if self.term.bias is not None:
            report["bias"] = self.term.bias.detach().clone()
        if self.context_term is not None and context is not None:
            report["context_loss"] = context
            report["scale_context"] = self.context_term.log_scale.exp()
            if self.context_term.bias is not None:
                report["bias_context"] = self.context_term.bias.detach().clone()
        return report
