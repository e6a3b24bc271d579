"""Building a dual encoder from a vision backbone and a text encoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from recollect.core.seeding import derive_seed, seed_default_generators
from recollect.core.validation import refuse
from recollect.data.transforms import ImageTransform
from recollect.models.hub import hub_or_cache
from recollect.models.parts import (
    check_model_place,
    default_float32,
    in_float32,
    open_config,
    open_part,
    open_weights,
    optional_file,
)
from recollect.models.pretrained import PRETRAINED, open_efficientnet, tower_folder
from recollect.models.towers import TowersConfig, TowersModel, pooled
from recollect.models.transformers.encoder import TransformersEncoder, quiet
from recollect.models.transformers.processors import processor_of, transform_of

_OWN_POOLING = ("clip", "metaclip", "siglip", "altclip", "chinese_clip")  # text towers with their own pooler
_NORMALIZE, _POOLING, _TRANSFORMER = "Normalize", "Pooling", "Transformer"


def pair_towers(
    vision: str | Path,
    text: str | Path,
    *,
    width: int = 512,
    heads: Mapping[str, Any] = {},
    seed: int = 0,
) -> TransformersEncoder:
    """Build a dual encoder from a vision backbone and a text encoder, with new heads.

    If both towers have their own pooler, the result is a VisionTextDualEncoder, which opens in plain transformers.
    Otherwise it is a `TowersModel`.

    Args:
        vision: a name in `PRETRAINED`, or a folder or hub id of a vision model (ViT, DINOv2, Swin, ConvNeXt, ResNet,
            EfficientNet, ...) or of a dual encoder, whose vision tower is used.
        text: a name in `PRETRAINED`, or a folder or hub id of a text encoder (BERT, MiniLM, ...) or of a dual encoder.
            Pooling follows sentence-transformers' ``modules.json``; the default is the mean over tokens.
        width: embedding dimension, for linear heads.
        heads: ``classes`` and related settings of `TowersConfig`, for nonlinear heads; their embedding dimension
            is the sum of both towers' features.
        seed: seed for initializing the heads.

    Raises:
        UserError: a tower cannot be opened.
    """
    with torch.inference_mode(False), default_float32(), torch.random.fork_rng(devices=[]), quiet():
        seed_default_generators(derive_seed(seed, "model"))
        image_tower, transform, poolless = _vision_tower(str(vision))
        text_tower, tokenizer, pooling, normalize = _text_tower(str(text))
        towers = {"vision_model": image_tower, "text_model": text_tower}
        configs = {"vision_config": image_tower.config.to_dict(), "text_config": text_tower.config.to_dict()}
        standard = (
            not (heads or normalize or poolless)
            and pooling == "pooler"
            and isinstance(getattr(image_tower.config, "hidden_size", None), int)
            # VisionTextDualEncoder ignores projection_size, the width of SigLIP's text tower
            and not text_tower.config.model_type.startswith("siglip")
        )
        if standard:
            joint: Any = transformers.VisionTextDualEncoderConfig(**configs, projection_dim=width)
            model: Any = transformers.VisionTextDualEncoderModel(joint, **towers)
        else:
            vision_pooling, features = _image_features(image_tower, transform.size, poolless)
            text_features = _text_features(text_tower, pooling)
            config = TowersConfig(
                **configs,
                projection_dim=features + text_features + (heads.get("bank", 0) > 0) if heads else width,
                vision_features=features,
                text_features=text_features,
                vision_pooling=vision_pooling,
                text_pooling=pooling,
                text_normalize=normalize,
                **heads,
            )
            model = TowersModel(config, **towers)
        processor = transformers.VisionTextDualEncoderProcessor(processor_of(transform), tokenizer)
        return TransformersEncoder(in_float32(model).eval(), processor, transform)


def _vision_tower(name: str) -> tuple[transformers.PreTrainedModel, ImageTransform, bool]:
    """Return a vision tower, its transform, and whether its checkpoint lacks weights for the pooler."""
    if (known := PRETRAINED.get(name)) is not None:
        refuse((known.kind != "image", f"{name}: a text tower. Name an image tower: {_names_of('image')}."))
        three = ((known.mean,) * 3, (known.std,) * 3)
        return open_efficientnet(name)[0], ImageTransform(known.size, *three), False
    check_model_place(name)
    with hub_or_cache(name):
        config = open_config(name)
        model, poolless = open_weights(name, config, optional=("pooler.",))
        processor = open_part(transformers.AutoImageProcessor, name, "image processor")
    tower = getattr(model, "vision_model", model)
    blind = getattr(tower, "main_input_name", "pixel_values") != "pixel_values"
    refuse((blind, f"{name}: a {config.model_type} model, which does not read pictures. Name a vision model."))
    transform = transform_of(processor, name)
    refuse((transform.packs, f"{name}: variable input shapes (NaFlex) are not supported. Name a fixed-size model."))
    return tower, transform, poolless


def _image_features(tower: transformers.PreTrainedModel, size: int, poolless: bool) -> tuple[str, int]:
    """Return a vision tower's pooling, and the resulting number of features.

    Pooling is the tower's own pooler, else the mean over positions. Many ViTs were trained to classify by their first
    token and have a pooler without trained weights; these use the first token.
    """
    with torch.no_grad():
        output = tower.eval()(pixel_values=torch.zeros(1, 3, size, size), return_dict=True)
    pooling = "mean" if getattr(output, "pooler_output", None) is None else "first" if poolless else "pooler"
    return pooling, pooled(output, pooling).shape[1]


def _text_features(tower: transformers.PreTrainedModel, pooling: str) -> int:
    with torch.no_grad():
        output = tower.eval()(input_ids=torch.ones(1, 4, dtype=torch.int64), return_dict=True)
    return pooled(output, pooling).shape[1]


def _text_tower(name: str) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase, str, bool]:
    """Return a text tower, its tokenizer, its pooling, and whether its features are scaled to norm 1."""
    known = PRETRAINED.get(name)
    image = known is not None and known.kind != "text"
    refuse((image, f"{name}: an image tower. Name a text tower: {_names_of('text')}."))
    place = name if known is None else str(tower_folder(name))
    check_model_place(place)
    with hub_or_cache(place):
        config = open_config(place)
        modules = _modules(place)
        model, _ = open_weights(place, config, optional=("pooler.",))
        tokenizer = open_part(transformers.AutoTokenizer, place, "tokenizer")
    tower = getattr(model, "text_model", model)
    wordless = getattr(tower, "main_input_name", "input_ids") != "input_ids"
    refuse(
        (wordless, f"{name}: a {config.model_type} model, which does not read text. Name a text encoder."),
        (tokenizer.pad_token is None, f"{name}: its tokenizer has no padding token. Set one in tokenizer_config.json."),
    )
    if known is not None:
        tokenizer.model_max_length = known.length
        return tower, tokenizer, known.pooling, True
    if modules is not None:
        file = optional_file(place, "sentence_bert_config.json")
        length = json.loads(file.read_text(encoding="utf-8")).get("max_seq_length") if file else None
        tokenizer.model_max_length = length or tokenizer.model_max_length
        return tower, tokenizer, *modules
    return tower, tokenizer, "pooler" if tower.config.model_type.startswith(_OWN_POOLING) else "mean", False


def _modules(place: str) -> tuple[str, bool] | None:
    """Return pooling and normalization from sentence-transformers' ``modules.json``; None without this file.

    Raises:
        UserError: the file lists an unsupported module.
    """
    file = optional_file(place, "modules.json")
    if file is None:
        return None
    pooling, normalize = "mean", False
    for module in json.loads(file.read_text(encoding="utf-8")):
        kind = str(module["type"]).rpartition(".")[2]
        if kind == _POOLING:
            config = optional_file(place, f"{module['path']}/config.json")
            pooling = _pooling(json.loads(config.read_text(encoding="utf-8")) if config else {}, place)
        elif kind == _NORMALIZE:
            normalize = True
        else:
            refuse((kind != _TRANSFORMER, f"{place}: text encoders with a {kind} module are not supported."))
    return pooling, normalize


def _pooling(config: dict[str, Any], place: str) -> str:
    enabled = [
        key.removeprefix("pooling_mode_") for key, value in config.items() if key.startswith("pooling_mode_") and value
    ]
    supported = {"mean_tokens": "mean", "mean": "mean", "cls_token": "first", "cls": "first"}
    modes = config.get("pooling_mode") or enabled or ["mean"]
    modes = [modes] if isinstance(modes, str) else list(modes)
    unsupported = len(modes) != 1 or modes[0] not in supported
    refuse((unsupported, f"{place}: pools by {', '.join(modes)}; only mean and cls pooling are supported."))
    return supported[modes[0]]


def _names_of(kind: str) -> str:
    return ", ".join(name for name, tower in PRETRAINED.items() if tower.kind == kind)
