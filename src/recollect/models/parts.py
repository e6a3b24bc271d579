"""The parts of a model on disk or on the hub: config, weights, tokenizer, image processor."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from recollect.core.errors import UserError
from recollect.core.files import near_names
from recollect.models.dual import RECORD
from recollect.models.presets import PRESETS
from recollect.models.transformers.encoder import quiet

STARTER = "starter"
"""The name that `recollect.load_model` knows the starter by."""

HEAD_SUFFIX = ".safetensors"
"""Of a file that is a head of the starter."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
OPENING_ERRORS = (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError, SafetensorError)
"""What transformers, its hub client and safetensors raise for bad files; a bug of ours raises others."""


def check_model_place(name: str) -> None:
    """Refuse what cannot be a model: neither a folder of one nor an id that the hub may have.

    Raises:
        UserError: saying what is there in its stead.
    """
    path = Path(name)
    if name == STARTER or (path.is_file() and name.endswith(HEAD_SUFFIX)):
        return
    if path.is_file():
        raise UserError(f"{name}: a file, not a model's folder. Name the folder that holds config.json.")
    if path.is_dir():
        if (path / "config.json").exists() or (path / RECORD).exists():
            return
        if (path / "model").is_dir():
            raise UserError(f"{name}: the folder of a run; its model is {path / 'model'}. Name that.")
        held = ", ".join(sorted(entry.name for entry in path.iterdir())[:5]) or "nothing"
        raise UserError(f"{name}: no config.json there (it holds {held}). Name a model's folder or a hub id.")
    if name in PRESETS:
        raise UserError(f"{name}: a preset, which has no weights yet. Train it first; then name RUN/model.")
    if not _HUB_ID.fullmatch(name):
        raise UserError(
            f"{name}: no such folder{near_names(path) or '.'} Name a model's folder or a hub id such as "
            "openai/clip-vit-base-patch32."
        )


def open_config(name: str) -> transformers.PreTrainedConfig:
    """The config of any model of transformers.

    Raises:
        UserError: there is none.
    """
    try:
        with quiet():
            return transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
    except OPENING_ERRORS as error:
        raise unreachable(name, error) from error


def open_weights(
    name: str, config: transformers.PreTrainedConfig, optional: tuple[str, ...] = ()
) -> transformers.PreTrainedModel:
    """The model with its weights in float32, read from safetensors only.

    Args:
        name: a folder or hub id.
        config: what `open_config` returned.
        optional: beginnings of names of weights that may be missing, and are then initialised.

    Raises:
        UserError: there are no weights, only pickled ones, or not all.
    """
    folder = Path(name)
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        pickled = [file for file in _PICKLES if (folder / file).exists()]
        if pickled:
            raise _pickled(name)
        raise UserError(f"{name}: no model.safetensors there. Copy the folder again, or name another.")
    try:
        with quiet():
            model, report = transformers.AutoModel.from_pretrained(
                name,
                config=config,
                dtype=torch.get_default_dtype(),  # which transformers sets, for all threads; see `MadeInFloat32`
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except OPENING_ERRORS as error:
        if "use_safetensors" in str(error):
            raise _pickled(name) from error
        raise UserError(f"{name}: its weights cannot be read ({why(error)}). Copy or download them again.") from error
    missing = sorted(key for key in report["missing_keys"] if not key.startswith(optional))
    if missing:
        raise UserError(f"{name}: {len(missing)} weights are missing, {missing[0]} first. Copy or download it again.")
    return in_float32(model)


def in_float32(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """The model, which says that it is what it is."""
    configs = [model.config]
    while configs:
        config = configs.pop()
        config.dtype = torch.float32
        configs += [part for name in config.sub_configs if (part := getattr(config, name, None)) is not None]
    return model.float()


def open_part(opener: Any, name: str, what: str) -> Any:
    """A tokenizer or an image processor, opened by a class of transformers.

    Raises:
        UserError: it cannot be opened; ``what`` says what it is.
    """
    try:
        with quiet():
            return opener.from_pretrained(name, trust_remote_code=False)
    except OPENING_ERRORS as error:
        raise UserError(f"{name}: its {what} cannot be opened ({why(error)}).") from error


def _pickled(name: str) -> UserError:
    return UserError(
        f"{name}: its weights are pickled (pytorch_model.bin), and opening a pickle can run code. Convert them where "
        f"you trust it: python -c \"from transformers import AutoModel; AutoModel.from_pretrained('{name}')"
        ".save_pretrained('FOLDER')\", copy the other files of the model there, and name FOLDER."
    )


def unreachable(name: str, error: Exception) -> UserError:
    """What to tell the user where a model cannot be had."""
    if Path(name).is_dir():
        return UserError(f"{name}: its config.json cannot be read ({why(error)}).")
    return UserError(
        f"{name}: no such folder, and not to be had from the hub ({why(error)}). Check the name and the network, or "
        f"download it elsewhere with `hf download {name} --local-dir FOLDER` and name FOLDER."
    )


def why(error: Exception) -> str:
    """The first sentence of an error that may run over many lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].rstrip('.') if lines else 'no message'}"[:300]
