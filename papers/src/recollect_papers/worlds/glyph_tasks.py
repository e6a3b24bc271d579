"""Tasks of the glyph world: unseen characters, contents of captions, and label sets under shifts."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from recollect.core.seeding import derive_seed, integers, numpy_generator, uniforms
from recollect.data.prompts import GENERAL_TEMPLATES
from recollect.evaluation.tasks.classification import RENAMED, ClassificationTask
from recollect_papers.worlds.arrays import ArraySource, as_pictures
from recollect_papers.worlds.glyph_table import ATTRIBUTES, SCRIPTS
from recollect_papers.worlds.glyphs import GlyphLabels, GlyphWorld, unseen_part
from recollect_papers.worlds.rendering import COLOR_NAMES, PLAIN_NUISANCE, Nuisance

_MAX_SIMILARITY = 0.93  # cosine of masks
_MIN_CLASSES, _MAX_CLASSES = 14, 24


def glyph_few_shot_tasks(
    world: GlyphWorld, split: str, *, shots: int = 32, queries: int = 12
) -> list[ClassificationTask]:
    """Return a task of up to 24 classes for each script with at least 14 distinguishable held-out characters.

    If every class has a mask in the held-out faces, query images use these faces: a shifted domain.
    """
    tasks = []
    for number, (script, _) in enumerate(SCRIPTS):
        members = world.split[split][world.table.scripts[world.split[split]] == number]
        classes = unlike(world, numpy_generator("glyph tasks", script).permutation(members))
        if len(classes) >= _MIN_CLASSES:
            tasks.append(_character_task(world, f"glyphs-{split}-{script.replace(' ', '-')}", classes, shots, queries))
    return tasks


def unlike(world: GlyphWorld, members: np.ndarray) -> np.ndarray:
    """Return the first distinguishable characters, at most 24."""
    chosen: list[int] = []
    pictures: list[np.ndarray] = []
    for character in members:
        rows = world.table.masks_of(int(character), held_out=False)
        mask = world.table.masks[rows[0]].astype(np.float32).ravel()
        mask /= np.linalg.norm(mask)
        if all(mask @ other < _MAX_SIMILARITY for other in pictures):
            chosen.append(int(character))
            pictures.append(mask)
        if len(chosen) == _MAX_CLASSES:
            break
    return np.array(chosen, dtype=np.int64)


def drawn(
    world: GlyphWorld, subjects: np.ndarray | list[np.ndarray], style: int, key: int, nuisance: Nuisance | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Draw pictures; return them (n, edge, edge, 3) and their masks.

    Args:
        subjects: characters, drawn in training faces, or the masks to choose from for each picture.
        style: seed of face and color.
        key: seed of all other variation.
    """
    indices = np.arange(len(subjects))
    draws = uniforms(style, indices, 2)
    if isinstance(subjects, list):
        masks = np.array([rows[int(draw * len(rows))] for rows, draw in zip(subjects, draws[:, 0], strict=True)])
    else:
        masks = world.draw_masks(subjects, draws[:, 0])
    return as_pictures(world.render(masks, integers(draws[:, 1], len(COLOR_NAMES)), key, indices, nuisance)), masks


def _character_task(world: GlyphWorld, name: str, classes: np.ndarray, shots: int, queries: int) -> ClassificationTask:
    names = tuple(world.table.names[character] for character in classes)
    script = SCRIPTS[world.table.scripts[classes[0]]][0]
    held_out = [world.table.masks_of(int(character), held_out=True) for character in classes]
    parts = []
    for role, each in (("support", shots), ("query", queries)):
        labels, key = np.repeat(np.arange(len(classes)), each), derive_seed(name, role)
        shifted = role == "query" and all(map(len, held_out))
        subjects = [held_out[label] for label in labels] if shifted else classes[labels]
        images, _ = drawn(world, subjects, derive_seed(key, "style"), key)
        domain = "held-out faces" if shifted else "training faces"
        parts.append(ArraySource(f"{name}-{role}", images, labels, names, domain))
    prompts = tuple((" ".join([*world.name_words[character], script]),) for character in classes)
    return ClassificationTask(name, parts[0], parts[1], names, (), prompts)


def _described(world: GlyphWorld, key: int, count: int) -> tuple[np.ndarray, list[tuple[np.ndarray, tuple[str, ...]]]]:
    """Draw new pictures of training characters; also return labels and names of scripts and of each attribute."""
    indices = np.arange(count)
    draws = uniforms(derive_seed(key, "subject"), indices, 3)
    characters = world.draw_characters(draws[:, 0])
    masks = world.draw_masks(characters, draws[:, 1])
    pictures = as_pictures(world.render(masks, integers(draws[:, 2], len(COLOR_NAMES)), key, indices))
    scripts = np.unique(world.table.scripts[world.split["train"]])
    by_script = np.searchsorted(scripts, world.table.scripts[characters])
    facts = [(by_script, tuple(SCRIPTS[number][0] for number in scripts))]
    return pictures, facts + [(world.table.attributes[masks, number], each) for number, each in enumerate(ATTRIBUTES)]


def glyph_zero_shot_tasks(world: GlyphWorld, split: str, *, queries: int = 2000) -> list[ClassificationTask]:
    """Return tasks on new pictures of training characters: by script, and by each attribute.

    Splits differ only in their pictures.
    """
    pictures, facts = _described(world, derive_seed("glyph zero-shot", split), queries)
    whats = ["script", *(f"attribute-{number}" for number in range(len(ATTRIBUTES)))]
    return [_naming_task(f"glyphs-{split}-{what}", pictures, *each) for what, each in zip(whats, facts, strict=True)]


def _naming_task(name: str, pictures: np.ndarray, labels: np.ndarray, names: tuple[str, ...]) -> ClassificationTask:
    half = len(pictures) // 2
    support = ArraySource(f"{name}-support", pictures[:half], labels[:half], names)
    query = ArraySource(f"{name}-query", pictures[half:], labels[half:], names)
    return ClassificationTask(name, support, query, names, (), tuple((word,) for word in names))


NAMED_SCRIPTS = ("cyrillic letter", "hebrew letter", "playing card", "domino tile", "box drawings", "math operator")
"""Scripts that are in captions but not in the label set."""

_MAX_NAMED = 20  # classes per script


def label_set_tasks(source: GlyphLabels, split: str, *, each: int = 10) -> list[ClassificationTask]:
    """Return tasks on a label set under shifts of domain and class names (prefix conditioning, Tables 5 and 7).

    ``own``: new pictures in the same style; ``faces``: other training faces on the same plain ground; ``styles``: these
    faces in the captions' style; ``held-out-faces``: held-out faces in the captions' style; ``names`` and ``synonyms``:
    the classes whose whole name has synonyms, by either name.

    Args:
        each: pictures per class.
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
    """Return a task on the classes that have masks in the held-out or training faces, drawn in these."""
    world = source.world
    rows = [world.table.masks_of(int(character), held_out=held_out) for character in source.characters]
    rows = [row if held_out or len(row) < 2 else row[1:] for row in rows]  # the label set uses the first face
    present = np.array([number for number, row in enumerate(rows) if len(row)])
    labels = labels[np.isin(labels, present)]
    style, key = derive_seed(name, split, "style"), derive_seed(name, split)
    images, _ = drawn(world, [rows[label] for label in labels], style, key, nuisance)
    names = tuple(source.class_names[number] for number in present)
    return _task(name, images, np.searchsorted(present, labels), names)


def prompt_tasks(world: GlyphWorld, split: str, *, queries: int = 600, each: int = 20) -> list[ClassificationTask]:
    """Return zero-shot tasks with prompt templates on classes that occur in captions but not in the label set.

    The tasks are the script, each attribute, and the characters of `NAMED_SCRIPTS` by name, on new pictures of training
    characters in the captions' style.

    Args:
        queries: pictures for the script and attribute tasks.
        each: pictures per named character.
    """
    pictures, facts = _described(world, derive_seed("glyph prompts", split), queries)
    tasks = [_task("glyphs-prompts-script", pictures, *facts[0], "script")]
    for labels, values in facts[1:]:
        tasks.append(_task(f"glyphs-prompts-{values[0]}-{values[-1]}", pictures, labels, values, "attributes"))
    return tasks + [_named(world, split, script, each) for script in NAMED_SCRIPTS]


def _named(world: GlyphWorld, split: str, script: str, each: int) -> ClassificationTask:
    number = [name for name, _ in SCRIPTS].index(script)
    members = world.split["train"][world.table.scripts[world.split["train"]] == number]
    classes = unlike(world, members)[:_MAX_NAMED]
    name = f"glyphs-prompts-{script.replace(' ', '-')}"
    labels = np.repeat(np.arange(len(classes)), each)
    images, _ = drawn(world, classes[labels], derive_seed(name, split, "style"), derive_seed(name, split))
    names = tuple(world.table.names[character] for character in classes)
    return _task(name, images, labels, names, script.replace(" ", "-"))


def _task(
    name: str, pictures: np.ndarray, labels: np.ndarray, names: Sequence[str], group: str = ""
) -> ClassificationTask:
    """Create a task with alternate pictures as support and query."""
    first, second = slice(0, None, 2), slice(1, None, 2)
    support = ArraySource(f"{name}-support", pictures[first], labels[first], tuple(names))
    query = ArraySource(f"{name}-query", pictures[second], labels[second], tuple(names))
    return ClassificationTask(name, support, query, tuple(names), GENERAL_TEMPLATES, group=group)
