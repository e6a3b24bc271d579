"""Methods that tune weights, CLIP-LoRA and 2SFS, and the table of all by name."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recollect.classifiers.heads.trained import Schedule
from recollect.classifiers.texts import learned_scale
from recollect.classifiers.tuning.classifier import TunedClassifier, unit_texts
from recollect.classifiers.tuning.shots import (
    Crops,
    LabelledPictures,
    class_loss,
    descend,
    frozen_copy,
)
from recollect.core.plugins import Table
from recollect.core.seeding import torch_generator
from recollect.data.prompts import fill
from recollect.models.dual import DualEncoder
from recollect.models.lora import adapter_sites, add_lora, merged
from recollect.models.transformers.encoder import TransformersEncoder

TEMPLATE = "a photo of a {}."

_ATTENDING = frozenset({"q_proj", "k_proj", "v_proj", "query", "key", "value", "q_lin", "k_lin", "v_lin", "qkv"})


def _embedder(encoder: TransformersEncoder, template: str) -> Callable[[tuple[str, ...]], Tensor]:
    """From names to raw class embeddings, with gradients."""
    return lambda names: encoder.encode_texts(encoder.tokenize([fill(template, name) for name in names]))


@dataclass(frozen=True)
class _Tuning:
    """What the methods share.

    Attributes:
        learning_rate, weight_decay, batch: of AdamW; the learning rate follows a cosine.
        flip: mirror half of the crops.
        effort: share of the published steps.
        seed: of start, crops, order and dropout.
    """

    learning_rate: float = 2e-4
    weight_decay: float = 1e-2
    batch: int = 32
    template: str = TEMPLATE
    flip: bool = True
    effort: float = 1.0
    seed: int = 0

    def _descend(
        self, what: str, learned: list[nn.Parameter], loss: Callable[[Tensor], Tensor], count: int, steps: int
    ) -> None:
        """Take at least ``steps`` steps over ``count`` rows."""
        optimiser = torch.optim.AdamW(learned, lr=self.learning_rate, weight_decay=self.weight_decay)
        schedule = Schedule(math.ceil(steps / max(1, math.ceil(count / self.batch))), self.batch)
        descend(what, optimiser, loss, count, schedule, self.seed)


@dataclass(frozen=True)
class ClipLora(_Tuning):
    """CLIP-LoRA (Zanella and Ben Ayed, 2024): low-rank updates of queries, keys and values in every block of both
    towers, trained by the cross-entropy of the classes, with the same settings for every data set and number of shots.

    Attributes:
        rank: of the update ``B A / sqrt(rank)``; A starts Kaiming uniform, B zero.
        dropout: of A's input.
        steps_per_shot: 500 as published.
    """

    rank: int = 2
    dropout: float = 0.25
    steps_per_shot: int = 500

    def fit(self, encoder: DualEncoder, shots: LabelledPictures) -> TunedClassifier:
        """Tune a copy of ``encoder``; the updates are merged into its weights."""
        tuned = frozen_copy(encoder)
        sites = {name: layer for name, layer in adapter_sites(tuned).items() if name.rpartition(".")[2] in _ATTENDING}
        scale = learned_scale(encoder)
        crops = Crops(tuned, shots.pictures, self.flip, self.seed).stream()
        labels = torch.from_numpy(shots.labels).to(tuned.device)
        embed = _embedder(tuned, self.template)
        for layer in add_lora(tuned, *self.start(sites), self.rank**-0.5, self.dropout).values():
            layer.train()  # for dropout
        learned = [parameter for parameter in tuned.parameters() if parameter.requires_grad]

        def loss(rows: Tensor) -> Tensor:
            return class_loss(tuned.encode_images(crops(rows)), embed(shots.names), labels[rows], scale)

        steps = round(self.effort * self.steps_per_shot * shots.shots)
        self._descend("tune clip-lora", learned, loss, len(labels), steps)
        tuned = merged(tuned)
        with torch.no_grad():
            texts = unit_texts(_embedder(tuned, self.template)(shots.names))
        return TunedClassifier(tuned, shots.names, texts, scale, self.template)

    def start(self, sites: Mapping[str, nn.Linear]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """A and B of each layer as they begin."""

        def down(name: str, layer: nn.Linear) -> Tensor:
            drawn = torch.empty(self.rank, layer.in_features, dtype=torch.float64)
            nn.init.kaiming_uniform_(drawn, a=5**0.5, generator=torch_generator(self.seed, "clip-lora", name))
            return drawn.to(layer.weight)

        up = {name: layer.weight.new_zeros(layer.out_features, self.rank) for name, layer in sites.items()}
        return {name: down(name, layer) for name, layer in sites.items()}, up


@dataclass(frozen=True)
class TwoStageTuning(_Tuning):
    """2SFS (Farina et al., 2025): trains all LayerNorms of both towers, then only the class embeddings, with the same
    settings for every data set and number of shots.

    Attributes:
        steps_per_shot: 300 as published, both stages together.
        first_share: share of steps for the norms.
    """

    steps_per_shot: int = 300
    first_share: float = 0.6

    def fit(self, encoder: DualEncoder, shots: LabelledPictures) -> TunedClassifier:
        """Tune a copy of ``encoder``; other names are embedded by its tuned text tower."""
        tuned, scale = frozen_copy(encoder), learned_scale(encoder)
        labels = torch.from_numpy(shots.labels).to(tuned.device)
        embed, steps = _embedder(tuned, self.template), self.effort * self.steps_per_shot * shots.shots
        first, second = (round(share * steps) for share in (self.first_share, 1 - self.first_share))
        crops = Crops(tuned, shots.pictures, self.flip, self.seed).stream()

        def of_norms(rows: Tensor) -> Tensor:
            return class_loss(tuned.encode_images(crops(rows)), embed(shots.names), labels[rows], scale)

        layers = (module for module in tuned.model.modules() if isinstance(module, nn.LayerNorm))
        norms = [parameter for layer in layers for parameter in layer.parameters()]
        for parameter in norms:
            parameter.requires_grad_(True)
        self._descend("tune 2sfs: norms", norms, of_norms, len(labels), first)
        for parameter in norms:
            parameter.requires_grad_(False)
        with torch.no_grad():
            head = nn.Parameter(F.normalize(embed(shots.names), dim=1))

        def of_head(rows: Tensor) -> Tensor:
            with torch.no_grad():
                images = tuned.encode_images(crops(rows))
            return class_loss(images, head, labels[rows], scale)

        self._descend("tune 2sfs: classes", [head], of_head, len(labels), second)
        return TunedClassifier(tuned, shots.names, unit_texts(head), scale, self.template)


MakeTuning = Callable[[float, bool, int], Any]
"""From effort (share of the published steps), flip and seed to a method with ``fit(encoder, shots)``."""

TUNING_METHODS: Table[MakeTuning] = Table("tuning_methods", {
    "clip-lora": lambda effort, flip, seed: ClipLora(effort=effort, flip=flip, seed=seed),
    "2sfs": lambda effort, flip, seed: TwoStageTuning(effort=effort, flip=flip, seed=seed),
})  # fmt: skip
"""Methods with the constants of their public code; packages add theirs (`recollect.core.plugins`)."""
