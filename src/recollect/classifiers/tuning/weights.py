"""Methods that tune weights: CLIP-LoRA and 2SFS."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recollect.classifiers.texts import learned_scale
from recollect.classifiers.tuning.classifier import TunedClassifier, unit_texts
from recollect.classifiers.tuning.shots import (
    Crops,
    LabelledPictures,
    by_steps,
    class_loss,
    descend,
    frozen_copy,
)
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
class ClipLora:
    """CLIP-LoRA (Zanella and Ben Ayed, 2024): low-rank updates of queries, keys and values in every block of both
    towers, trained by the cross-entropy of the classes, with the same settings for every data set and number of shots.

    Attributes:
        rank: of the update ``B A / sqrt(rank)``; A starts Kaiming uniform, B zero.
        dropout: of A's input.
        steps_per_shot: 500 as published; the learning rate follows a cosine.
        learning_rate, weight_decay, batch: of AdamW.
        template: one prompt.
        flip: mirror half of the crops.
        effort: share of the published steps.
        seed: of start, crops, order and dropout.
    """

    rank: int = 2
    dropout: float = 0.25
    steps_per_shot: int = 500
    learning_rate: float = 2e-4
    weight_decay: float = 1e-2
    batch: int = 32
    template: str = TEMPLATE
    flip: bool = True
    effort: float = 1.0
    seed: int = 0

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

        optimiser = torch.optim.AdamW(learned, lr=self.learning_rate, weight_decay=self.weight_decay)
        schedule = by_steps(round(self.effort * self.steps_per_shot * shots.shots), len(labels), self.batch)
        descend("tune clip-lora", optimiser, loss, len(labels), schedule, self.seed)
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
class TwoStageTuning:
    """2SFS (Farina et al., 2025): trains all LayerNorms of both towers, then only the class embeddings, with the same
    settings for every data set and number of shots.

    Attributes:
        steps_per_shot: 300 as published, both stages together.
        first_share: share of steps for the norms.
        learning_rate, weight_decay, batch: of AdamW, in each stage along a cosine.
        template: one prompt.
        flip: mirror half of the crops.
        effort: share of the published steps.
        seed: of crops and order.
    """

    steps_per_shot: int = 300
    first_share: float = 0.6
    learning_rate: float = 2e-4
    weight_decay: float = 1e-2
    batch: int = 32
    template: str = TEMPLATE
    flip: bool = True
    effort: float = 1.0
    seed: int = 0

    def fit(self, encoder: DualEncoder, shots: LabelledPictures) -> TunedClassifier:
        """Tune a copy of ``encoder``; other names are embedded by its tuned text tower."""
        tuned, scale = frozen_copy(encoder), learned_scale(encoder)
        labels = torch.from_numpy(shots.labels).to(tuned.device)
        embed, steps = _embedder(tuned, self.template), self.effort * self.steps_per_shot * shots.shots
        first, second = (round(share * steps) for share in (self.first_share, 1 - self.first_share))
        crops = Crops(tuned, shots.pictures, self.flip, self.seed).stream()

        def of_norms(rows: Tensor) -> Tensor:
            return class_loss(tuned.encode_images(crops(rows)), embed(shots.names), labels[rows], scale)

        norms = norm_parameters(tuned)
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

    def _descend(
        self, what: str, learned: list[nn.Parameter], loss: Callable[[Tensor], Tensor], count: int, steps: int
    ) -> None:
        optimiser = torch.optim.AdamW(learned, lr=self.learning_rate, weight_decay=self.weight_decay)
        descend(what, optimiser, loss, count, by_steps(steps, count, self.batch), self.seed)


def norm_parameters(encoder: TransformersEncoder) -> list[nn.Parameter]:
    """Weights and biases of every LayerNorm of both towers."""
    norms = (module for module in encoder.model.modules() if isinstance(module, nn.LayerNorm))
    return [parameter for norm in norms for parameter in norm.parameters()]
