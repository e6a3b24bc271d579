"""Low-rank adapters (LoRA; Hu et al., 2022) on the attention and MLP layers of both towers, by PEFT."""

import copy
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file, save_file
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
_WEIGHTS = "adapter_model.safetensors"

_Model = TypeVar("_Model", bound=nn.Module)


@dataclass(frozen=True)
class AdapterOptions:
    """How adapters begin (EFSA, §4.1).

    Attributes:
        rank: inner width r of the change ``scale · B A``.
        scale: factor of the change. 15/64 is LoRA's ``alpha / rank`` with EFSA's 15; 15 itself and 15/√64
            (rank-stabilized LoRA) are the other readings of "a scaling factor of 15".
        seed: of the draw; every query starts from the same one.
    """

    rank: int = 64
    scale: float = 15 / 64
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("rank", self.rank, least=1)


def transformers_model(encoder: nn.Module) -> nn.Module:
    """The model whose layers have names that transformers and PEFT know: the encoder's own, or the encoder itself."""
    inner = getattr(encoder, "model", None)
    return inner if isinstance(inner, nn.Module) else encoder


def adapter_sites(encoder: nn.Module) -> dict[str, nn.Linear]:
    """Every linear layer of attention (q, k, v, out) and MLP (fc1, fc2) in every block of both towers, by name.

    Of small towers without blocks (the preset ``tiny-conv`` of recollect-papers) it is every linear layer.

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
            which = "image" if tower in ("vision_model.", "image_tower.") else "text"
            raise UserError(
                f"this model cannot be adapted: its {which} tower has no attention or MLP layers, as those of CLIP and "
                "SigLIP models have. Build the index with one of these."
            )
    return found


def without_blocks(sites: Iterable[str]) -> bool:
    """Whether these are layers of a small model that has no blocks, so that heads alone adapt."""
    return any(name.startswith(_SMALL_TOWERS) for name in sites)


def initial_weights(
    sites: Mapping[str, nn.Linear], options: AdapterOptions
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A (rank, inputs) and B (outputs, rank) of each layer as they begin: A Xavier uniform, B zero.

    Drawn in float64 from (seed, name), so that the same layer starts the same in every process and precision; returned
    in the layer's dtype.
    """

    def xavier(name: str, layer: nn.Linear) -> Tensor:
        drawn = torch.empty(options.rank, layer.in_features, dtype=torch.float64)
        generator = torch_generator(options.seed, "adapter", "down", name)
        return nn.init.xavier_uniform_(drawn, generator=generator).to(layer.weight)

    down = {name: xavier(name, layer) for name, layer in sites.items()}
    up = {name: layer.weight.new_zeros(layer.out_features, options.rank) for name, layer in sites.items()}
    return down, up


def check_peft() -> None:
    """Raise early if adapters cannot be made.

    Raises:
        UserError: PEFT is not installed.
    """
    refuse((find_spec("peft") is None, "low-rank adapters need PEFT: pip install 'recollect[adapters]'"))


def add_lora(
    encoder: nn.Module, down: Mapping[str, Tensor], up: Mapping[str, Tensor], scale: float, dropout: float = 0.0
) -> dict[str, nn.Module]:
    """Let layers of ``encoder`` compute ``W x + scale · B A x``, in place; afterwards only A and B need gradients.

    Args:
        down: A of each layer, (rank, inputs), by the layer's name in `adapter_sites`.
        up: B of each layer, (outputs, rank).
        scale: LoRA's alpha over the rank.
        dropout: of A's input, in training mode.

    Returns:
        PEFT's layers by name.

    Raises:
        UserError: PEFT is not installed.
    """
    check_peft()
    import peft

    encoder.requires_grad_(False)
    rank = len(next(iter(down.values())))
    config = peft.LoraConfig(r=rank, lora_alpha=scale * rank, target_modules=list(down), lora_dropout=dropout)
    model = transformers_model(encoder)
    peft.inject_adapter_in_model(config, model)
    modules = dict(model.named_modules())
    layers: dict[str, Any] = {name: modules[name] for name in down}
    for name, layer in layers.items():
        for half, start in ((layer.lora_A["default"], down[name]), (layer.lora_B["default"], up[name])):
            half.weight = nn.Parameter(start.detach().to(layer.weight, copy=True))  # PEFT's own are float32, at random
    return layers


def merged(encoder: _Model) -> _Model:
    """A copy of a model with `add_lora`'s changes added to its weights, and PEFT's layers gone."""
    from peft.tuners.lora import LoraLayer

    twin = copy.deepcopy(encoder)
    model = transformers_model(twin)
    for name, layer in [*model.named_modules()]:
        if isinstance(layer, LoraLayer):
            layer.merge()
            model.set_submodule(name, layer.get_base_layer())
    del model.peft_config
    return twin


def save_lora(folder: Path, encoder: nn.Module, base: str) -> None:
    """Write the adapters of ``encoder`` so that ``PeftModel.from_pretrained(model, folder)`` opens them.

    Args:
        folder: made if it is not there.
        encoder: after `add_lora`.
        base: path or hub id of the model without adapters, for PEFT's record.
    """
    import peft

    model: Any = transformers_model(encoder)
    config = copy.copy(model.peft_config["default"])
    config.base_model_name_or_path, config.inference_mode = base, True
    config.target_modules = sorted(config.target_modules)
    config.save_pretrained(str(folder))
    weights = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    save_file(
        {f"base_model.model.{name}": each.detach().cpu().contiguous() for name, each in weights.items()},
        folder / _WEIGHTS,
    )


def load_lora(folder: Path, encoder: nn.Module) -> None:
    """Add the adapters that `save_lora` wrote to ``encoder``, in place."""
    import peft

    config = peft.LoraConfig.from_pretrained(str(folder))
    halves: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
    for name, each in load_file(folder / _WEIGHTS).items():
        layer, _, half = name.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".")
        halves[half == "lora_B"][layer] = each
    add_lora(encoder, *halves, config.lora_alpha / config.r, config.lora_dropout)
