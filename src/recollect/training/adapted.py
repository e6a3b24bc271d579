"""LoRA: train low-rank adapters of a checkpoint's layers and keep its weights fixed (Hu et al., 2022)."""

from pathlib import Path

from recollect.core.files import read_json, write_json
from recollect.core.validation import refuse
from recollect.models import DualEncoder
from recollect.models.lora import (
    AdapterOptions,
    adapter_sites,
    add_lora,
    initial_weights,
    load_lora,
    merged,
    save_lora,
)
from recollect.training.options import Model
from recollect.training.step import EncoderTowers

ADAPTER = "adapter"
"""Subfolder of a finished run with its adapter in PEFT's format."""

_RECORD = "adapted.json"


class AdaptedTowers(EncoderTowers):
    """A dual encoder of which only the LoRA adapters are trained.

    A checkpoint holds only the adapters (`save`). The finished model has them merged into the weights, and also
    separately in PEFT's format (`publish`).

    Args:
        encoder: encoder with adapters (`recollect.models.lora.add_lora`).
        base: path or hub id of the encoder, for PEFT's record.
        fingerprint: fingerprint of the encoder without adapters.
    """

    def __init__(self, encoder: DualEncoder, base: str, fingerprint: str) -> None:
        super().__init__(encoder)
        self.base, self.fingerprint = base, fingerprint

    def save(self, folder: Path) -> Path:
        """Write the adapters and the fingerprint of their encoder."""
        save_lora(folder, self.encoder, self.base)
        record = {"base": self.fingerprint, "scale": self.encoder.scale, "bias": self.encoder.bias}
        write_json(folder / _RECORD, record)
        return folder

    def publish(self, folder: Path) -> Path:
        """Write the encoder with merged adapters, and the adapters alone in its subfolder `ADAPTER`."""
        merged(self.encoder).save(folder)
        save_lora(folder / ADAPTER, self.encoder, self.base)
        return folder


def add_adapters(encoder: DualEncoder, options: Model, seed: int, saved: Path | None = None) -> AdaptedTowers:
    """Add adapters to every attention and MLP layer of the unfrozen towers: A is Xavier uniform, B zero.

    Args:
        encoder: the model at ``options.start``.
        options: rank and scale of the adapters, and the frozen tower.
        seed: random seed of A.
        saved: folder written by `AdaptedTowers.save`, to load its adapters instead.

    Raises:
        UserError: a tower has no such layers, PEFT is not installed, or the saved adapters belong to another encoder.
    """
    base, fingerprint = options.start, encoder.fingerprint
    if saved is None:
        assert options.lora is not None, "options.lora is not set"
        alpha = options.lora if options.lora_alpha is None else options.lora_alpha
        adapters = AdapterOptions(rank=options.lora, scale=alpha / options.lora, seed=seed)
        add_lora(encoder, *initial_weights(adapter_sites(encoder, options.freeze), adapters), adapters.scale)
        return AdaptedTowers(encoder, base, fingerprint)
    record = read_json(saved / _RECORD)
    changed = record["base"] != fingerprint
    refuse((changed, f"{base}: not the checkpoint that this run started from. Restore it, or choose another --out."))
    load_lora(saved, encoder)
    if record["scale"] is not None:
        encoder.set_scale(record["scale"], record["bias"])
    return AdaptedTowers(encoder, base, fingerprint)
