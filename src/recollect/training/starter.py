"""Train the head of the starter: locked-image tuning on captioned pictures.

The image side is fixed (`recollect.models.towers.NamedFeatures`): features of the image tower, and the class names that
the tower's own classifier expects, so that the words for 1,000 kinds of things need no captions. The text head learns
from captions to point at both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor, nn

from recollect.core.errors import UserError
from recollect.core.files import atomic_path
from recollect.core.types import Source
from recollect.models.pretrained import PRETRAINED, open_efficientnet
from recollect.models.starter import (
    BANK_TEXTS,
    DISCOUNT,
    IMAGE_TOWER,
    NAME_GAIN,
    NAME_PULL,
    NAME_SHARPNESS,
    SHARE,
    TEXT_TOWER,
    TRAINED_SHARE,
    bank_embeddings,
    class_names,
    empty_starter,
)
from recollect.models.towers import POPULARITY, NamedFeatures, NamedTexts, ResidualMlp
from recollect.objectives import softmax_contrastive
from recollect.training.feature_store import FeatureStore
from recollect.training.locked import lock_source
from recollect.training.locked_towers import embed_texts_once

NAME_TEMPLATES = ("a photo of a {}.", "{}", "a picture of a {}", "there is a {} in this picture", "a close-up of a {}")

_MLP = "text_projection.mlp"
_WARMUP = 20
_TEMPERATURE_RATE = 1e-2


@dataclass(frozen=True)
class HeadOptions:
    """How the text head is trained.

    Attributes:
        hidden: width of its hidden layer.
        steps, batch: number of steps, pairs of a step.
        learning_rate, weight_decay, dropout: of AdamW (cosine schedule), and of the hidden branch's inputs.
        seed: of everything random.
    """

    hidden: int = 384
    steps: int = 300
    batch: int = 512
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    dropout: float = 0.2
    seed: int = 0


@dataclass(frozen=True)
class StarterPairs:
    """Features of pictures and of the texts that describe them.

    Attributes:
        images: of the image tower, before the head.
        texts: of the text tower, norm 1.
        owner: row of ``images`` that a text describes, ascending.
    """

    images: Float[Tensor, "pictures features"]
    texts: Float[Tensor, "texts entries"]
    owner: Int[Tensor, " texts"]


class ImagenetClassifier(NamedTuple):
    """A linear classifier on features of the image tower, such as the one that tower was trained with."""

    weights: Float[Tensor, "classes features"]
    bias: Float[Tensor, " classes"]


def train_starter(
    source: Source, out: str | Path, options: HeadOptions | None = None, store: FeatureStore | None = None
) -> Path:
    """Train the starter's head and write it to a file; the same source gives the same bytes on the same machine.

    Args:
        source: captioned pictures.
        out: file to write, which `recollect.load_model` opens; its name ends in ``.safetensors``.
        options: of the training.
        store: where features are kept; the user's cache folder by default.

    Raises:
        UserError: a package of the extra ``starter`` is missing, or the source has no pictures or no captions.
    """
    options, store = options or HeadOptions(), store or FeatureStore()
    encoder = empty_starter(options.hidden)
    locked = lock_source(encoder, source, store=store)
    captions = [locked.texts(index) for index in range(len(locked))]
    described = [index for index, own in enumerate(captions) if own]
    if not described:
        raise UserError(f"{source.name}: no captions. Name a table with pictures and captions.")
    names = [tuple(template.format(name) for name in own for template in NAME_TEMPLATES) for own in class_names()]
    texts = [captions[index] for index in described]
    flat = list(dict.fromkeys(text for own in (*texts, *names) for text in own))
    features, row = _rounded(embed_texts_once(encoder, flat, None, store)), {text: i for i, text in enumerate(flat)}
    pairs = StarterPairs(
        _rounded(locked.features[described, 0]),
        features[[row[text] for own in texts for text in own]],
        torch.arange(len(texts)).repeat_interleave(torch.tensor([len(own) for own in texts])),
    )
    classifier = ImagenetClassifier(*open_efficientnet(IMAGE_TOWER)[1:])
    head = fit_head(pairs, [features[[row[text] for text in own]] for own in names], classifier, options)
    generator = torch.Generator().manual_seed(options.seed)
    drawn = torch.randperm(len(texts), generator=generator)[:BANK_TEXTS].tolist()
    bank = embed_texts_once(encoder, [texts[place][0] for place in drawn], None, store)
    head |= discount_popular(head, pairs.images, bank, classifier)
    towers = {name: PRETRAINED[name].sha256 for name in (IMAGE_TOWER, TEXT_TOWER)}
    about = {"options": asdict(options), "pairs": source.fingerprint, "towers": towers}
    with atomic_path(out) as temporary:  # one entry: safetensors writes several in any order
        save_file(head, temporary, metadata={"recipe": json.dumps(about, sort_keys=True)})
    return Path(out)


def _rounded(features: Tensor) -> Tensor:
    """To float16, so that the last bits of another build of a library seldom matter."""
    return features.half().float()


def fit_head(
    captions: StarterPairs,
    names: Sequence[Float[Tensor, "_ entries"]],
    classifier: ImagenetClassifier,
    options: HeadOptions | None = None,
) -> dict[str, Tensor]:
    """Fit the image side to the pictures and train the text head by the softmax loss.

    Args:
        captions: captioned pictures.
        names: of each class, the features of the texts that name it.
        classifier: the image tower's, for the same classes.
        options: of the training.

    Returns:
        Tensors by their names in `recollect.models.towers.TowersModel`, without the classifier; matrices in float16.
    """
    options = options or HeadOptions()
    entries = captions.texts.shape[1]
    sharpened = ImagenetClassifier(NAME_SHARPNESS * classifier.weights, NAME_SHARPNESS * classifier.bias)
    image_head = _image_head(captions.images, names, sharpened)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(options.seed)
        images = F.normalize(image_head(captions.images), dim=1)
        text_head = NamedTexts(entries, options.hidden, images.shape[1], NAME_PULL, NAME_GAIN)
        center = captions.texts.mean(0)
        factor = 1 / (captions.texts - center).std()  # entries of variance 1, as layers expect; folded in at the end
        for layer in (
            text_head.mlp.direct,
            text_head.mlp.down,
        ):  # where pictures have names, begin with the text itself
            layer.weight[-entries:], layer.bias[-entries:] = 0.0, 0.0
        text_head.mlp.direct.weight[-entries:] = torch.eye(entries) / entries**0.5
        scale = _train(text_head.mlp, images, (captions.texts - center) * factor, captions.owner, options)
        _fold(text_head.mlp, center, factor)
        text_head.center.copy_(center)
        # The pull and the gain, added only now, make cosines smaller.
        scale *= ((1 - TRAINED_SHARE) / (1 - SHARE)) ** 0.5 * text_head(captions.texts).norm(dim=1).mean()
    kept = {f"visual_projection.{name}": value for name, value in image_head.state_dict().items()}
    kept |= {f"text_projection.{name}": value for name, value in text_head.state_dict().items()}
    return {
        **{
            name: value.half() if value.ndim > 1 else value.clone()
            for name, value in kept.items()
            if ".classifier." not in name
        },
        "logit_scale": scale.log(),
    }


def discount_popular(
    head: Mapping[str, Tensor],
    images: Float[Tensor, "pictures features"],
    bank: Float[Tensor, "bank entries"],
    classifier: ImagenetClassifier,
) -> dict[str, Tensor]:
    """Measure how popular pictures are with the texts of a bank, so that texts discount it (`NamedFeatures`).

    Args:
        head: what `fit_head` returned.
        images: features of the image tower.
        bank: features of the texts.
        classifier: the image tower's.

    Returns:
        The tensors that are new in the head, and the scale of the longer texts.
    """
    bank, weights = bank.half(), {name: value.float() for name, value in head.items()}
    (features,), (hidden, entries) = weights["visual_projection.mean"].shape, weights[f"{_MLP}.up.weight"].shape
    image_head = NamedFeatures(features, len(classifier.weights), entries, SHARE)
    text_head = NamedTexts(entries, hidden, features + entries, NAME_PULL, NAME_GAIN)
    weights |= {
        "visual_projection.classifier.weight": NAME_SHARPNESS * classifier.weights,
        "visual_projection.classifier.bias": NAME_SHARPNESS * classifier.bias,
    }
    for module, tower in ((image_head, "visual_projection."), (text_head, "text_projection.")):
        own = {name.removeprefix(tower): value for name, value in weights.items() if name.startswith(tower)}
        module.load_state_dict(own)
    with torch.no_grad():
        image_head.bank = nn.Parameter(bank_embeddings(text_head, bank))
        popular = image_head.popularity(image_head.plain(images))
    mean, deviation = popular.mean(), popular.std() + 1e-6
    discount = DISCOUNT * deviation / POPULARITY
    return {
        "bank": bank,
        "visual_projection.level": torch.stack([mean, deviation]),
        "text_projection.discount": discount,
        "logit_scale": head["logit_scale"] + discount.square().log1p() / 2,
    }


def _image_head(images: Tensor, names: Sequence[Tensor], classifier: ImagenetClassifier) -> NamedFeatures:
    """`NamedFeatures` for a tower's features; expected names have mean 0 over ``images``."""
    means = F.normalize(torch.stack([F.normalize(own.mean(0), dim=0) for own in names]), dim=1)
    head = NamedFeatures(images.shape[1], len(names), means.shape[1], TRAINED_SHARE)
    with torch.no_grad():
        head.mean.copy_(images.mean(0))
        head.std.copy_(images.std(0) + 1e-3)
        head.classifier.weight.copy_(classifier.weights)
        head.classifier.bias.copy_(classifier.bias)
        expected = head.classifier(images).softmax(dim=1).mean(0) @ means
        head.names.copy_(_rounded(means - expected))  # probabilities sum to 1
    return head


@torch.enable_grad()
def _train(
    head: ResidualMlp,
    images: Float[Tensor, "pictures width"],
    texts: Float[Tensor, "texts entries"],
    owner: Int[Tensor, " texts"],
    options: HeadOptions,
) -> Float[Tensor, ""]:
    """Train ``head`` to map texts to their pictures' embeddings; returns the scale of the cosines."""
    generator = torch.Generator().manual_seed(options.seed)
    counts = torch.bincount(owner, minlength=len(images))
    starts = counts.cumsum(0) - counts
    log_scale, weights = nn.Parameter(torch.tensor(math.log(10.0))), list(head.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": weights, "weight_decay": options.weight_decay}, {"params": [log_scale], "weight_decay": 0.0}],
        lr=options.learning_rate,
        betas=(0.9, 0.95),
    )
    for step in range(options.steps):
        warm = min(1.0, (step + 1) / _WARMUP) * 0.5 * (1 + math.cos(math.pi * step / options.steps))
        for group, rate in zip(optimizer.param_groups, (options.learning_rate, _TEMPERATURE_RATE), strict=True):
            group["lr"] = rate * warm
        rows = torch.randperm(len(images), generator=generator)[: options.batch]
        chosen = starts[rows] + (torch.rand(len(rows), generator=generator) * counts[rows]).long()
        dropped = F.dropout(texts[chosen], options.dropout)
        found = head.direct(texts[chosen]) + head.down(F.gelu(head.up(dropped)))
        loss = softmax_contrastive(images[rows], F.normalize(found, dim=1), log_scale.exp())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([*weights, log_scale], 1.0)
        optimizer.step()
    return log_scale.detach().exp()


@torch.no_grad()
def _fold(head: ResidualMlp, center: Tensor, factor: Tensor) -> None:
    """Change the head so that it reads texts as they are instead of ``(texts - center) factor``."""
    for layer in (head.up, head.direct):
        layer.weight.mul_(factor)
        layer.bias.sub_(layer.weight @ center)
