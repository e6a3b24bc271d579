"""Prompt learners on frozen towers: CoOp, KgCoOp, MaPLe and PromptSRC, with the constants of their public codes."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recollect.classifiers.heads.trained import Schedule
from recollect.classifiers.tuning.classifier import TunedClassifier, class_texts
from recollect.classifiers.tuning.prompts import (
    Prompts,
    check_family,
    prompt_tokens,
    prompted,
    token_layers,
    token_width,
    word_vectors,
)
from recollect.classifiers.tuning.shots import Crops, LabelledPictures, class_loss, descend, frozen_copy, learned_factor
from recollect.classifiers.tuning.weights import TEMPLATE
from recollect.core.seeding import torch_generator
from recollect.data.prompts import GENERAL_TEMPLATES, fill
from recollect.models.dual import DualEncoder
from recollect.models.transformers.encoder import TransformersEncoder

DEPTH = 9
"""Blocks that MaPLe and PromptSRC give tokens of their own."""

_SPREAD = 0.02  # of the normal distribution that tokens are drawn from


@dataclass(frozen=True)
class Lesson:
    """What a learner may read while it learns.

    Attributes:
        encoder: frozen.
        names: of the classes.
        scale: factor of the cosines.
        tokens: of the class texts, with room for the prompts.
        before: learners that stand in front and are frozen (CasPL).
        references: unit-norm class embeddings of the model without prompts, where the learner keeps to them.
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
        """The tokens as they are now, with a graph."""

    def forward(self, lesson: Lesson, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Raw embeddings of pictures and classes under the prompts."""
        with prompted(lesson.encoder, (*lesson.before, self.prompts())):
            return lesson.encoder.encode_images(pixels), lesson.encoder.encode_texts(lesson.tokens)


class Tokens(Learner):
    """Tokens that are learned one by one, independently of each other."""

    def __init__(self, text: Sequence[Tensor], image: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.text, self.image = nn.ParameterList(text), nn.ParameterList(image)

    def prompts(self) -> Prompts:
        return Prompts(tuple(self.text), tuple(self.image))


class CoupledTokens(Learner):
    """Tokens of the image tower that are linear maps of those of the text tower, layer by layer (MaPLe)."""

    def __init__(self, text: Sequence[Tensor], maps: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.text, self.maps = nn.ParameterList(text), nn.ModuleList(maps)

    def prompts(self) -> Prompts:
        image = tuple(each(tokens) for each, tokens in zip(self.maps, self.text, strict=True))
        return Prompts(tuple(self.text), image)


@dataclass(frozen=True, kw_only=True)
class PromptLearning(ABC):
    """How prompts are learned: by SGD with momentum 0.9 and weight decay 5e-4, a cosine after one epoch at 1e-5, random
    crops; the towers stay as they are, and what the last epoch leaves counts.

    Attributes:
        learning_rate, batch: of SGD.
        epochs: None takes the published number.
        flip: mirror half of the crops.
        effort: share of the published epochs, at least one.
        seed: of start, crops and order.
    """

    learning_rate: float = 2e-3
    batch: int = 32
    epochs: int | None = None
    flip: bool = True
    effort: float = 1.0
    seed: int = 0

    reads_images = False
    """Whether the image tower gets tokens too."""

    @abstractmethod
    def start(self, encoder: TransformersEncoder, shots: LabelledPictures) -> Learner:
        """The learner as it begins."""

    @property
    def text(self) -> str:
        """What stands behind the learned tokens, with ``{}`` for the name."""
        return "{}."

    @property
    @abstractmethod
    def room(self) -> int:
        """Tokens before each text."""

    def usual_epochs(self, shots: int) -> int:
        """The published number of epochs."""
        return 50

    def loss(self, lesson: Lesson, learner: Learner, pixels: Tensor, labels: Tensor) -> Tensor:
        """What is minimised; here the cross-entropy of the classes."""
        images, texts = learner(lesson, pixels)
        return class_loss(images, texts, labels, lesson.scale)

    def references(self, encoder: TransformersEncoder, names: Sequence[str]) -> Tensor | None:
        """Class embeddings of the frozen model that the loss reads; None where it reads none."""
        return None

    def fit(self, encoder: DualEncoder, shots: LabelledPictures, before: tuple[Prompts, ...] = ()) -> TunedClassifier:
        """Learn prompts for ``shots``.

        Args:
            before: frozen prompts of another learner that stand in front (CasPL).

        Raises:
            UserError: a model whose towers take no tokens.
        """
        frozen = frozen_copy(encoder)
        check_family(frozen, self.reads_images)
        room = sum(each.text_tokens for each in before) + self.room
        tokens = prompt_tokens(frozen, [fill(self.text, name) for name in shots.names], room)
        references = self.references(frozen, shots.names)
        lesson = Lesson(frozen, shots.names, learned_factor(encoder), tokens, before, references)
        learner = self.start(frozen, shots).to(frozen.device)
        self._learn(lesson, learner, shots)
        return self._classifier(lesson, learner, shots)

    def _learn(self, lesson: Lesson, learner: Learner, shots: LabelledPictures) -> None:
        crops = Crops(lesson.encoder, shots.pictures, self.flip, self.seed).stream()
        labels = torch.from_numpy(shots.labels).to(lesson.encoder.device)
        usual = self.usual_epochs(shots.shots) if self.epochs is None else self.epochs
        epochs = max(1, round(self.effort * usual)) if usual and self.effort else 0
        optimiser = torch.optim.SGD(learner.parameters(), lr=self.learning_rate, momentum=0.9, weight_decay=5e-4)
        average = self.averaging(learner, epochs, math.ceil(len(labels) / self.batch))
        descend(
            f"tune {type(self).__name__.lower()}",
            optimiser,
            lambda rows: self.loss(lesson, learner, crops(rows), labels[rows]),
            len(labels),
            Schedule(epochs, self.batch, 1e-5),
            self.seed,
            average.step if average else None,
        )
        if average and epochs:
            average.finish()

    def averaging(self, learner: Learner, epochs: int, steps: int) -> "EpochAverage | None":
        """What the final prompts are averaged by; None takes the last epoch's."""
        return None

    def _classifier(self, lesson: Lesson, learner: Learner, shots: LabelledPictures) -> TunedClassifier:
        prompts, frozen = (*lesson.before, learner.prompts().detached()), lesson.encoder
        with torch.no_grad():
            texts = class_texts(frozen, shots.names, self.text, prompts)
        own = any(tokens.ndim == 3 for each in prompts for tokens in each.text)
        return TunedClassifier(frozen, shots.names, texts, lesson.scale, prompts, None if own else self.text)


@dataclass(frozen=True, kw_only=True)
class CoOp(PromptLearning):
    """CoOp (Zhou et al., 2022): tokens before the class name at the input of the text tower.

    Attributes:
        tokens: 16 as published, drawn from N(0, 0.02).
        words: begin from these words' own embeddings instead, e.g. "a photo of a".
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
    """KgCoOp (Yao et al., 2023): CoOp whose class embeddings are held near those of a template, by
    ``8 (1 - mean cos(w, w_template))``.

    Attributes:
        template: that the frozen embeddings are made with; published with the data set's own.
        weight: of the distance.
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

    def loss(self, lesson: Lesson, learner: Learner, pixels: Tensor, labels: Tensor) -> Tensor:
        images, texts = learner(lesson, pixels)
        assert lesson.references is not None
        near = (F.normalize(texts, dim=1) * lesson.references).sum(dim=1).mean()
        return class_loss(images, texts, labels, lesson.scale) + self.weight * (1 - near)


@dataclass(frozen=True, kw_only=True)
class MaPLe(PromptLearning):
    """MaPLe (Khattak et al., 2023): tokens in the first blocks of both towers; the image tower's are linear maps of the
    text tower's, one map for each block.

    The input's two tokens begin as "a photo", and "of a NAME." stays behind them; deeper ones begin from N(0, 0.02).

    Attributes:
        tokens: of each block.
        depth: blocks that have tokens; no more than a tower has.
        words: that the input's tokens begin as.
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
        for number in range(count):  # as torch begins a Linear, from a generator of its own
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
    """PromptSRC (Khattak et al., 2023): independent tokens in the first blocks of both towers, held to the frozen model
    by three terms, and averaged over the epochs.

    ``CE + 25 mean|w - w_frozen| + 10 mean|f - f_frozen| + KL(p_frozen || p) / (B C)`` over entries of unit embeddings;
    the frozen class embeddings are means over many templates. The final tokens are the mean over epochs with Gaussian
    weights.

    Attributes:
        tokens: of each block in each tower.
        depth: blocks that have tokens.
        words: that the text tower's input begins as.
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

    def loss(self, lesson: Lesson, learner: Learner, pixels: Tensor, labels: Tensor) -> Tensor:
        assert lesson.references is not None
        with torch.no_grad():
            frozen = F.normalize(lesson.encoder.encode_images(pixels), dim=1)
            before = F.log_softmax(lesson.scale * frozen @ lesson.references.T, dim=1)
        images, texts = (F.normalize(raw, dim=1) for raw in learner(lesson, pixels))
        logits = lesson.scale * images @ texts.T
        found = F.cross_entropy(logits, labels)
        found = found + self.text_weight * (texts - lesson.references).abs().mean()
        found = found + self.image_weight * (images - frozen).abs().mean()
        divergence = F.kl_div(F.log_softmax(logits, dim=1), before, reduction="sum", log_target=True)
        return found + divergence / logits.numel()

    def averaging(self, learner: Learner, epochs: int, steps: int) -> "EpochAverage":
        weights = torch.exp(-0.5 * ((torch.arange(1, epochs + 1) - self.peak) / self.spread) ** 2).double()
        return EpochAverage(learner, (weights / weights.sum()).tolist(), steps)


class EpochAverage:
    """The mean of a learner's parameters over epochs with given weights.

    Args:
        weights: of each epoch, sum 1.
        steps: of an epoch.
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
        """Put the mean in the parameters' place."""
        for total, parameter in zip(self.sums, self.learner.parameters(), strict=True):
            parameter.copy_(total)


def _draw(shape: tuple[int, ...], seed: int, what: str, like: Tensor) -> Tensor:
    return (torch.randn(shape, generator=torch_generator(seed, "prompts", what)) * _SPREAD).to(like)


def _begin(encoder: TransformersEncoder, words: str, tokens: int, seed: int) -> Tensor:
    """Tokens of the text tower's input: the words' own embeddings, as many as fit, and the rest drawn."""
    drawn = _draw((tokens, token_width(encoder, "text")), seed, "text 0", next(encoder.parameters()))
    if words:
        vectors = word_vectors(encoder, words)[:tokens]
        drawn[: len(vectors)] = vectors
    return drawn


def _layers(encoder: TransformersEncoder, tower: str, words: str, tokens: int, depth: int, seed: int) -> list[Tensor]:
    """Tokens of the first ``depth`` blocks of a tower, or of all it has."""
    like = next(encoder.parameters())
    width = token_width(encoder, tower)
    count = min(depth, token_layers(encoder, tower))
    drawn = [_draw((tokens, width), seed, f"{tower} {number}", like) for number in range(count)]
    return [_begin(encoder, words, tokens, seed), *drawn[1:]] if words else drawn
