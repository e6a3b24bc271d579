"""What a recipe is made of; the command line, its help and ``recipe.json`` are derived from these fields."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path
from typing import Any, Literal, TypeVar

from recollect.core.errors import user_errors
from recollect.core.options import Kind, Precision, Sampling, from_mapping, read_options_file
from recollect.core.validation import check_choice, check_choices, refuse
from recollect.data.sources.columns import Columns
from recollect.objectives.options import ContextOptions


@dataclass(frozen=True)
class Model:
    """What to train.

    Attributes:
        start: a preset (tiny, small, vit-s-16, ...) to train from scratch, or a checkpoint to continue from: the folder
            of any CLIP-type model of transformers, RUN/model of another run, or a hub id.
        text: a text encoder (BERT, MiniLM, ...) to pair with ``start``, which is then a vision backbone (ViT, DINOv2,
            Swin, ConvNeXt, ResNet, EfficientNet, ...); new linear heads join them.
        width: number of entries of an embedding of such a pair.
        tokenizer: folder or hub id of a tokenizer for a preset; by default one is trained on the captions.
        prefixes: kinds of source whose texts begin with a learned prefix token (prefix conditioning); a kind that is
            named twice gets two.
        freeze: a tower that keeps its weights.
        locked: towers whose head alone learns (the projection; SigLIP's pooling MLP), or nothing where the tower
            is frozen too. Features before the head are computed once and kept, so that large batches cost little.
        dropout: share of the features that the head drops, in models with such a head; its own by default.
        views: of a locked image tower: how many crops of each picture are computed; 1 takes the picture as it is.
        lora: rank of LoRA adapters of every attention and MLP layer, which are trained instead of the weights. The
            finished model has them merged, and PEFT reads them from its folder too.
        lora_alpha: scale of the changes times their rank; the rank by default.
        gated: put a new block before each block of the image tower, behind gates that begin closed, and let these
            blocks learn alone (REACT). Such a model opens with recollect, not with plain transformers.
    """

    start: str = "tiny"
    text: str | None = None
    width: int = 512
    tokenizer: str | None = None
    prefixes: tuple[Kind, ...] = ()
    freeze: Literal["none", "image", "text"] = "none"
    locked: Literal["none", "image", "both"] = "none"
    views: int = 1
    dropout: float | None = None
    lora: int | None = None
    lora_alpha: float | None = None
    gated: bool = False


CopiesBy = Literal["ids", "captions"]
"""What makes two samples of a batch copies of each other: being the same sample, or having the same text as well."""


@dataclass(frozen=True)
class Data:
    """What to train on. A source is glyphs:NAME, latents:NAME, a hub id, or a path: Parquet, WebDataset, images, CSV.

    Attributes:
        sources: training data whose kind, captions or labels, is detected.
        captions: sources to read as captions.
        labels: sources to read as class labels; their texts are made with prompt templates.
        split: of every source whose address names none; the training split by default.
        weights: of each source in the order sources, captions, labels; their sizes by default.
        sampling: divide every batch by the weights; half captions, half labels; or each batch whole from one source.
        merge_classes: classes of one name in several sources are one class to a loss on labels.
        crop: least share of a picture that a random crop shows; 1 shows all of it. The model's own by default.
        flip: mirror half of the pictures; not where they hold letters or captions say left and right.
        broken_share: share of pictures that may be unreadable before the run stops.
        copies: samples of a batch that are neither negatives of each other nor context: those of the same id (where a
            source is smaller than the batch), or those of the same caption too.
        definitions: of class names and nouns, appended to prompts and captions (K-LITE): a .json, .csv or
            .tsv file, the folder of a WordNet database, or ``wordnet`` for the installed one. Such a model is then
            asked with them too.
        image_column: column of image bytes or paths, where it is not named image.
        caption_column: column of a text or a list of texts, where it is not named caption.
        label_column: column of class numbers or names, where it is not named label.
        class_name_column: readable names of class numbers.
        synonyms_column: other names of a class.
        split_column: says which split a row belongs to.
    """

    sources: tuple[str, ...] = ()
    captions: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    split: str | None = None
    weights: tuple[float, ...] = ()
    sampling: Sampling = "proportional"
    merge_classes: bool = False
    crop: float | None = None
    flip: bool = False
    broken_share: float = 0.01
    copies: CopiesBy = "ids"
    definitions: str | None = None
    image_column: str | None = None
    caption_column: str | None = None
    label_column: str | None = None
    class_name_column: str | None = None
    synonyms_column: str | None = None
    split_column: str | None = None

    @property
    def specs(self) -> list[tuple[str, Kind | None]]:
        """Every source with its kind, None where that is to be found by looking."""
        named: list[tuple[tuple[str, ...], Kind | None]] = [
            (self.sources, None),
            (self.captions, "caption"),
            (self.labels, "label"),
        ]
        return [(spec, kind) for specs, kind in named for spec in specs]

    def columns(self, kind: Kind | None) -> Columns:
        """Which column is which in sources that are read as ``kind``; what the other kind reads need not be there."""
        captions, labels = kind != "label", kind != "caption"
        return Columns(
            image=self.image_column,
            caption=self.caption_column if captions else None,
            label=self.label_column if labels else None,
            class_name=self.class_name_column if labels else None,
            synonyms=self.synonyms_column if labels else None,
            split=self.split_column,
        )


@dataclass(frozen=True)
class Context:
    """The context objective (LIxP, Eq. 6).

    Attributes:
        alpha: weight of the loss without context.
        tau: tau_context at the start; the paper has 1, from which a short run does not come down.
        options: the paper's ablations.
    """

    alpha: float = 0.9
    tau: float = 1.0
    options: ContextOptions = field(default_factory=ContextOptions)


FIRST_BIAS = -10.0
"""Where the bias of a loss that has one begins (SigLIP), unless the recipe or the checkpoint say otherwise."""


@dataclass(frozen=True)
class ObjectiveOptions:
    """What training minimises.

    Attributes:
        base: the loss: sigmoid (SigLIP, over pairs), softmax (CLIP), or label (UniCL, softmax over classes).
        scale: inverse temperature at the start; by default the checkpoint's, or 10.
        bias: of the sigmoid loss at the start; by default the checkpoint's, or -10. About -log(batch) suits small ones.
        smoothing: share of a pair's target that the batch's other texts get (label smoothing); not with context.
        context: look up the batch as well, for SigLIxP and CLIxP.
    """

    base: str = "sigmoid"
    scale: float | None = None
    bias: float | None = None
    smoothing: float = 0.0
    context: Context | None = None


_COUNT = (lambda value: value >= 1, "at least 1")
_POSITIVE = (lambda value: 0 < value < inf, "positive")
_NOT_NEGATIVE = (lambda value: 0 <= value < inf, "0 or positive")
_SHARE = (lambda value: 0 <= value <= 1, "between 0 and 1")
_DECAY = (lambda value: 0 <= value < 1, "at least 0 and less than 1")
_LIMITS: Mapping[str, tuple[Callable[[float], bool], str]] = {
    **dict.fromkeys(
        (
            "steps",
            "batch_size",
            "chunk",
            "log_every",
            "checkpoint_every",
            "checkpoints_kept",
            "model.views",
            "model.lora",
            "model.width",
        ),
        _COUNT,
    ),
    **dict.fromkeys(("objective.scale", "optimiser.clip_norm", "model.lora_alpha"), _POSITIVE),
    **dict.fromkeys(("optimiser.learning_rate", "optimiser.weight_decay"), _NOT_NEGATIVE),
    **dict.fromkeys(("optimiser.temperature_factor", "workers"), _NOT_NEGATIVE),
    **dict.fromkeys(("objective.context.alpha", "optimiser.warmup", "data.broken_share"), _SHARE),
    **dict.fromkeys(("optimiser.beta1", "optimiser.beta2", "model.dropout", "average", "objective.smoothing"), _DECAY),
    "objective.bias": (isfinite, "a finite number"),
    "objective.context.tau": (lambda value: 1e-12 <= value < inf, "at least 1e-12"),  # below, float32 has no gradient
    "data.crop": (lambda value: 0 < value <= 1, "more than 0 and at most 1"),
}
"""Valid values of each number, and their description."""


@dataclass(frozen=True)
class Optimiser:
    """AdamW, warm-up and cosine decay; the defaults are those of LIxP, Appendix A.

    Attributes:
        learning_rate: peak learning rate, at the end of the warm-up.
        weight_decay: for matrices and larger tensors; never for biases, norms or temperatures.
        beta1: decay of the mean of the gradients.
        beta2: decay of the mean of their squares.
        clip_norm: maximum norm of the gradient of all parameters.
        warmup: fraction of the steps over which the learning rate rises from 0.
        temperature_factor: learning rate multiplier for temperatures and biases of the objective. Adam moves a
            log-temperature by about one learning rate per step, so short runs need 10 to 20.
    """

    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    clip_norm: float = 1.0
    warmup: float = 0.05
    temperature_factor: float = 1.0


@dataclass(frozen=True)
class Recipe:
    """All that decides the outcome of a run.

    Attributes:
        model: what to train.
        data: what to train on.
        objective: what to minimise.
        optimiser: AdamW and its schedule.
        steps: number of updates of the weights.
        batch_size: samples of a step, over all processes.
        chunk: samples embedded at a time (default: all); memory grows with it, not with the batch.
        precision: arithmetic of the towers; weights, loss and optimiser stay float32. tf32 rounds the factors of
            float32 products on a GPU; float16 scales the loss, and skips steps where that overflowed.
        seed: random seed.
        workers: processes that read images ahead; 0 reads between steps. The outcome does not depend on it. By default
            one for each core to spare, at most 8, where pictures are read from files and the run is not short.
        log_every: steps between lines of metrics.jsonl.
        checkpoint_every: steps between checkpoints.
        checkpoints_kept: the last few that stay.
        average: decay (0.999 or so) of a running mean of the weights, EMA, that becomes the model; None keeps the last.
        checkpoint_activations: recompute each layer's activations in the backward pass instead of keeping them.
        compile: compile the towers with torch.compile; the first steps take minutes.
        shard_weights: of several processes each keeps a part of every layer, of its gradients and of AdamW's moments
            (FSDP2), and has a layer whole only while it computes: for towers that one GPU cannot hold.
    """

    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    objective: ObjectiveOptions = field(default_factory=ObjectiveOptions)
    optimiser: Optimiser = field(default_factory=Optimiser)
    steps: int = 1000
    batch_size: int = 256
    chunk: int | None = None
    precision: Precision = "float32"
    seed: int = 0
    workers: int | None = None
    log_every: int = 10
    checkpoint_every: int = 500
    checkpoints_kept: int = 2
    average: float | None = None
    checkpoint_activations: bool = False
    compile: bool = False
    shard_weights: bool = False

    def check(self) -> None:
        """Refuse what no run can be made of.

        Raises:
            UserError: naming the option.
        """
        for room in (self, self.model, self.data, self.objective):
            with user_errors("recipe: wrong option", ValueError):
                check_choices(room)
        for name, (right, words) in _LIMITS.items():
            value: Any = self
            for part in name.split("."):
                value = getattr(value, part, None)
            wrong = value is not None and not right(value)
            refuse((wrong, f"--{name.replace('_', '-')} {value}: must be {words}."))
        from recollect.objectives import OBJECTIVES

        check_choice(self.objective.base, OBJECTIVES, "--objective")
        refuse(*self._contradictions())

    def _contradictions(self) -> Iterator[tuple[bool, str]]:
        """Options that no run can have together: whether they are here, and what to do."""
        model, data, context = self.model, self.data, self.objective.context
        locked, lora = model.locked != "none", model.lora is not None
        yield not data.specs, "no source of data was named. Name one with --data SOURCE."
        for name, on in (("locked", locked), ("prefixes", bool(model.prefixes))):
            words = f"--model.lora and --model.{name}: LoRA leaves all weights as they are. Take one of them."
            yield lora and on, words
        frozen = (("locked", locked), ("lora", lora), ("freeze", model.freeze != "none"), ("prefixes", model.prefixes))
        for name, given in frozen:
            words = f"--model.gated and --model.{name}: nothing learns but the new blocks. Take one of them."
            yield model.gated and bool(given), words
        whole = (
            ("model.locked", locked),
            ("model.lora", lora),
            ("model.gated", model.gated),
            ("compile", self.compile),
        )
        for name, on in whole:
            words = f"--shard-weights and --{name}: only whole towers are split. Take one of them."
            yield self.shard_weights and on, words
        count = len(data.specs)
        unfit = len(data.weights) != count or any(not 0 < weight < inf for weight in data.weights)
        words = f"--data.weights: must be {count} positive numbers, one for each source; got {data.weights}."
        yield bool(data.weights) and unfit, words
        words = "--batch-size 1: a batch of one has no context. Take at least 2."
        yield context is not None and self.batch_size < 2, words
        rows = (context.options.active_rows if context else None) or 0
        words = f"--objective.context.options.active-rows {rows}: more than the batch of {self.batch_size}."
        yield rows > self.batch_size, words

    def without_effect(self) -> Iterator[tuple[bool, str]]:
        """Options without effect in this combination, and why."""
        from recollect.objectives import OBJECTIVES
        from recollect.objectives.base import smoothed

        model, data, objective = self.model, self.data, self.objective
        locked, loss = model.locked != "none", OBJECTIVES[objective.base]
        options = objective.context.options if objective.context else ContextOptions()
        yield model.lora is None and model.lora_alpha is not None, "--model.lora-alpha: there is no --lora"
        yield model.views > 1 and not locked, "--model.views: there is no --locked tower"
        yield bool(data.weights) and len(data.specs) == 1, "--data.weights: there is one source"
        for name, on in (
            ("objective.context.options.augmented", options.augmented != "none"),
            ("data.crop", data.crop is not None),
            ("data.flip", data.flip),
        ):
            words = f"--{name}: --locked keeps one view of each picture; take --model.views 2 or more"
            yield locked and model.views == 1 and on, words
        smooths = not objective.context and loss.smooths
        words = f"--objective.smoothing: it is for {' and '.join(smoothed())}, without context"
        yield objective.smoothing > 0 and not smooths, words
        biased = objective.bias not in (None, FIRST_BIAS)  # recipes set that one, whatever the objective
        yield biased and not loss.biased, f"--objective.bias: the {objective.base} objective has no bias"


AnyRecipe = TypeVar("AnyRecipe", bound=Recipe)
"""A recipe of one kind."""


def recipe_from_json(file: Path, kind: type[AnyRecipe]) -> AnyRecipe:
    """The recipe, of a kind, that a ``recipe.json`` holds.

    Raises:
        UserError: no such file, not a recipe, an option that there is not, or one that must be there and is not.
    """
    return from_mapping(kind, read_options_file(file), file)
