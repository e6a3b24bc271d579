"""The pairwise sigmoid loss of SigLIP (Zhai et al., 2023; LIxP, Eq. 2)."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from recollect.objectives.shards import WHOLE, Copies, Shard, find_copies, own_diagonal
from recollect.objectives.terms import BaseLoss, Losses, LossInputs, Targets, weighted_sum
from recollect.objectives.tiles import (
    Form,
    accumulator,
    add_up,
    check_pairs,
    full_precision,
    no_autocast,
    resolve,
    scalar,
    tile_size,
    tiles,
)


def sigmoid_contrastive(
    images: Float[Tensor, "batch width"],
    texts: Float[Tensor, "batch width"],
    scale: Float[Tensor, "..."] | float,
    bias: Float[Tensor, "..."] | float,
    *,
    duplicate_ids: Int[Tensor, "batch columns"] | None = None,
    form: Form = "auto",
    tile: int | None = None,
    shard: Shard = WHOLE,
) -> Float[Tensor, ""]:
    """SigLIP: a binary decision for every (image, text) pair (LIxP, Eq. 2, with SigLIP's sign).

    ``-1/B sum_ij log sigmoid(z_ij (scale x_i·t_j + bias))`` with ``z = +1`` for pairs and ``-1`` elsewhere. LIxP prints
    the opposite sign inside, but with its bias of -10, random embeddings would then start at a loss of about ``10 B``.

    Args:
        images: unit-norm image embeddings.
        texts: unit-norm text embeddings; row i describes image i.
        scale: inverse temperature, a number or a tensor with one entry; 10 at the start in the paper.
        bias: -10 at the start in the paper; about ``-log B`` for small batches.
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
    sets = [LossInputs(images, scalar(scale, images), scalar(bias, images), 1.0)]
    total, _ = sigmoid_sets(sets, texts, find_copies(duplicate_ids, shard), form=form, tile=tile, shard=shard)
    return total


def sigmoid_sets(
    sets: Sequence[LossInputs],
    texts: Float[Tensor, "batch width"],
    copies: Copies | None = None,
    *,
    form: Form = "auto",
    tile: int | None = None,
    shard: Shard = WHOLE,
) -> tuple[Float[Tensor, ""], list[Float[Tensor, ""]]]:
    """Return the weighted sum of several sigmoid losses against the same texts, and each loss detached.

    Computing them together stores one gradient of the texts for the backward pass instead of one per loss.
    """
    with no_autocast(texts.device):
        first = shard.first(len(texts))
        texts = shard.gather(full_precision(texts))
        sets = [member._replace(images=full_precision(member.images)) for member in sets]
        if resolve(form, len(texts)) == "dense":
            losses = [_dense(member, texts, first, copies) for member in sets]
            return weighted_sum(sets, losses)
        flat = [tensor for member in sets for tensor in (member.images, member.scale, member.bias)]
        weights = tuple(member.weight for member in sets)
        total, *parts = _Tiled.apply(tile or tile_size(texts.device), weights, first, copies, texts, *flat)
        return total, parts


def _dense(member: LossInputs, texts: Tensor, first: int, copies: Copies | None) -> Tensor:
    logits = member.scale * (member.images @ texts.T) + member.bias
    attraction = logits.diagonal(first).sum()
    if copies is not None:
        logits = logits.masked_fill(copies.among(slice(0, len(logits)), slice(0, len(texts))), -torch.inf)
    # Stable and without a sign matrix: log sigmoid(-l) = -softplus(l) and log sigmoid(l) = l - softplus(l).
    return (functional.softplus(logits).sum() - attraction) / len(texts)


class _Tiled(torch.autograd.Function):
    """Computes the gradients during the forward pass, tile by tile, so no B × B tensor is stored."""

    @staticmethod
    def forward(
        ctx: Any, tile: int, weights: tuple[float, ...], first: int, copies: Copies | None, texts: Tensor, *flat: Tensor
    ) -> tuple[Tensor, ...]:
        text_gradient = torch.zeros_like(texts) if any(ctx.needs_input_grad) else None
        total = texts.new_zeros(())
        losses: list[Tensor] = []
        saved: list[Tensor] = []
        for number, weight in enumerate(weights):
            images, scale, bias = flat[3 * number : 3 * number + 3]
            member = LossInputs(images, scale, bias, weight / len(texts))
            loss, gradients = _one_set(member, texts, first, copies, tile, text_gradient)
            losses.append((loss / len(texts)).to(texts.dtype))
            total = total + weight * losses[-1]
            saved += gradients
        if text_gradient is not None:
            ctx.save_for_backward(text_gradient, *saved)
        ctx.mark_non_differentiable(*losses)
        return total, *losses

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, None, *(gradient * saved for saved in ctx.saved_tensors)


def _one_set(
    member: LossInputs, texts: Tensor, first: int, copies: Copies | None, tile: int, text_gradient: Tensor | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the sum of one set's terms and its weighted gradients; accumulate into ``text_gradient`` unless None."""
    images, scale, bias, factor = member
    image_gradient = torch.zeros_like(images)
    loss, bias_gradient = accumulator(texts), accumulator(texts)
    for rows in tiles(len(images), tile):
        scaled = images[rows] * scale
        for columns in tiles(len(texts), tile):
            logits = torch.addmm(bias.to(scaled.dtype), scaled, texts[columns].T)
            if copies is not None:
                logits.masked_fill_(copies.among(rows, columns), -torch.inf)
            own = own_diagonal(logits, first, rows, columns)
            loss += add_up(functional.softplus(logits), loss)
            if own is not None:
                loss -= own.sum(dtype=loss.dtype)
            if text_gradient is None:
                continue
            slope = logits.sigmoid_()
            if own is not None:
                own.sub_(1)
            bias_gradient += add_up(slope, loss)
            image_gradient[rows].addmm_(slope, texts[columns])
            text_gradient[columns].addmm_(slope.T, scaled, alpha=factor)
    if text_gradient is None:
        return loss, ()
    # sum_ij slope_ij x_i·t_j, reusing each row's sum over j
    scale_gradient = torch.linalg.vecdot(image_gradient, images).sum(dtype=loss.dtype)
    image_gradient.mul_(scale * factor)
    return loss, (image_gradient, (scale_gradient * factor).to(scale), (bias_gradient * factor).to(bias))


def _losses(sets: list[LossInputs], targets: Targets) -> Losses:
    copies = find_copies(targets.duplicate_ids, targets.shard)
    return sigmoid_sets(sets, targets.texts, copies, form=targets.form, shard=targets.shard)


SIGMOID = BaseLoss(_losses, "SigLIP", "SigLIxP", biased=True, smooths=True)
"""SigLIP's pairwise sigmoid."""
