"""Trained heads on features of locked towers, for all studies on real pictures; training takes seconds to minutes."""

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, Shaped
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from recollect.core.files import atomic_path
from recollect.core.types import Encoder, Kind, best_device
from recollect.models.towers import ResidualMlp
from recollect.objectives import ContextObjective, ContrastiveObjective, Objective
from recollect_papers.real.data import RealData, labeled
from recollect_papers.store import content_key

ImageHead = Literal["none", "linear", "mlp", "residual"]
_WARMUP, _TEMPERATURE_RATE = 20, 1e-2


@dataclass(frozen=True)
class HeadRecipe:
    """Architecture and training of heads on features.

    Attributes:
        image: image head: ``none`` uses the standardized features (LiT); ``linear`` and ``mlp`` (a linear map plus one
            hidden layer) map them to ``width``; ``residual`` adds an MLP initialized to zero.
        width: width of the embeddings of heads ``linear`` and ``mlp``.
        hidden: width of hidden layers.
        loss: base loss.
        alpha, tau: parameters of the context objective; alpha None trains without context.
        steps, batch, learning_rate, weight_decay: parameters of AdamW with a cosine schedule.
        dropout: dropout rate on the inputs of hidden layers.
        stage_rate: learning rate of `RealData.stage` and `RealData.text_stage`; None locks them.
        stage_steps: train the stages only in the last steps, as many as this; None trains them in all steps.
        sampling: batches drawn uniformly from all ``pictures``, in equal parts from each group (``mixed``), or from
            one group at a time in turn (``debiased``).
    """

    image: ImageHead = "mlp"
    width: int = 512
    hidden: int = 512
    loss: str = "sigmoid"
    alpha: float | None = None
    tau: float = 0.01
    steps: int = 400
    batch: int = 512
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    dropout: float = 0.2
    stage_rate: float | None = None
    stage_steps: int | None = None
    sampling: Literal["pictures", "mixed", "debiased"] = "pictures"


@dataclass(frozen=True)
class FeaturePairs:
    """Features of training pairs.

    Attributes:
        images: features of the image tower, or inputs of `RealData.stage`.
        texts: features of the text tower, or inputs of `RealData.text_stage`.
        owner: row of ``images`` that each text describes, ascending.
        classes: class of each picture, excluded from each other's negatives; None if all pictures differ.
        groups: group of each picture, for `HeadRecipe.sampling`.
    """

    images: Shaped[Tensor, "pictures ..."]
    texts: Shaped[Tensor, "texts entries"]
    owner: Int64[Tensor, " texts"]
    classes: Int64[Tensor, " pictures"] | None = None
    groups: Int64[Tensor, " pictures"] | None = None


LABELS = "labels"
"""Name of the training set of labeled pictures without captions (`RealData.named`)."""

TEMPLATES = ("a photo of a {}.", "{}", "a picture of a {}", "there is a {} in this picture", "a close-up of a {}")
"""Caption templates for labels."""


def training_pairs(data: RealData, names: Sequence[str]) -> FeaturePairs:
    """Return all captioned pictures of the training splits, followed by labeled pictures if names contain `LABELS`."""
    if LABELS in names:
        return _with_labels(training_pairs(data, [name for name in names if name != LABELS]), data)
    images, texts, owner, start = [], [], [], 0
    for name in names:
        found = data.get(name)
        rows = [row for row in found.rows("train").tolist() if found.captions[row]]
        images.append(found.images[rows])
        texts += [text for row in rows for text in found.captions[row]]
        owner += [start + offset for offset, row in enumerate(rows) for _ in found.captions[row]]
        start += len(rows)
    return FeaturePairs(torch.cat(images), data.texts(texts), torch.tensor(owner))


def _with_labels(captions: FeaturePairs, data: RealData) -> FeaturePairs:
    """Append labeled pictures as a second group; each captioned picture is a separate class."""
    labels, start = data.named(), len(captions.images)
    rows = labeled(labels, "train")
    texts = [template.format(labels.class_names[label]) for label in labels.labels[rows] for template in TEMPLATES]
    return FeaturePairs(
        torch.cat([captions.images, labels.images[rows]]),
        torch.cat([captions.texts, data.texts(texts)]),
        torch.cat([captions.owner, start + torch.arange(len(rows)).repeat_interleave(len(TEMPLATES))]),
        torch.cat([torch.arange(start), start + torch.from_numpy(labels.labels[rows])]),
        (torch.arange(start + len(rows)) >= start).long(),
    )


class ImageSide(nn.Module):
    """Standardization of features, and a head.

    Args:
        features: features to compute the standardization from.
        stage: module that computes features from images; None if images are features.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, features: Float[Tensor, "n features"], recipe: HeadRecipe, stage: nn.Module | None = None
    ) -> None:
        super().__init__()
        inputs = features.shape[1]
        self.stage, self.kind, self.dropout = stage, recipe.image, recipe.dropout
        self.register_buffer("mean", features.mean(0), persistent=False)
        self.register_buffer("std", features.std(0) + 1e-3, persistent=False)
        self.width = inputs if recipe.image in {"none", "residual"} else recipe.width
        if recipe.image == "linear":
            self.head: nn.Module = nn.Linear(inputs, recipe.width)
        elif recipe.image == "mlp":
            self.head = ResidualMlp(inputs, recipe.hidden, recipe.width)
        elif recipe.image == "residual":
            last = nn.Linear(recipe.hidden, inputs)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            self.head = nn.Sequential(nn.Linear(inputs, recipe.hidden), nn.GELU(), last)

    def forward(self, images: Shaped[Tensor, "n ..."]) -> Float[Tensor, "n width"]:
        """Return unnormalized embeddings."""
        return self.map(images if self.stage is None else self.stage(images))

    def map(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        """Return unnormalized embeddings of features."""
        inputs = (features - self.mean) / self.std
        if self.kind == "none":
            return inputs
        if self.kind == "residual":
            return inputs + self.head(F.dropout(inputs, self.dropout, self.training))
        return _mapped(self.head, inputs, self.dropout) if self.kind == "mlp" else self.head(inputs)


class TextSide(nn.Module):
    """Centering and scaling of features to unit variance, and a linear map plus one hidden layer.

    Args:
        features: features to compute center and scale from.
        stage: module that computes features from texts; None if texts are features.
    """

    center: Tensor
    factor: Tensor

    def __init__(
        self, features: Float[Tensor, "n features"], width: int, recipe: HeadRecipe, stage: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.stage, self.dropout = stage, recipe.dropout
        self.register_buffer("center", features.mean(0), persistent=False)
        self.register_buffer("factor", 1 / (features - features.mean(0)).std(), persistent=False)
        self.head = ResidualMlp(features.shape[1], recipe.hidden, width)

    def forward(self, texts: Shaped[Tensor, "n entries"]) -> Float[Tensor, "n width"]:
        """Return unnormalized embeddings."""
        return self.map(texts if self.stage is None else self.stage(texts))

    def map(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        """Return unnormalized embeddings of features."""
        return _mapped(self.head, (features - self.center) * self.factor, self.dropout)


def _copy(stage: nn.Module | None, recipe: HeadRecipe) -> nn.Module | None:
    """Return a copy on the best device, trainable if the recipe has a rate for it."""
    return (
        None if stage is None else copy.deepcopy(stage).to(best_device()).requires_grad_(recipe.stage_rate is not None)
    )


@torch.no_grad()
def _features(inputs: Tensor, stage: nn.Module | None) -> Float[Tensor, "n features"]:
    if stage is None:
        return inputs
    if inputs.is_floating_point():
        return stage(inputs.to(best_device()))
    if inputs.ndim > 2:
        return stage(inputs)
    texts, rows = inputs.unique(dim=0, return_inverse=True)  # the same label text may occur many times
    return stage(texts)[rows]


def _mapped(head: nn.Module, inputs: Tensor, dropout: float) -> Tensor:
    assert isinstance(head, ResidualMlp)
    dropped = F.dropout(inputs, dropout, head.training)
    return head.direct(inputs) + head.down(F.gelu(head.up(dropped)))


class FeatureModel(Encoder):
    """Encoder whose images are features.

    Attributes:
        scale: learned inverse temperature; None without a text side.
        report: metrics of the last training step.
    """

    def __init__(
        self, image: ImageSide, text: TextSide | None, data: RealData, scale: float | None, report: dict[str, float],
        key: str,
    ) -> None:  # fmt: skip
        self.image, self.text, self.data, self._scale, self.report = image.eval(), text, data, scale, report
        self.width, self._key = image.width, key
        if text is not None:
            text.eval()

    @property
    def scale(self) -> float | None:
        return self._scale

    @property
    def fingerprint(self) -> str:
        """Digest of the recipe, seed and start model."""
        return self._key

    @torch.no_grad()
    def embed_images(self, images: Any) -> Float[Tensor, "n width"]:
        """Return unit-norm embeddings of features."""
        inputs = images if isinstance(images, Tensor) else torch.from_numpy(np.stack(images))
        return F.normalize(self.image(self._placed(inputs)), dim=1).cpu()

    @torch.no_grad()
    def embed_texts(self, texts: Sequence[str], prefix: Kind | None = None) -> Float[Tensor, "n width"]:
        """Return unit-norm embeddings of texts."""
        assert self.text is not None
        return F.normalize(self.text(self._placed(self.data.texts(texts))), dim=1).cpu()

    def _placed(self, inputs: Tensor) -> Tensor:
        """Move features, but not bytes or tokens, to the heads' device in their precision."""
        return inputs.to(self.image.mean) if inputs.is_floating_point() else inputs


def fit(
    pairs: FeaturePairs,
    recipe: HeadRecipe,
    seed: int,
    data: RealData,
    start: FeatureModel | None = None,
    cache: Path | None = None,
) -> FeatureModel:
    """Train both heads; ``steps=0`` gives a model without a text side, for ``image="none"``.

    Args:
        start: model to continue from (post-training), with the same architecture as ``recipe``; not modified.
        cache: file with the trained weights; read if it exists, else written.
    """
    key = content_key(asdict(recipe), seed, len(pairs.images), start and start.fingerprint)
    stage, text_stage = _copy(data.stage, recipe), _copy(data.text_stage, recipe)  # created before the seed is set
    assert start is None or stage is text_stage is None
    with torch.random.fork_rng(devices=[]), _bfloat16_matmul():
        torch.manual_seed(seed)
        features = _features(pairs.images, stage)
        image = ImageSide(features, recipe, stage)
        if not recipe.steps:
            return FeatureModel(image.to(best_device()), None, data, None, {}, key)
        text_features = _features(pairs.texts, text_stage)
        text = TextSide(text_features, image.width, recipe, text_stage)
        objective = _objective(recipe, start)
        if start is not None:
            assert start.text is not None
            image, text = copy.deepcopy(start.image).train(), copy.deepcopy(start.text).train()
        sides = nn.ModuleDict({"image": image, "text": text}).to(best_device())
        if cache is not None and cache.is_file():
            with safe_open(cache, framework="pt") as file:
                sides.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
                report = {name: float(value) for name, value in file.metadata().items()}
        else:
            report = _train(image, text, objective, pairs, (features, text_features), recipe, seed)
            if cache is not None:
                with atomic_path(cache) as unfinished:
                    save_file(sides.state_dict(), unfinished, {name: repr(each) for name, each in report.items()})
    return FeatureModel(image, text, data, report["scale"], report, key)


def _objective(recipe: HeadRecipe, start: FeatureModel | None) -> Objective:
    scale = 10.0 if start is None or start.scale is None else start.scale
    if recipe.alpha is None:
        return ContrastiveObjective(recipe.loss, scale=scale)
    return ContextObjective(recipe.loss, recipe.alpha, tau_context=recipe.tau, scale=scale)


def _train(
    image: ImageSide, text: TextSide, objective: Objective, pairs: FeaturePairs, features: tuple[Tensor, Tensor],
    recipe: HeadRecipe, seed: int,
) -> dict[str, float]:  # fmt: skip
    """Train both sides, and their stages in the last steps; ``features`` are those of locked stages."""
    named = [*image.named_parameters(), *text.named_parameters()]
    stage = [weight for name, weight in named if name.startswith("stage.") and weight.requires_grad]
    heads = [weight for name, weight in named if not name.startswith("stage.")]
    device = best_device()
    objective.to(device)
    locked, inputs = [each.to(device) for each in features], [pairs.images.to(device), pairs.texts.to(device)]
    last = recipe.steps if recipe.stage_steps is None else min(recipe.stage_steps, recipe.steps)
    together = last if stage else 0
    weights, temperatures, decay = [*heads, *stage], objective.temperatures(), {"weight_decay": recipe.weight_decay}
    groups = [{"params": heads, **decay}, {"params": temperatures, "weight_decay": 0.0}, {"params": stage, **decay}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.95))
    report: dict[str, Tensor] = {}
    for step, (pictures, texts) in enumerate(batches(pairs, recipe, seed)):
        start = recipe.steps - together  # first step that trains the stages
        share, stage_share = _share(step, recipe.steps, _WARMUP), 0.0
        if step < start:
            embedded = image.map(locked[0][pictures]), text.map(locked[1][texts])
        else:
            embedded = image(inputs[0][pictures]), text(inputs[1][texts])
            stage_share = _share(step - start, together, min(_WARMUP, max(1, together // 5)))
        rates = (recipe.learning_rate * share, _TEMPERATURE_RATE * share, (recipe.stage_rate or 0.0) * stage_share)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        ids = None if pairs.classes is None else pairs.classes[pictures, None].to(device)
        loss, report = objective(*embedded, duplicate_ids=ids, seed=step)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
    return {name: float(value) for name, value in report.items()}


def _share(step: int, steps: int, warmup: int) -> float:
    """Return the learning rate of a step as a share of the maximum: linear warm-up times a cosine."""
    return min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / steps))


def batches(pairs: FeaturePairs, recipe: HeadRecipe, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield rows of pictures and one random text for each; a group repeats no picture within an epoch."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.bincount(pairs.owner, minlength=len(pairs.images))
    starts = counts.cumsum(0) - counts
    groups = [torch.arange(len(pairs.images))]
    if recipe.sampling != "pictures" and pairs.groups is not None:
        groups = [(pairs.groups == group).nonzero()[:, 0] for group in pairs.groups.unique()]
    orders = [torch.empty(0, dtype=torch.int64) for _ in groups]
    for step in range(recipe.steps):
        chosen = range(len(groups)) if recipe.sampling == "mixed" else [step % len(groups)]
        parts = []
        for group in chosen:
            size = min(recipe.batch // len(chosen), len(groups[group]))
            if len(orders[group]) < size:
                orders[group] = groups[group][torch.randperm(len(groups[group]), generator=generator)]
            parts.append(orders[group][:size])
            orders[group] = orders[group][size:]
        rows = torch.cat(parts)
        yield rows, starts[rows] + (torch.rand(len(rows), generator=generator) * counts[rows]).long()


@contextmanager
def _bfloat16_matmul() -> Iterator[None]:
    """Allow matrix products to round inputs to bfloat16, which halves the time on CPUs with hardware support."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
