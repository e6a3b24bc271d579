"""Prompt learners on frozen towers: CoOp, MaPLe, PromptSRC and CasPL, with the constants of their public code."""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from recollect.classifiers.heads.trained import Schedule
from recollect.classifiers.texts import learned_scale
from recollect.classifiers.tuning import (
    TEMPLATE,
    LabeledPictures,
    MakeTuning,
    class_loss,
    descend,
    frozen_copy,
    random_crops,
)
from recollect.core.seeding import torch_generator
from recollect.core.types import ImageLike
from recollect.data.prompts import GENERAL_TEMPLATES, fill
from recollect.models.dual import DualEncoder
from recollect.models.transformers.encoder import TransformersEncoder
from recollect_papers.peers.prompts import (
    PromptedClassifier,
    Prompts,
    check_family,
    class_texts,
    prompt_tokens,
    prompted,
    token_layers,
    token_width,
    word_vectors,
)

DEPTH = 9
"""Maximum number of blocks with tokens in MaPLe, PromptSRC and CasPL."""

_SPREAD = 0.02  # standard deviation of random initial tokens


@dataclass(frozen=True)
class PromptTask:
    """Inputs of a learner's loss.

    Attributes:
        encoder: frozen model.
        scale: factor of the cosines.
        tokens: tokens of the class texts, with room for the prompts.
        before: preceding frozen prompts (CasPL).
        references: unit-norm class embeddings of the model without prompts, for losses that use them.
    """

    encoder: TransformersEncoder
    scale: float
    tokens: dict[str, Tensor]
    before: tuple[Prompts, ...] = ()
    references: Tensor | None = None


class Tokens(nn.Module):
    """Parameters of a prompt learner: tokens of each block in both towers."""

    def __init__(self, text: Sequence[Tensor], image: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.text, self.image = nn.ParameterList(text), nn.ParameterList(image)

    def prompts(self) -> Prompts:
        """Return the current tokens, with gradients."""
        return Prompts(tuple(self.text), tuple(self.image))

    def forward(self, task: PromptTask, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return unnormalized embeddings of pictures and classes with the prompts."""
        with prompted(task.encoder, (*task.before, self.prompts())):
            return task.encoder.encode_images(pixels), task.encoder.encode_texts(task.tokens)


class CoupledTokens(Tokens):
    """Image tokens that are linear maps of the text tokens, layer by layer (MaPLe)."""

    def __init__(self, text: Sequence[Tensor], maps: Sequence[nn.Linear]) -> None:
        super().__init__(text)
        self.maps = nn.ModuleList(maps)

    def prompts(self) -> Prompts:
        image = tuple(each(tokens) for each, tokens in zip(self.maps, self.text, strict=True))
        return Prompts(tuple(self.text), image)


@dataclass(frozen=True, kw_only=True)
class PromptLearning(ABC):
    """Base class of prompt learners: SGD with momentum 0.9, weight decay 5e-4, cosine after one epoch at 1e-5, crops.

    Attributes:
        tokens: number of tokens per block.
        learning_rate, batch: parameters of SGD.
        epochs: number of epochs (default: the published one).
        flip: mirror half of the crops.
        effort: fraction of the published epochs; at least one is run.
        seed: seed of initialization, crops and order.
    """

    tokens: int
    learning_rate: float = 2e-3
    batch: int = 32
    epochs: int | None = None
    flip: bool = True
    effort: float = 1.0
    seed: int = 0

    text = "{}."
    """Text after the learned tokens; ``{}`` is the class name."""
    reads_images = False
    """Whether the image tower has tokens too."""

    @abstractmethod
    def start(self, encoder: TransformersEncoder) -> Tokens:
        """Create the initial tokens."""

    def usual_epochs(self, shots: int) -> int:
        """Return the published number of epochs."""
        return 50

    def loss(self, task: PromptTask, learner: Tokens, pixels: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss; by default the cross-entropy of the classes."""
        images, texts = learner(task, pixels)
        return class_loss(images, texts, labels, task.scale)

    def references(self, encoder: TransformersEncoder, names: Sequence[str]) -> Tensor | None:
        """Return class embeddings of the frozen model if the loss uses them."""
        return None

    def epoch_weights(self, epochs: int) -> Float[Tensor, " epochs"]:
        """Return weights for averaging prompts over epochs; by default only the last epoch counts."""
        return torch.eye(epochs, dtype=torch.float64)[-1]

    def task(
        self, encoder: DualEncoder, names: Sequence[str], before: tuple[Prompts, ...] = ()
    ) -> tuple[PromptTask, Tokens]:
        """Return the inputs of the loss, and the initial tokens.

        Raises:
            UserError: the model's towers do not support prompts.
        """
        frozen = frozen_copy(encoder)
        check_family(frozen, self.reads_images)
        room = sum(each.text_tokens for each in before) + self.tokens
        tokens = prompt_tokens(frozen, [fill(self.text, name) for name in names], room)
        task = PromptTask(frozen, learned_scale(encoder), tokens, before, self.references(frozen, names))
        return task, self.start(frozen).to(frozen.device)

    def fit(self, encoder: DualEncoder, shots: LabeledPictures, before: tuple[Prompts, ...] = ()) -> PromptedClassifier:
        """Learn prompts for ``shots``.

        Args:
            before: preceding frozen prompts of another learner (CasPL).

        Raises:
            UserError: the model's towers do not support prompts.
        """
        task, learner = self.task(encoder, shots.names, before)
        crops = random_crops(task.encoder, shots.pictures, self.flip, self.seed)
        labels = torch.from_numpy(shots.labels).to(task.encoder.device)
        self.learn(learner, lambda rows: self.loss(task, learner, crops(rows), labels[rows]), len(labels), shots.shots)
        prompts = (*before, learner.prompts().detached())
        with torch.no_grad():
            texts = class_texts(task.encoder, shots.names, self.text, prompts)
        return PromptedClassifier(task.encoder, shots.names, texts, task.scale, self.text, prompts)

    def learn(self, learner: Tokens, loss: Callable[[Tensor], Tensor], rows: int, shots: int = 1) -> None:
        """Minimize a loss on batches of ``rows``, and average the parameters over epochs."""
        usual = self.usual_epochs(shots) if self.epochs is None else self.epochs
        epochs = max(1, round(self.effort * usual)) if usual and self.effort else 0
        if not epochs:
            return
        parameters = list(learner.parameters())
        weights, means = self.epoch_weights(epochs).tolist(), [torch.zeros_like(each) for each in parameters]
        steps, done = math.ceil(rows / self.batch), itertools.count(1)

        @torch.no_grad()
        def after_step(rate: float) -> None:
            epoch, rest = divmod(next(done), steps)
            for mean, parameter in zip(means, parameters, strict=True) if rest == 0 else ():
                mean += weights[epoch - 1] * parameter

        optimizer = torch.optim.SGD(parameters, lr=self.learning_rate, momentum=0.9, weight_decay=5e-4)
        schedule = Schedule(epochs, self.batch, 1e-5)
        descend(f"tune {type(self).__name__.lower()}", optimizer, loss, rows, schedule, self.seed, after_step)
        with torch.no_grad():
            for mean, parameter in zip(means, parameters, strict=True):
                parameter.copy_(mean)


@dataclass(frozen=True, kw_only=True)
class CoOp(PromptLearning):
    """CoOp (Zhou et al., 2022): tokens before the class name at the input of the text tower, drawn from N(0, 0.02)."""

    tokens: int = 16

    def usual_epochs(self, shots: int) -> int:
        return 200 if shots >= 8 else 100 if shots >= 2 else 50

    def start(self, encoder: TransformersEncoder) -> Tokens:
        return Tokens(_layers(encoder, "text", "", self.tokens, 1, self.seed))


@dataclass(frozen=True, kw_only=True)
class MaPLe(PromptLearning):
    """MaPLe (Khattak et al., 2023): tokens in both towers, where image tokens are linear maps of text tokens per block.

    The two input tokens are initialized as "a photo", followed by "of a NAME."; deeper ones from N(0, 0.02).
    """

    learning_rate: float = 3.5e-3
    batch: int = 4
    tokens: int = 2

    text = "of a {}."
    reads_images = True

    def usual_epochs(self, shots: int) -> int:
        return 5

    def start(self, encoder: TransformersEncoder) -> Tokens:
        text = _layers(encoder, "text", "a photo", self.tokens, DEPTH, self.seed)
        inputs, outputs = token_width(encoder, "text"), token_width(encoder, "image")
        count = min(len(text), token_layers(encoder, "image"))
        maps = [nn.Linear(inputs, outputs).to(encoder.dtype) for _ in range(count)]
        for number, each in enumerate(maps):  # initialized like torch's Linear, with separate generators
            for name, parameter in each.named_parameters():
                generator = torch_generator(self.seed, "maple", number, name)
                with torch.no_grad():
                    parameter.copy_((torch.rand(parameter.shape, generator=generator) * 2 - 1) * inputs**-0.5)
        return CoupledTokens(text[:count], maps)


@dataclass(frozen=True, kw_only=True)
class PromptSRC(PromptLearning):
    """PromptSRC (Khattak et al., 2023): independent tokens in the first blocks of both towers, with three penalties.

    ``CE + 25 mean|w - w_frozen| + 10 mean|f - f_frozen| + KL(p_frozen || p) / (B C)`` over entries of unit embeddings;
    frozen class embeddings are means over many templates. The text tower's input tokens are initialized as "a photo of
    a". Final tokens are a mean over epochs with Gaussian weights.

    Attributes:
        templates: templates of the frozen class embeddings.
        peak, spread: mean and standard deviation of the epochs' weights, in epochs.
    """

    learning_rate: float = 2.5e-3
    batch: int = 4
    tokens: int = 4
    templates: tuple[str, ...] = field(default=GENERAL_TEMPLATES[:60])
    peak: float = 30.0
    spread: float = 30.0

    reads_images = True

    def start(self, encoder: TransformersEncoder) -> Tokens:
        text = _layers(encoder, "text", "a photo of a", self.tokens, DEPTH, self.seed)
        return Tokens(text, _layers(encoder, "image", "", self.tokens, DEPTH, self.seed))

    def references(self, encoder: TransformersEncoder, names: Sequence[str]) -> Tensor:
        means = [encoder.embed_texts([fill(each, name) for each in self.templates]).mean(dim=0) for name in names]
        return F.normalize(torch.stack(means), dim=1).to(encoder.device)

    def loss(self, task: PromptTask, learner: Tokens, pixels: Tensor, labels: Tensor) -> Tensor:
        assert task.references is not None
        with torch.no_grad():
            frozen = F.normalize(task.encoder.encode_images(pixels), dim=1)
            before = F.log_softmax(task.scale * frozen @ task.references.T, dim=1)
        images, texts = (F.normalize(raw, dim=1) for raw in learner(task, pixels))
        logits = task.scale * images @ texts.T
        found = F.cross_entropy(logits, labels)
        found = found + 25 * (texts - task.references).abs().mean() + 10 * (images - frozen).abs().mean()
        divergence = F.kl_div(F.log_softmax(logits, dim=1), before, reduction="sum", log_target=True)
        return found + divergence / logits.numel()

    def epoch_weights(self, epochs: int) -> Float[Tensor, " epochs"]:
        weights = torch.exp(-0.5 * ((torch.arange(1, epochs + 1) - self.peak) / self.spread) ** 2).double()
        return weights / weights.sum()


@dataclass(frozen=True, kw_only=True)
class BoostingPrompts(PromptLearning):
    """CasPL's first phase (Wu et al., 2024): distills a larger model's probabilities on unlabeled domain pictures.

    The paper defines the loss (KL between the logits), but not its constants. Ours: 8 tokens in the first 9 blocks of
    both towers, 20 epochs of SGD, the larger model's zero-shot probabilities at its own scale.
    """

    learning_rate: float = 2.5e-3
    batch: int = 16
    tokens: int = 8

    text = TEMPLATE
    reads_images = True

    def usual_epochs(self, shots: int) -> int:
        return 20

    def start(self, encoder: TransformersEncoder) -> Tokens:
        return Tokens(*(_layers(encoder, tower, "", self.tokens, DEPTH, self.seed) for tower in ("text", "image")))

    def teach(
        self, encoder: DualEncoder, teacher: DualEncoder, pictures: Sequence[ImageLike], names: tuple[str, ...]
    ) -> Prompts:
        """Learn from the larger ``teacher`` on unlabeled ``pictures``.

        Both models see the same crops; the teacher gets pictures, since its transform may differ.
        """
        task, learner = self.task(encoder, names)
        texts, scale = teacher.embed_texts([fill(self.text, name) for name in names]), learned_scale(teacher)
        crops = random_crops(task.encoder, pictures, self.flip, self.seed)

        def loss(rows: Tensor) -> Tensor:
            pixels = crops(rows)
            images = teacher.embed_images(_as_pictures(task.encoder, pixels))
            targets = F.log_softmax(scale * images @ texts.T, dim=1).to(pixels.device)
            return match_loss(learner, task, pixels, targets)

        self.learn(learner, loss, len(pictures))
        return learner.prompts().detached()


def match_loss(learner: Tokens, task: PromptTask, pixels: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of ``KL(teacher || student)`` over pictures; ``targets`` are log probabilities."""
    images, texts = (F.normalize(raw, dim=1) for raw in learner(task, pixels))
    found = F.log_softmax(task.scale * images @ texts.T, dim=1)
    return F.kl_div(found, targets, reduction="batchmean", log_target=True)


def _as_pictures(encoder: TransformersEncoder, pixels: Tensor) -> list[ImageLike]:
    """Convert crops back to pictures."""
    transform = encoder.transform
    mean, std = (torch.tensor(values, device=pixels.device).view(3, 1, 1) for values in (transform.mean, transform.std))
    rounded = ((pixels.float() * std + mean) * 255).round().clamp(0, 255).byte()
    return list(rounded.permute(0, 2, 3, 1).cpu().numpy())


@dataclass(frozen=True)
class CascadedPrompts:
    """CasPL: frozen `BoostingPrompts`, then another learner with its own loss.

    It uses unlabeled pictures and a larger model, so its results are not comparable with few-shot methods.

    Attributes:
        boosting, learner: the two phases.
        teacher: the larger model.
    """

    boosting: BoostingPrompts
    learner: PromptLearning
    teacher: InitVar[DualEncoder]

    def __post_init__(self, teacher: DualEncoder) -> None:
        object.__setattr__(self, "_teacher", teacher)

    def fit(self, encoder: DualEncoder, shots: LabeledPictures) -> PromptedClassifier:
        """Run both phases, the first on the unlabeled pictures, or on the shots if there are none."""
        pictures = shots.unlabeled if len(shots.unlabeled) else shots.pictures
        teacher: DualEncoder = self._teacher  # type: ignore[attr-defined]
        before = self.boosting.teach(encoder, teacher, pictures, shots.names)
        return self.learner.fit(encoder, shots, before=(before,))


def _layers(encoder: TransformersEncoder, tower: str, words: str, tokens: int, depth: int, seed: int) -> list[Tensor]:
    """Create random initial tokens for the first ``depth`` blocks of a tower; input tokens start with ``words``."""
    like, width = next(encoder.parameters()), token_width(encoder, tower)
    drawn = []
    for number in range(min(depth, token_layers(encoder, tower))):
        generator = torch_generator(seed, "prompts", f"{tower} {number}")
        drawn.append((torch.randn((tokens, width), generator=generator) * _SPREAD).to(like))
    if words:
        vectors = word_vectors(encoder, words)[:tokens]
        drawn[0][: len(vectors)] = vectors
    return drawn


TUNING_METHODS: Mapping[str, MakeTuning] = {
    "coop": lambda effort, flip, seed: CoOp(effort=effort, flip=flip, seed=seed),
    "maple": lambda effort, flip, seed: MaPLe(effort=effort, flip=flip, seed=seed),
    "promptsrc": lambda effort, flip, seed: PromptSRC(effort=effort, flip=flip, seed=seed),
}
"""Methods for `recollect evaluate few-shot`; `CascadedPrompts` (CasPL) is missing because it needs a larger model."""
