"""What a recipe asks of its data, model and machine: contradictions are errors, options without effect are warnings."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from recollect.core.options import Kind
from recollect.core.types import Source
from recollect.core.validation import refuse
from recollect.data.definitions import Knowledge
from recollect.data.sources import split_of
from recollect.data.sources.generated import is_generated
from recollect.data.sources.images import note
from recollect.models import PRESETS, DualEncoder
from recollect.models.lora import check_peft
from recollect.models.parts import check_model_place
from recollect.models.pretrained import PRETRAINED
from recollect.objectives import OBJECTIVES
from recollect.training.options import Model, Recipe
from recollect.training.ranks import ProcessRanks
from recollect.training.sharded import check_torch

OBJECT = "object:"
"""How the spec of a source begins that is a Python object."""

_TEXTS: dict[Kind, str] = {"caption": "captions", "label": "labels"}
_COLUMNS: dict[str, Kind | None] = {
    "image_column": None, "caption_column": "caption", "label_column": "label", "class_name_column": "label",
    "synonyms_column": "label", "split_column": None,
}  # fmt: skip
"""Columns, and the one kind of source that each is read for."""

_LOOKED_AT = 1000
"""Captions of a source, for how many have a word with a definition."""

_Found = Iterator[tuple[bool, str]]
"""Whether something is wrong or has no effect, and the words for it."""


def check_at_once(
    recipe: Recipe, place: ProcessRanks | None, *, resumed: bool, needs: Collection[str] | None = None
) -> None:
    """Check what can be told before anything is opened.

    Args:
        place: which of how many processes this is, and where it computes; None where that is not known yet.
        resumed: whether the model is that of a checkpoint; where the run began need not be there any more.
        needs: of the objective that takes the place of the recipe's (`Objective.needs`).

    Raises:
        UserError: naming the option.
    """
    refuse(*_kind_errors(recipe, [kind for _, kind in recipe.data.specs], needs))
    if recipe.model.start in PRESETS:
        recomputable = PRESETS[recipe.model.start].recomputable
        words = "--shard-weights: splits layers of transformers, and this model has none. Leave it out."
        refuse(*_model_errors(recipe.model, None), (recipe.shard_weights and not recomputable, words))
    elif not resumed and recipe.model.start not in PRETRAINED:
        check_model_place(recipe.model.start)
    if recipe.model.lora is not None:
        check_peft()
    if recipe.shard_weights:
        check_torch()
    if place is not None:
        words = f"--batch-size {recipe.batch_size}: does not divide over {place.size} processes. Take a multiple."
        alone = "--shard-weights: there is one process. Leave it out, or start several with torchrun."
        refuse((recipe.batch_size % place.size, words), (recipe.shard_weights and place.size == 1, alone))


def check_sources(
    recipe: Recipe, sources: Sequence[Source], place: ProcessRanks, needs: Collection[str] | None = None
) -> None:
    """Check what a recipe asks of its opened sources, and warn of options that have no effect on them.

    Args:
        sources: in the recipe's order, opened.
        place: which of how many processes this is, and where it computes.
        needs: of the objective that takes the place of the recipe's (`Objective.needs`).

    Raises:
        UserError: naming the option.
    """
    refuse(*_kind_errors(recipe, [source.kind for source in sources], needs))
    found = (*recipe.without_effect(), *_source_warnings(recipe, sources, needs), *_machine_warnings(recipe, place))
    for idle, words in found:
        if idle and place.first:
            option, _, why = words.partition(": ")
            note(f"{option} has no effect: {why}")


def check_model(options: Model, model: DualEncoder) -> None:
    """Check what a recipe asks of a checkpoint.

    Raises:
        UserError: naming the option.
    """
    refuse(*_model_errors(options, model))


def warn_of_model(recipe: Recipe, model: DualEncoder) -> None:
    """Warn of options that have no effect on a model."""
    options = recipe.model
    still = {"image": options.locked != "none" or options.freeze == "image"}
    still["text"] = options.locked == "both" or options.freeze == "text" or options.gated
    if recipe.checkpoint_activations and all(still[tower] for tower in model.recomputable):
        note(f"--checkpoint-activations has no effect: {options.start} has no layers of transformers that learn")
    if options.dropout is not None and not model.has_dropout:
        note(f"--model.dropout has no effect: {options.start} has no head with dropout")
    if options.tokenizer is not None and (options.start not in PRESETS or PRESETS[options.start].own_words):
        note(f"--model.tokenizer has no effect: {options.start} has its own")


def _labelled(recipe: Recipe, needs: Collection[str] | None) -> bool:
    return OBJECTIVES[recipe.objective.base].labelled if needs is None else "labels" in needs


def _kind_errors(recipe: Recipe, kinds: Sequence[Kind | None], needs: Collection[str] | None) -> _Found:
    """What a recipe needs of the kinds of its sources, each None where it is not known yet."""
    known = None not in kinds
    missing = next((kind for kind in recipe.model.prefixes if kind not in kinds), None)
    if missing is not None:
        add = f"Name one with --{_TEXTS[missing]} SOURCE, or leave the prefix out."
        yield known, f"--model.prefixes {missing}: no source has {_TEXTS[missing]}, so it could not learn. {add}"
    base, unlabelled = recipe.objective.base, known and "label" not in kinds
    words = f"--objective {base}: no source has labels. Name one with --labels SOURCE, or take softmax."
    yield needs is None and _labelled(recipe, needs) and unlabelled, words


def _source_warnings(recipe: Recipe, sources: Sequence[Source], needs: Collection[str] | None) -> _Found:
    data, kinds = recipe.data, [source.kind for source in sources]
    yield data.sampling == "equal" and len(set(kinds)) == 1, "--data.sampling equal: all sources are of one kind"
    yield data.sampling == "debiased" and len(kinds) == 1, "--data.sampling debiased: there is one source"
    apart = data.sampling != "proportional" and len(set(kinds)) == len(kinds) > 1
    yield bool(data.weights) and apart, f"--data.weights: with --data.sampling {data.sampling} each kind has one source"
    names = Counter(name.strip().casefold() for each in sources if each.kind == "label" for name in each.class_names)
    why = "no two classes have one name" if _labelled(recipe, needs) else "the objective reads no labels"
    idle = max(names.values(), default=0) < 2 or not _labelled(recipe, needs)
    yield data.merge_classes and idle, f"--data.merge-classes: {why}"
    files = [(spec, kind) for (spec, _), kind in zip(data.specs, kinds, strict=True) if not _has_no_columns(spec)]
    for column, kind in _COLUMNS.items():
        read = [spec for spec, each in files if kind in (None, each)]
        option = f"--data.{column.replace('_', '-')}"
        yield getattr(data, column) is not None and not read, f"{option}: no file with columns is read for it"
    free = [spec for spec, _ in data.specs if not spec.startswith(OBJECT) and split_of(spec) is None]
    yield data.split is not None and not free, "--data.split: every address names its split"
    made = all(source.makes_batches for source in sources)
    for option in ("crop", "flip", "broken_share"):
        changed = getattr(data, option) != getattr(type(data)(), option)
        yield made and changed, f"--data.{option.replace('_', '-')}: the sources make their pictures themselves"


def _has_no_columns(spec: str) -> bool:
    return spec.startswith(OBJECT) or is_generated(spec)


def _machine_warnings(recipe: Recipe, place: ProcessRanks) -> _Found:
    idle = recipe.precision == "tf32" and place.device.type != "cuda"
    yield idle, f"--precision tf32: it is for NVIDIA GPUs, and this run computes on {place.device}"


def _model_errors(options: Model, checkpoint: DualEncoder | None) -> _Found:
    """What a recipe asks of a model that it cannot have; without a checkpoint of a preset, which is yet to be made."""
    known = {} if checkpoint is None else checkpoint.prefixes
    start = options.start
    for name, on in (("gated", options.gated), ("lora", options.lora is not None)):
        words = "is a preset, whose weights are drawn at random. Name a checkpoint with --model."
        yield on and checkpoint is None, f"--model.{name}: {start} {words}"
    for kind in dict.fromkeys(options.prefixes):
        length, before = options.prefixes.count(kind), len(known.get(kind, ()))
        words = (
            f"--model.prefixes: {start} has {before} for {kind} texts already, and {length} are asked for. Ask for as "
            "many as it has, or leave them out."
        )
        yield before not in (0, length), words
        frozen = "--model.freeze text" if options.freeze == "text" else "--model.locked both"
        still = options.freeze == "text" or options.locked == "both"
        yield not before and still, f"--model.prefixes: with {frozen} no prefix could learn. Remove one of the two."


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
