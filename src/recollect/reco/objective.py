"""Loss of a fusion: three InfoNCE terms, in which pairs of the same caption need not be negatives."""

from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from recollect.objectives import softmax_contrastive
from recollect.objectives.base import LossTerms, Objective, unit
from recollect.objectives.shards import WHOLE, Shard

LossTerm = Literal["refined", "image", "text"]
"""The terms of Eq. 2: ``L(v̂, t̂)``, ``L(v̂, t)`` or ``L(v, t̂)``."""

Mask = Literal["none", "caption", "id", "both"]
"""Pairs of a batch that are not negatives of each other: none, those with equal captions (up to case and spaces), those
of the same picture, or both."""

TERMS: tuple[LossTerm, ...] = ("refined", "image", "text")
CLIP_SCALE = 1 / 0.07


class FusionObjective(Objective):
    """``L(v̂, t̂) + L(v̂, t) + L(v, t̂)``, each a symmetric InfoNCE, with one learned temperature (RECO, Eq. 2).

    Args:
        terms: terms of the loss.
        scale: initial inverse temperature.
    """

    def __init__(self, terms: tuple[LossTerm, ...] = TERMS, scale: float = CLIP_SCALE) -> None:
        super().__init__()
        self.terms = terms
        self.term = LossTerms("softmax", scale, 0.0, "auto")

    def scale_and_bias(self) -> tuple[float, float | None]:
        return self.term.scale_and_bias()

    def forward(
        self,
        images: Float[Tensor, "batch two_widths"],
        texts: Float[Tensor, "batch two_widths"],
        *,
        labels: Int64[Tensor, "batch keys"] | None = None,
        views: Tensor | None = None,
        context: Tensor | None = None,
        duplicate_ids: Tensor | None = None,
        context_duplicate_ids: Tensor | None = None,
        seed: int = 0,
        shard: Shard = WHOLE,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of a batch.

        Args:
            images: refined image embeddings, each followed by the model's own.
            texts: the same for texts.
            labels: pairs that share a number in any column are not negatives of each other (`softmax_contrastive`).
            views: unused, like the other arguments of `Objective.forward`.
            shard: this process's part of the batch; the losses of all processes sum to the batch's loss.

        Returns:
            The loss and a report with ``loss``, a ``…_loss`` for each term, and ``scale``.
        """
        images, texts = shard.gather(images), shard.gather(texts)
        labels = None if labels is None else shard.gather(labels)
        refined_images, own_images = (unit(half) for half in images.chunk(2, dim=1))
        refined_texts, own_texts = (unit(half) for half in texts.chunk(2, dim=1))
        pairs = {
            "refined": (refined_images, refined_texts),
            "image": (refined_images, own_texts),
            "text": (own_images, refined_texts),
        }
        scale = self.term.log_scale.exp()
        losses = {term: softmax_contrastive(*pairs[term], scale, duplicate_ids=labels) for term in self.terms}
        loss = torch.stack(list(losses.values())).sum()
        report = {f"{term}_loss": value.detach() for term, value in losses.items()}
        return loss / shard.size, {"loss": loss.detach(), **report, "scale": scale.detach()}
