"""The options of a recipe; the command line, its help and ``recipe.json`` are derived from these fields."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from recollect.core.errors import user_errors
from recollect.core.options import Kind, Precision, Sampling
from recollect.core.validation import check_choice, check_choices, refuse
from recollect.data.sources.columns import Columns

if TYPE_CHECKING:
    from recollect.objectives import ContextObjective


def _accept_paths(options: Any, *names: str) -> None:
    """Convert paths to strings, and single values and lists to tuples where a field is a tuple, for use in Python."""
    for name in names:
        value = getattr(options, name)
        if isinstance(getattr(type(options), name), tuple):  # the default
            value = tuple(map(str, (value,) if isinstance(value, str | Path) else value))
        object.__setattr__(options, name, str(value) if isinstance(value, Path) else value)


@dataclass(frozen=True)
class Model:
    """The model to train.

    Attributes:
        start: a preset (tiny, small, vit-s-16, ...) to train from scratch, or a checkpoint to continue from: the folder
            of any CLIP-type model of transformers, RUN/model of another run, or a hub id.
        text: a text encoder (BERT, MiniLM, ...) to pair with ``start``, which is then a vision backbone (ViT, DINOv2,
            Swin, ConvNeXt, ResNet, EfficientNet, ...); new linear heads project both to one space.
        width: embedding width of such a pair.
        tokenizer: folder or hub id of a tokenizer for a preset (default: trained on the captions).
        prefixes: kinds of source whose texts get a learned prefix token (prefix conditioning); repeat a kind for
            several tokens.
        freeze: tower whose weights stay fixed.
        locked: towers of which only the head is trained (the projection; SigLIP's pooling MLP), or nothing if the
            tower is frozen too. Features before the head are computed once and cached, so large batches are cheap.
        views: views of each picture computed for a locked image tower: one by the evaluation transform, the others
            random crops.
        lora: rank of LoRA adapters of every attention and MLP layer, which are trained instead of the weights. They
            are merged into the finished model, whose folder also has them in PEFT's format.
        lora_alpha: scale of the adapters times their rank (default: the rank).
    """

    start: str = "tiny"
    text: str | None = None
    width: int = 512
    tokenizer: str | None = None
    prefixes: tuple[Kind, ...] = ()
    freeze: Literal["none", "image", "text"] = "none"
    locked: Literal["none", "image", "both"] = "none"
    views: int = 1
    lora: int | None = None
    lora_alpha: float | None = None

    def __post_init__(self) -> None:
        _accept_paths(self, "start", "text", "tokenizer", "prefixes")


CopiesBy = Literal["ids", "captions"]
"""Samples of a batch treated as copies of each other: those with the same id, or also those with the same text."""


@dataclass(frozen=True)
class Data:
    """Training data: paths (Parquet, WebDataset, images, CSV), hub ids, or generated sources (glyphs:NAME).

    Attributes:
        sources: training data whose kind, captions or labels, is detected.
        captions: sources to read as captions.
        labels: sources to read as class labels; prompt templates turn class names into texts.
        split: split of sources whose address has none (default: the training split).
        weights: weight of each source, in the order sources, captions, labels (default: their sizes).
        sampling: divide every batch by the weights; half captions, half labels; or each batch from a single source.
        merge_classes: treat classes with the same name in several sources as one class in a loss on labels.
        crop: minimum share of a picture in a random crop; 1 disables cropping (default: the model's own).
        flip: mirror half of the pictures; not for pictures with letters, or captions that say left or right.
        broken_share: share of pictures that may be unreadable before the run stops.
        copies: samples of a batch that are neither negatives of each other nor context: those with the same id (if a
            source is smaller than the batch), or also those with the same caption.
        image_column: column of image bytes or paths, if not named image.
        caption_column: column of a text or a list of texts, if not named caption.
        label_column: column of class numbers or names, if not named label.
        class_name_column: column of readable names of class numbers.
        synonyms_column: column of other names of a class.
        split_column: column of each row's split.
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
    image_column: str | None = None
    caption_column: str | None = None
    label_column: str | None = None
    class_name_column: str | None = None
    synonyms_column: str | None = None
    split_column: str | None = None

    def __post_init__(self) -> None:
        _accept_paths(self, "sources", "captions", "labels")

    @property
    def specs(self) -> list[tuple[str, Kind | None]]:
        """All sources with their kinds; None if the kind is detected."""
        detected: list[tuple[str, Kind | None]] = [(spec, None) for spec in self.sources]
        return [*detected, *((spec, "caption") for spec in self.captions), *((spec, "label") for spec in self.labels)]

    def columns(self, kind: Kind | None) -> Columns:
        """Return the columns of sources read as ``kind``, without those that only the other kind needs."""
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
        tau: initial tau_context; 1 in the paper, which is too high for short runs.
    """

    alpha: float = 0.9
    tau: float = 1.0

    def objective(self, base: str, width: int, scale: float, bias: float) -> "ContextObjective":
        """Build the objective for embeddings of the given width."""
        from recollect.objectives import ContextObjective  # loads torch

        return ContextObjective(base, self.alpha, scale=scale, bias=bias, tau_context=self.tau)


FIRST_BIAS = -10.0
"""Initial bias (SigLIP), unless the recipe or the checkpoint sets it."""


@dataclass(frozen=True)
class ObjectiveOptions:
    """The training objective.

    Attributes:
        base: the loss: sigmoid (SigLIP, over pairs), softmax (CLIP), or label (UniCL, softmax over classes).
        scale: initial inverse temperature (default: the checkpoint's, or 10).
        bias: initial bias of the sigmoid loss (default: the checkpoint's, or -10); use about -log(batch) for small
            batches.
        smoothing: share of a pair's target given to the batch's other texts (label smoothing); not with context.
        context: add the context loss, for SigLIxP and CLIxP.
    """

    base: str = "sigmoid"
    scale: float | None = None
    bias: float | None = None
    smoothing: float = 0.0
    context: Context | None = None


_Limit = tuple[Callable[[float], bool], str]
_LIMITS: Mapping[_Limit, str] = {
    (lambda value: value >= 1, "at least 1"): "steps batch_size chunk log_every checkpoint_every checkpoints_kept "
    "model.views model.lora model.width",
    (lambda value: 0 < value < inf, "positive"): "objective.scale optimizer.clip_norm model.lora_alpha",
    (lambda value: 0 <= value < inf, "0 or positive"): "optimizer.learning_rate optimizer.weight_decay "
    "optimizer.temperature_factor workers",
    (lambda value: 0 <= value <= 1, "between 0 and 1"): "objective.context.alpha optimizer.warmup data.broken_share",
    (lambda value: 0 <= value < 1, "at least 0 and less than 1"): "optimizer.beta1 optimizer.beta2 "
    "average objective.smoothing",
    (isfinite, "a finite number"): "objective.bias",
    # Below, float32 has no gradient.
    (lambda value: 1e-12 <= value < inf, "at least 1e-12"): "objective.context.tau",
    (lambda value: 0 < value <= 1, "more than 0 and at most 1"): "data.crop",
}
"""A condition on numbers, its description, and the options that must satisfy it."""


@dataclass(frozen=True)
class Optimizer:
    """AdamW, warm-up and cosine decay; the defaults are those of LIxP, Appendix A.

    Attributes:
        learning_rate: peak learning rate, at the end of the warm-up.
        weight_decay: weight decay of matrices and larger tensors; biases, norms and temperatures have none.
        beta1: decay of the mean of the gradients.
        beta2: decay of the mean of the squared gradients.
        clip_norm: maximum norm of the gradient of all parameters.
        warmup: fraction of the steps over which the learning rate rises from 0.
        temperature_factor: learning rate multiplier of the objective's temperatures and biases. Adam moves a
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
    """All settings that affect a run.

    Attributes:
        model: the model to train.
        data: the training data.
        objective: the training objective.
        optimizer: AdamW and its schedule.
        steps: number of weight updates.
        batch_size: samples per step, over all processes.
        chunk: samples embedded at a time (default: all); memory grows with the chunk, not with the batch.
        precision: arithmetic of the towers; weights, loss and optimizer stay float32. tf32 rounds the factors of
            float32 products on a GPU; float16 scales the loss, and skips steps with overflows.
        seed: random seed.
        workers: processes that read images ahead; 0 reads between steps. Does not affect the result (default: one
            for each free core, at most 8; 0 for short runs and generated pictures).
        log_every: steps between lines of metrics.jsonl.
        checkpoint_every: steps between checkpoints.
        checkpoints_kept: number of checkpoints to keep.
        average: decay (such as 0.999) of a moving average of the weights (EMA), which becomes the model (default: the
            last weights).
        checkpoint_activations: recompute each layer's activations in the backward pass instead of storing them.
        compile: compile the towers with torch.compile; the first steps take minutes.
        shard_weights: split every layer, its gradients and AdamW's moments over the processes (FSDP2), for towers too
            large for one GPU.
    """

    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    objective: ObjectiveOptions = field(default_factory=ObjectiveOptions)
    optimizer: Optimizer = field(default_factory=Optimizer)
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
        """Check the options without opening model or data.

        Raises:
            UserError: an option is invalid; the message names it.
        """
        for group in (self, self.model, self.data, self.objective):
            with user_errors("recipe: wrong option", ValueError):
                check_choices(group)
        for (valid, words), names in _LIMITS.items():
            for name in names.split():
                value: Any = self
                for part in name.split("."):
                    value = getattr(value, part, None)
                wrong = value is not None and not valid(value)
                refuse((wrong, f"--{name.replace('_', '-')} {value}: must be {words}."))
        from recollect.objectives import OBJECTIVES

        check_choice(self.objective.base, OBJECTIVES, "--objective")
        refuse(*self._contradictions())

    def _contradictions(self) -> Iterator[tuple[bool, str]]:
        """Yield conflicts between options: pairs of a condition and the message if it is true."""
        model, data, context = self.model, self.data, self.objective.context
        on = {
            "model.locked": model.locked != "none",
            "model.lora": model.lora is not None,
            "model.prefixes": bool(model.prefixes),
            "model.text": model.text is not None,  # a new pair has random heads
            "compile": self.compile,
            "shard-weights": self.shard_weights,
        }
        yield not data.specs, "no data source. Add one with --data SOURCE."
        for one, others, why in (
            ("model.lora", ("model.locked", "model.prefixes", "model.text"), "LoRA changes no other weights"),
            ("shard-weights", ("model.locked", "model.lora", "compile"), "they cannot be combined"),
        ):
            for other in others:
                yield on[one] and on[other], f"--{one} and --{other}: {why}. Remove one of the two."
        count = len(data.specs)
        invalid = len(data.weights) != count or any(not 0 < weight < inf for weight in data.weights)
        words = f"--data.weights: must be {count} positive numbers, one for each source; got {data.weights}."
        yield bool(data.weights) and invalid, words
        words = "--batch-size 1: a batch of one has no context. Use at least 2."
        yield context is not None and self.batch_size < 2, words
