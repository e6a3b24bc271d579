"""Softmax losses: CLIP, and UniCL, where samples of the same class are positives of each other."""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recollect.objectives.shards import WHOLE, Copies, Shard, find_copies
from recollect.objectives.terms import BaseLoss, Losses, LossInputs, Targets, weighted_sum
from recollect.objectives.tiles import (
    Form,
    accumulator,
    check_pairs,
    full_precision,
    no_autocast,
    resolve,
    scalar,
    tile_size,
    tiles,
)


def softmax_contrastive(
    images: Float[Tensor, "batch width"],
    texts: Float[Tensor, "batch width"],
    scale: Float[Tensor, "..."] | float,
    *,
    duplicate_ids: Int[Tensor, "batch columns"] | None = None,
    form: Form = "auto",
    tile: int | None = None,
    shard: Shard = WHOLE,
) -> Float[Tensor, ""]:
    """CLIP: classify each image's text among the batch, and each text's image (LIxP, Eq. 1; prefix, Eq. 1–3).

    The mean of both cross-entropies of the logits ``scale x_i·t_j``. LIxP's Eq. 1 lacks the minus sign.

    Args:
        images: unit-norm image embeddings.
        texts: unit-norm text embeddings; row i describes image i.
        scale: inverse temperature, a number or a tensor with one entry.
        duplicate_ids: rows that share a non-negative number in any column are copies of one sample and are not
            negatives of each other.
        form: blockwise keeps no B × B tensor for the backward pass; value and gradients are the same.
        tile: edge length of a tile in the blockwise form.
        shard: this process's part of the batch; the losses of all processes sum to the batch's loss.

    Returns:
        The loss, a scalar, at least float32.

    Raises:
        ValueError: the shapes differ.
    """
    check_pairs(images, texts)
    return _contrastive(images, texts, scale, None, duplicate_ids, form, tile, shard)


def label_contrastive(
    images: Float[Tensor, "batch width"],
    texts: Float[Tensor, "batch width"],
    labels: Int[Tensor, " batch"],
    scale: Float[Tensor, "..."] | float,
    *,
    duplicate_ids: Int[Tensor, "batch columns"] | None = None,
    form: Form = "auto",
    tile: int | None = None,
    shard: Shard = WHOLE,
) -> Float[Tensor, ""]:
    """UniCL: every sample of the same class is a positive (Yang et al., 2022; prefix conditioning, section 3.1).

    ``-1/B sum_i 1/|P(i)| sum_{k in P(i)} log softmax_j(scale x_i·t_j)[k]``, averaged over both directions. Equal to
    `softmax_contrastive` if all labels differ. See there for the other arguments.

    Args:
        labels: class of each sample; negative for captions, whose only positive is their own pair.
        duplicate_ids: see `softmax_contrastive`; copies of the same class remain positives.

    Raises:
        ValueError: the shapes differ, or the number of labels is not the number of rows.
    """
    check_pairs(images, texts)
    if labels.shape != images.shape[:1]:
        raise ValueError(f"need one label for each of {len(images)} rows, got labels of shape {tuple(labels.shape)}")
    labels = shard.gather(labels)
    unique = -1 - torch.arange(len(labels), device=labels.device)
    return _contrastive(images, texts, scale, torch.where(labels < 0, unique, labels), duplicate_ids, form, tile, shard)


def _contrastive(
    images: Tensor,
    texts: Tensor,
    scale: Tensor | float,
    groups: Tensor | None,
    duplicate_ids: Tensor | None,
    form: Form,
    tile: int | None,
    shard: Shard,
) -> Tensor:
    """Compute the UniCL loss for ``groups``, the classes of the whole batch, or the CLIP loss if None."""
    with no_autocast(images.device):
        images, texts = full_precision(images), shard.gather(full_precision(texts))
        scale, copies = scalar(scale, images), find_copies(duplicate_ids, shard, groups)
        of_rows, of_columns = log_sums(images, texts, scale, copies, form, tile)
        first = shard.first(len(images))
        own = slice(first, first + len(images))
        # Each process adds only its own columns, so every column counts once.
        wide = accumulator(images).dtype
        partition = of_rows.sum(dtype=wide) + shard.log_sum(of_columns)[own].sum(dtype=wide)
        attraction = scale * torch.linalg.vecdot(images, _positives(texts, groups, own)).sum(dtype=wide)
        # A class has as many rows as columns, so the attraction is the same in both directions.
        return ((partition - 2 * attraction) / (2 * len(texts))).to(images.dtype)


def _positives(texts: Tensor, groups: Tensor | None, own: slice) -> Tensor:
    """Return the mean positive of each row in ``own``: its text, or the mean text of its class."""
    if groups is None:
        return texts[own]
    _, inverse, counts = groups.unique(return_inverse=True, return_counts=True)
    means = texts.new_zeros(len(counts), texts.shape[1]).index_add(0, inverse, texts) / counts[:, None]
    return means[inverse[own]]


def log_sums(
    images: Tensor, texts: Tensor, scale: Tensor, copies: Copies | None, form: Form, tile: int | None
) -> tuple[Tensor, Tensor]:
    """Return ``log sum exp`` of the logits over columns (per row) and over these rows (per column), without copies."""
    if resolve(form, len(texts)) == "dense":
        logits = scale * (images @ texts.T)
        if copies is not None:
            logits = logits.masked_fill(copies.among(slice(0, len(images)), slice(0, len(texts))), -torch.inf)
        # A column that contains only copies contributes nothing; at -inf its gradient would be NaN.
        columns = logits if copies is None else logits.masked_fill(logits.isneginf().all(0), _LOG_ZERO)
        return logits.logsumexp(1), columns.logsumexp(0)
    return _LogSums.apply(images, texts, scale, copies, tile or tile_size(images.device))


_LOG_ZERO = -1e30  # log(0) as a finite number, since inf - inf is NaN


class _LogSums(torch.autograd.Function):
    """Row and column log-sums in one pass over the tiles; the backward pass recomputes each tile."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, texts: Tensor, scale: Tensor, copies: Copies | None, tile: int
    ) -> tuple[Tensor, Tensor]:
        of_rows = images.new_full((len(images),), _LOG_ZERO)
        of_columns = images.new_full((len(texts),), _LOG_ZERO)
        for rows in tiles(len(images), tile):
            scaled = images[rows] * scale
            for columns in tiles(len(texts), tile):
                logits = scaled @ texts[columns].T
                if copies is not None:
                    logits.masked_fill_(copies.among(rows, columns), _LOG_ZERO)
                of_rows[rows] = torch.logaddexp(of_rows[rows], logits.logsumexp(1))
                of_columns[columns] = torch.logaddexp(of_columns[columns], logits.logsumexp(0))
        ctx.save_for_backward(images, texts, scale, of_rows, of_columns)
        ctx.copies, ctx.tile = copies, tile
        return of_rows, of_columns

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, row_gradient: Tensor, column_gradient: Tensor) -> tuple[Tensor | None, ...]:
        images, texts, scale, of_rows, of_columns = ctx.saved_tensors
        with no_autocast(images.device):
            image_gradient, text_gradient = torch.zeros_like(images), torch.zeros_like(texts)
            for rows in tiles(len(images), ctx.tile):
                scaled = images[rows] * scale  # the same product as in the forward pass, bit for bit
                for columns in tiles(len(texts), ctx.tile):
                    logits = scaled @ texts[columns].T
                    slope = (logits - of_rows[rows, None]).exp_().mul_(row_gradient[rows, None])
                    slope.addcmul_((logits.sub_(of_columns[None, columns])).exp_(), column_gradient[None, columns])
                    if ctx.copies is not None:
                        slope.masked_fill_(ctx.copies.among(rows, columns), 0.0)
                    image_gradient[rows].addmm_(slope, texts[columns])
                    text_gradient[columns].addmm_(slope.T, scaled)
            # sum_ij slope_ij x_i·t_j, reusing each row's sum over j
            wide = accumulator(scale).dtype
            scale_gradient = torch.linalg.vecdot(image_gradient, images).sum(dtype=wide).to(scale.dtype)
            return image_gradient.mul_(scale), text_gradient, scale_gradient, None, None


def _losses(sets: list[LossInputs], targets: Targets) -> Losses:
    texts, _, ids, form, shard = targets
    loss = partial(softmax_contrastive, duplicate_ids=ids, form=form, shard=shard)
    return weighted_sum(sets, [loss(one.images, texts, one.scale) for one in sets])


def _label_losses(sets: list[LossInputs], targets: Targets) -> Losses:
    texts, labels, ids, form, shard = targets
    if labels is None:
        raise ValueError("the 'label' objective needs labels; use -1 for samples that have none")
    loss = partial(label_contrastive, duplicate_ids=ids, form=form, shard=shard)
    return weighted_sum(sets, [loss(one.images, texts, labels, one.scale) for one in sets])


SOFTMAX = BaseLoss(_losses, "CLIP", "CLIxP", smooths=True)
"""CLIP's softmax."""

LABEL = BaseLoss(_label_losses, "UniCL", "UniCL with context", labeled=True)
"""UniCL's softmax over classes."""
