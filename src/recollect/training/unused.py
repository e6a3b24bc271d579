"""Options that would say nothing beside the data, the model or the machine that they meet: each is refused in a line.

What can be told from options alone, `Recipe.check` refuses; what it takes the machine and the names of presets and
sources for, `refuse_at_once`. Both come before anything is opened.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from recollect.core.errors import UserError
from recollect.core.given import is_given
from recollect.core.types import Kind, Source
from recollect.data.definitions import Knowledge
from recollect.data.sources.generated import is_generated
from recollect.data.sources.images import note
from recollect.data.sources.opening import split_of
from recollect.models import PRESETS, DualEncoder, PatchEncoder
from recollect.models.dual import Tower
from recollect.models.loading import check_model_place
from recollect.models.lora.files import check_peft
from recollect.models.patches import PatchTowers
from recollect.models.presets import SmallPreset
from recollect.models.pretrained import PRETRAINED
from recollect.objectives import OBJECTIVES
from recollect.training.options import Data, Model, Recipe
from recollect.training.ranks import ProcessRanks
from recollect.training.sharded import check_torch

OBJECT = "object:"
"""How the spec of a source begins that is a Python object."""

_TEXTS: dict[Kind, str] = {"caption": "captions", "label": "labels"}
_READ_FOR: dict[str, Kind] = {
    "caption_column": "caption", "label_column": "label", "class_name_column": "label", "synonyms_column": "label",
}  # fmt: skip
"""Columns that are read for one kind of source alone."""

_LOOKED_AT = 1000
"""Captions of a source, for how many have a word with a definition."""

_COLUMNS = ("image_column", *_READ_FOR, "split_column")

Clash = tuple[bool, str]
"""Whether an option is there that says nothing, and how to say so."""


def refuse_at_once(
    recipe: Recipe, place: ProcessRanks | None, *, resumed: bool, needs: Collection[str] | None = None
) -> None:
    """Refuse what can be told before anything is opened: by the machine, and what the names in a recipe stand for.

    Args:
        place: which of how many processes this is, and where it computes; None where that is not known yet.
        resumed: whether the model is that of a checkpoint; where the run began need not be there any more.
        needs: of the objective that takes the place of the recipe's (`Objective.needs`).

    Raises:
        UserError: naming the option.
    """
    _refuse((*_of_addresses(recipe.data), *_of_base(recipe, needs)))
    _refuse(_of_kinds(recipe, [kind for _, kind in recipe.data.specs], needs))
    if recipe.model.start in PRESETS:
        parts = ModelParts.of_preset(recipe.model.start)
        words = "--shard-weights: splits layers of transformers, and this model has none. Leave it out."
        shares_nothing = recipe.shard_weights and not parts.recomputable, words
        _refuse((*_of_start(recipe.model, parts), _idle(recipe, parts), shares_nothing))
    elif not resumed and recipe.model.start not in PRETRAINED:
        check_model_place(recipe.model.start)
    if recipe.model.lora is not None:
        check_peft()
    if recipe.shard_weights:
        check_torch()
    if place is not None:
        _refuse(_of_machine(recipe, place))


def refuse_unused(recipe: Recipe, sources: Sequence[Source], needs: Collection[str] | None = None) -> None:
    """Refuse what a recipe asks of its data that these give no place for.

    Args:
        sources: in the recipe's order, opened.
        needs: of the objective that takes the place of the recipe's (`Objective.needs`).

    Raises:
        UserError: naming the option.
    """
    _refuse(_of_kinds(recipe, [source.kind for source in sources], needs))
    _refuse((*_of_classes(recipe.data, sources), *_of_tables(recipe.data, sources)))
    _refuse(_of_pictures(recipe.data, sources))


def _refuse(clashes: Iterable[Clash]) -> None:
    for wrong, words in clashes:
        if wrong:
            raise UserError(words)


def _of_base(recipe: Recipe, needs: Collection[str] | None) -> Iterator[Clash]:
    unread = recipe.data.merge_classes and not _labelled(recipe, needs)
    yield unread, "--data.merge-classes: is for a loss on labels. Add --objective.base label."
    start, tokenizer = recipe.model.start, recipe.model.tokenizer is not None
    words = f"--model.tokenizer: is for a preset; {start} has its own. Leave it out."
    yield tokenizer and start not in PRESETS, words


def _labelled(recipe: Recipe, needs: Collection[str] | None) -> bool:
    return OBJECTIVES[recipe.objective.base].labelled if needs is None else "labels" in needs


def _of_kinds(recipe: Recipe, kinds: Sequence[Kind | None], needs: Collection[str] | None) -> Iterator[Clash]:
    """What a recipe asks of the kinds of its sources, each None where it is not known yet."""
    data, known = recipe.data, None not in kinds
    held = " and ".join(words for kind, words in _TEXTS.items() if kind in kinds)
    missing = next((kind for kind in recipe.model.prefixes if kind not in kinds), None)
    if missing is not None:
        add = f"Name one with --data.{_TEXTS[missing]} SOURCE, or leave the prefix out."
        yield known, f"--model.prefixes {missing}: no source has {_TEXTS[missing]}, so it could not learn. {add}"
    words = f"--data.sampling equal: gives half of a batch to captions and half to labels, and here are {held} alone."
    alone = known and len(set(kinds)) == 1
    yield data.sampling == "equal" and alone, f"{words} Leave it out, or name sources of both kinds."
    words = "--data.sampling debiased: takes whole batches from one source or another, and there is one. Leave it out."
    yield data.sampling == "debiased" and len(kinds) == 1, words
    words = (
        f"--data.weights: with --data.sampling {data.sampling} they weigh sources of one kind against each other, and "
        "each kind has one. Leave them out."
    )
    apart = known and len(set(kinds)) == len(kinds)
    yield bool(data.weights) and data.sampling != "proportional" and apart, words
    base, unlabelled = recipe.objective.base, known and "label" not in kinds
    words = f"--objective.base {base}: no source has labels. Name one with --data.labels SOURCE, or take softmax."
    yield needs is None and _labelled(recipe, needs) and unlabelled, words


def _of_classes(data: Data, sources: Sequence[Source]) -> Iterator[Clash]:
    if not data.merge_classes:
        return
    label_sources = [source for source in sources if source.kind == "label"]
    names = Counter(name.strip().casefold() for source in label_sources for name in source.class_names)
    apart = max(names.values(), default=0) < 2
    words = "--data.merge-classes: no two classes have one name, so there is nothing to merge. Leave it out."
    yield apart and len(label_sources) < 2, words
    if apart and len(label_sources) > 1:
        note("--data.merge-classes: no two classes have one name, so none are merged. Are they spelt alike?")


def _of_addresses(data: Data) -> Iterator[Clash]:
    specs = [spec for spec, _ in data.specs]
    for column in _COLUMNS:
        words = "is for files with columns, and none is among the sources. Leave it out."
        given = getattr(data, column) is not None
        yield given and all(map(_has_no_columns, specs)), f"--data.{column.replace('_', '-')}: {words}"
    free = [spec for spec in specs if not spec.startswith(OBJECT) and split_of(spec) is None]
    words = "--data.split: every source says its own split. Leave it out."
    yield data.split is not None and not free, words


def _of_tables(data: Data, sources: Sequence[Source]) -> Iterator[Clash]:
    kinds = {source.kind for (spec, _), source in zip(data.specs, sources, strict=True) if not _has_no_columns(spec)}
    for column, kind in _READ_FOR.items():
        option = f"--data.{column.replace('_', '-')}"
        words = f"{option}: no such file is read as {kind}s. Name one with --data.{kind}s, or leave the option out."
        yield getattr(data, column) is not None and kind not in kinds, words


def _has_no_columns(spec: str) -> bool:
    return spec.startswith(OBJECT) or is_generated(spec)


def _of_pictures(data: Data, sources: Sequence[Source]) -> Iterator[Clash]:
    if not all(source.makes_batches for source in sources):
        return
    names, usual = ", ".join(source.name for source in sources), Data()
    # Beside another run's recipe it may be there to take that one's value back.
    meant = {"broken_share"} if is_given("data.broken_share") and not is_given("config") else set()
    for option in ("crop", "flip", "decoded", "broken_share"):
        words = f"--data.{option.replace('_', '-')}: is for pictures that are read, and {names} makes its own."
        yield getattr(data, option) != getattr(usual, option) or option in meant, words


def _of_machine(recipe: Recipe, place: ProcessRanks) -> Iterator[Clash]:
    words = f"--precision tf32: is for an NVIDIA GPU, and this run computes on {place.device}. Take float32."
    yield recipe.precision == "tf32" and place.device.type != "cuda", words
    words = (
        "--shard-weights: shares weights out among processes, and this is the only one. Leave it out, or start several"
    )
    yield recipe.shard_weights and place.size == 1, f"{words} with torchrun."
    words = f"--batch-size {recipe.batch_size}: does not divide over {place.size} processes. Take a multiple."
    yield bool(recipe.batch_size % place.size), words


@dataclass(frozen=True)
class ModelParts:
    """What options ask for in a model, known of a preset before it is made.

    Attributes:
        preset: whether its weights are drawn at random.
        words: whether its text tower reads words, not tokens.
        dropout: whether its head drops features.
        recomputable: towers whose activations can be recomputed (`DualEncoder.recomputable`).
        prefixes: how many prefix tokens each kind of text has.
    """

    preset: bool
    words: bool
    dropout: bool
    recomputable: tuple[Tower, ...]
    prefixes: Mapping[Kind, int]

    @classmethod
    def of_preset(cls, name: str) -> "ModelParts":
        """Those that a preset will have."""
        preset = PRESETS[name]
        if isinstance(preset, SmallPreset):
            return cls(True, True, isinstance(preset.towers, PatchTowers), (), {})
        return cls(True, False, False, ("image", "text"), {})

    @classmethod
    def of_checkpoint(cls, model: DualEncoder) -> "ModelParts":
        """Those of a model that was opened."""
        prefixes = {kind: len(tokens) for kind, tokens in model.prefixes.items()}
        return cls(False, False, isinstance(model, PatchEncoder), model.recomputable, prefixes)


def refuse_unfit(options: Model, model: DualEncoder) -> None:
    """Refuse what a recipe asks of a checkpoint that has no place for it.

    Raises:
        UserError: naming the option.
    """
    _refuse(_of_start(options, ModelParts.of_checkpoint(model)))


def _of_start(options: Model, parts: ModelParts) -> Iterator[Clash]:
    start, tokenizer = options.start, options.tokenizer is not None
    for name, on in (("gated", options.gated), ("lora", options.lora is not None)):
        words = "is a preset, whose weights are drawn at random. Name a checkpoint with --model.start."
        yield on and parts.preset, f"--model.{name}: {start} {words}"
    yield tokenizer and parts.words, f"--model.tokenizer: {start}'s text tower reads words, not tokens. Leave it out."
    words = f"--model.dropout: {start} has no head with dropout. It is for patches."
    yield options.dropout is not None and not parts.dropout, words
    for kind in dict.fromkeys(options.prefixes):
        length, before = options.prefixes.count(kind), parts.prefixes.get(kind, 0)
        words = (
            f"--model.prefixes: {start} has {before} for {kind} texts already, and {length} are asked for. Ask for as "
            "many as it has, or leave them out."
        )
        yield before not in (0, length), words
        frozen = "--model.freeze text" if options.freeze == "text" else "--model.locked both"
        still = options.freeze == "text" or options.locked == "both"
        words = f"--model.prefixes: with {frozen} no prefix could learn. Leave one of both out."
        yield not before and still, words


def refuse_idle(recipe: Recipe, model: DualEncoder) -> None:
    """Refuse to recompute activations of a model of which nothing is recomputed.

    Raises:
        UserError: naming the option.
    """
    _refuse([_idle(recipe, ModelParts.of_checkpoint(model))])


def _idle(recipe: Recipe, parts: ModelParts) -> Clash:
    options = recipe.model
    still = {"image": options.locked != "none" or options.freeze == "image"}
    still["text"] = options.locked == "both" or options.freeze == "text" or options.gated
    what = "layers of transformers" + (" that learn" if parts.recomputable else "")
    nothing = recipe.checkpoint_activations and all(still[tower] for tower in parts.recomputable)
    return nothing, f"--checkpoint-activations: {options.start} has no {what}. Take --chunk."


def say_defined(sources: Sequence[Source], knowledge: Knowledge | None) -> None:
    """How many classes of each source, or of its first captions, have a definition."""
    for source in sources if knowledge else ():
        assert knowledge is not None
        if source.kind == "label" and source.class_names:
            known = sum(bool(knowledge.of_name(name)) for name in source.class_names)
            note(f"{source.name}: {known:,} of {len(source.class_names):,} classes have a definition")
        elif source.kind == "caption":
            texts = source.example_texts(np.arange(min(len(source), _LOOKED_AT)))
            known = sum(bool(knowledge.of_caption(text)) for text in texts)
            note(f"{source.name}: {known:,} of the first {len(texts):,} captions have a word with a definition")
