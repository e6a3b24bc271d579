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

# Names of attention and MLP layers in transformers' CLIP, SigLIP, ViT, Swin, BERT and DistilBERT.
_LAYERS = frozenset(
    {"q_proj", "k_proj", "v_proj", "out_proj", "o_proj", "qkv", "projection", "fc1", "fc2"}
    | {"query", "key", "value", "dense", "q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2"}
)
_TOWERS = ("vision_model.", "text_model.")
_SMALL_TOWERS = ("image_tower.", "text_head.")  # small encoders of recollect-papers, which have no numbered blocks
_BLOCK = re.compile(r"\.\d+\.")  # matches layers of numbered blocks, but not heads and projections after the blocks
_WEIGHTS = "adapter_model.safetensors"

_Model = TypeVar("_Model", bound=nn.Module)


@dataclass(frozen=True)
class AdapterOptions:
    """Size and initialization of adapters (EFSA, §4.1).

    Attributes:
        rank: rank r of the update ``scale · B A``.
        scale: factor of the update. 15/64 is LoRA's ``alpha / rank`` with EFSA's 15; 15 and 15/√64
            (rank-stabilized LoRA) are other interpretations of "a scaling factor of 15".
        seed: seed of the initial weights, the same for every query.
    """

    rank: int = 64
    scale: float = 15 / 64
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("rank", self.rank, least=1)


def transformers_model(encoder: nn.Module) -> nn.Module:
    """Return the encoder's inner model, whose layer names transformers and PEFT know, or else the encoder itself."""
    inner = getattr(encoder, "model", None)
    return inner if isinstance(inner, nn.Module) else encoder


def adapter_sites(encoder: nn.Module, frozen: str = "none") -> dict[str, nn.Linear]:
    """Return all linear layers of attention (q, k, v, out) and MLP (fc1, fc2) in the blocks of both towers, by name.

    For small towers without blocks (the preset ``tiny-conv`` of recollect-papers), return all linear layers.

    Args:
        encoder: the model.
        frozen: tower to leave out: ``image`` or ``text``.

    Raises:
        UserError: a tower has no such layers.
    """
    layers = {
        name: layer
        for name, layer in transformers_model(encoder).named_modules()
        if isinstance(layer, nn.Linear) and name.startswith((*_TOWERS, *_SMALL_TOWERS))
    }
    small = without_blocks(layers)
    sites = {
        name: layer
        for name, layer in layers.items()
        if small or (_BLOCK.search(name) and name.rpartition(".")[2] in _LAYERS)
    }
    towers = dict(zip(("image", "text"), _SMALL_TOWERS if small else _TOWERS, strict=True))
    left_out = towers.pop(frozen, None)
    for which, tower in towers.items():
        if not any(name.startswith(tower) for name in sites):
            raise UserError(
                f"this model cannot be adapted: its {which} tower has no attention or MLP layers. Use a CLIP or SigLIP "
                "model."
            )
    return {name: layer for name, layer in sites.items() if not (left_out and name.startswith(left_out))}


def without_blocks(sites: Iterable[str]) -> bool:
    """Whether the layers are those of a small model without blocks, in which only the heads are adapted."""
    return any(name.startswith(_SMALL_TOWERS) for name in sites)


def initial_weights(
    sites: Mapping[str, nn.Linear], options: AdapterOptions
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return initial A (rank, inputs), Xavier uniform, and B (outputs, rank), zero, of each layer by name.

    A is drawn in float64 from (seed, name), so a layer is initialized equally in every process and precision. Both have
    the layer's dtype.
    """

    def xavier(name: str, layer: nn.Linear) -> Tensor:
        drawn = torch.empty(options.rank, layer.in_features, dtype=torch.float64)
        generator = torch_generator(options.seed, "adapter", "down", name)
        return nn.init.xavier_uniform_(drawn, generator=generator).to(layer.weight)

    down = {name: xavier(name, layer) for name, layer in sites.items()}
    up = {name: layer.weight.new_zeros(layer.out_features, options.rank) for name, layer in sites.items()}
    return down, up


def check_peft() -> None:
    """Check that PEFT is installed.

    Raises:
        UserError: PEFT is not installed.
    """
    refuse((find_spec("peft") is None, "low-rank adapters need PEFT: pip install 'recollect[adapters]'"))


def add_lora(
    encoder: nn.Module, down: Mapping[str, Tensor], up: Mapping[str, Tensor], scale: float, dropout: float = 0.0
) -> dict[str, nn.Module]:
    """Make layers of ``encoder`` compute ``W x + scale · B A x``, in place, with only A and B trainable.

    Args:
        encoder: the model.
        down: A of each layer, (rank, inputs), by the layer's name in `adapter_sites`.
        up: B of each layer, (outputs, rank).
        scale: LoRA's alpha divided by the rank.
        dropout: dropout rate of A's input in training mode.

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
            half.weight = nn.Parameter(start.detach().to(layer.weight, copy=True))  # PEFT's are random float32
    return layers


def merged(encoder: _Model) -> _Model:
    """Return a copy of a model with the adapters merged into its weights and PEFT's layers removed."""
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
    """Save the adapters of ``encoder`` in the format of ``PeftModel.from_pretrained(model, folder)``.

    Args:
        folder: created if missing.
        encoder: a model with adapters from `add_lora`.
        base: path or hub id of the model without adapters, for PEFT's config.
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
    """Add adapters saved by `save_lora` to ``encoder``, in place."""
    import peft

    config = peft.LoraConfig.from_pretrained(str(folder))
    halves: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
    for name, each in load_file(folder / _WEIGHTS).items():
        layer, _, half = name.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".")
        halves[half == "lora_B"][layer] = each
    add_lora(encoder, *halves, config.lora_alpha / config.r, config.lora_dropout)
