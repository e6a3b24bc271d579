"""Opening a model: a folder that recollect or transformers wrote, or an id on the Hugging Face hub.

Weights are read from safetensors only. A pickle can run code when it is opened, so none ever is.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers.utils import cached_file

from recollect.core.errors import UserError
from recollect.core.files import near_names, read_json
from recollect.core.seals import check_seal
from recollect.core.types import chosen_device
from recollect.data.transforms import ImageTransform
from recollect.models.architectures import ENCODERS, restore_small
from recollect.models.dual import MODEL_FORMAT, RECORD, DualEncoder
from recollect.models.float32 import MadeInFloat32
from recollect.models.hub_check import asked_once
from recollect.models.presets import PRESETS
from recollect.models.small import WEIGHTS, SmallEncoder
from recollect.models.starter import HEAD, HEAD_SUFFIX, STARTER, open_starter
from recollect.models.transformers.encoder import TransformersEncoder, quiet
from recollect.models.transformers.families import TextFormat
from recollect.models.transformers.gated import GATED_WEIGHTS, load_gated
from recollect.models.transformers.processors import transform_of

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
# What transformers, its hub client and safetensors raise for bad files; a bug of ours raises others.
_FAILURES = (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError, SafetensorError)


def load_model(path_or_hub_id: str | Path = STARTER, device: torch.device | str | None = None) -> DualEncoder:
    """Open a model for evaluation: weights in float32 that can be trained, whatever the caller's own tensors are.

    Args:
        path_or_hub_id: a folder (``RUN/model`` of a training run, or any checkpoint of the CLIP family that
            transformers wrote), an id on the hub such as ``google/siglip2-base-patch16-224``, or ``starter``, the
            default: a small model that needs no hub (`recollect.models.starter`).
        device: where to put it; the best device of the machine by default.

    Raises:
        UserError: nothing is there, it is no dual encoder, a file of it is missing or damaged, or there is no such
            device.
    """
    name = str(path_or_hub_id)
    check_model_place(name)
    chosen = chosen_device(device)
    if name == STARTER or name.endswith(HEAD_SUFFIX):
        return open_starter(HEAD if name == STARTER else name).to(chosen).eval()
    with asked_once(name), torch.inference_mode(False), MadeInFloat32():
        record, file = _record(name)
        if record.get("architecture") in {encoder.architecture for encoder in ENCODERS.values()}:
            encoder: DualEncoder = _open_small(name, record)
        else:
            encoder = _open_checkpoint(name, record)
        if file is not None:  # last: only now is all there that the hub has to give
            check_seal(record, file)
    return encoder.to(chosen).eval()


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


def _record(name: str) -> tuple[dict[str, Any], Path | None]:
    """What recollect wrote beside the model, and the file; nothing for a checkpoint from elsewhere."""
    try:
        with quiet():
            file = cached_file(
                name,
                RECORD,
                _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
                _raise_exceptions_for_gated_repo=False,
            )
    except OSError as error:
        raise _unreachable(name, error) from error
    record = read_json(file) if file else {}
    if not isinstance(record, dict) or (file and not isinstance(record.get("format"), int)):
        raise UserError(f"{file}: not written by recollect. Remove the file to open the model without it.")
    if record.get("format", MODEL_FORMAT) > MODEL_FORMAT:
        raise UserError(f"{file}: written by a newer recollect (format {record['format']}). Update recollect.")
    return record, Path(file) if file else None


def _open_small(name: str, record: dict[str, Any]) -> SmallEncoder:
    try:
        weights = load_file(str(cached_file(name, WEIGHTS)))
    except (OSError, SafetensorError) as error:
        raise UserError(f"{name}: {WEIGHTS} is missing or damaged ({_line(error)}). Copy or train it again.") from error
    try:
        return restore_small(record, weights)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise UserError(f"{name}: {RECORD} and {WEIGHTS} do not fit together ({_line(error)}).") from error


def _open_checkpoint(name: str, record: dict[str, Any]) -> TransformersEncoder:
    import recollect.models.towers  # noqa: F401  transformers opens pairs of towers once it is imported

    config = _dual_config(name)
    gated = _gated_tensors(name) if record.get("gated") else None
    model = open_weights(name, config) if gated is None else _unfilled(name, config)
    processor = _open_processor(name)
    try:
        transform = _saved_transform(record) or transform_of(processor.image_processor, config, name)
        with quiet():
            encoder = TransformersEncoder(model, processor, transform, record.get("preset", ""))
        if "text" in record:
            encoder.text = TextFormat(**record["text"] | {"inputs": tuple(record["text"]["inputs"])})
        encoder.prefixes = {kind: tuple(words) for kind, words in record.get("prefixes", {}).items()}
        if gated is not None:
            encoder.add_gated()
            assert encoder.gated is not None
            load_gated(model, encoder.gated, gated)
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise UserError(f"{name}: not a dual encoder that can be used here ({_line(error)}).") from error
    _try_out(encoder, name)
    return encoder


def open_config(name: str) -> transformers.PreTrainedConfig:
    """The config of any model of transformers.

    Raises:
        UserError: there is none.
    """
    try:
        with quiet():
            return transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
    except _FAILURES as error:
        raise _unreachable(name, error) from error


def _dual_config(name: str) -> transformers.PreTrainedConfig:
    config = open_config(name)
    model_class = transformers.AutoModel._model_mapping.get(type(config), None)
    wanted = ("get_image_features", "get_text_features")
    if model_class is None or isinstance(model_class, tuple) or not all(hasattr(model_class, each) for each in wanted):
        raise UserError(
            f"{name}: a {config.model_type} model, which has no image and text tower. "
            "Name a dual encoder: CLIP, SigLIP, SigLIP 2, ALIGN, a VisionTextDualEncoder, … (`pair_towers` makes one "
            "of a vision model and a text encoder.)"
        )
    return config


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
    except _FAILURES as error:
        if "use_safetensors" in str(error):
            raise _pickled(name) from error
        raise UserError(f"{name}: its weights cannot be read ({_line(error)}). Copy or download them again.") from error
    missing = sorted(key for key in report["missing_keys"] if not key.startswith(optional))
    if missing:
        raise UserError(f"{name}: {len(missing)} weights are missing, {missing[0]} first. Copy or download it again.")
    return _float32(model)


def _float32(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """The model, which says that it is what it is."""
    configs = [model.config]
    while configs:
        config = configs.pop()
        config.dtype = torch.float32
        configs += [part for name in config.sub_configs if (part := getattr(config, name, None)) is not None]
    return model.float()


def _gated_tensors(name: str) -> dict[str, torch.Tensor]:
    try:
        return load_file(str(cached_file(name, GATED_WEIGHTS)))
    except (OSError, SafetensorError) as error:
        words = f"{GATED_WEIGHTS} is missing or damaged ({_line(error)}). Copy or train it again."
        raise UserError(f"{name}: {words}") from error


def _unfilled(name: str, config: transformers.PreTrainedConfig) -> transformers.PreTrainedModel:
    """A model of this shape, whose weights are still to be loaded."""
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            default = torch.get_default_dtype()  # as above
            return _float32(transformers.AutoModel.from_config(config, dtype=default, trust_remote_code=False))
    except _FAILURES as error:
        raise UserError(f"{name}: its config.json makes no model ({_line(error)}). Copy it again.") from error


def _open_processor(name: str) -> transformers.ProcessorMixin:
    try:
        with quiet():
            processor = transformers.AutoProcessor.from_pretrained(name, trust_remote_code=False)
            if hasattr(processor, "tokenizer") and hasattr(processor, "image_processor"):
                return processor
    except _FAILURES:
        pass  # an older checkpoint may have the two parts, but nothing that joins them
    tokenizer = open_part(transformers.AutoTokenizer, name, "tokenizer")
    images = open_part(transformers.AutoImageProcessor, name, "image processor")
    return transformers.VisionTextDualEncoderProcessor(images, tokenizer)


def open_part(opener: Any, name: str, what: str) -> Any:
    """A tokenizer or an image processor, opened by a class of transformers.

    Raises:
        UserError: it cannot be opened; ``what`` says what it is.
    """
    try:
        with quiet():
            return opener.from_pretrained(name, trust_remote_code=False)
    except _FAILURES as error:
        raise UserError(f"{name}: its {what} cannot be opened ({_line(error)}).") from error


def _saved_transform(record: dict[str, Any]) -> ImageTransform | None:
    saved = record.get("transform")
    if saved is None:
        return None
    settings: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in saved.items()}
    return ImageTransform(**settings)


def _try_out(encoder: TransformersEncoder, name: str) -> None:
    """Embed one grey picture and one word, so that a model that cannot be used says so now and in one line."""
    size = encoder.transform.size
    try:
        image, text = encoder.embed_images(torch.zeros(1, 3, size, size)), encoder.embed_texts(["a"])
    except Exception as error:
        raise UserError(f"{name}: a trial picture and text cannot be embedded ({_line(error)}).") from error
    if image.shape != text.shape:
        raise UserError(f"{name}: images have {image.shape[1]} entries, texts {text.shape[1]}; they share no space.")


def _pickled(name: str) -> UserError:
    return UserError(
        f"{name}: its weights are pickled (pytorch_model.bin), and opening a pickle can run code. Convert them where "
        f"you trust it: python -c \"from transformers import AutoModel; AutoModel.from_pretrained('{name}')"
        ".save_pretrained('FOLDER')\", copy the other files of the model there, and name FOLDER."
    )


def _unreachable(name: str, error: Exception) -> UserError:
    if Path(name).is_dir():
        return UserError(f"{name}: its config.json cannot be read ({_line(error)}).")
    return UserError(
        f"{name}: no such folder, and not to be had from the hub ({_line(error)}). Check the name and the network, or "
        f"download it elsewhere with `hf download {name} --local-dir FOLDER` and name FOLDER."
    )


def _line(error: Exception) -> str:
    """The first sentence of an error that may run over many lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].rstrip('.') if lines else 'no message'}"[:300]
