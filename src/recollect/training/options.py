"""What a recipe is made of; the command line, its help and ``recipe.json`` are derived from these fields."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from math import inf, isfinite
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from recollect.core.choices import check_choices
from recollect.core.errors import UserError
from recollect.core.files import read_json
from recollect.core.given import is_given
from recollect.core.types import Kind
from recollect.data.batches.mixture import Sampling
from recollect.data.sources.columns import Columns
from recollect.objectives import OBJECTIVES, ContextOptions
from recollect.objectives.base import smoothed
from recollect.training.optimiser import Optimiser
from recollect.training.precision import Precision


@dataclass(frozen=True)
class Model:
    """What to train.

    Attributes:
        start: a preset (tiny, small, vit-s-16, ...) to start from nothing, or a checkpoint to go on from: the folder of
            any CLIP-type model of transformers, RUN/model of another run, or a hub id.
        text: a text encoder (BERT, MiniLM, ...) to pair with ``start``, which is then a vision backbone (ViT, DINOv2,
            Swin, ConvNeXt, ResNet, EfficientNet, ...); new linear heads join them.
        width: number of entries of an embedding of such a pair.
        tokenizer: folder or hub id of a tokenizer for a preset; by default one is trained on the captions.
        prefixes: kinds of source whose texts begin with a learned prefix token (prefix conditioning); a kind that is
            named twice gets two.
        freeze: a tower that keeps its weights.
        locked: towers of which only the head learns (the projection; SigLIP's pooling MLP), or not even that where the
            tower is frozen too. What lies before is computed once and kept, so that large batches cost little.
        dropout: share of the features that the head of ``patches`` drops; its own by default.
        views: of a locked image tower: how many crops of each picture are computed; 1 takes the picture as it is.
        lora: rank of low-rank changes (LoRA) of every attention and MLP layer, which learn in the weights' stead; the
            finished model has them added to its weights, and holds them alone as well, as PEFT reads them.
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
        sources: sources whose kind, captions or labels, is found by looking.
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
        definitions: what class names and nouns mean, to stand behind prompts and captions (K-LITE): a .json, .csv or
            .tsv file, the folder of a WordNet database, or ``wordnet`` for the installed one. Such a model is then
            asked with them too.
        decoded: decode every picture once, and keep the bytes in the user's cache folder: for runs of many passes that
            wait for their pictures.
        image_column: where its name is unusual, as for the columns below.
        caption_column: a text or a list of texts.
        label_column: class numbers or names.
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
    decoded: bool = False
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

if TYPE_CHECKING:
    BaseName = str
else:
    BaseName = Literal[tuple(OBJECTIVES)]


@dataclass(frozen=True)
class ObjectiveOptions:
    """What training minimises.

    Attributes:
        base: SigLIP's pairwise sigmoid, CLIP's softmax, or UniCL's softmax over classes.
        scale: inverse temperature at the start; by default the checkpoint's, or 10.
        bias: of the sigmoid loss at the start; by default the checkpoint's, or -10. About -log(batch) suits small ones.
        smoothing: share of a pair's target that the batch's other texts get (label smoothing); not with context.
        context: look up the batch as well, for SigLIxP and CLIxP.
    """

    base: BaseName = "sigmoid"
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
"""What each number may be, and how to say so."""


@dataclass(frozen=True)
class Recipe:
    """All that decides the outcome of a run.

    Attributes:
        model: what to train.
        data: what to train on.
        objective: what to minimise.
        optimiser: AdamW and its schedule.
        steps: updates of the weights.
        batch_size: of all processes together.
        chunk: samples embedded at a time; memory grows with it, not with the batch. None embeds all at once.
        precision: of the towers' arithmetic; weights, loss and optimiser stay float32. tf32 rounds the factors of
            float32 products on a GPU; float16 scales the loss, and leaves out the steps where that was too much.
        seed: of everything random.
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
            try:
                check_choices(room)
            except ValueError as error:
                raise UserError(f"recipe: {error}") from None
        for name, (right, words) in _LIMITS.items():
            value: Any = self
            for part in name.split("."):
                value = getattr(value, part, None)
            if value is not None and not right(value):
                raise UserError(f"--{name.replace('_', '-')} {value}: must be {words}.")
        self.check_given()
        for wrong, words in self._clashes():
            if wrong:
                raise UserError(words)

    def check_given(self) -> None:
        """Refuse options that somebody gave and that say nothing beside the others; what recipes have is no matter.

        Raises:
            UserError: naming the option.
        """
        base, context = self.objective.base, self.objective.context
        bias, loss = self.objective.bias, OBJECTIVES[base]
        if not loss.biased and bias is not None and (bias != FIRST_BIAS or is_given("objective.bias")):
            biased = " or ".join(name for name, each in OBJECTIVES.items() if each.biased)
            words = f"{loss.name}'s loss has no bias. Leave it out, or take --objective.base {biased}."
            raise UserError(f"--objective.bias: {words}")
        tied = context.options.tied if context else "none"
        if tied in {"all", "context"} and is_given("objective.context.tau"):
            words = f"tied to the others ({tied}), it begins where they do. Take --objective.scale."
            raise UserError(f"--objective.context.tau: {words}")

    def _clashes(self) -> Iterator[tuple[bool, str]]:
        """Options of which one would say nothing beside the other: whether they are here, and how to say so."""
        model, data, objective = self.model, self.data, self.objective
        locked, lora, views = model.locked != "none", model.lora is not None, model.views
        yield not data.specs, "no source of data was named. Name one with --data SOURCE."
        yield not lora and model.lora_alpha is not None, "--model.lora-alpha: belongs to LoRA. Add --model.lora RANK."
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
        yield views > 1 and not locked, f"--model.views {views}: is for a locked image tower. Add --model.locked image."
        words = "--data.decoded and --model.locked: a locked tower reads every picture once. Leave out --data.decoded."
        yield locked and data.decoded, words
        words = "--data.weights: there is one source, so nothing to weigh it against. Leave it out."
        yield len(data.weights) == len(data.specs) == 1, words
        count = len(data.specs)
        unfit = len(data.weights) != count or any(not 0 < weight < inf for weight in data.weights)
        words = f"--data.weights: must be {count} positive numbers, one for each source; got {data.weights}."
        yield bool(data.weights) and unfit, words
        options = objective.context.options if objective.context else ContextOptions()
        for what, on in (
            ("Augmented entries", options.augmented != "none"),
            ("Crops (--data.crop)", data.crop is not None),
            ("Mirrored pictures (--data.flip)", data.flip),
        ):
            words = f"--model.locked keeps one view of each picture. {what} need --model.views 2 or more."
            yield locked and views == 1 and on, words
        smooths = not objective.context and OBJECTIVES[objective.base].smooths
        words = f"--objective.smoothing: is for {' and '.join(smoothed())}, without context."
        yield objective.smoothing > 0 and not smooths, words
        words = "--batch-size 1: a batch of one has no context. Take at least 2."
        yield objective.context is not None and self.batch_size < 2, words
        rows = options.active_rows or 0
        words = f"--objective.context.options.active-rows {rows}: more than the batch of {self.batch_size}."
        yield rows > self.batch_size, words


AnyRecipe = TypeVar("AnyRecipe", bound=Recipe)
"""A recipe of one kind."""

_IN_WORDS: Mapping[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def recipe_from_json(file: Path, kind: type[AnyRecipe]) -> AnyRecipe:
    """The recipe, of a kind, that a ``recipe.json`` holds.

    Raises:
        UserError: no such file, not a recipe, an option that there is not, or one that must be there and is not.
    """
    return _from_json(kind, read_json(file), file, "")


def _from_json(kind: Any, value: Any, file: Path, name: str) -> Any:
    """``value`` as the type of a recipe's field."""
    members = get_args(kind) if get_origin(kind) in (UnionType, Union) else (kind,)
    if value is None and type(None) in members:
        return None
    member = next(member for member in members if member is not type(None))
    if is_dataclass(member):
        if not isinstance(value, Mapping):
            raise UserError(f"{file}: {name or 'it'} is no set of options. Is it a recipe.json?")
        hints = get_type_hints(member)
        if unknown := sorted(value.keys() - hints.keys()):
            raise UserError(f"{file}: there is no option {name}{unknown[0]}. Was it written by another version?")
        needed = (each.name for each in fields(member) if each.default is each.default_factory is MISSING)
        if missing := sorted(set(needed) - value.keys()):
            raise UserError(f"{file}: {name}{missing[0]} is missing. Was it cut short?")
        parts = {key: _from_json(hints[key], part, file, f"{name}{key}.") for key, part in value.items()}
        try:
            return member(**parts)  # type: ignore[operator]
        except ValueError as error:
            raise UserError(f"{file}: {name}{error}") from None
    if get_origin(member) is tuple:
        if not isinstance(value, list):
            raise UserError(f"{file}: {name.rstrip('.')} is {value!r}; it must be a list")
        return tuple(_from_json(get_args(member)[0], part, file, name) for part in value)
    choices = get_args(member) if get_origin(member) is Literal else ()
    fits = value in choices if choices else isinstance(value, {float: (int, float)}.get(member, member))
    if not fits or (isinstance(value, bool) and member is not bool):
        words = f"one of {', '.join(map(repr, choices))}" if choices else _IN_WORDS[member]
        raise UserError(f"{file}: {name.rstrip('.')} is {value!r}; it must be {words}")
    return float(value) if member is float else value
