"""The pairwise sigmoid loss of SigLIP (Zhai et al., 2023; LIxP, Eq. 2)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

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


class SigmoidTerm(NamedTuple):
    """One set of images that is held against the texts, with its own temperature, bias and weight."""

    images: Tensor
    scale: Tensor
    bias: Tensor
    weight: float


def sigmoid_contrastive(
    images: Float[Tensor, "batch width"],
    texts: Float[Tensor, "batch width"],
    scale: Float[Tensor, ""],
    bias: Float[Tensor, ""],
    *,
    form: Form = "auto",
    tile: int | None = None,
) -> Float[Tensor, ""]:
    """Every image against every text, each pair judged by itself (LIxP, Eq. 2, with SigLIP's sign).

    ``-1/B sum_ij log sigmoid(z_ij (scale x_i·t_j + bias))`` with ``z = +1`` for pairs and ``-1`` elsewhere. The paper
    prints the other sign inside; with its bias of -10 random embeddings would then start at a loss of about ``10 B``.

    Args:
        images: unit-norm image embeddings.
        texts: unit-norm text embeddings; row i describes image i.
        scale: inverse temperature, 10 at the start in the paper.
        bias: -10 at the start; about ``-log B`` for small batches.
        form: block-wise keeps no B × B tensor for the backward pass and has the same value and gradients.
        tile: edge of a tile of the block-wise form.

    Returns:
        The loss, a scalar, at least float32.

    Raises:
        ValueError: the shapes differ.
    """
    check_pairs(images, texts)
    total, _ = sigmoid_sides([SigmoidTerm(images, scale, bias, 1.0)], texts, form=form, tile=tile)
    return total


def sigmoid_sides(
    sides: Sequence[SigmoidTerm], texts: Float[Tensor, "batch width"], *, form: Form = "auto", tile: int | None = None
) -> tuple[Float[Tensor, ""], list[Float[Tensor, ""]]]:
    """The weighted sum of several sigmoid losses against the same texts, and each of them without graph.

    Together they keep one gradient of the texts for the backward pass instead of one for each loss.
    """
    with no_autocast(texts.device):
        texts = full_precision(texts)
        sides = [side._replace(images=full_precision(side.images)) for side in sides]
        if resolve(form, len(texts)) == "dense":
            losses = [_dense(side, texts) for side in sides]
            total = sum((side.weight * loss for side, loss in zip(sides, losses, strict=True)), texts.new_zeros(()))
            return total, [loss.detach() for loss in losses]
        flat = [tensor for side in sides for tensor in (side.images, side.scale, side.bias)]
        weights = tuple(side.weight for side in sides)
        total, *parts = _Tiled.apply(tile or tile_size(texts.device), weights, texts, *flat)
        return total, parts


def _dense(side: SigmoidTerm, texts: Tensor) -> Tensor:
    logits = side.scale * (side.images @ texts.T) + side.bias
    # log sigmoid(-l) = -softplus(l) and log sigmoid(l) = l - softplus(l): stable, and no matrix of signs.
    return (functional.softplus(logits).sum() - logits.diagonal().sum()) / len(texts)


class _Tiled(torch.autograd.Function):
    """Forms the gradients in the tile of the forward pass: nothing of size B × B is ever kept."""

    @staticmethod
    def forward(ctx: Any, tile: int, weights: tuple[float, ...], texts: Tensor, *flat: Tensor) -> tuple[Tensor, ...]:
        wanted = any(ctx.needs_input_grad)
        text_gradient = torch.zeros_like(texts) if wanted else None
        total = texts.new_zeros(())
        losses: list[Tensor] = []
        saved: list[Tensor] = []
        for index, weight in enumerate(weights):
            images, scale, bias = flat[3 * index : 3 * index + 3]
            factor = weight / len(texts)
            gradients = (torch.zeros_like(images), accumulator(scale), accumulator(bias)) if wanted else None
            loss = accumulator(texts)
            for rows in tiles(len(images), tile):
                for columns in tiles(len(texts), tile):
                    similarity = images[rows] @ texts[columns].T
                    logits = similarity * scale + bias
                    loss += functional.softplus(logits).sum(dtype=loss.dtype)
                    if rows == columns:
                        loss -= logits.diagonal().sum()
                    if gradients is None or text_gradient is None:
                        continue
                    slope = logits.sigmoid_()
                    if rows == columns:
                        slope.diagonal().sub_(1)
                    gradients[1].add_(torch.linalg.vecdot(slope, similarity).sum(dtype=loss.dtype))
                    gradients[2].add_(slope.sum(dtype=loss.dtype))
                    gradients[0][rows].addmm_(slope, texts[columns])
                    text_gradient[columns].addmm_(slope.T, images[rows] * (scale * factor))
            losses.append((loss / len(texts)).to(texts.dtype))
            total = total + weight * losses[-1]
            if gradients is not None:
                of_images, of_scale, of_bias = gradients
                saved += (of_images.mul_(scale * factor), (of_scale * factor).to(scale), (of_bias * factor).to(bias))
        if text_gradient is not None:
            ctx.save_for_backward(text_gradient, *saved)
        ctx.mark_non_differentiable(*losses)
        return total, *losses

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(gradient * saved for saved in ctx.saved_tensors)
