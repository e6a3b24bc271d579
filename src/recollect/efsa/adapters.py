"""Adapters of many queries at once, which PEFT does not compute in one forward pass.

Nothing is added to a model and no weight is touched: while `adapted` is open, a layer's ``forward`` is another one.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


@dataclass(frozen=True)
class Adapters:
    """Changes ``scale · B A`` of the weights of a model's layers, one set for each query.

    Attributes:
        down: A of each layer, (queries, rank, inputs), or (rank, inputs) if all queries share it.
        up: B of each layer, (queries, outputs, rank).
    """

    down: Mapping[str, Tensor]
    up: Mapping[str, Tensor]
    scale: float


@contextmanager
def replaced_forward(
    sites: Mapping[str, nn.Linear], forward: Callable[[str, nn.Linear], Callable[[Tensor], Tensor]]
) -> Iterator[None]:
    """Let each layer compute ``forward(name, layer)`` while the block runs, and what it did before afterwards."""
    try:
        for name, layer in sites.items():
            layer.forward = forward(name, layer)  # type: ignore[assignment,method-assign]
        yield
    finally:
        for layer in sites.values():
            layer.__dict__.pop("forward", None)


@contextmanager
def adapted(sites: Mapping[str, nn.Linear], adapters: Adapters) -> Iterator[None]:
    """Let layers compute with ``W + scale · B A`` in place of W while the block runs.

    The rows that a tower reads are as many equal runs as there are queries, one query's after the other's.
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
    down: Float[Tensor, "*queries rank inputs"],
    up: Float[Tensor, "queries outputs rank"],
    scale: float,
) -> Float[Tensor, "... outputs"]:
    if rows.shape[0] % len(up):
        raise ValueError(f"{rows.shape[0]} rows cannot be shared out among {len(up)} queries")
    outputs, inputs = weight.shape
    mine = rows.reshape(len(up), -1, inputs)
    if torch.is_grad_enabled():
        low = F.linear(mine, down) if down.ndim == 2 else mine @ down.transpose(1, 2)
        result = F.linear(mine, weight, bias) + scale * (low @ up.transpose(1, 2))
    # Making a query's own weight costs rank·inputs·outputs products, its rows through A and B rank·(inputs + outputs)
    # each: from about half a layer's width on (150 rows of 300), one's own weight is cheaper.
    elif mine.shape[1] * (inputs + outputs) > inputs * outputs:
        own = torch.baddbmm(weight, up, down.expand(len(up), -1, -1), alpha=scale)
        own_t = own.transpose(1, 2)
        result = mine @ own_t if bias is None else torch.baddbmm(bias, mine, own_t)
    else:
        low = F.linear(mine, down) if down.ndim == 2 else mine @ down.transpose(1, 2)
        result = F.linear(mine, weight, bias).baddbmm_(low, up.transpose(1, 2), alpha=scale)
    return result.reshape(*rows.shape[:-1], outputs)
