"""LoRA: low-rank adapters of a checkpoint's layers learn, its weights stay as they are (Hu et al., 2022)."""

from collections.abc import Mapping
from pathlib import Path

from recollect.core.files import read_json, write_json
from recollect.core.validation import refuse
from recollect.models import DualEncoder
from recollect.models.dual import Tower
from recollect.models.lora import (
    AdapterOptions,
    adapter_sites,
    add_lora,
    initial_weights,
    load_lora,
    merged,
    save_lora,
)
from recollect.training.step import EncoderTowers

ADAPTER = "adapter"
"""Sub-folder of a finished run with its adapter in PEFT's format."""

_RECORD = "adapted.json"
_TOWERS: Mapping[Tower, str] = {"image": "vision_model.", "text": "text_model."}


class AdaptedTowers(EncoderTowers):
    """A dual encoder with LoRA adapters, which alone learn.

    A checkpoint has only the adapters (`save`); the finished model has them merged into the weights, and also in PEFT's
    format (`publish`).

    Args:
        encoder: after `recollect.models.lora.add_lora`.
        base: path or hub id of the encoder, for PEFT's record.
        fingerprint: of the encoder without adapters.
    """

    def __init__(self, encoder: DualEncoder, base: str, fingerprint: str) -> None:
        super().__init__(encoder)
        self.base, self.fingerprint = base, fingerprint

    def save(self, folder: Path) -> Path:
        """Write the adapters, and which encoder they belong to."""
        save_lora(folder, self.encoder, self.base)
        record = {"base": self.fingerprint, "scale": self.encoder.scale, "bias": self.encoder.bias}
        write_json(folder / _RECORD, record)
        return folder

    def publish(self, folder: Path) -> Path:
        """Write the encoder with the adapters merged, and the adapters alone in its folder `ADAPTER`."""
        merged(self.encoder).save(folder)
        save_lora(folder / ADAPTER, self.encoder, self.base)
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
        UserError: a tower has no such layers, or PEFT is not installed.
    """
    options = AdapterOptions(rank=rank, scale=(rank if alpha is None else alpha) / rank, seed=seed)
    left_out = tuple(prefix for tower, prefix in _TOWERS.items() if tower == freeze)
    sites = {name: layer for name, layer in adapter_sites(encoder).items() if not name.startswith(left_out)}
    fingerprint = encoder.fingerprint
    add_lora(encoder, *initial_weights(sites, options), options.scale)
    return AdaptedTowers(encoder, base, fingerprint)


def adapt_again(encoder: DualEncoder, folder: Path, base: str) -> AdaptedTowers:
    """The towers that `AdaptedTowers.save` wrote to ``folder``.

    Raises:
        UserError: the encoder is not the one that they change.
    """
    record, fingerprint = read_json(folder / _RECORD), encoder.fingerprint
    changed = record["base"] != fingerprint
    refuse((changed, f"{base}: not the checkpoint that this run started from. Restore it, or choose another --out."))
    load_lora(folder, encoder)
    if record["scale"] is not None:
        encoder.set_scale(record["scale"], record["bias"])
    return AdaptedTowers(encoder, base, fingerprint)
