"""The softmax losses: CLIP's, and UniCL's in which samples of one class are positives of each other."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recollect.objectives.tiles import (
    Form,
    accumulator,
    check_pairs,
    full_precision,
    no_autocast,
    resolve,
    tile_size,
    tiles,
)


def softmax_contrastive(
    images: Float[Tensor, "batch width"],
    texts: Float[Tensor, "batch width"],
    scale: Float[Tensor, ""],
    *,
    form: Form = "auto",
    tile: int | None = None,
) -> Float[Tensor, ""]:
    """Each image picks its text out of the batch, and each text its image (CLIP; LIxP, Eq. 1; prefix, Eq. 1–3).

    The mean of both cross-entropies of the logits ``scale x_i·t_j``. LIxP's Eq. 1 lacks its minus sign.

    Args:
        images: unit-norm image embeddings.
        texts: unit-norm text embeddings; row i describes image i.
        scale: inverse temperature.
        form: block-wise keeps no B × B tensor for the backward pass and has the same value and gradients.
        tile: edge of a tile of the block-wise form.

    Returns:
        The loss, a scalar, at least float32.

    Raises:
        ValueError: the shapes differ.
    """
    check_pairs(images, texts)
    return _contrastive(images, texts, scale, None, form, tile)


def label_contrastive(
    images: Float[Tensor, "batch width"],
    texts: Float[Tensor, "batch width"],
    labels: Int[Tensor, " batch"],
    scale: Float[Tensor, ""],
    *,
    form: Form = "auto",
    tile: int | None = None,
) -> Float[Tensor, ""]:
    """UniCL: every sample of the same class is a positive (Yang et al., 2022; prefix conditioning, section 3.1).

    ``-1/B sum_i 1/|P(i)| sum_{k in P(i)} log softmax_j(scale x_i·t_j)[k]``, mean of both directions. With labels that
    are all different it is `softmax_contrastive`.

    Args:
        images: unit-norm image embeddings.
        texts: unit-norm text embeddings; row i describes image i.
        labels: class of each sample; a negative one marks a caption, whose only positive is its own pair.
        scale: inverse temperature.
        form: block-wise keeps no B × B tensor for the backward pass and has the same value and gradients.
        tile: edge of a tile of the block-wise form.

    Returns:
        The loss, a scalar, at least float32.

    Raises:
        ValueError: the shapes differ, or there is not one label for each row.
    """
    check_pairs(images, texts)
    if labels.shape != images.shape[:1]:
        raise ValueError(f"need one label for each of {len(images)} rows, got labels of shape {tuple(labels.shape)}")
    alone = -1 - torch.arange(len(labels), device=labels.device)
    return _contrastive(images, texts, scale, torch.where(labels < 0, alone, labels), form, tile)


def _contrastive(
    images: Tensor, texts: Tensor, scale: Tensor, groups: Tensor | None, form: Form, tile: int | None
) -> Tensor:
    with no_autocast(images.device):
        images, texts = full_precision(images), full_precision(texts)
        if resolve(form, len(images)) == "dense":
            return _dense(images, texts, scale, groups)
        return _Tiled.apply(images, texts, scale, groups, tile or tile_size(images.device))


def _dense(images: Tensor, texts: Tensor, scale: Tensor, groups: Tensor | None) -> Tensor:
    logits = scale * (images @ texts.T)
    partition = logits.logsumexp(1).sum() + logits.logsumexp(0).sum()
    if groups is None:
        return (partition - 2 * logits.diagonal().sum()) / (2 * len(images))
    positives = (groups[:, None] == groups[None, :]).to(logits.dtype)
    # A class is as large seen from its rows as from its columns, so both directions share one weight.
    weights = positives / positives.sum(1, keepdim=True)
    return (partition - 2 * (weights * logits).sum()) / (2 * len(images))


def _group_sizes(groups: Tensor) -> Tensor:
    _, inverse, counts = groups.unique(return_inverse=True, return_counts=True)
    return counts[inverse]


def _positives(groups: Tensor | None, sizes: Tensor | None, rows: slice, columns: slice) -> Tensor | None:
    """Weights 1/|P(i)| of the positives in a tile, or None where only its diagonal has any."""
    if groups is None or sizes is None:
        return None
    same = groups[rows, None] == groups[None, columns]
    return same / sizes[rows, None]


class _Tiled(torch.autograd.Function):
    """Row and column statistics from one pass over the tiles; the backward pass computes each tile again."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, texts: Tensor, scale: Tensor, groups: Tensor | None, tile: int) -> Tensor:
        rows_total = images.new_full((2, len(images)), -torch.inf)  # log-sum-exp of each row, and of each column
        sizes = None if groups is None else _group_sizes(groups).to(images.dtype)
        attraction = accumulator(images)
        for rows in tiles(len(images), tile):
            scaled = images[rows] * scale
            for columns in tiles(len(texts), tile):
                logits = scaled @ texts[columns].T
                rows_total[0, rows] = torch.logaddexp(rows_total[0, rows], logits.logsumexp(1))
                rows_total[1, columns] = torch.logaddexp(rows_total[1, columns], logits.logsumexp(0))
                weights = _positives(groups, sizes, rows, columns)
                if weights is not None:
                    attraction += torch.dot(weights.to(logits.dtype).flatten(), logits.flatten())
                elif rows == columns:
                    attraction += logits.diagonal().sum()
        ctx.save_for_backward(images, texts, scale, groups, sizes, rows_total)
        ctx.tile = tile
        partition = rows_total.sum(dtype=attraction.dtype)
        return ((partition - 2 * attraction) / (2 * len(images))).to(images.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        images, texts, scale, groups, sizes, totals = ctx.saved_tensors
        with no_autocast(images.device):
            image_gradient, text_gradient = torch.zeros_like(images), torch.zeros_like(texts)
            scale_gradient = accumulator(scale)
            for rows in tiles(len(images), ctx.tile):
                scaled = images[rows] * scale  # as in the forward pass: equal products of equal factors
                for columns in tiles(len(texts), ctx.tile):
                    logits = scaled @ texts[columns].T
                    slope = (logits - totals[0, rows, None]).exp_()
                    slope += (logits - totals[1, None, columns]).exp_()
                    weights = _positives(groups, sizes, rows, columns)
                    if weights is not None:
                        slope -= 2 * weights
                    elif rows == columns:
                        slope.diagonal().sub_(2)
                    scale_gradient += torch.linalg.vecdot(slope, logits).sum(dtype=scale_gradient.dtype)
                    image_gradient[rows].addmm_(slope, texts[columns])
                    text_gradient[columns].addmm_(slope.T, scaled)
            factor = gradient / (2 * len(images))
            return (
                image_gradient.mul_(factor * scale),
                text_gradient.mul_(factor),
                (scale_gradient / scale * factor).to(scale.dtype),
                None,
                None,
            )
