"""Low-rank adapters of many queries in one forward pass, which PEFT does not support, and their first gradient.

The model's weights and modules do not change; the ``forward`` of layers is replaced inside the `adapted` block.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn


@dataclass(frozen=True)
class Adapters:
    """Low-rank weight updates ``scale · B A`` of layers, with one B per query and a shared A.

    Attributes:
        down: A of each layer, (rank, inputs).
        up: B of each layer, (queries, outputs, rank).
    """

    down: Mapping[str, Tensor]
    up: Mapping[str, Tensor]
    scale: float


@contextmanager
def replaced_forward(
    sites: Mapping[str, nn.Linear], forward: Callable[[str, nn.Linear], Callable[[Tensor], Tensor]]
) -> Iterator[None]:
    """Replace the ``forward`` of each layer by ``forward(name, layer)`` inside the block."""
    try:
        for name, layer in sites.items():
            layer.forward = forward(name, layer)  # type: ignore[assignment,method-assign]
        yield
    finally:
        for layer in sites.values():
            layer.__dict__.pop("forward", None)


@contextmanager
def adapted(sites: Mapping[str, nn.Linear], adapters: Adapters) -> Iterator[None]:
    """Use weights ``W + scale · B A`` in the layers inside the block, without gradients.

    The input rows of a tower are the queries in order, with the same number of consecutive rows per query.
    """

    def forward(name: str, layer: nn.Linear) -> Callable[[Tensor], Tensor]:
        down, up = adapters.down[name], adapters.up[name]
        return lambda rows: _adapted_linear(rows, layer.weight, layer.bias, down, up, adapters.scale)

    with replaced_forward(sites, forward):
        yield


def _adapted_linear(
    rows: Float[Tensor, "... inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None,
    down: Float[Tensor, "rank inputs"],
    up: Float[Tensor, "queries outputs rank"],
    scale: float,
) -> Float[Tensor, "... outputs"]:
    if rows.shape[0] % len(up):
        raise ValueError(f"{rows.shape[0]} rows are not a multiple of {len(up)} queries")
    outputs, inputs = weight.shape
    by_query = rows.reshape(len(up), -1, inputs)
    # Computing W + B A costs rank·inputs·outputs products; passing a row through A and B costs rank·(inputs + outputs).
    # The former is cheaper for more rows than about half the layer's width.
    if by_query.shape[1] * (inputs + outputs) > inputs * outputs:
        updated = torch.baddbmm(weight, up, down.expand(len(up), -1, -1), alpha=scale).transpose(1, 2)
        result = by_query @ updated if bias is None else torch.baddbmm(bias, by_query, updated)
    else:
        result = F.linear(by_query, weight, bias).baddbmm_(F.linear(by_query, down), up.transpose(1, 2), alpha=scale)
    return result.reshape(*rows.shape[:-1], outputs)


class FirstStep:
    """Computes each query's gradient of B at B = 0 from one forward pass of the unchanged model.

    At ``B = 0`` the adapted model equals the frozen one, so an image shared by several queries passes the towers once.
    The gradient of A is zero, and with ``y = W x + scale · B A x`` the gradient of B is ``scale · Σ g (A x)ᵀ`` over a
    query's rows, where g is the gradient at the layer's output.

    Attributes:
        gradient: gradient of B by layer, (queries, outputs, rank).
    """

    def __init__(self, sites: Mapping[str, nn.Linear], start: Adapters, queries: int) -> None:
        if any(bool(up.any()) for up in start.up.values()):
            raise ValueError("the gradient is only valid at B = 0")
        self._sites, self._start, self._queries = sites, start, queries
        self.gradient = {name: up.new_zeros(queries, *up.shape) for name, up in start.up.items()}
        like = next(iter(start.up.values()))
        # Autograd needs an input that requires a gradient; the weights do not.
        self._anchor = like.new_zeros((), requires_grad=True)
        self._owners = _RowOwners(None, [])

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Store A x in each layer inside the block."""

        def forward(name: str, layer: nn.Linear) -> Callable[[Tensor], Tensor]:
            down = self._start.down[name]

            def receive(gradient: Tensor, low: Tensor) -> None:
                self._add(self.gradient[name], gradient, low)

            return lambda rows: _Recorded.apply(rows, self._anchor, layer.weight, layer.bias, down, receive)

        with torch.enable_grad(), replaced_forward(self._sites, forward):
            yield

    def backward(
        self,
        outputs: Float[Tensor, "rows width"],
        gradients: Float[Tensor, "rows width"],
        owners: Int[Tensor, " rows"],
        *,
        keep: bool = False,
    ) -> None:
        """Backpropagate through a recorded forward pass and add each row's gradient to its query.

        Args:
            outputs: outputs of a tower inside `recording`.
            gradients: gradient of each row's query loss with respect to ``outputs``.
            owners: query of each row in this pass.
            keep: keep the graph for another pass.
        """
        order = None if bool((owners[1:] >= owners[:-1]).all()) else owners.argsort(stable=True)
        counts = torch.bincount(owners, minlength=self._queries).tolist()
        self._owners = _RowOwners(order, counts)
        torch.autograd.grad(outputs, self._anchor, gradients, retain_graph=keep, allow_unused=True)

    def _add(self, total: Tensor, gradient: Tensor, low: Tensor) -> None:
        """Add ``Σ g (A x)ᵀ`` over the rows of each query to ``total``, (queries, outputs, rank)."""
        order, counts = self._owners.order, self._owners.counts
        rows, scale = sum(counts), self._start.scale
        gradient, low = (each.reshape(rows, -1, each.shape[-1]) for each in (gradient, low))
        if order is not None:
            gradient, low = gradient[order], low[order]
        if len(set(counts)) == 1:
            gradient, low = (each.reshape(len(counts), -1, each.shape[-1]) for each in (gradient, low))
            total.baddbmm_(gradient.transpose(1, 2), low, alpha=scale)
            return
        start = 0
        for query, count in enumerate(counts):
            if count:
                mine = slice(start, start + count)
                total[query].addmm_(gradient[mine].flatten(0, 1).T, low[mine].flatten(0, 1), alpha=scale)
            start += count


@dataclass(frozen=True)
class _RowOwners:
    """Assignment of the rows of a backward pass to queries.

    Attributes:
        order: permutation that sorts the rows by query; None if they are sorted.
        counts: number of rows per query.
    """

    order: Int[Tensor, " rows"] | None
    counts: list[int]


class _Recorded(torch.autograd.Function):
    """Linear layer that saves ``A x`` instead of x, which is a tenth of the size in a wide tower."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        anchor: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        down: Tensor,
        receive: Callable[[Tensor, Tensor], None],
    ) -> Tensor:
        ctx.save_for_backward(weight, F.linear(rows, down))
        ctx.receive = receive
        return F.linear(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weight, low = ctx.saved_tensors
        gradient = gradients[0].contiguous()  # attention returns it split by heads; two products read it
        ctx.receive(gradient, low)
        below = gradient @ weight if ctx.needs_input_grad[0] else None
        return below, None, None, None, None, None
