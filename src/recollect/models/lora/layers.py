"""Low-rank adapters (LoRA) on the attention and MLP layers of both towers, one set or one for each of many queries.

Nothing is added to a model and no weight is touched: while `adapted` is open, a layer's ``forward`` is another one.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from recollect.core.errors import UserError
from recollect.core.seeding import torch_generator
from recollect.core.validation import check_number, refuse

# What transformers calls the linear layers of attention and MLP, across CLIP, SigLIP, ViT, Swin, BERT, DistilBERT.
_LAYERS = frozenset(
    {"q_proj", "k_proj", "v_proj", "out_proj", "o_proj", "qkv", "projection", "fc1", "fc2"}
    | {"query", "key", "value", "dense", "q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2"}
)
_TOWERS = ("vision_model.", "text_model.")
_SMALL_TOWERS = ("image_tower.", "text_head.")  # of this package's own small encoders, which have no numbered blocks
_BLOCK = re.compile(r"\.\d+\.")  # a layer of a numbered block; heads and projections behind the blocks have none


@dataclass(frozen=True)
class AdapterOptions:
    """How adapters begin (EFSA, §4.1).

    Attributes:
        rank: inner width r of the change ``scale · B A``.
        scale: factor of the change. 15/64 is LoRA's ``alpha / rank`` with EFSA's 15; 15 itself and 15/√64
            (rank-stabilised LoRA) are the other readings of "a scaling factor of 15".
        both_xavier: draw B like A, so that the start is not the pretrained model, instead of B = 0.
        seed: of the draw; every query starts from the same one.
    """

    rank: int = 64
    scale: float = 15 / 64
    both_xavier: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("rank", self.rank, least=1)


@dataclass(frozen=True)
class Adapters:
    """Changes ``scale · B A`` of the weights of a model's layers.

    Attributes:
        down: A of each layer, (rank, inputs) or (queries, rank, inputs); one for all queries where it has no first
            axis.
        up: B of each layer, (outputs, rank) or (queries, outputs, rank).
        scale: factor of every change.
    """

    down: Mapping[str, Tensor]
    up: Mapping[str, Tensor]
    scale: float

    @property
    def queries(self) -> int | None:
        """How many sets these are; None for one set that serves every row."""
        first = next(iter(self.up.values()))
        return len(first) if first.ndim == 3 else None

    def of(self, query: int) -> "Adapters":
        """The set of one query."""
        down = {name: each[query] if each.ndim == 3 else each for name, each in self.down.items()}
        return Adapters(down, {name: each[query] for name, each in self.up.items()}, self.scale)


def transformers_model(encoder: nn.Module) -> nn.Module:
    """The model whose layers have names that transformers and PEFT know: the encoder's own, or the encoder itself."""
    inner = getattr(encoder, "model", None)
    return inner if isinstance(inner, nn.Module) else encoder


def adapter_sites(encoder: nn.Module) -> dict[str, nn.Linear]:
    """Every linear layer of attention (q, k, v, out) and MLP (fc1, fc2) in every block of both towers, by name.

    Of small towers without blocks (the preset ``patches``: a head on features, an MLP over a bag of words) it is every
    linear layer.

    Raises:
        UserError: a tower has no such layers.
    """
    layers = {
        name: layer
        for name, layer in transformers_model(encoder).named_modules()
        if isinstance(layer, nn.Linear) and name.startswith((*_TOWERS, *_SMALL_TOWERS))
    }
    small = without_blocks(layers)
    found = {
        name: layer
        for name, layer in layers.items()
        if small or (_BLOCK.search(name) and name.rpartition(".")[2] in _LAYERS)
    }
    for tower in _SMALL_TOWERS if small else _TOWERS:
        if not any(name.startswith(tower) for name in found):
            raise UserError(
                f"{type(transformers_model(encoder)).__name__}: its {tower.rstrip('.')} has no attention or MLP layers "
                "that adapters could wrap. Adapt all parameters instead."
            )
    return found


def without_blocks(sites: Iterable[str]) -> bool:
    """Whether these are layers of a small model that has no blocks, so that heads alone adapt."""
    return any(name.startswith(_SMALL_TOWERS) for name in sites)


def initial_adapters(sites: Mapping[str, nn.Linear], options: AdapterOptions) -> Adapters:
    """One set of adapters as an episode begins: A Xavier uniform, B zero (or Xavier), in the layers' dtype.

    Drawn in float64 from (seed, name), so that the same layer starts the same in every process and precision.
    """

    def xavier(name: str, which: str, rows: int, columns: int) -> Tensor:
        drawn = torch.empty(rows, columns, dtype=torch.float64)
        generator = torch_generator(options.seed, "adapter", which, name)
        return nn.init.xavier_uniform_(drawn, generator=generator).to(sites[name].weight)

    down = {name: xavier(name, "down", options.rank, layer.in_features) for name, layer in sites.items()}
    up = {
        name: xavier(name, "up", layer.out_features, options.rank)
        if options.both_xavier
        else layer.weight.new_zeros(layer.out_features, options.rank)
        for name, layer in sites.items()
    }
    return Adapters(down, up, options.scale)


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
def adapted(encoder: nn.Module, adapters: Adapters) -> Iterator[None]:
    """Let ``encoder`` compute with ``W + scale · B A`` in place of W while the block runs.

    With a set for each of q queries, the rows that a tower reads are q equal runs, one query's behind the other's.

    Raises:
        UserError: the adapters name a layer that the model does not have, or of another size.
    """
    sites = named_sites(encoder, adapters)
    use = one_set if adapters.queries is None else _many_sets

    def forward(name: str, layer: nn.Linear) -> Callable[[Tensor], Tensor]:
        down, up = adapters.down[name], adapters.up[name]
        return lambda rows: use(rows, layer.weight, layer.bias, down, up, adapters.scale)

    with replaced_forward(sites, forward):
        yield


@torch.no_grad()
def merge_adapters(encoder: nn.Module, adapters: Adapters) -> None:
    """Add ``scale · B A`` of one set to the weights of ``encoder``, in place."""
    for name, layer in named_sites(encoder, adapters).items():
        layer.weight.addmm_(adapters.up[name], adapters.down[name], alpha=adapters.scale)


def named_sites(encoder: nn.Module, adapters: Adapters, where: str = "") -> dict[str, nn.Linear]:
    layers = dict(transformers_model(encoder).named_modules())
    for name, down in adapters.down.items():
        layer = layers.get(name)
        has = (layer.out_features, layer.in_features) if isinstance(layer, nn.Linear) else "no such layer"
        wanted = (adapters.up[name].shape[-2], down.shape[-1])
        refuse(
            (has != wanted, f"{where}the adapter is for another model: {name} has {wanted} weights there, here {has}.")
        )
    return {name: layers[name] for name in adapters.down}


def one_set(
    rows: Float[Tensor, "... inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None,
    down: Float[Tensor, "rank inputs"],
    up: Float[Tensor, "outputs rank"],
    scale: float,
) -> Float[Tensor, "... outputs"]:
    """``W x + b + scale · B A x``, without forming ``B A``."""
    return F.linear(rows, weight, bias) + scale * F.linear(F.linear(rows, down), up)


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
