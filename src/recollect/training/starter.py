"""Train the text head of the starter: locked-image tuning on captioned pictures and on the names of a classifier.

Three kinds of pairs: pictures with their captions; the same pictures with the names of the class, of the 1,000 that
the image tower was trained to tell apart, that the tower's classifier is sure of; and, since most classes are in few
pictures, features that this classifier takes for class c, made without any picture of it (`class_features`), with the
names of c.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
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
from recollect.models.starter import IMAGE_TOWER, TEXT_TOWER, class_names, empty_starter
from recollect.models.towers import ResidualMlp
from recollect.objectives import sigmoid_contrastive
from recollect.training.feature_store import FeatureStore
from recollect.training.locked import lock_source
from recollect.training.locked_towers import embed_texts_once

NAME_TEMPLATES = ("a photo of a {}.", "{}", "a picture of a {}", "there is a {} in this picture", "a close-up of a {}")
MAX_FEATURE = 6.0
"""The image tower ends in ReLU6: its features, means over places, are from 0 to 6."""

_WARMUP = 20
_TEMPERATURE_RATE = 1e-2


@dataclass(frozen=True)
class HeadOptions:
    """How the text head is trained.

    Attributes:
        hidden: width of its hidden layer.
        steps, batch: number of steps, pairs of a step.
        learning_rate, weight_decay, dropout: of AdamW (cosine schedule), and of the hidden branch's inputs.
        mixup: pairs are mixed with others, features and texts alike, by shares from Beta(mixup, mixup); 0 for none.
        names: made features of each class; 0 leaves all names out.
        confidence: a captioned picture that the classifier gives a class with more than this probability is also paired
            with the names of that class.
        strength, spread: see `class_features`.
        average: decay of the moving average of the weights that is kept; 0 keeps the last ones.
        seed: of everything random.
    """

    hidden: int = 768
    steps: int = 400
    batch: int = 512
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    dropout: float = 0.2
    mixup: float = 0.0
    names: int = 10
    confidence: float = 0.15
    strength: float = 6.0
    spread: float = 0.6
    average: float = 0.0
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
    classes = class_names() if options.names else ()
    names = [tuple(template.format(name) for name in own for template in NAME_TEMPLATES) for own in classes]
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
    towers = {name: PRETRAINED[name].sha256 for name in (IMAGE_TOWER, TEXT_TOWER)}
    about = {"options": asdict(options), "pairs": source.fingerprint, "towers": towers}
    with atomic_path(out) as temporary:  # one entry: safetensors writes several in any order
        save_file(head, temporary, metadata={"recipe": json.dumps(about, sort_keys=True)})
    return Path(out)


def _rounded(features: Tensor) -> Tensor:
    """To float16, so that the last bits of another build of a library seldom matter."""
    return features.half().float()


def class_features(
    features: Float[Tensor, "pictures features"],
    weights: Float[Tensor, "classes features"],
    count: int,
    *,
    strength: float,
    spread: float,
    generator: torch.Generator,
) -> Float[Tensor, "made features"]:
    """Features that a linear classifier takes for each of its classes, without a picture of any.

    ``mu + strength Sigma (w_c - mean w) + spread (r - mu)``, clamped to what the tower can give: mu and Sigma are mean
    and covariance of real features, r a random real feature. A linear discriminant's weights are Sigma^-1 times the
    distance of the class means, so that Sigma w points from the common mean towards that of the class.

    Args:
        features: of any real pictures.
        weights: of the classifier.
        count: how many to make of each class.
        generator: draws r.

    Returns:
        ``count`` times all classes in order.
    """
    mean, covariance = features.mean(0), torch.cov(features.T)
    centers = mean + strength * (weights - weights.mean(0)) @ covariance
    rows = torch.randint(len(features), (count * len(weights),), generator=generator)
    return (centers.repeat(count, 1) + spread * (features[rows] - mean)).clamp(0, MAX_FEATURE)


def fit_head(
    captions: StarterPairs,
    names: Sequence[Float[Tensor, "_ entries"]],
    classifier: ImagenetClassifier,
    options: HeadOptions | None = None,
) -> dict[str, Tensor]:
    """Train a text head by the sigmoid loss.

    Args:
        captions: captioned pictures.
        names: of each class, the features of the texts that name it.
        classifier: the image tower's, for the same classes.
        options: of the training.

    Returns:
        Tensors by their names in `recollect.models.towers.TowersModel`; matrices in float16.
    """
    options = options or HeadOptions()
    generator = torch.Generator().manual_seed(options.seed)
    mean, std = captions.images.mean(0), captions.images.std(0) + 1e-3
    pairs = _with_names(captions, names, classifier, options, generator)
    images = (pairs.images - mean) / std
    center = pairs.texts.mean(0)
    factor = 1 / (pairs.texts - center).std()  # entries of variance 1, as layers expect; folded into them at the end
    texts = (pairs.texts - center) * factor
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        head = ResidualMlp(texts.shape[1], options.hidden, images.shape[1])
        scale, bias = _train(head, images, texts, pairs.owner, options, generator)
    return {
        "visual_projection.mean": mean,
        "visual_projection.std": std,
        **{f"text_projection.{name}": value for name, value in _folded(head, center, factor).items()},
        "logit_scale": scale.detach(),
        "logit_bias": bias.detach(),
    }


def _with_names(
    captions: StarterPairs,
    names: Sequence[Tensor],
    classifier: ImagenetClassifier,
    options: HeadOptions,
    generator: torch.Generator,
) -> StarterPairs:
    """Captioned pictures, then those the classifier is sure of beside the names of their class, then made features."""
    if not options.names:
        return captions
    shares, classes = (captions.images @ classifier.weights.T + classifier.bias).softmax(1).max(1)
    sure = (shares > options.confidence).nonzero()[:, 0]
    made = class_features(
        captions.images,
        classifier.weights,
        options.names,
        strength=options.strength,
        spread=options.spread,
        generator=generator,
    )
    named = torch.cat([classes[sure], torch.arange(len(names)).repeat(options.names)])
    texts = [names[label] for label in named.tolist()]
    counts = torch.tensor([len(own) for own in texts])
    return StarterPairs(
        torch.cat([captions.images, captions.images[sure], made]),
        torch.cat([captions.texts, *texts]),
        torch.cat([captions.owner, torch.arange(len(named)).repeat_interleave(counts) + len(captions.images)]),
    )


def _train(
    head: ResidualMlp, images: Tensor, texts: Tensor, owner: Tensor, options: HeadOptions, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    counts = torch.bincount(owner, minlength=len(images))
    starts = counts.cumsum(0) - counts
    scale, bias = nn.Parameter(torch.tensor(math.log(10.0))), nn.Parameter(torch.tensor(-10.0))
    weights = list(head.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": weights, "weight_decay": options.weight_decay}, {"params": [scale, bias], "weight_decay": 0.0}],
        lr=options.learning_rate,
        betas=(0.9, 0.95),
    )
    kept = [parameter.detach().clone() for parameter in weights]
    share = torch.distributions.Beta(options.mixup, options.mixup) if options.mixup else None
    for step in range(options.steps):
        warm = min(1.0, (step + 1) / _WARMUP) * 0.5 * (1 + math.cos(math.pi * step / options.steps))
        for group, rate in zip(optimizer.param_groups, (options.learning_rate, _TEMPERATURE_RATE), strict=True):
            group["lr"] = rate * warm
        rows = torch.randperm(len(images), generator=generator)[: options.batch]
        chosen = starts[rows] + (torch.rand(len(rows), generator=generator) * counts[rows]).long()
        batch, described = images[rows], texts[chosen]
        if share is not None:
            other = torch.randperm(len(rows), generator=generator)
            part = share.sample((len(rows), 1))
            part = torch.maximum(part, 1 - part)
            batch = part * batch + (1 - part) * batch[other]
            described = part * described + (1 - part) * described[other]
        dropped = F.dropout(described, options.dropout)
        found = head.direct(described) + head.down(F.gelu(head.up(dropped)))
        loss = sigmoid_contrastive(F.normalize(batch, dim=1), F.normalize(found, dim=1), scale.exp(), bias)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        for average, parameter in zip(kept, weights, strict=True):
            average.lerp_(parameter.detach(), 1 - min(options.average, (1 + step) / (10 + step)))
    with torch.no_grad():
        for average, parameter in zip(kept, weights, strict=True):
            parameter.copy_(average)
    return scale, bias


@torch.no_grad()
def _folded(head: ResidualMlp, center: Tensor, factor: Tensor) -> dict[str, Tensor]:
    """The head's tensors for texts as they are instead of ``(texts - center) factor``; matrices in float16."""
    for layer in (head.up, head.direct):
        layer.weight.mul_(factor)
        layer.bias.sub_(layer.weight @ center)
    return {name: value.half() if value.ndim > 1 else value.clone() for name, value in head.state_dict().items()}
