"""The starter: recollect's default model, built from two installable packages and a head shipped with recollect.

Images: features of EfficientNet-Lite0 and the class names that its ImageNet classifier predicts, without further
training (`recollect.models.towers.NamedFeatures`). Texts: MiniLM-L6-v2 and a text head trained by
`recollect.training.starter`. ``card.md`` describes training data, accuracy and limits.
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

IMAGE_TOWER, TEXT_TOWER = "efficientnet-lite0", "minilm-l6-v2"
FEATURES = 1280
"""Number of features of EfficientNet-Lite0."""

NAME_SHARPNESS = 0.5
"""Factor of the classifier's logits. At 1 most pictures predict a single name, which works for objects, not scenes."""

TRAINED_SHARE, SHARE = 0.2, 0.05
"""`NamedFeatures.share` in text-to-picture and in picture-to-picture comparisons. The latter is small because textures,
aerial views and other things without a class name are better distinguished by features alone."""

NAME_PULL = 0.5
"""`NamedTexts.pull`."""

NAME_GAIN = (TRAINED_SHARE / (1 - TRAINED_SHARE) * (1 - SHARE) / SHARE) ** 0.5
"""`NamedTexts.gain` with which texts rank pictures of share `SHARE` exactly as they would with `TRAINED_SHARE`."""

BANK_TEXTS = 400
"""Number of captions in the bank that measures a picture's popularity (`NamedFeatures`)."""

DISCOUNT = 0.5
"""Weight of the popularity discount in text-to-picture scores."""


def open_starter(head: str | Path = STARTER_HEAD) -> TransformersEncoder:
    """Load the starter on the CPU, with the shipped head or one written by `recollect train starter`.

    Raises:
        UserError: a package of the extra ``starter`` is not installed, a checksum differs, or ``head`` is not a starter
            head.
    """
    weights = read_head(head)
    bank = weights.pop("bank").float()
    encoder = empty_starter(weights["text_projection.mlp.up.weight"].shape[0], len(bank))
    report = encoder.model.load_state_dict({name: value.float() for name, value in weights.items()}, strict=False)
    assert not report.unexpected_keys, report.unexpected_keys
    encoder.model.visual_projection.bank.data.copy_(bank_embeddings(encoder.model.text_projection, bank))
    return encoder


def bank_embeddings(text_head: NamedTexts, bank: Tensor) -> Tensor:
    """Return unit embeddings (bank, width) of the bank's text features, without the discount entry.

    They are computed in float64 and rounded to float16, so they and the model's fingerprint are equal on all machines.
    """
    import copy

    import torch

    with torch.no_grad():
        embeddings = copy.deepcopy(text_head).double().plain(bank.double())
        return torch.nn.functional.normalize(embeddings, dim=1).half().float()


def empty_starter(hidden: int, bank: int = BANK_TEXTS) -> TransformersEncoder:
    """Build the starter with pretrained towers and classifier, but an untrained head.

    Args:
        hidden: hidden width of the text head.
        bank: number of texts in the bank.
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
    """Return a head's tensors by name: mean and std of the features, class names, text head, scale, and text bank.

    All but ``bank``, the text features of the bank (`NamedFeatures`), are named as in the model.

    Raises:
        UserError: the file is missing, damaged, or not a starter head.
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
            f"{file}: not a starter head, it has no {error}. Name a file written by `recollect train starter`."
        ) from error
    if features != FEATURES:
        raise UserError(f"{file}: a head for {features} features, but {IMAGE_TOWER} has {FEATURES}.")
    return weights


@cache
def class_names() -> tuple[tuple[str, ...], ...]:
    """Return the names of ImageNet's 1,000 classes with synonyms, in the order of the tower's classifier."""
    listed = json.loads((Path(__file__).parent / "names.json").read_text(encoding="utf-8"))
    return tuple(tuple(names) for names in listed)
