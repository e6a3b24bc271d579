"""Loading the parts of a model from disk or the hub: config, weights, tokenizer, image processor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers.utils import cached_file

from recollect.core.errors import UserError, one_line, user_errors
from recollect.core.paths import did_you_mean
from recollect.core.validation import refuse
from recollect.models.dual import RECORD
from recollect.models.presets import PRESETS
from recollect.models.pretrained import STARTER
from recollect.models.transformers.encoder import quiet

HEAD_SUFFIX = ".safetensors"
"""File name suffix of a starter head."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
OPENING_ERRORS = (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError, SafetensorError)
"""Errors that transformers, its hub client and safetensors raise for bad files."""


def check_model_place(name: str) -> None:
    """Reject a name that is neither a model folder nor a possible hub id.

    Raises:
        UserError: the name is something else; the message says what.
    """
    path = Path(name)
    if name == STARTER or (path.is_file() and name.endswith(HEAD_SUFFIX)):
        return
    if (path / "config.json").exists() or (path / RECORD).exists():
        return
    refuse(
        (path.is_file(), f"{name}: a file, not the folder of a model. Name the folder that contains config.json."),
        ((path / "model").is_dir(), f"{name}: the folder of a run. Name its model, {path / 'model'}."),
        (path.is_dir(), f"{name}: contains no config.json. Name the folder of a model, or a hub id."),
        (name in PRESETS, f"{name}: a preset, which has no weights yet. Train it first, then name RUN/model."),
        (
            not _HUB_ID.fullmatch(name),
            f"{name}: no such folder{did_you_mean(path) or '.'} Name the folder of a model, or a hub id such as "
            "openai/clip-vit-base-patch32.",
        ),
    )


def open_config(name: str) -> transformers.PreTrainedConfig:
    """Load the config of a transformers model.

    Raises:
        UserError: the config is missing or unreadable.
    """
    try:
        with quiet():
            return transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
    except OPENING_ERRORS as error:
        raise unreachable(name, error) from error


def open_weights(
    name: str, config: transformers.PreTrainedConfig, optional: tuple[str, ...] = ()
) -> tuple[transformers.PreTrainedModel, bool]:
    """Load a transformers model in float32, from safetensors only.

    Args:
        name: a folder or hub id.
        config: the model's config, from `open_config`.
        optional: name prefixes of weights that may be missing and are then initialized randomly.

    Returns:
        The model, and whether any optional weights are missing.

    Raises:
        UserError: weights are missing, incomplete or pickled.
    """
    folder = Path(name)
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        pickled = any((folder / file).exists() for file in _PICKLES)
        raise UserError(_pickled(name) if pickled else f"{name}: contains no model.safetensors. Copy the folder again.")
    try:
        with quiet():
            model, report = transformers.AutoModel.from_pretrained(
                name,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except OPENING_ERRORS as error:
        words = f"{name}: its weights cannot be read ({one_line(error)}). Copy or download them again."
        raise UserError(_pickled(name) if "use_safetensors" in str(error) else words) from error
    random = {key for key in report["missing_keys"] if key.startswith(optional)}
    missing = sorted({*report["missing_keys"]} - random)
    shown = ", ".join(missing[:1])
    refuse((missing, f"{name}: {len(missing)} weights are missing, such as {shown}. Copy or download the model again."))
    return in_float32(model), bool(random)


def in_float32(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """Convert a model and the dtype in its configs to float32, in place."""
    configs = [model.config]
    while configs:
        config = configs.pop()
        config.dtype = torch.float32
        configs += [part for name in config.sub_configs if (part := getattr(config, name, None)) is not None]
    return model.float()


def open_part(opener: Any, name: str, what: str) -> Any:
    """Load a tokenizer or image processor with the transformers class ``opener``.

    Raises:
        UserError: it cannot be loaded; the message calls it ``what``.
    """
    with user_errors(f"{name}: its {what} cannot be opened", *OPENING_ERRORS), quiet():
        return opener.from_pretrained(name, trust_remote_code=False)


def optional_file(name: str, file: str) -> Path | None:
    """Return the local path of a model's file, downloaded if needed; None if the model has no such file."""
    try:
        with quiet():
            path = cached_file(
                name,
                file,
                _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
                _raise_exceptions_for_gated_repo=False,
            )
    except OSError as error:
        raise unreachable(name, error) from error
    return Path(path) if path else None


def _pickled(name: str) -> str:
    return (
        f"{name}: its weights are pickled (pytorch_model.bin), and opening a pickle can run code. If you trust the "
        f"model, convert it: python -c \"from transformers import AutoModel; AutoModel.from_pretrained('{name}')"
        ".save_pretrained('FOLDER')\", copy its other files there, and name FOLDER."
    )


def unreachable(name: str, error: Exception) -> UserError:
    """Return the error for a model that cannot be opened or downloaded."""
    if Path(name).is_dir():
        return UserError(f"{name}: its config.json cannot be read ({one_line(error)}).")
    return UserError(
        f"{name}: no such folder, and not available from the hub ({one_line(error)}). Check the name and the network, "
        f"or download it elsewhere with `hf download {name} --local-dir FOLDER` and name FOLDER."
    )


@contextmanager
def default_float32() -> Iterator[None]:
    """Set torch's default dtype to float32 inside the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
