"""The first gradient of many queries' adapters, from one forward of the unchanged model.

At ``B = 0`` the adapted model is the frozen one, so that an image in several queries' lists passes the towers once.
There the gradient of A vanishes, and with ``y = W x + scale · B A x`` that of B is ``scale · Σ g (A x)ᵀ`` over a
query's own rows, g the gradient at the layer's output: the backward pass computes it in passing.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from recollect.models.adapters import Adapters, replaced_forward


class FirstStep:
    """Collects, layer by layer, each query's gradient of B at B = 0.

    Attributes:
        gradient: of all queries' B, one number behind the other, in the order of ``views``.
        views: for each layer its part of ``gradient``, (queries, outputs, rank).
    """

    gradient: Float[Tensor, " numbers"]

    def __init__(self, sites: Mapping[str, nn.Linear], start: Adapters, queries: int) -> None:
        if any(bool(up.any()) for up in start.up.values()):
            raise ValueError("the short cut holds from B = 0 only; these adapters start elsewhere")
        self._sites, self._start, self._queries = sites, start, queries
        sizes = [queries * up.numel() for up in start.up.values()]
        like = next(iter(start.up.values()))
        self.gradient = like.new_zeros(sum(sizes))
        parts = self.gradient.split(sizes)
        self.views = {name: part.view(queries, *start.up[name].shape) for name, part in zip(sites, parts, strict=True)}
        # Autograd walks back only to what needs a gradient; the weights do not.
        self._anchor = like.new_zeros((), requires_grad=True)
        self._owners: Tensor | None = None
        self._even = False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Let the layers keep A x of what they read while the block runs."""

        def forward(name: str, layer: nn.Linear) -> Callable[[Tensor], Tensor]:
            down = self._start.down[name]

            def receive(gradient: Tensor, low: Tensor) -> None:
                self._add(self.views[name], gradient, low)

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
        """Run one recorded forward backwards and add what its rows contribute to their queries.

        Args:
            outputs: what a tower gave while `recording`.
            gradients: of each row's owner's loss.
            owners: number of the query that each row counts for in this pass.
            keep: run the same forward backwards again later.
        """
        each = len(owners) // self._queries
        even = torch.arange(self._queries, device=owners.device).repeat_interleave(each)
        self._owners, self._even = owners, torch.equal(even, owners)
        torch.autograd.grad(outputs, self._anchor, gradients, retain_graph=keep, allow_unused=True)

    def _add(self, total: Tensor, gradient: Tensor, low: Tensor) -> None:
        assert self._owners is not None
        rows = self._queries if self._even else len(self._owners)
        g, low = gradient.reshape(rows, -1, gradient.shape[-1]), low.reshape(rows, -1, low.shape[-1])
        if self._even:
            total.baddbmm_(g.transpose(1, 2), low, alpha=self._start.scale)
        else:
            total.index_add_(0, self._owners, g.transpose(1, 2) @ low, alpha=self._start.scale)


class _Recorded(torch.autograd.Function):
    """A linear layer that remembers ``A x`` instead of x, a tenth of its size in a wide tower."""

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
        ctx.receive(gradients[0], low)
        below = gradients[0] @ weight if ctx.needs_input_grad[0] else None
        return below, None, None, None, None, None
