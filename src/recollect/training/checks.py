"""Check a recipe against its data, model and machine: conflicts are errors, options without effect are warnings."""

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from recollect.core.options import Kind
from recollect.core.progress import note
from recollect.core.types import Source
from recollect.core.validation import refuse
from recollect.models import PRESETS, DualEncoder
from recollect.models.lora import check_peft
from recollect.models.parts import check_model_place
from recollect.models.pretrained import PRETRAINED
from recollect.objectives import OBJECTIVES
from recollect.objectives.base import smoothed
from recollect.training.options import FIRST_BIAS, Data, Model, Recipe
from recollect.training.ranks import ProcessRanks
from recollect.training.sharded import check_torch

OBJECT_PREFIX = "object:"
"""Prefix of the spec of a source that is a Python object."""

_TEXTS: dict[Kind, str] = {"caption": "captions", "label": "labels"}

_Conditions = Iterator[tuple[bool, str]]
"""Pairs of a condition and the message if it is true."""


def check_without_data(
    recipe: Recipe, process: ProcessRanks | None, *, resumed: bool, needs: Collection[str] | None = None
) -> None:
    """Run the checks that need no open data or model.

    Args:
        process: this process; None if not known yet.
        resumed: the model comes from a checkpoint of the run, so ``model.start`` may no longer exist.
        needs: `Objective.needs` of an objective that replaces the recipe's.

    Raises:
        UserError: an option does not fit; the message names it.
    """
    refuse(*kind_errors(recipe, [kind for _, kind in recipe.data.specs], needs))
    if recipe.model.start in PRESETS:
        recomputable = PRESETS[recipe.model.start].recomputable
        words = "--shard-weights: splits layers of transformers, and this model has none. Remove it."
        refuse(*model_errors(recipe.model, None), (recipe.shard_weights and not recomputable, words))
    elif not resumed and recipe.model.start not in PRETRAINED:
        check_model_place(recipe.model.start)
    if recipe.model.lora is not None:
        check_peft()
    if recipe.shard_weights:
        check_torch()
    if process is not None:
        words = f"--batch-size {recipe.batch_size}: does not divide over {process.size} processes. Use a multiple."
        single = "--shard-weights: there is only one process. Remove it, or start several with torchrun."
        refuse((recipe.batch_size % process.size, words), (recipe.shard_weights and process.size == 1, single))


def warn_unused_options(
    recipe: Recipe,
    sources: Sequence[Source],
    model: DualEncoder,
    process: ProcessRanks,
    needs: Collection[str] | None = None,
) -> None:
    """Warn about options that have no effect with these sources, this model and this machine."""
    labeled = _labeled(recipe, needs)
    idle = (_idle_with_model(recipe, model), _idle_options(recipe, process), _idle_data(recipe.data, sources, labeled))
    for without_effect, words in itertools.chain(*idle):
        if without_effect:
            option, _, why = words.partition(": ")
            note(f"{option} has no effect: {why}")


def _labeled(recipe: Recipe, needs: Collection[str] | None) -> bool:
    return OBJECTIVES[recipe.objective.base].labeled if needs is None else "labels" in needs


def kind_errors(recipe: Recipe, kinds: Sequence[Kind | None], needs: Collection[str] | None) -> _Conditions:
    """Yield the recipe's conflicts with the kinds of its sources; None is a kind not known yet."""
    known = None not in kinds
    missing = next((kind for kind in recipe.model.prefixes if kind not in kinds), None)
    if missing is not None:
        add = f"Add one with --{_TEXTS[missing]} SOURCE, or remove the prefix."
        yield known, f"--model.prefixes {missing}: no source has {_TEXTS[missing]}, so it could not learn. {add}"
    words = "no source has labels. Add one with --labels SOURCE, or use softmax."
    unlabeled = known and "label" not in kinds
    yield needs is None and _labeled(recipe, needs) and unlabeled, f"--objective {recipe.objective.base}: {words}"


def _idle_with_model(recipe: Recipe, model: DualEncoder) -> _Conditions:
    options = recipe.model
    fixed = {"image": options.locked != "none" or options.freeze == "image"}
    fixed["text"] = options.locked == "both" or options.freeze == "text"
    none_learn = all(fixed[tower] for tower in model.recomputable)
    words = f"--checkpoint-activations: no transformer layers of {options.start} are trained"
    yield recipe.checkpoint_activations and none_learn, words
    yield options.width != Model().width and options.text is None, "--model.width: it is only for --model.text"
    own = options.start not in PRESETS or PRESETS[options.start].own_vocabulary
    yield options.tokenizer is not None and own, f"--model.tokenizer: {options.start} has its own"


def _idle_options(recipe: Recipe, process: ProcessRanks) -> _Conditions:
    model, data, objective = recipe.model, recipe.data, recipe.objective
    locked, loss = model.locked != "none", OBJECTIVES[objective.base]
    yield model.lora is None and model.lora_alpha is not None, "--model.lora-alpha: it is only for --lora"
    yield model.views > 1 and not locked, "--model.views: it is only for --locked towers"
    for name, on in (("data.crop", data.crop is not None), ("data.flip", data.flip)):
        words = f"--{name}: --locked computes only the evaluation view of a picture; use --model.views 2 or more"
        yield locked and model.views == 1 and on, words
    smooths = not objective.context and loss.smooths
    words = f"--objective.smoothing: it is only for {' and '.join(smoothed())} without context"
    yield objective.smoothing > 0 and not smooths, words
    biased = objective.bias not in (None, FIRST_BIAS)  # recipes set the first bias for any objective
    yield biased and not loss.biased, f"--objective.bias: the {objective.base} objective has no bias"
    idle = recipe.precision == "tf32" and process.device.type != "cuda"
    yield idle, f"--precision tf32: it is only for NVIDIA GPUs, and this run uses {process.device}"


def _idle_data(data: Data, sources: Sequence[Source], labeled: bool) -> _Conditions:
    kinds = [source.kind for source in sources]
    yield data.sampling == "equal" and len(set(kinds)) == 1, "--data.sampling equal: all sources have the same kind"
    yield data.sampling == "debiased" and len(kinds) == 1, "--data.sampling debiased: there is only one source"
    one_per_kind = data.sampling != "proportional" and len(set(kinds)) == len(kinds)
    why = "there is only one source" if len(kinds) == 1 else f"with --data.sampling {data.sampling}, it needs several "
    why += "" if len(kinds) == 1 else "sources of a kind"
    yield bool(data.weights) and (len(kinds) == 1 or one_per_kind), f"--data.weights: {why}"
    names = Counter(name.strip().casefold() for each in sources if each.kind == "label" for name in each.class_names)
    why = "no two classes have the same name" if labeled else "the objective uses no labels"
    yield data.merge_classes and (max(names.values(), default=0) < 2 or not labeled), f"--data.merge-classes: {why}"
    yield data.caption_column is not None and "caption" not in kinds, "--data.caption-column: no source has captions"
    yield data.label_column is not None and "label" not in kinds, "--data.label-column: no source has labels"
    generated = all(source.makes_batches for source in sources)
    for option in ("crop", "flip", "broken_share"):
        changed = getattr(data, option) != getattr(Data(), option)
        yield generated and changed, f"--data.{option.replace('_', '-')}: the sources generate their pictures"


def model_errors(options: Model, checkpoint: DualEncoder | None) -> _Conditions:
    """Yield the recipe's conflicts with the model it starts from; None is a preset, which is not built yet."""
    known = {} if checkpoint is None else checkpoint.prefixes
    start = options.start
    words = "is a preset, whose weights are random. Choose a checkpoint with --model."
    yield options.lora is not None and checkpoint is None, f"--model.lora: {start} {words}"
    for kind in dict.fromkeys(options.prefixes):
        length, existing = options.prefixes.count(kind), len(known.get(kind, ()))
        words = (
            f"--model.prefixes: {start} already has {existing} for {kind} texts, not {length}. Repeat the kind "
            f"{existing} times, or remove it."
        )
        yield existing not in (0, length), words
        frozen = "--model.freeze text" if options.freeze == "text" else "--model.locked both"
        fixed = options.freeze == "text" or options.locked == "both"
        yield not existing and fixed, f"--model.prefixes: with {frozen} no prefix could learn. Remove one of the two."
