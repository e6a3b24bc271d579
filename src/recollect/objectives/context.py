"""Look-up during training: replace each embedding by its attention over the others (LIxP, Eq. 5 and 8)."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from recollect.objectives.shards import Copies
from recollect.objectives.tiles import Form, accumulator, full_precision, no_autocast, resolve, scalar, tile_size, tiles


class Attended(NamedTuple):
    """Result of a look-up: the attended values and the entropy of each query's attention in nats."""

    values: Tensor
    entropy: Tensor


def contextualize(
    images: Float[Tensor, "batch width"],
    temperature: Float[Tensor, "..."] | float,
    *,
    form: Form = "auto",
    tile: int | None = None,
) -> Float[Tensor, "batch width"]:
    """Replace each image embedding by its attention over the others in the batch (LIxP, Eq. 8).

    ``norm( softmax_{j != i}( x_i·x_j / (temperature sqrt(d)) ) V )``: keys and queries are the normalized embeddings,
    values the raw ones; a row never sees itself. The gradient flows through queries, keys and values.

    Args:
        images: raw tower outputs, not normalized; at least two rows.
        temperature: tau_context > 0; small values sharpen the attention.
        form: blockwise keeps no B × B tensor for the backward pass; value and gradients are the same.
        tile: edge length of a tile in the blockwise form.

    Returns:
        Unit-norm contextualized embeddings, at least float32.

    Raises:
        ValueError: fewer than two rows.
    """
    images = full_precision(images)
    unit = functional.normalize(images, dim=1)
    own = torch.arange(len(images), device=images.device)
    scale = 1 / (temperature * math.sqrt(images.shape[1]))
    return functional.normalize(attend(unit, unit, images, scale, own, form=form, tile=tile).values, dim=1)


def attend(
    queries: Float[Tensor, "queries width"],
    keys: Float[Tensor, "keys width"],
    values: Float[Tensor, "keys value_width"],
    scale: Float[Tensor, "..."] | float,
    own: Int[Tensor, " queries"] | None = None,
    *,
    copies: Copies | None = None,
    form: Form = "auto",
    tile: int | None = None,
) -> Attended:
    """Return ``softmax(scale q·k) v`` over all keys except the query's own (LIxP, Eq. 5).

    Args:
        queries: embeddings to look up.
        keys: embeddings the queries are compared with.
        values: one per key, to be averaged.
        scale: factor of the logits, ``1 / (tau_context sqrt(d))``.
        own: index of the key hidden from each query, -1 for none; None hides no key.
        copies: further keys to hide; a query with no visible key gets zeros.
        form: blockwise keeps no queries × keys tensor for the backward pass.
        tile: edge length of a tile in the blockwise form.

    Returns:
        Attended values (queries, value_width) and the entropy of the attention (queries,), detached.

    Raises:
        ValueError: no key other than the query's own.
    """
    seen = len(keys) - (1 if own is not None else 0)
    if seen < 1:
        raise ValueError(f"a look-up needs at least one key that is not the query's own, got {len(keys)} keys")
    with no_autocast(queries.device):
        queries, keys, values = (full_precision(tensor) for tensor in (queries, keys, values))
        scale = scalar(scale, queries)
        if resolve(form, min(len(queries), len(keys))) == "dense":
            return _dense(queries, keys, values, scale, own, copies)
        return Attended(*_Tiled.apply(queries, keys, values, scale, own, copies, tile or tile_size(queries.device)))


def _dense(
    queries: Tensor, keys: Tensor, values: Tensor, scale: Tensor, own: Tensor | None, copies: Copies | None
) -> Attended:
    logits = scale * (queries @ keys.T)
    everything = slice(0, len(queries)), slice(0, len(keys))
    hidden = None if own is None else own[:, None] == torch.arange(len(keys), device=keys.device)
    if copies is not None:
        hidden = copies.among(*everything) if hidden is None else hidden | copies.among(*everything)
    if hidden is not None:
        # Mask before the softmax: subtracting the self term afterwards would cancel catastrophically.
        logits = logits.masked_fill(hidden, torch.finfo(logits.dtype).min / 2)
    weights = logits.softmax(1)
    if hidden is not None:
        weights = weights.masked_fill(hidden, 0.0)
    return Attended(weights @ values, torch.special.entr(weights.detach()).sum(1))


def _hidden_in_tile(
    own: Tensor | None, copies: Copies | None, rows: slice, columns: slice
) -> Tensor | tuple[Tensor, Tensor] | None:
    """Return an index of the hidden entries of a tile; None for the many tiles without any."""
    hidden: tuple[Tensor, Tensor] | None = None
    if own is not None:
        column = own[rows] - columns.start
        inside = ((column >= 0) & (column < columns.stop - columns.start)).nonzero().squeeze(1)
        hidden = (inside, column[inside]) if len(inside) else None
    if copies is None:
        return hidden
    mask = copies.among(rows, columns)
    if hidden is not None:
        mask[hidden] = True
    return mask


class _Tiled(torch.autograd.Function):
    """Attention as a streaming softmax; the backward pass recomputes each tile.

    Both passes compute a tile's logits by the same product and store peak and mass separately, since a log-sum-exp
    rounds at the size of the peak. At a small tau_context the logits are large, and the backward pass must subtract
    exactly the numbers that the forward pass added.
    """

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scale: Tensor,
        own: Tensor | None,
        copies: Copies | None,
        tile: int,
    ) -> tuple[Tensor, Tensor]:
        output = torch.empty(len(queries), values.shape[1], dtype=values.dtype, device=values.device)
        statistics = torch.empty(3, len(queries), dtype=queries.dtype, device=queries.device)
        for rows in tiles(len(queries), tile):
            scaled = queries[rows] * scale
            # Not -inf: a tile may contain only a query's own key, and inf - inf is NaN.
            peak = scaled.new_full((len(scaled),), torch.finfo(scaled.dtype).min / 2)
            mass, energy = torch.zeros_like(peak), torch.zeros_like(peak)
            mixed = torch.zeros_like(output[rows])
            for columns in tiles(len(keys), tile):
                logits = scaled @ keys[columns].T
                hidden = _hidden_in_tile(own, copies, rows, columns)
                if hidden is not None:
                    logits[hidden] = -torch.inf
                new_peak = torch.maximum(peak, logits.amax(1))
                logits -= new_peak[:, None]
                weights = logits.exp()
                if hidden is not None:
                    logits[hidden] = 0.0
                lower = peak - new_peak
                kept = lower.exp()
                energy = (energy + mass * lower) * kept + torch.linalg.vecdot(weights, logits)
                mass = mass * kept + weights.sum(1)
                mixed = torch.addmm(mixed * kept[:, None], weights, values[columns])
                peak = new_peak
            mass = mass.clamp_min(torch.finfo(mass.dtype).tiny)  # a query with no visible key gets zeros
            output[rows] = mixed / mass[:, None]
            statistics[:, rows] = torch.stack([peak, mass, energy / mass])
        ctx.save_for_backward(queries, keys, values, scale, own, output, statistics)
        ctx.copies, ctx.tile = copies, tile
        entropy = torch.where(
            statistics[0] > torch.finfo(scale.dtype).min / 4, statistics[1].log() - statistics[2], 0.0
        )
        ctx.mark_non_differentiable(entropy)
        return output, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, scale, own, output, statistics = ctx.saved_tensors
        with no_autocast(queries.device):
            query_gradient, key_gradient = torch.zeros_like(queries), torch.zeros_like(keys)
            value_gradient = torch.zeros_like(values)
            scale_gradient = accumulator(scale)
            row_tiles = partial(_weights, keys=keys, own=own, copies=ctx.copies, tile=ctx.tile)
            for rows in tiles(len(queries), ctx.tile):
                scaled, incoming, about = queries[rows] * scale, gradient[rows], statistics[:, rows, None]
                mean = torch.linalg.vecdot(incoming, output[rows])
                if _is_steep(scale):
                    # Same products as below, so the gradient of a row with a single neighbor is exactly zero.
                    mean = torch.zeros_like(mean)
                    for columns, weights, _ in row_tiles(scaled, about, rows):
                        mean += torch.linalg.vecdot(weights, incoming @ values[columns].T)
                for columns, weights, logits in row_tiles(scaled, about, rows):
                    value_gradient[columns].addmm_(weights.T, incoming)
                    slope = (incoming @ values[columns].T).sub_(mean[:, None]).mul_(weights)
                    # A row's slopes sum to zero up to rounding; centering the logits keeps that rounding error small.
                    centered = logits.sub_(about[2])
                    scale_gradient += torch.linalg.vecdot(slope, centered).sum(dtype=scale_gradient.dtype)
                    query_gradient[rows].addmm_(slope, keys[columns])
                    key_gradient[columns].addmm_(slope.T, scaled)
            scale_gradient = (scale_gradient / scale).to(scale.dtype)
            return query_gradient.mul_(scale), key_gradient, value_gradient, scale_gradient, None, None, None


def _is_steep(scale: Tensor) -> bool:
    """Return whether logits are so large that a row's mean must come from exactly the numbers it is subtracted from."""
    return float(scale) * torch.finfo(scale.dtype).eps > 2.0**-16


def _weights(
    scaled: Tensor, about: Tensor, rows: slice, *, keys: Tensor, own: Tensor | None, copies: Copies | None, tile: int
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield the columns, weights, and logits minus their peak (0 for hidden keys) of each tile in a row of tiles."""
    peak, mass, _ = about
    for columns in tiles(len(keys), tile):
        # Clamped because recomputed products are usually, but not always, bit-identical.
        logits = (scaled @ keys[columns].T).sub_(peak).clamp_max_(0.0)
        weights = logits.exp().div_(mass)
        hidden = _hidden_in_tile(own, copies, rows, columns)
        if hidden is not None:
            weights[hidden] = 0.0
            logits[hidden] = 0.0
        yield columns, weights, logits
