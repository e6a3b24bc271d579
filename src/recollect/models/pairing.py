"""Join a vision backbone and a text encoder to a dual encoder."""

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
from recollect.models.hub import asked_once
from recollect.models.parts import (
    check_model_place,
    in_float32,
    made_in_float32,
    open_config,
    open_part,
    open_weights,
    optional_file,
)
from recollect.models.pretrained import PRETRAINED, open_efficientnet, tower_folder
from recollect.models.towers import TowersConfig, TowersModel, pooled
from recollect.models.transformers.encoder import TransformersEncoder, quiet
from recollect.models.transformers.processors import processor_of, transform_of

_OWN_POOLING = ("clip", "metaclip", "siglip", "altclip", "chinese_clip")  # text towers that end in one vector
_NORMALIZE, _POOLING, _TRANSFORMER = "Normalize", "Pooling", "Transformer"


def pair_towers(
    vision: str | Path,
    text: str | Path,
    *,
    width: int = 512,
    heads: Mapping[str, Any] = {},
    seed: int = 0,
) -> TransformersEncoder:
    """Join a vision backbone and a text encoder by new heads.

    Where transformers has a class for the pair (a VisionTextDualEncoder: both towers pool by themselves), the result
    is one of these and opens in plain transformers. Otherwise it is a `TowersModel`.

    Args:
        vision: a name in `PRETRAINED`, or a folder or hub id of a vision model (ViT, DINOv2, Swin, ConvNeXt, ResNet,
            EfficientNet, ...) or of a dual encoder, whose vision tower is taken.
        text: a name in `PRETRAINED`, or a folder or hub id of a text encoder (BERT, MiniLM, ...; the pooling that
            sentence-transformers' ``modules.json`` names, else the mean over tokens) or of a dual encoder.
        width: number of entries of an embedding of linear heads.
        heads: ``classes`` and further settings of `TowersConfig`, for heads that are not linear; their embeddings hold
            the features of both towers.
        seed: of the heads.

    Raises:
        UserError: one of the two cannot be opened as such a tower.
    """
    with torch.inference_mode(False), made_in_float32(), torch.random.fork_rng(devices=[]), quiet():
        seed_default_generators(derive_seed(seed, "model"))
        image_tower, transform, poolless = _vision_tower(str(vision))
        text_tower, tokenizer, pooling, normalize = _text_tower(str(text))
        towers = {"vision_model": image_tower, "text_model": text_tower}
        configs = {"vision_config": image_tower.config.to_dict(), "text_config": text_tower.config.to_dict()}
        whole = not heads and not normalize and pooling == "pooler" and not poolless
        if (
            whole
            and isinstance(getattr(image_tower.config, "hidden_size", None), int)
            and _has_class(text_tower.config)
        ):
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


def _has_class(text: Any) -> bool:
    return not text.model_type.startswith("siglip")  # its width is projection_size, which the class does not read


def _vision_tower(name: str) -> tuple[transformers.PreTrainedModel, ImageTransform, bool]:
    """A vision tower, its transform, and whether its checkpoint has no weights for the tower's pooler."""
    if (known := PRETRAINED.get(name)) is not None:
        refuse((known.kind != "image", f"{name}: a text tower. Name an image tower: {_named('image')}."))
        three = ((known.mean,) * 3, (known.std,) * 3)
        return open_efficientnet(name)[0], ImageTransform(known.size, *three), False
    check_model_place(name)
    with asked_once(name):
        config = open_config(name)
        model, poolless = open_weights(name, config, optional=("pooler.",))
        processor = open_part(transformers.AutoImageProcessor, name, "image processor")
    tower = getattr(model, "vision_model", model)
    blind = getattr(tower, "main_input_name", "pixel_values") != "pixel_values"
    refuse((blind, f"{name}: a {config.model_type} model, which does not read pictures. Name a vision model."))
    transform = transform_of(processor, config, name)
    refuse((transform.packs, f"{name}: reads pictures of any shape (NaFlex). Name a vision model of one size."))
    return tower, transform, poolless


def _image_features(tower: transformers.PreTrainedModel, size: int, poolless: bool) -> tuple[str, int]:
    """How a vision tower's output is pooled (by itself, else the mean over places), and how many features it has.

    Many ViTs were trained to classify by their first token, and their checkpoints have no weights for the pooler.
    """
    with torch.no_grad():
        made = tower.eval()(pixel_values=torch.zeros(1, 3, size, size), return_dict=True)
    pooling = "mean" if getattr(made, "pooler_output", None) is None else "first" if poolless else "pooler"
    return pooling, pooled(made, pooling).shape[1]


def _text_features(tower: transformers.PreTrainedModel, pooling: str) -> int:
    with torch.no_grad():
        made = tower.eval()(input_ids=torch.ones(1, 4, dtype=torch.int64), return_dict=True)
    return pooled(made, pooling).shape[1]


def _text_tower(name: str) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase, str, bool]:
    """A text tower, its tokenizer, its pooling, and whether its features are scaled to norm 1."""
    known = PRETRAINED.get(name)
    image = known is not None and known.kind != "text"
    refuse((image, f"{name}: an image tower. Name a text tower: {_named('text')}."))
    place = name if known is None else str(tower_folder(name))
    check_model_place(place)
    with asked_once(place):
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
        return tower, tokenizer, *modules
    return tower, tokenizer, "pooler" if tower.config.model_type.startswith(_OWN_POOLING) else "mean", False


def _modules(place: str) -> tuple[str, bool] | None:
    """Pooling and normalization by sentence-transformers' ``modules.json``; None without this file.

    Raises:
        UserError: it names a module that has no counterpart here.
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
            refuse((kind != _TRANSFORMER, f"{place}: a text encoder with a {kind} module cannot be used."))
    return pooling, normalize


def _pooling(config: dict[str, Any], place: str) -> str:
    on = [
        key.removeprefix("pooling_mode_") for key, value in config.items() if key.startswith("pooling_mode_") and value
    ]
    names = {"mean_tokens": "mean", "mean": "mean", "cls_token": "first", "cls": "first"}
    named = config.get("pooling_mode") or on or ["mean"]
    chosen = [named] if isinstance(named, str) else list(named)
    other = len(chosen) != 1 or chosen[0] not in names
    refuse((other, f"{place}: pools by {', '.join(chosen)}; only mean and cls pooling are supported."))
    return names[chosen[0]]


def _named(kind: str) -> str:
    return ", ".join(name for name, tower in PRETRAINED.items() if tower.kind == kind)
