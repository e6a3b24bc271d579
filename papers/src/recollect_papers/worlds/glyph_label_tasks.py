"""Tasks around the glyph label set: its own pictures, shifted ones, other names, and what only captions speak of."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from recollect.core.seeding import derive_seed, integers, uniforms
from recollect.data.prompts import GENERAL_TEMPLATES
from recollect.evaluation.tasks.classification import RENAMED, ClassificationTask
from recollect_papers.worlds.arrays import ArraySource
from recollect_papers.worlds.glyph_sources import GlyphLabels, unseen_part
from recollect_papers.worlds.glyph_table import ATTRIBUTES, SCRIPTS
from recollect_papers.worlds.glyph_tasks import as_pictures, new_pictures, unlike
from recollect_papers.worlds.glyphs import GlyphWorld
from recollect_papers.worlds.rendering import COLOUR_NAMES, PLAIN_NUISANCE, Nuisance

NAMED_SCRIPTS = ("cyrillic letter", "hebrew letter", "playing card", "domino tile", "box drawings", "math operator")
"""Scripts that the label set lacks, whose training characters captions name."""

_MOST_CLASSES = 20


def label_set_tasks(source: GlyphLabels, split: str, *, each: int = 10) -> list[ClassificationTask]:
    """The classes of a label set under shifts of image domain and of class name (prefix conditioning, Tables 5 and 7).

    ``own``: new pictures in its own style; ``faces``: other training faces on the same plain ground; ``styles``: those
    faces in the style of the captions; ``held-out-faces``: faces that no training saw, in that style. ``names`` and
    ``synonyms``: the classes that have other words for their whole name, under both.

    Args:
        each: pictures of a class.
    """
    world, stem = source.world, source.name.replace(":", "-")
    labels = np.repeat(np.arange(len(source.characters)), each)
    unseen = unseen_part(source)
    own = np.arange(each)[None, :] * len(source.characters) + np.arange(len(source.characters))[:, None]
    moved = own.ravel() + (0 if split == "test" else each * len(source.characters))
    pictures = as_pictures(unseen.draw(moved)[0])
    learned = ArraySource(f"{stem}-own-support", as_pictures(source.draw(own.ravel())[0]), labels, source.class_names)
    query = ArraySource(f"{stem}-own-query", pictures, labels, source.class_names)
    tasks = [ClassificationTask(f"{stem}-own", learned, query, source.class_names, GENERAL_TEMPLATES, group="own")]
    tasks += [replace(_shifted(source, split, f"{stem}-{name}", labels, held_out, nuisance), group="own", shift=name)
              for name, held_out, nuisance in (("faces", False, PLAIN_NUISANCE), ("styles", False, world.nuisance),
                                               ("held-out-faces", True, world.nuisance))]  # fmt: skip
    chosen = [number for number, other in enumerate(source.synonyms) if other is not None]
    if len(chosen) > 1:
        rows = np.flatnonzero(np.isin(labels, chosen))
        renumbered = np.searchsorted(chosen, labels[rows])
        usual = tuple(world.table.names[source.characters[number]] for number in chosen)
        others = tuple(other for other in source.synonyms if other is not None)
        for shift, words in zip(RENAMED, (usual, others), strict=True):
            tasks.append(replace(_task(f"{stem}-{shift}", pictures[rows], renumbered, words), group="own", shift=shift))
    return tasks


def _shifted(
    source: GlyphLabels, split: str, name: str, labels: np.ndarray, held_out: bool, nuisance: Nuisance
) -> ClassificationTask:
    """The classes that have masks in such faces, drawn in them."""
    world = source.world
    rows = [world.table.masks_of(int(character), held_out=held_out) for character in source.characters]
    rows = [row if held_out or len(row) < 2 else row[1:] for row in rows]  # the first face is the label set's own
    present = np.array([number for number, row in enumerate(rows) if len(row)])
    labels = labels[np.isin(labels, present)]
    draws = uniforms(derive_seed(name, split, "style"), np.arange(len(labels)), 2)
    masks = np.array(
        [rows[label][int(draw * len(rows[label]))] for label, draw in zip(labels, draws[:, 0], strict=True)]
    )
    colours = integers(draws[:, 1], len(COLOUR_NAMES))
    images = world.render(masks, colours, derive_seed(name, split), np.arange(len(labels)), nuisance)
    names = tuple(source.class_names[number] for number in present)
    return _task(name, as_pictures(images), np.searchsorted(present, labels), names)


def prompt_tasks(world: GlyphWorld, split: str, *, queries: int = 600, each: int = 20) -> list[ClassificationTask]:
    """What captions speak of and the label set does not, asked with prompt templates: zero-shot on unseen classes.

    The script, each measured attribute, and within the scripts that no label set holds the characters by name; new
    pictures of training characters in the captions' style.

    Args:
        queries: pictures for scripts and for each attribute.
        each: pictures of a named character.
    """
    characters, masks, pictures = new_pictures(world, derive_seed("glyph prompts", split), queries)
    scripts = np.unique(world.table.scripts[world.split["train"]])
    by_script = np.searchsorted(scripts, world.table.scripts[characters])
    tasks = [
        _task("glyphs-prompts-script", pictures, by_script, tuple(SCRIPTS[number][0] for number in scripts), "script")
    ]
    for number, values in enumerate(ATTRIBUTES):
        labels = world.table.attributes[masks, number]
        tasks.append(_task(f"glyphs-prompts-{values[0]}-{values[-1]}", pictures, labels, values, "attributes"))
    return tasks + [_named(world, split, script, each) for script in NAMED_SCRIPTS]


def _named(world: GlyphWorld, split: str, script: str, each: int) -> ClassificationTask:
    number = [name for name, _ in SCRIPTS].index(script)
    members = world.split["train"][world.table.scripts[world.split["train"]] == number]
    classes = unlike(world, members)[:_MOST_CLASSES]
    name = f"glyphs-prompts-{script.replace(' ', '-')}"
    labels = np.repeat(np.arange(len(classes)), each)
    draws = uniforms(derive_seed(name, split, "style"), np.arange(len(labels)), 2)
    masks = world.draw_masks(classes[labels], draws[:, 0])
    colours = integers(draws[:, 1], len(COLOUR_NAMES))
    images = world.render(masks, colours, derive_seed(name, split), np.arange(len(labels)))
    names = tuple(world.table.names[character] for character in classes)
    return _task(name, as_pictures(images), labels, names, script.replace(" ", "-"))


def _task(
    name: str, pictures: np.ndarray, labels: np.ndarray, names: Sequence[str], group: str = ""
) -> ClassificationTask:
    """Every other picture to learn from, the others to test."""
    first, second = slice(0, None, 2), slice(1, None, 2)
    support = ArraySource(f"{name}-support", pictures[first], labels[first], tuple(names))
    query = ArraySource(f"{name}-query", pictures[second], labels[second], tuple(names))
    return ClassificationTask(name, support, query, tuple(names), GENERAL_TEMPLATES, group=group)
