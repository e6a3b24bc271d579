"""CasPL: prompts that distil a larger model on unlabelled pictures, followed by another prompt learner."""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from recollect.classifiers.heads.trained import Schedule
from recollect.classifiers.texts import learned_scale
from recollect.classifiers.tuning.shots import Crops, LabelledPictures, descend, frozen_copy
from recollect.classifiers.tuning.weights import TEMPLATE
from recollect.core.errors import UserError
from recollect.core.types import ImageLike
from recollect.data.prompts import fill
from recollect.models.dual import DualEncoder
from recollect.models.transformers.encoder import TransformersEncoder
from recollect_papers.peers.prompt_learners import (
    DEPTH,
    Learner,
    PromptLearning,
    PromptSRC,
    PromptTask,
    Tokens,
    _layers,
)
from recollect_papers.peers.prompts import PromptedClassifier, Prompts, check_family, prompt_tokens


@dataclass(frozen=True)
class BoostingPrompts:
    """CasPL's first phase (Wu et al., 2024): tokens in both towers that match a small model's probabilities to those of
    a larger one on unlabelled pictures of the domain.

    The paper defines the loss (KL between the logits); its constants are not public. Ours: 8 tokens in the first 9
    blocks, 20 epochs of SGD, the larger model's zero-shot probabilities at its own scale.

    Attributes:
        tokens, depth: of each tower.
        learning_rate, batch, epochs: of SGD with momentum 0.9 along a cosine.
        template: of the class texts.
        flip: mirror half of the crops.
        effort: share of the epochs, at least one.
        seed: of start, crops and order.
    """

    tokens: int = 8
    depth: int = DEPTH
    learning_rate: float = 2.5e-3
    batch: int = 16
    epochs: int = 20
    template: str = TEMPLATE
    flip: bool = True
    effort: float = 1.0
    seed: int = 0

    def fit(
        self, encoder: DualEncoder, teacher: DualEncoder, pictures: Sequence[ImageLike], names: tuple[str, ...]
    ) -> Prompts:
        """Learn from the larger ``teacher`` on unlabelled ``pictures``.

        Both see the same crop; the teacher gets it as a picture, since its transform may differ.
        """
        frozen = frozen_copy(encoder)
        check_family(frozen, image=True)
        start = [_layers(frozen, tower, "", self.tokens, self.depth, self.seed) for tower in ("text", "image")]
        learner = Tokens(*start).to(frozen.device)
        tokens = prompt_tokens(frozen, [fill(self.template, name) for name in names], self.tokens)
        task = PromptTask(frozen, names, learned_scale(encoder), tokens)
        texts = teacher.embed_texts([fill(self.template, name) for name in names])
        wanted, crops = learned_scale(teacher), Crops(frozen, pictures, self.flip, self.seed).stream()

        def loss(rows: Tensor) -> Tensor:
            pixels = crops(rows)
            shown = teacher.embed_images(_as_bytes(frozen, pixels))
            targets = F.log_softmax(wanted * shown @ texts.T, dim=1).to(pixels.device)
            return match_loss(learner, task, pixels, targets)

        optimiser = torch.optim.SGD(learner.parameters(), lr=self.learning_rate, momentum=0.9, weight_decay=5e-4)
        epochs = max(1, round(self.effort * self.epochs)) if self.epochs and self.effort else 0
        descend("tune caspl: boosting", optimiser, loss, len(pictures), Schedule(epochs, self.batch, 1e-5), self.seed)
        return learner.prompts().detached()


def match_loss(learner: Learner, task: PromptTask, pixels: Tensor, targets: Tensor) -> Tensor:
    """Mean over pictures of ``KL(teacher || student)``; ``targets`` are log probabilities."""
    images, texts = (F.normalize(raw, dim=1) for raw in learner(task, pixels))
    found = F.log_softmax(task.scale * images @ texts.T, dim=1)
    return F.kl_div(found, targets, reduction="batchmean", log_target=True)


def _as_bytes(encoder: TransformersEncoder, pixels: Tensor) -> list[ImageLike]:
    """Crops converted back to pictures."""
    transform = encoder.transform
    mean, std = (torch.tensor(values, device=pixels.device).view(3, 1, 1) for values in (transform.mean, transform.std))
    rounded = ((pixels.float() * std + mean) * 255).round().clamp(0, 255).byte()
    return list(rounded.permute(0, 2, 3, 1).cpu().numpy())


@dataclass(frozen=True)
class CascadedPrompts:
    """CasPL: frozen `BoostingPrompts`, then another learner with its own loss.

    It uses unlabelled pictures and a larger model, so its figures are not comparable with few-shot ones.

    Attributes:
        boosting: the first phase.
        learner: the second.
        teacher: a larger model.
    """

    boosting: BoostingPrompts = field(default_factory=BoostingPrompts)
    learner: PromptLearning = field(default_factory=PromptSRC)
    teacher: InitVar[DualEncoder | None] = None

    def __post_init__(self, teacher: DualEncoder | None) -> None:
        if teacher is None:
            raise UserError("caspl needs a larger model as teacher")
        object.__setattr__(self, "_teacher", teacher)

    def fit(self, encoder: DualEncoder, shots: LabelledPictures) -> PromptedClassifier:
        """Learn both phases; the first from the unlabelled pictures, or from the shots where there are none."""
        pictures = shots.unlabelled if len(shots.unlabelled) else shots.pictures
        teacher: DualEncoder = self._teacher  # type: ignore[attr-defined]
        before = self.boosting.fit(encoder, teacher, pictures, shots.names)
        return self.learner.fit(encoder, shots, before=(before,))
