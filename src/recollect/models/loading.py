"""Loading a model from a folder written by recollect or transformers, or from the Hugging Face hub.

Weights are read from safetensors only, never from pickles, which can run code when opened.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers.utils import cached_file

from recollect.core.checksums import CHECKSUMS, check_checksums
from recollect.core.errors import UserError, user_errors
from recollect.core.files import read_json
from recollect.core.paths import expanduser
from recollect.core.types import chosen_device
from recollect.core.validation import refuse
from recollect.data.transforms import ImageTransform
from recollect.models.dual import MODEL_FORMAT, RECORD, DualEncoder
from recollect.models.hub import hub_or_cache
from recollect.models.parts import (
    HEAD_SUFFIX,
    OPENING_ERRORS,
    check_model_place,
    default_float32,
    open_config,
    open_part,
    open_weights,
    optional_file,
)
from recollect.models.presets import PRESETS
from recollect.models.pretrained import STARTER
from recollect.models.starter import STARTER_HEAD, open_starter
from recollect.models.transformers.encoder import TransformersEncoder, quiet
from recollect.models.transformers.families import TextFormat
from recollect.models.transformers.processors import transform_of

WEIGHTS = "model.safetensors"

_MISMATCH_ERRORS = (KeyError, TypeError, AttributeError, ValueError, RuntimeError)
"""Errors raised by parts that do not match."""


def load_model(path_or_hub_id: str | Path = STARTER, device: torch.device | str | None = None) -> DualEncoder:
    """Load a model in evaluation mode, with trainable float32 weights.

    Torch's default dtype and inference mode have no effect.

    Args:
        path_or_hub_id: a folder (``RUN/model`` of a training run, or any transformers checkpoint of the CLIP family),
            a hub id such as ``google/siglip2-base-patch16-224``, or ``starter`` (the default), a small model that needs
            no hub (`recollect.models.starter`).
        device: device of the model; by default the best one available.

    Raises:
        UserError: the model does not exist or is not a dual encoder, a file is missing or damaged, or the device does
            not exist.
    """
    name = expanduser(path_or_hub_id)
    check_model_place(name)
    chosen = chosen_device(device)
    if name == STARTER or name.endswith(HEAD_SUFFIX):
        return open_starter(STARTER_HEAD if name == STARTER else name).to(chosen).eval()
    with hub_or_cache(name), torch.inference_mode(False), default_float32():
        record, file = _record(name)
        if record.get("architecture", TransformersEncoder.architecture) != TransformersEncoder.architecture:
            encoder: DualEncoder = _open_preset(name, record)
        else:
            encoder = _open_checkpoint(name, record)
        if file is not None:  # last, when all files have been downloaded
            optional_file(name, CHECKSUMS)
            check_checksums(file.parent)
    return encoder.to(chosen).eval()


def _record(name: str) -> tuple[dict[str, Any], Path | None]:
    """Return the contents and path of the model's `RECORD` file; empty for checkpoints from elsewhere."""
    file = optional_file(name, RECORD)
    record = read_json(file) if file else {}
    foreign = not isinstance(record, dict) or (file and not isinstance(record.get("format"), int))
    refuse((foreign, f"{file}: not written by recollect. Remove the file to open the model without it."))
    refuse((record.get("format", 0) > MODEL_FORMAT, f"{file}: written by a newer recollect. Update recollect."))
    return record, file


def _open_preset(name: str, record: dict[str, Any]) -> DualEncoder:
    preset = PRESETS.get(record.get("preset", ""))
    if preset is None:
        raise UserError(f"{name}: a {record['architecture']} model. Install the package that it was trained with.")
    with user_errors(
        f"{name}: {WEIGHTS} is missing or damaged", OSError, SafetensorError, then=". Copy or train it again."
    ):
        weights = load_file(str(cached_file(name, WEIGHTS)))
    with user_errors(f"{name}: {RECORD} and {WEIGHTS} do not match", *_MISMATCH_ERRORS):
        return preset.restore(record, weights)


def _open_checkpoint(name: str, record: dict[str, Any]) -> TransformersEncoder:
    import recollect.models.towers  # noqa: F401  registers TowersModel with transformers

    config = _dual_config(name)
    model, _ = open_weights(name, config)
    processor = _open_processor(name)
    with user_errors(f"{name}: not a supported dual encoder", *_MISMATCH_ERRORS):
        transform = _saved_transform(record) or transform_of(processor.image_processor, name)
        with quiet():
            encoder = TransformersEncoder(model, processor, transform, record.get("preset", ""))
        if "text" in record:
            encoder.text = TextFormat(**record["text"] | {"inputs": tuple(record["text"]["inputs"])})
        encoder.prefixes = {kind: tuple(words) for kind, words in record.get("prefixes", {}).items()}
    _check_embeds(encoder, name)
    return encoder


def _dual_config(name: str) -> transformers.PreTrainedConfig:
    config = open_config(name)
    model_class = transformers.AutoModel._model_mapping.get(type(config), None)
    wanted = ("get_image_features", "get_text_features")
    if model_class is None or isinstance(model_class, tuple) or not all(hasattr(model_class, each) for each in wanted):
        raise UserError(
            f"{name}: a {config.model_type} model, which has no image and text tower. "
            "Name a dual encoder: CLIP, SigLIP, SigLIP 2, ALIGN, a VisionTextDualEncoder, … (or pair a vision "
            "model with a text encoder: `recollect train --model.text`, or `pair_towers` in Python)."
        )
    return config


def _open_processor(name: str) -> transformers.ProcessorMixin:
    processor: Any = None
    with suppress(*OPENING_ERRORS), quiet():
        processor = transformers.AutoProcessor.from_pretrained(name, trust_remote_code=False)
    if not (hasattr(processor, "tokenizer") and hasattr(processor, "image_processor")):  # older checkpoints
        tokenizer = open_part(transformers.AutoTokenizer, name, "tokenizer")
        images = open_part(transformers.AutoImageProcessor, name, "image processor")
        processor = transformers.VisionTextDualEncoderProcessor(images, tokenizer)
    # Without tokenizer.json, transformers creates a tokenizer with only the special tokens.
    empty = len(processor.tokenizer) <= len(processor.tokenizer.all_special_ids)
    refuse((empty, f"{name}: its tokenizer has no vocabulary, so tokenizer.json is missing. Copy the model again."))
    return processor


def _saved_transform(record: dict[str, Any]) -> ImageTransform | None:
    saved = record.get("transform")
    if saved is None:
        return None
    settings: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in saved.items()}
    return ImageTransform(**settings)


def _check_embeds(encoder: TransformersEncoder, name: str) -> None:
    """Embed a gray picture and a word, to fail early with a one-line error if the model is unusable."""
    size = encoder.transform.size
    with user_errors(f"{name}: a trial picture and text cannot be embedded"):
        image, text = encoder.embed_images(torch.zeros(1, 3, size, size)), encoder.embed_texts(["a"])
    differ = f"{name}: image embeddings have {image.shape[1]} entries, but text embeddings have {text.shape[1]}."
    refuse((image.shape != text.shape, differ))
