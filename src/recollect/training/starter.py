"""Train the head of the starter model: locked-image tuning on captioned pictures.

The image side is fixed (`recollect.models.towers.NamedFeatures`): features of the image tower, and the class names
predicted by the tower's classifier, so the words for its 1,000 classes need no captions. The text head is trained on
captions to match both.
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
    """Training options of the text head.

    Attributes:
        hidden: width of the hidden layer.
        steps: number of steps.
        batch: pairs per step.
        learning_rate, weight_decay: of AdamW (cosine schedule).
        dropout: dropout on the hidden branch's inputs.
        seed: random seed.
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
    """Features of pictures and their captions.

    Attributes:
        images: features of the image tower, before the head.
        texts: unit-norm features of the text tower.
        owner: row of ``images`` described by each text, ascending.
    """

    images: Float[Tensor, "pictures features"]
    texts: Float[Tensor, "texts entries"]
    owner: Int[Tensor, " texts"]


class ImagenetClassifier(NamedTuple):
    """A linear classifier on features of the image tower, such as the tower's original one."""

    weights: Float[Tensor, "classes features"]
    bias: Float[Tensor, " classes"]


def train_starter(
    source: Source, out: str | Path, options: HeadOptions | None = None, store: FeatureStore | None = None
) -> Path:
    """Train the starter's head and write it to a file; the same source gives the same bytes on the same machine.

    Args:
        source: captioned pictures.
        out: ``.safetensors`` file to write; `recollect.load_model` opens it.
        options: training options.
        store: feature cache (default: the user's cache folder).

    Raises:
        UserError: a package of the extra ``starter`` is missing, or the source has no pictures or no captions.
    """
    options, store = options or HeadOptions(), store or FeatureStore()
    encoder = empty_starter(options.hidden)
    locked = lock_source(encoder, source, store=store)
    captions = [locked.texts(index) for index in range(len(locked))]
    described = [index for index, own in enumerate(captions) if own]
    if not described:
        raise UserError(f"{source.name}: no captions. Use a table with pictures and captions.")
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
    bank = embed_texts_once(encoder, [texts[index][0] for index in drawn], None, store)
    head |= discount_popular(head, pairs.images, bank, classifier)
    towers = {name: PRETRAINED[name].sha256 for name in (IMAGE_TOWER, TEXT_TOWER)}
    about = {"options": asdict(options), "pairs": source.fingerprint, "towers": towers}
    with atomic_path(out) as temporary:  # a single metadata entry, since safetensors writes several in any order
        save_file(head, temporary, metadata={"recipe": json.dumps(about, sort_keys=True)})
    return Path(out)


def _rounded(features: Tensor) -> Tensor:
    """Round to float16, so results rarely depend on the library build."""
    return features.half().float()


def fit_head(
    captions: StarterPairs,
    names: Sequence[Float[Tensor, "_ entries"]],
    classifier: ImagenetClassifier,
    options: HeadOptions | None = None,
) -> dict[str, Tensor]:
    """Fit the image side to the pictures and train the text head with the softmax loss.

    Args:
        captions: captioned pictures.
        names: for each class, the features of the texts that contain its names.
        classifier: the image tower's classifier of the same classes.
        options: training options.

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
        factor = 1 / (captions.texts - center).std()  # scales inputs to variance 1; folded into the weights at the end
        # The last entries, which are matched with the pictures' class names, are initialized to the text features.
        for layer in (text_head.mlp.direct, text_head.mlp.down):
            layer.weight[-entries:], layer.bias[-entries:] = 0.0, 0.0
        text_head.mlp.direct.weight[-entries:] = torch.eye(entries) / entries**0.5
        scale = _train(text_head.mlp, images, (captions.texts - center) * factor, captions.owner, options)
        _fold(text_head.mlp, center, factor)
        text_head.center.copy_(center)
        # Pull and gain, which take effect only now, make cosines smaller; the scale compensates.
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
    """Estimate how often each picture matches unrelated texts (hubness), so it can be discounted (`NamedFeatures`).

    Args:
        head: result of `fit_head`.
        images: features of the image tower.
        bank: features of the texts.
        classifier: the image tower's classifier.

    Returns:
        The head's additional tensors, and a scale that accounts for the additional entry of text embeddings.
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
    """Fit `NamedFeatures` to a tower's features; expected names have mean 0 over ``images``."""
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
    """Train ``head`` to map texts to their pictures' embeddings; return the scale of the cosines."""
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
        mapped = head.direct(texts[chosen]) + head.down(F.gelu(head.up(dropped)))
        loss = softmax_contrastive(images[rows], F.normalize(mapped, dim=1), log_scale.exp())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([*weights, log_scale], 1.0)
        optimizer.step()
    return log_scale.detach().exp()


@torch.no_grad()
def _fold(head: ResidualMlp, center: Tensor, factor: Tensor) -> None:
    """Fold the standardization into the head, so it takes ``texts`` instead of ``(texts - center) factor``."""
    for layer in (head.up, head.direct):
        layer.weight.mul_(factor)
        layer.bias.sub_(layer.weight @ center)
