"""Prompt learners on frozen towers: CoOp, KgCoOp, MaPLe and PromptSRC, with the constants of their public codes."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recollect.classifiers.heads.trained import Schedule
from recollect.classifiers.texts import learned_scale
from recollect.classifiers.tuning.shots import Crops, LabelledPictures, class_loss, descend, frozen_copy
from recollect.classifiers.tuning.weights import TEMPLATE
from recollect.core.seeding import torch_generator
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
"""Number of blocks with tokens in MaPLe and PromptSRC."""

_SPREAD = 0.02  # standard deviation of random initial tokens


@dataclass(frozen=True)
class PromptTask:
    """Inputs of a learner's loss.

    Attributes:
        encoder: frozen.
        names: of the classes.
        scale: factor of the cosines.
        tokens: of the class texts, with room for the prompts.
        before: frozen prompts that come first (CasPL).
        references: unit-norm class embeddings of the model without prompts, for losses that use them.
    """

    encoder: TransformersEncoder
    names: tuple[str, ...]
    scale: float
    tokens: dict[str, Tensor]
    before: tuple[Prompts, ...] = ()
    references: Tensor | None = None


class Learner(nn.Module, ABC):
    """The parameters of a prompt learner."""

    @abstractmethod
    def prompts(self) -> Prompts:
        """The current tokens, with gradients."""

    def forward(self, task: PromptTask, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Raw embeddings of pictures and classes with the prompts."""
        with prompted(task.encoder, (*task.before, self.prompts())):
            return task.encoder.encode_images(pixels), task.encoder.encode_texts(task.tokens)


class Tokens(Learner):
    """Independent tokens."""

    def __init__(self, text: Sequence[Tensor], image: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.text, self.image = nn.ParameterList(text), nn.ParameterList(image)

    def prompts(self) -> Prompts:
        return Prompts(tuple(self.text), tuple(self.image))


class CoupledTokens(Learner):
    """Image tokens that are linear maps of the text tokens, layer by layer (MaPLe)."""

    def __init__(self, text: Sequence[Tensor], maps: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.text, self.maps = nn.ParameterList(text), nn.ModuleList(maps)

    def prompts(self) -> Prompts:
        image = tuple(each(tokens) for each, tokens in zip(self.maps, self.text, strict=True))
        return Prompts(tuple(self.text), image)


@dataclass(frozen=True, kw_only=True)
class PromptLearning(ABC):
    """Learns prompts of frozen towers by SGD with momentum 0.9, weight decay 5e-4, a cosine after one epoch at 1e-5 and
    random crops.

    Attributes:
        learning_rate, batch: of SGD.
        epochs: the published number by default.
        flip: mirror half of the crops.
        effort: share of the published epochs; at least one is run.
        seed: of initialisation, crops and order.
    """

    learning_rate: float = 2e-3
    batch: int = 32
    epochs: int | None = None
    flip: bool = True
    effort: float = 1.0
    seed: int = 0

    reads_images = False
    """Whether the image tower has tokens too."""

    @abstractmethod
    def start(self, encoder: TransformersEncoder, shots: LabelledPictures) -> Learner:
        """The initial learner."""

    @property
    def text(self) -> str:
        """Text after the learned tokens, with ``{}`` for the name."""
        return "{}."

    @property
    @abstractmethod
    def room(self) -> int:
        """Number of tokens before each text."""

    def usual_epochs(self, shots: int) -> int:
        """The published number of epochs."""
        return 50

    def loss(self, task: PromptTask, learner: Learner, pixels: Tensor, labels: Tensor) -> Tensor:
        """The loss; by default the cross-entropy of the classes."""
        images, texts = learner(task, pixels)
        return class_loss(images, texts, labels, task.scale)

    def references(self, encoder: TransformersEncoder, names: Sequence[str]) -> Tensor | None:
        """Class embeddings of the frozen model, if the loss uses them."""
        return None

    def fit(
        self, encoder: DualEncoder, shots: LabelledPictures, before: tuple[Prompts, ...] = ()
    ) -> PromptedClassifier:
        """Learn prompts for ``shots``.

        Args:
            before: frozen prompts of another learner that come first (CasPL).

        Raises:
            UserError: the model's towers cannot have tokens.
        """
        frozen = frozen_copy(encoder)
        check_family(frozen, self.reads_images)
        room = sum(each.text_tokens for each in before) + self.room
        tokens = prompt_tokens(frozen, [fill(self.text, name) for name in shots.names], room)
        references = self.references(frozen, shots.names)
        task = PromptTask(frozen, shots.names, learned_scale(encoder), tokens, before, references)
        learner = self.start(frozen, shots).to(frozen.device)
        self._learn(task, learner, shots)
        return self._classifier(task, learner, shots)

    def _learn(self, task: PromptTask, learner: Learner, shots: LabelledPictures) -> None:
        crops = Crops(task.encoder, shots.pictures, self.flip, self.seed).stream()
        labels = torch.from_numpy(shots.labels).to(task.encoder.device)
        usual = self.usual_epochs(shots.shots) if self.epochs is None else self.epochs
        epochs = max(1, round(self.effort * usual)) if usual and self.effort else 0
        optimiser = torch.optim.SGD(learner.parameters(), lr=self.learning_rate, momentum=0.9, weight_decay=5e-4)
        average = self.averaging(learner, epochs, math.ceil(len(labels) / self.batch))
        descend(
            f"tune {type(self).__name__.lower()}",
            optimiser,
            lambda rows: self.loss(task, learner, crops(rows), labels[rows]),
            len(labels),
            Schedule(epochs, self.batch, 1e-5),
            self.seed,
            average.step if average else None,
        )
        if average and epochs:
            average.finish()

    def averaging(self, learner: Learner, epochs: int, steps: int) -> "EpochAverage | None":
        """Average over epochs of the final prompts; None uses the last epoch."""
        return None

    def _classifier(self, task: PromptTask, learner: Learner, shots: LabelledPictures) -> PromptedClassifier:
        prompts, frozen = (*task.before, learner.prompts().detached()), task.encoder
        with torch.no_grad():
            texts = class_texts(frozen, shots.names, self.text, prompts)
        own = any(tokens.ndim == 3 for each in prompts for tokens in each.text)
        return PromptedClassifier(frozen, shots.names, texts, task.scale, None if own else self.text, prompts)


@dataclass(frozen=True, kw_only=True)
class CoOp(PromptLearning):
    """CoOp (Zhou et al., 2022): tokens before the class name at the input of the text tower.

    Attributes:
        tokens: 16 as published, drawn from N(0, 0.02).
        words: initialise from the embeddings of these words instead, e.g. "a photo of a".
        per_class: each class learns its own tokens.
    """

    tokens: int = 16
    words: str = ""
    per_class: bool = False

    @property
    def room(self) -> int:
        return self.tokens

    def usual_epochs(self, shots: int) -> int:
        return 200 if shots >= 8 else 100 if shots >= 2 else 50

    def start(self, encoder: TransformersEncoder, shots: LabelledPictures) -> Learner:
        begin = _begin(encoder, self.words, self.tokens, self.seed)
        if self.per_class and not self.words:
            begin = _draw((len(shots.names), *begin.shape), self.seed, "per class", begin)
        elif self.per_class:
            begin = begin.expand(len(shots.names), -1, -1)
        return Tokens([begin.clone()])


@dataclass(frozen=True, kw_only=True)
class KgCoOp(CoOp):
    """KgCoOp (Yao et al., 2023): CoOp with the penalty ``8 (1 - mean cos(w, w_template))`` on class embeddings.

    Attributes:
        template: of the frozen embeddings; the data set's own in the paper.
        weight: of the penalty.
    """

    tokens: int = 4
    words: str = "a photo of a"
    batch: int = 128
    template: str = TEMPLATE
    weight: float = 8.0

    def usual_epochs(self, shots: int) -> int:
        return 100

    def references(self, encoder: TransformersEncoder, names: Sequence[str]) -> Tensor:
        return encoder.embed_texts([fill(self.template, name) for name in names]).to(encoder.device)

    def loss(self, task: PromptTask, learner: Learner, pixels: Tensor, labels: Tensor) -> Tensor:
        images, texts = learner(task, pixels)
        assert task.references is not None
        near = (F.normalize(texts, dim=1) * task.references).sum(dim=1).mean()
        return class_loss(images, texts, labels, task.scale) + self.weight * (1 - near)


@dataclass(frozen=True, kw_only=True)
class MaPLe(PromptLearning):
    """MaPLe (Khattak et al., 2023): tokens in the first blocks of both towers; those of the image tower are linear maps
    of those of the text tower, one map per block.

    The two input tokens are initialised as "a photo", followed by "of a NAME."; deeper ones from N(0, 0.02).

    Attributes:
        tokens: of each block.
        depth: number of blocks with tokens.
        words: initial input tokens.
    """

    learning_rate: float = 3.5e-3
    batch: int = 4
    tokens: int = 2
    depth: int = DEPTH
    words: str = "a photo"

    reads_images = True

    @property
    def room(self) -> int:
        return self.tokens

    @property
    def text(self) -> str:
        return "of a {}." if self.words == "a photo" else "{}."

    def usual_epochs(self, shots: int) -> int:
        return 5

    def start(self, encoder: TransformersEncoder, shots: LabelledPictures) -> Learner:
        text = _layers(encoder, "text", self.words, self.tokens, self.depth, self.seed)
        inputs, outputs = token_width(encoder, "text"), token_width(encoder, "image")
        count = min(len(text), token_layers(encoder, "image"))
        maps = []
        for number in range(count):  # initialised like torch's Linear, with a separate generator
            made = nn.Linear(inputs, outputs).to(encoder.dtype)
            bound = inputs**-0.5
            for name, parameter in made.named_parameters():
                generator = torch_generator(self.seed, "maple", number, name)
                with torch.no_grad():
                    parameter.copy_((torch.rand(parameter.shape, generator=generator) * 2 - 1) * bound)
            maps.append(made)
        return CoupledTokens(text[:count], maps)


@dataclass(frozen=True, kw_only=True)
class PromptSRC(PromptLearning):
    """PromptSRC (Khattak et al., 2023): independent tokens in the first blocks of both towers, with three penalties.

    ``CE + 25 mean|w - w_frozen| + 10 mean|f - f_frozen| + KL(p_frozen || p) / (B C)`` over entries of unit embeddings;
    frozen class embeddings are means over many templates. Final tokens are a mean over epochs with Gaussian weights.

    Attributes:
        tokens: of each block in each tower.
        depth: number of blocks with tokens.
        words: initial input tokens of the text tower.
        text_weight, image_weight: of the two distances.
        templates: of the frozen class embeddings.
        peak, spread: mean and standard deviation of the epochs' weights, in epochs.
    """

    learning_rate: float = 2.5e-3
    batch: int = 4
    tokens: int = 4
    depth: int = DEPTH
    words: str = "a photo of a"
    text_weight: float = 25.0
    image_weight: float = 10.0
    templates: tuple[str, ...] = field(default=GENERAL_TEMPLATES[:60])
    peak: float = 30.0
    spread: float = 30.0

    reads_images = True

    @property
    def room(self) -> int:
        return self.tokens

    def start(self, encoder: TransformersEncoder, shots: LabelledPictures) -> Learner:
        text = _layers(encoder, "text", self.words, self.tokens, self.depth, self.seed)
        return Tokens(text, _layers(encoder, "image", "", self.tokens, self.depth, self.seed))

    def references(self, encoder: TransformersEncoder, names: Sequence[str]) -> Tensor:
        means = [encoder.embed_texts([fill(each, name) for each in self.templates]).mean(dim=0) for name in names]
        return F.normalize(torch.stack(means), dim=1).to(encoder.device)

    def loss(self, task: PromptTask, learner: Learner, pixels: Tensor, labels: Tensor) -> Tensor:
        assert task.references is not None
        with torch.no_grad():
            frozen = F.normalize(task.encoder.encode_images(pixels), dim=1)
            before = F.log_softmax(task.scale * frozen @ task.references.T, dim=1)
        images, texts = (F.normalize(raw, dim=1) for raw in learner(task, pixels))
        logits = task.scale * images @ texts.T
        found = F.cross_entropy(logits, labels)
        found = found + self.text_weight * (texts - task.references).abs().mean()
        found = found + self.image_weight * (images - frozen).abs().mean()
        divergence = F.kl_div(F.log_softmax(logits, dim=1), before, reduction="sum", log_target=True)
        return found + divergence / logits.numel()

    def averaging(self, learner: Learner, epochs: int, steps: int) -> "EpochAverage":
        weights = torch.exp(-0.5 * ((torch.arange(1, epochs + 1) - self.peak) / self.spread) ** 2).double()
        return EpochAverage(learner, (weights / weights.sum()).tolist(), steps)


class EpochAverage:
    """Weighted mean of a learner's parameters over epochs.

    Args:
        weights: of each epoch, with sum 1.
        steps: per epoch.
    """

    def __init__(self, learner: Learner, weights: Sequence[float], steps: int) -> None:
        self.learner, self.weights, self.steps, self.done = learner, weights, steps, 0
        self.sums = [torch.zeros_like(parameter) for parameter in learner.parameters()]

    def step(self, rate: float) -> None:
        """Called after each step."""
        self.done += 1
        if self.done % self.steps == 0:
            weight = self.weights[self.done // self.steps - 1]
            for total, parameter in zip(self.sums, self.learner.parameters(), strict=True):
                total += weight * parameter.detach()

    @torch.no_grad()
    def finish(self) -> None:
        """Replace the parameters by their mean."""
        for total, parameter in zip(self.sums, self.learner.parameters(), strict=True):
            parameter.copy_(total)


def _draw(shape: tuple[int, ...], seed: int, what: str, like: Tensor) -> Tensor:
    return (torch.randn(shape, generator=torch_generator(seed, "prompts", what)) * _SPREAD).to(like)


def _begin(encoder: TransformersEncoder, words: str, tokens: int, seed: int) -> Tensor:
    """Initial input tokens of the text tower: embeddings of the words, and random ones for the rest."""
    drawn = _draw((tokens, token_width(encoder, "text")), seed, "text 0", next(encoder.parameters()))
    if words:
        vectors = word_vectors(encoder, words)[:tokens]
        drawn[: len(vectors)] = vectors
    return drawn


def _layers(encoder: TransformersEncoder, tower: str, words: str, tokens: int, depth: int, seed: int) -> list[Tensor]:
    """Initial tokens of the first ``depth`` blocks of a tower, at most all."""
    like = next(encoder.parameters())
    width = token_width(encoder, tower)
    count = min(depth, token_layers(encoder, tower))
    drawn = [_draw((tokens, width), seed, f"{tower} {number}", like) for number in range(count)]
    return [_begin(encoder, words, tokens, seed), *drawn[1:]] if words else drawn
