"""The loss of an episode (EFSA, Eq. 1 and 2)."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recollect.efsa.options import EpisodeOptions


def negatives(texts: Int[Tensor, "queries k"], pairs: Bool[Tensor, "queries k"]) -> Bool[Tensor, "queries k k"]:
    """Return which captions are negatives of each image: those of other pairs with a different text.

    Args:
        texts: index of each image's caption; equal captions have equal indices.
        pairs: which images have a caption.
    """
    different = texts[:, :, None] != texts[:, None, :]
    return different & pairs[:, :, None] & pairs[:, None, :]


def episode_loss(
    images: Float[Tensor, "queries k width"],
    texts: Float[Tensor, "queries k width"],
    pairs: Bool[Tensor, "queries k"],
    negative: Bool[Tensor, "queries k k"],
    scale: float,
    options: EpisodeOptions,
) -> Float[Tensor, " queries"]:
    """Compute each query's ``1.7 · contrastive + 0.3 · hinge`` on its image-caption pairs.

    The contrastive loss is Eq. 1, the cross-entropy of each image's caption against its negatives. The hinge loss is
    ``1/N Σ_i Σ_{j≠i} max(0, m − s_ii + s_ij)``: Eq. 2 as printed would push positives away.

    Args:
        images: raw tower outputs.
        texts: raw tower outputs; text i of a query is the caption of its image i.
        pairs: which candidates are pairs; all others are ignored.
        negative: which captions are negatives of each image.
        scale: 1/τ of Eq. 1.
    """
    similarity = F.normalize(images, dim=2) @ F.normalize(texts, dim=2).transpose(1, 2)
    weight = negative.to(similarity.dtype)
    loss = _directed_loss(similarity, pairs, weight, scale, options)
    if options.direction == "symmetric":
        back = _directed_loss(similarity.transpose(1, 2), pairs, weight.transpose(1, 2), scale, options)
        loss = (loss + back) / 2
    return loss


def _directed_loss(
    similarity: Float[Tensor, "queries k k"],
    pairs: Bool[Tensor, "queries k"],
    weight: Float[Tensor, "queries k k"],
    scale: float,
    options: EpisodeOptions,
) -> Float[Tensor, " queries"]:
    own = similarity.diagonal(dim1=1, dim2=2)
    candidates = weight + torch.eye(similarity.shape[1], dtype=weight.dtype, device=weight.device)
    contrastive = (scale * similarity + candidates.log()).logsumexp(dim=2) - scale * own
    hinge = (weight * (options.margin - own[:, :, None] + similarity).clamp(min=0)).sum(dim=2)
    each = options.contrastive * contrastive + options.hinge * hinge
    return each.masked_fill(~pairs, 0).sum(dim=1) / pairs.sum(dim=1).clamp(min=1)
