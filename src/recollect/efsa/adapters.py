"""Adapters of many queries at once, which PEFT does not compute in one forward pass, and their first gradient.

Nothing is added to a model and no weight changes: while `adapted` is open, a layer's ``forward`` is another one.
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
    """Changes ``scale · B A`` of the weights of a model's layers: each query has its own B, all share A.

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
    """Let layers compute with ``W + scale · B A`` instead of W inside the block; no gradients.

    The input rows of a tower are equal runs, one for each query, in the order of the queries.
    """

    def forward(name: str, layer: nn.Linear) -> Callable[[Tensor], Tensor]:
        down, up = adapters.down[name], adapters.up[name]
        return lambda rows: _many_sets(rows, layer.weight, layer.bias, down, up, adapters.scale)

    with replaced_forward(sites, forward):
        yield


def _many_sets(
    rows: Float[Tensor, "... inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None,
    down: Float[Tensor, "rank inputs"],
    up: Float[Tensor, "queries outputs rank"],
    scale: float,
) -> Float[Tensor, "... outputs"]:
    if rows.shape[0] % len(up):
        raise ValueError(f"{rows.shape[0]} rows are no multiple of {len(up)} queries")
    outputs, inputs = weight.shape
    mine = rows.reshape(len(up), -1, inputs)
    # Forming W + B A costs rank·inputs·outputs products, a row through A and B rank·(inputs + outputs): with more rows
    # than about half a layer's width, forming it is cheaper.
    if mine.shape[1] * (inputs + outputs) > inputs * outputs:
        own = torch.baddbmm(weight, up, down.expand(len(up), -1, -1), alpha=scale)
        own_t = own.transpose(1, 2)
        result = mine @ own_t if bias is None else torch.baddbmm(bias, mine, own_t)
    else:
        result = F.linear(mine, weight, bias).baddbmm_(F.linear(mine, down), up.transpose(1, 2), alpha=scale)
    return result.reshape(*rows.shape[:-1], outputs)


class FirstStep:
    """Collects, layer by layer, each query's gradient of B at B = 0, from one forward of the unchanged model.

    At ``B = 0`` the adapted model is the frozen one, so an image that several queries found passes the towers once.
    There the gradient of A vanishes, and with ``y = W x + scale · B A x`` that of B is ``scale · Σ g (A x)ᵀ`` over a
    query's own rows, where g is the gradient at the layer's output.

    Attributes:
        gradient: for each layer (queries, outputs, rank).
    """

    def __init__(self, sites: Mapping[str, nn.Linear], start: Adapters, queries: int) -> None:
        if any(bool(up.any()) for up in start.up.values()):
            raise ValueError("this gradient holds at B = 0 only")
        self._sites, self._start, self._queries = sites, start, queries
        self.gradient = {name: up.new_zeros(queries, *up.shape) for name, up in start.up.items()}
        like = next(iter(start.up.values()))
        # Autograd walks back only to what needs a gradient; the weights do not.
        self._anchor = like.new_zeros((), requires_grad=True)
        self._turn = _Turn(None, [])

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Let the layers store A x of their inputs inside the block."""

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
        """Run a recorded forward backwards and add the gradient of each row to its query.

        Args:
            outputs: of a tower inside `recording`.
            gradients: of the loss of each row's query.
            owners: query of each row in this pass.
            keep: keep the graph for another pass.
        """
        order = None if bool((owners[1:] >= owners[:-1]).all()) else owners.argsort(stable=True)
        counts = torch.bincount(owners, minlength=self._queries).tolist()
        self._turn = _Turn(order, counts)
        torch.autograd.grad(outputs, self._anchor, gradients, retain_graph=keep, allow_unused=True)

    def _add(self, total: Tensor, gradient: Tensor, low: Tensor) -> None:
        """Add ``Σ g (A x)ᵀ`` over the rows of each query to ``total``, (queries, outputs, rank)."""
        order, counts = self._turn.order, self._turn.counts
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
class _Turn:
    """The queries of the rows of a backward pass.

    Attributes:
        order: sorts the rows by query; None if they are sorted.
        counts: rows of each query.
    """

    order: Int[Tensor, " rows"] | None
    counts: list[int]


class _Recorded(torch.autograd.Function):
    """A linear layer that stores ``A x`` instead of x, which is a tenth of the size in a wide tower."""

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
        gradient = gradients[0].contiguous()  # attention gives it head by head; two products read it
        ctx.receive(gradient, low)
        below = gradient @ weight if ctx.needs_input_grad[0] else None
        return below, None, None, None, None, None
