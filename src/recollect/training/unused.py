"""Options that would say nothing beside the data, the model or the machine that they meet: each is refused in a line.

What can be told from a recipe alone, `Recipe.check` refuses.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from recollect.core.errors import UserError
from recollect.core.types import Kind, Source
from recollect.data.definitions import Knowledge
from recollect.data.sources.images import note
from recollect.data.sources.opening import split_of
from recollect.data.worlds import is_built_in
from recollect.models import DualEncoder
from recollect.objectives import OBJECTIVES
from recollect.training.options import Data, Recipe
from recollect.training.ranks import ProcessRanks

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


def refuse_unused(
    recipe: Recipe, sources: Sequence[Source], place: ProcessRanks, needs: Collection[str] | None = None
) -> None:
    """Refuse what a recipe asks of its data or its machine that these give no place for.

    Args:
        sources: in the recipe's order, opened.
        place: which of how many processes this is, and where it computes.
        needs: of the objective that takes the place of the recipe's (`Objective.needs`).

    Raises:
        UserError: naming the option.
    """
    clashes = (*_of_kinds(recipe, sources), *_of_labels(recipe, sources, needs), *_of_tables(recipe.data, sources))
    for wrong, words in (*clashes, *_of_pictures(recipe.data, sources), *_of_machine(recipe, place)):
        if wrong:
            raise UserError(words)


def _of_kinds(recipe: Recipe, sources: Sequence[Source]) -> Iterator[Clash]:
    data, kinds = recipe.data, {source.kind for source in sources}
    held = " and ".join(words for kind, words in _TEXTS.items() if kind in kinds)
    missing = next((kind for kind in recipe.model.prefixes if kind not in kinds), None)
    if missing is not None:
        add = f"Name one with --data.{_TEXTS[missing]} SOURCE, or leave the prefix out."
        yield True, f"--model.prefixes {missing}: no source has {_TEXTS[missing]}, so it could not learn. {add}"
    words = f"--data.sampling equal: gives half of a batch to captions and half to labels, and here are {held} alone."
    yield data.sampling == "equal" and len(kinds) == 1, f"{words} Leave it out, or name sources of both kinds."
    words = "--data.sampling debiased: takes whole batches from one source or another, and there is one. Leave it out."
    yield data.sampling == "debiased" and len(sources) == 1, words
    words = (
        f"--data.weights: with --data.sampling {data.sampling} they weigh sources of one kind against each other, and "
        "each kind has one. Leave them out."
    )
    yield bool(data.weights) and data.sampling != "proportional" and len(kinds) == len(sources), words


def _of_labels(recipe: Recipe, sources: Sequence[Source], needs: Collection[str] | None) -> Iterator[Clash]:
    base = recipe.objective.base
    labelled = OBJECTIVES[base].labelled if needs is None else "labels" in needs
    merges, label_sources = recipe.data.merge_classes, [source for source in sources if source.kind == "label"]
    yield merges and not labelled, "--data.merge-classes: is for a loss on labels. Add --objective.base label."
    words = f"--objective.base {base}: no source has labels. Name one with --data.labels SOURCE, or take softmax."
    yield needs is None and labelled and not label_sources, words
    if merges:
        names = Counter(name.strip().casefold() for source in label_sources for name in source.class_names)
        apart = max(names.values(), default=0) < 2
        words = "--data.merge-classes: no two classes have one name, so there is nothing to merge. Leave it out."
        yield apart and len(label_sources) < 2, words
        if apart and len(label_sources) > 1:
            note("--data.merge-classes: no two classes have one name, so none are merged. Are they spelt alike?")


def _of_tables(data: Data, sources: Sequence[Source]) -> Iterator[Clash]:
    specs = [spec for spec, _ in data.specs]
    tables = [source for spec, source in zip(specs, sources, strict=True) if not _has_no_columns(spec)]
    for column in _COLUMNS:
        option, kind = f"--data.{column.replace('_', '-')}", _READ_FOR.get(column)
        given = getattr(data, column) is not None
        yield given and not tables, f"{option}: is for files with columns, and none is among the sources. Leave it out."
        unread = kind is not None and all(source.kind != kind for source in tables)
        words = f"{option}: no such file is read as {kind}s. Name one with --data.{kind}s, or leave the option out."
        yield given and unread, words
    free = [spec for spec in specs if not spec.startswith(OBJECT) and split_of(spec) is None]
    words = "--data.split: every source says its own split. Leave it out."
    yield data.split is not None and not free, words


def _has_no_columns(spec: str) -> bool:
    return spec.startswith(OBJECT) or is_built_in(spec)


def _of_pictures(data: Data, sources: Sequence[Source]) -> Iterator[Clash]:
    if not all(source.makes_batches for source in sources):
        return
    names, usual = ", ".join(source.name for source in sources), Data()
    for option in ("crop", "flip", "decoded", "broken_share"):
        words = f"--data.{option.replace('_', '-')}: is for pictures that are read, and {names} makes its own."
        yield getattr(data, option) != getattr(usual, option), words


def _of_machine(recipe: Recipe, place: ProcessRanks) -> Iterator[Clash]:
    words = f"--precision tf32: is for an NVIDIA GPU, and this run computes on {place.device}. Take float32."
    yield recipe.precision == "tf32" and place.device.type != "cuda", words
    words = (
        "--shard-weights: shares weights out among processes, and this is the only one. Leave it out, or start several"
    )
    yield recipe.shard_weights and place.size == 1, f"{words} with torchrun."


def refuse_idle(recipe: Recipe, model: DualEncoder) -> None:
    """Refuse to recompute activations of a model of which nothing is recomputed.

    Raises:
        UserError: naming the option.
    """
    options = recipe.model
    still = {"image": options.locked != "none" or options.freeze == "image"}
    still["text"] = options.locked == "both" or options.freeze == "text" or options.gated
    if recipe.checkpoint_activations and all(still[tower] for tower in model.recomputable):
        what = "layers of transformers" + (" that learn" if model.recomputable else "")
        raise UserError(f"--checkpoint-activations: {options.start} has no {what}. Take --chunk.")


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
