"""The starter: the model that recollect uses where none is named. It opens from two packages and a file of ours.

Images: the features of EfficientNet-Lite0 and the class names that its ImageNet classifier expects; nothing is learned
on this side (`recollect.models.towers.NamedFeatures`). Texts: MiniLM-L6-v2 and a text head, trained by
`recollect.training.starter`. ``card.md`` describes the data, how well it works, and its limits.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from recollect.core.errors import UserError
from recollect.models.pretrained import STARTER, open_efficientnet

if TYPE_CHECKING:
    from torch import Tensor

    from recollect.models.towers import NamedTexts
    from recollect.models.transformers.encoder import TransformersEncoder

STARTER_HEAD = Path(__file__).parent / "head.safetensors"
CARD = Path(__file__).parent / "card.md"

IMAGE_TOWER, TEXT_TOWER = "efficientnet-lite0", "minilm-l6-v2"
FEATURES = 1280
"""Of EfficientNet-Lite0."""

NAME_SHARPNESS = 0.5
"""Factor of the classifier's logits. At 1 most pictures expect a single name, which finds things but no scenes."""


TRAINED_SHARE, SHARE = 0.2, 0.05
"""Of names in a picture (`NamedFeatures`), as words see it and as other pictures do. Textures, places seen from above
and other things that the classes have no name for are better told apart by their features alone."""

NAME_PULL = 0.5
"""Of `NamedTexts`."""

NAME_GAIN = (TRAINED_SHARE / (1 - TRAINED_SHARE) * (1 - SHARE) / SHARE) ** 0.5
"""Of `NamedTexts`: with it, words rank pictures by `SHARE` exactly as they would by `TRAINED_SHARE`."""

BANK_TEXTS = 400
"""Captions that pictures are compared with to tell how popular they are (`NamedFeatures`)."""

DISCOUNT = 0.5
"""Of a picture's popularity in the score of a text."""


def open_starter(head: str | Path = STARTER_HEAD) -> TransformersEncoder:
    """The starter on the CPU, with the head that the package ships or one that `recollect train starter` wrote.

    Raises:
        UserError: a package of the extra ``starter`` is not installed, a file has another checksum, or ``head`` is not
            such a head.
    """
    weights = read_head(head)
    bank = weights.pop("bank").float()
    encoder = empty_starter(weights["text_projection.mlp.up.weight"].shape[0], len(bank))
    found = encoder.model.load_state_dict({name: value.float() for name, value in weights.items()}, strict=False)
    assert not found.unexpected_keys, found.unexpected_keys
    encoder.model.visual_projection.bank.data.copy_(bank_embeddings(encoder.model.text_projection, bank))
    return encoder


def bank_embeddings(text_head: NamedTexts, bank: Tensor) -> Tensor:
    """What pictures are compared with: embeddings (bank, width) of texts by their features, without the last entry.

    Computed in float64 and rounded, so that it is the same on every machine, as is the fingerprint of the model.
    """
    import copy

    import torch

    with torch.no_grad():
        made = copy.deepcopy(text_head).double().plain(bank.double())
        return torch.nn.functional.normalize(made, dim=1).half().float()


def empty_starter(hidden: int, bank: int = BANK_TEXTS) -> TransformersEncoder:
    """Both towers, the classifier of the image tower, and a head that has learned nothing yet.

    Args:
        hidden: width of the hidden layer of the text head.
        bank: number of texts that pictures are compared with.
    """
    from recollect.models.pairing import pair_towers

    weights, bias = open_efficientnet(IMAGE_TOWER)[1:]
    heads = {"classes": len(weights), "text_hidden": hidden, "name_share": SHARE, "name_pull": NAME_PULL}
    heads |= {"name_gain": NAME_GAIN, "bank": bank}
    encoder = pair_towers(IMAGE_TOWER, TEXT_TOWER, heads=heads)
    classifier = {"weight": NAME_SHARPNESS * weights, "bias": NAME_SHARPNESS * bias}
    encoder.model.visual_projection.classifier.load_state_dict(classifier)
    encoder.preset = STARTER
    return encoder


def read_head(file: str | Path) -> dict[str, Tensor]:
    """The tensors of a head by their names in the model: mean and std of the features, class names, text head, scale.

    ``bank`` holds the features of the texts that pictures are compared with (`NamedFeatures`).

    Raises:
        UserError: the file is missing, damaged or something else.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = load_file(str(file))
        (features,) = weights["visual_projection.mean"].shape
        _ = weights["text_projection.mlp.up.weight"], weights["bank"]
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file}: cannot be read ({error}). Train it again, or install recollect again.") from error
    except KeyError as error:
        raise UserError(
            f"{file}: not a head of the starter, it has no {error}. Name what `recollect train starter` wrote."
        ) from error
    if features != FEATURES:
        raise UserError(f"{file}: made for {features} features; {IMAGE_TOWER} has {FEATURES}.")
    return weights


@cache
def class_names() -> tuple[tuple[str, ...], ...]:
    """Names of the 1,000 classes of ImageNet in the order of the tower's classifier, each with its synonyms."""
    listed = json.loads((Path(__file__).parent / "names.json").read_text(encoding="utf-8"))
    return tuple(tuple(names) for names in listed)
