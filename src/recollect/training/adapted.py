"""LoRA: a checkpoint that stays as it is while low-rank changes of its layers learn (Hu et al., 2022)."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recollect.core.files import read_json
from recollect.core.types import Kind
from recollect.core.validation import refuse
from recollect.models import DualEncoder
from recollect.models.dual import Tower
from recollect.models.lora.files import ADAPTER_RECORD, load_adapters, save_adapters
from recollect.models.lora.layers import (
    AdapterOptions,
    Adapters,
    adapter_sites,
    initial_adapters,
    merge_adapters,
    named_sites,
    one_set,
)

ADAPTER = "adapter"
"""Sub-folder of a finished run with its adapter in PEFT's format."""

_TOWERS: Mapping[Tower, str] = {"image": "vision_model.", "text": "text_model."}


class AdaptedTowers(nn.Module):
    """A dual encoder whose layers compute ``W + scale · B A`` ; only A and B learn.

    A checkpoint holds A and B alone (`save`); the finished model is the encoder with them added to its weights, which
    opens as any other, and beside it the adapter as PEFT reads it (`publish`).

    Args:
        encoder: of transformers; all of it is frozen.
        adapters: one set for all rows.
        base: where the encoder came from, for PEFT's record.
    """

    def __init__(self, encoder: DualEncoder, adapters: Adapters, base: str) -> None:
        super().__init__()
        self.encoder, self.base = encoder, base
        self.factor, self._names = adapters.scale, list(adapters.down)
        self.fingerprint = encoder.fingerprint
        encoder.requires_grad_(False)
        self.down, self.up = (
            nn.ParameterDict({_key(name): nn.Parameter(each.clone()) for name, each in half.items()})
            for half in (adapters.down, adapters.up)
        )
        for name, layer in named_sites(encoder, adapters).items():
            layer.forward = self._forward(name, layer)  # type: ignore[assignment,method-assign]

    def _forward(self, name: str, layer: nn.Linear) -> Callable[[Tensor], Tensor]:
        down, up, factor = self.down[_key(name)], self.up[_key(name)], self.factor
        return lambda rows: one_set(rows, layer.weight, layer.bias, down, up, factor)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.encoder.device

    @property
    def adapters(self) -> Adapters:
        """A and B as they are now."""
        down, up = ({name: half[_key(name)] for name in self._names} for half in (self.down, self.up))
        return Adapters(down, up, self.factor)

    def tokenize(self, texts: Sequence[str], kinds: Sequence[Kind]) -> dict[str, Tensor]:
        """What `encode_texts` reads."""
        return self.encoder.tokenize(texts, kinds)

    def encode_images(self, pixels: Float[Tensor, "n ..."]) -> Float[Tensor, "n width"]:
        """Raw image embeddings."""
        return self.encoder.encode_images(pixels)

    def encode_texts(self, tokens: dict[str, Tensor]) -> Float[Tensor, "n width"]:
        """Raw text embeddings."""
        return self.encoder.encode_texts(tokens)

    def set_scale(self, scale: float, bias: float | None = None) -> None:
        """See `DualEncoder.set_scale`."""
        self.encoder.set_scale(scale, bias)

    def save(self, folder: Path) -> Path:
        """Write A and B, as PEFT reads them, and which encoder they change."""
        return save_adapters(folder, self.adapters, self.base, self._about())

    def _about(self) -> dict[str, Any]:
        return {"base": self.fingerprint, "scale": self.encoder.scale, "bias": self.encoder.bias}

    @torch.no_grad()
    def publish(self, folder: Path) -> Path:
        """Write the encoder with the changes added to its weights, and the changes alone in its folder `ADAPTER`."""
        sites = named_sites(self.encoder, self.adapters)
        before = {name: layer.weight.clone() for name, layer in sites.items()}
        merge_adapters(self.encoder, self.adapters)
        try:
            self.encoder.save(folder)
        finally:
            for name, layer in sites.items():
                layer.weight.copy_(before[name])
        save_adapters(folder / ADAPTER, self.adapters, self.base, self._about())
        return folder


def add_adapters(
    encoder: DualEncoder, rank: int, alpha: float | None, freeze: str, base: str, seed: int
) -> AdaptedTowers:
    """Adapters on every attention and MLP layer of the towers that are not frozen: A Xavier uniform, B zero.

    Args:
        rank: inner width of the changes.
        alpha: their scale times the rank; the rank by default, for a scale of 1.
        freeze: a tower that gets none.

    Raises:
        UserError: a tower has no such layers, or PEFT, which writes them, is not installed.
    """
    options = AdapterOptions(rank=rank, scale=(rank if alpha is None else alpha) / rank, seed=seed)
    left_out = tuple(prefix for tower, prefix in _TOWERS.items() if tower == freeze)
    sites = {name: layer for name, layer in adapter_sites(encoder).items() if not name.startswith(left_out)}
    return AdaptedTowers(encoder, initial_adapters(sites, options), base)


def adapt_again(encoder: DualEncoder, folder: Path, base: str) -> AdaptedTowers:
    """The towers that `AdaptedTowers.save` wrote to ``folder``.

    Raises:
        UserError: the encoder is not the one that they change.
    """
    towers = AdaptedTowers(encoder, load_adapters(folder, encoder), base)
    record = read_json(folder / ADAPTER_RECORD)
    changed = record["base"] != towers.fingerprint
    refuse((changed, f"{base}: not the checkpoint that this run started from. Restore it, or choose another --out."))
    if record["scale"] is not None:
        towers.set_scale(record["scale"], record["bias"])
    return towers


def _key(name: str) -> str:
    return name.replace(".", "/")  # a dot has a meaning in the names of parameters
