"""Adapters on disk, in the form that PEFT reads and writes."""

import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from recollect.core.checksums import check_seal, sealed
from recollect.core.errors import user_errors
from recollect.core.files import fresh_folder, read_json, write_json
from recollect.core.validation import refuse
from recollect.models.lora.layers import Adapters, named_sites

_WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
ADAPTER_RECORD = "adapted.json"
"""Checksums and further settings next to PEFT's two files; PEFT ignores this file."""
_PREFIX = "base_model.model."
# Settings under which W + scale·B A is not what PEFT computes.
_OTHER_METHODS = ("use_dora", "use_qalora", "modules_to_save", "rank_pattern", "alpha_pattern", "lora_bias")


def save_adapters(
    folder: str | Path, adapters: Adapters, base: str = "", about: Mapping[str, Any] = MappingProxyType({})
) -> Path:
    """Write one set of adapters so that ``PeftModel.from_pretrained(model, folder)`` opens it.

    Args:
        folder: a new folder.
        adapters: of one query, or of all (not several sets: choose with ``adapters.of(query)``).
        base: path or hub id of the model they belong to, for PEFT's record.
        about: what else to keep, as JSON, in `ADAPTER_RECORD`.

    Raises:
        UserError: something is at ``folder`` already, or PEFT is not installed.
    """
    if adapters.queries is not None:
        raise ValueError(f"{adapters.queries} sets of adapters, but PEFT's format holds one: use .of(query)")
    rank = len(next(iter(adapters.down.values())))
    config = _peft().LoraConfig(
        r=rank,
        lora_alpha=adapters.scale * rank,
        target_modules=sorted(adapters.down),
        inference_mode=True,
        base_model_name_or_path=base,
    )
    weights = {f"{_PREFIX}{name}.lora_A.weight": down for name, down in adapters.down.items()}
    weights |= {f"{_PREFIX}{name}.lora_B.weight": up for name, up in adapters.up.items()}
    with fresh_folder(folder, "adapter") as unfinished:
        config.save_pretrained(str(unfinished))
        save_file({name: each.detach().cpu().contiguous() for name, each in weights.items()}, unfinished / _WEIGHTS)
        write_json(unfinished / ADAPTER_RECORD, sealed(about, unfinished))
    return Path(folder)


def load_adapters(folder: str | Path, encoder: nn.Module) -> Adapters:
    """Read a LoRA adapter that PEFT or `save_adapters` wrote, for use with ``encoder``.

    Raises:
        UserError: no adapter there, not LoRA in its plain form, damaged, or made for another model.
    """
    folder = Path(folder)
    refuse((not (folder / CONFIG).exists(), f"{folder}: contains no {CONFIG}. Name the folder of a PEFT adapter."))
    if (folder / ADAPTER_RECORD).exists():
        check_seal(read_json(folder / ADAPTER_RECORD), folder / ADAPTER_RECORD)
    config = read_json(folder / CONFIG)
    scale = _scale(config, folder)
    message = f"{folder}: {_WEIGHTS} is missing or damaged"
    with user_errors(message, OSError, SafetensorError, then=". Copy the adapter again."):
        weights = load_file(folder / _WEIGHTS)
    like = next(encoder.parameters())
    down, up = (_half(weights, half, like) for half in ("lora_A", "lora_B"))
    other = not down or down.keys() != up.keys() or len(weights) != 2 * len(down)
    refuse((other, f"{folder}: {_WEIGHTS} holds other weights than LoRA's A and B. Export it again with PEFT."))
    adapters = Adapters(down, up, scale)
    named_sites(encoder, adapters, f"{folder}: ")
    return adapters


def _scale(config: dict[str, Any], folder: Path) -> float:
    kind = config.get("peft_type") if isinstance(config, dict) else None
    refuse((kind != "LORA", f"{folder}: a {kind} adapter. Only LoRA adapters can be used."))
    used = [setting for setting in _OTHER_METHODS if config.get(setting)]
    if config.get("bias", "none") != "none":
        used.append("bias")
    refuse((used, f"{folder}: a LoRA adapter with {', '.join(used)}. Only plain LoRA can be used."))
    rank, alpha = int(config["r"]), float(config["lora_alpha"])
    return alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank


def _half(weights: dict[str, Tensor], half: str, like: Tensor) -> dict[str, Tensor]:
    ending = f".{half}.weight"
    return {
        name.removeprefix(_PREFIX).removesuffix(ending): each.to(like)
        for name, each in sorted(weights.items())
        if name.endswith(ending)
    }


def check_peft() -> None:
    """Refuse to make adapters that could not be saved.

    Raises:
        UserError: PEFT is not installed.
    """
    refuse((find_spec("peft") is None, "saving adapters needs PEFT: pip install 'recollect[adapters]'"))


def _peft() -> Any:
    check_peft()
    import peft

    return peft
