"""Tasks of the glyph world: characters that training never saw, script by script, and what captions say of others."""

import numpy as np
import torch

from recollect.core.seeding import derive_seed, integers, numpy_generator, uniforms
from recollect.evaluation.tasks.classification import ClassificationTask
from recollect_papers.worlds.arrays import ArraySource
from recollect_papers.worlds.glyph_table import ATTRIBUTES, SCRIPTS
from recollect_papers.worlds.glyphs import GlyphWorld
from recollect_papers.worlds.rendering import COLOUR_NAMES

_ALIKE = 0.93
_FEWEST, _MOST = 14, 24


def glyph_few_shot_tasks(
    world: GlyphWorld, split: str, *, shots: int = 32, queries: int = 12
) -> list[ClassificationTask]:
    """One task for each script with 14 or more held-out characters that do not look alike (24 at most).

    Where every class has a mask in the held-out font faces, the query images are drawn in those: a shifted domain.
    """
    tasks = []
    for number, (script, _) in enumerate(SCRIPTS):
        members = world.split[split][world.table.scripts[world.split[split]] == number]
        classes = unlike(world, numpy_generator("glyph tasks", script).permutation(members))
        if len(classes) >= _FEWEST:
            tasks.append(_character_task(world, f"glyphs-{split}-{script.replace(' ', '-')}", classes, shots, queries))
    return tasks


def unlike(world: GlyphWorld, members: np.ndarray) -> np.ndarray:
    """The first characters, 24 at most, no two of which look nearly alike."""
    kept: list[int] = []
    pictures: list[np.ndarray] = []
    for character in members:
        rows = world.table.masks_of(int(character), held_out=False)
        mask = world.table.masks[rows[0]].astype(np.float32).ravel()
        mask /= np.linalg.norm(mask)
        if all(mask @ other < _ALIKE for other in pictures):
            kept.append(int(character))
            pictures.append(mask)
        if len(kept) == _MOST:
            break
    return np.array(kept, dtype=np.int64)


def _character_task(world: GlyphWorld, name: str, classes: np.ndarray, shots: int, queries: int) -> ClassificationTask:
    names = tuple(world.table.names[character] for character in classes)
    script = SCRIPTS[world.table.scripts[classes[0]]][0]
    shifted = all(len(world.table.masks_of(int(character), held_out=True)) for character in classes)
    parts = []
    for role, each in (("support", shots), ("query", queries)):
        labels = np.repeat(np.arange(len(classes)), each)
        key, indices = derive_seed(name, role), np.arange(len(labels))
        draws = uniforms(derive_seed(key, "style"), indices, 2)
        if role == "query" and shifted:
            rows = [world.table.masks_of(int(classes[label]), held_out=True) for label in labels]
            masks = np.array([row[int(draw * len(row))] for row, draw in zip(rows, draws[:, 0], strict=True)])
        else:
            masks = world.draw_masks(classes[labels], draws[:, 0])
        images = world.render(masks, integers(draws[:, 1], len(COLOUR_NAMES)), key, indices)
        domain = "held-out faces" if role == "query" and shifted else "training faces"
        parts.append(ArraySource(f"{name}-{role}", as_pictures(images), labels, names, domain))
    prompts = tuple((" ".join([*world.name_words[character], script]),) for character in classes)
    return ClassificationTask(name, parts[0], parts[1], names, (), prompts)


def as_pictures(images: torch.Tensor) -> np.ndarray:
    """(n, 3, edge, edge) as (n, edge, edge, 3)."""
    return images.permute(0, 2, 3, 1).contiguous().numpy()


def new_pictures(world: GlyphWorld, key: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unseen pictures of training characters: characters, masks and pictures, each ``count`` long."""
    indices = np.arange(count)
    draws = uniforms(derive_seed(key, "subject"), indices, 3)
    characters = world.draw_characters(draws[:, 0])
    masks = world.draw_masks(characters, draws[:, 1])
    pictures = as_pictures(world.render(masks, integers(draws[:, 2], len(COLOUR_NAMES)), key, indices))
    return characters, masks, pictures


def glyph_zero_shot_tasks(world: GlyphWorld, split: str, *, queries: int = 2000) -> list[ClassificationTask]:
    """What captions say, in new pictures of training characters: their script, and each measured attribute.

    Neither has words of its own to learn from few examples; the splits differ in their pictures.
    """
    characters, masks, pictures = new_pictures(world, derive_seed("glyph zero-shot", split), queries)
    scripts = np.unique(world.table.scripts[world.split["train"]])
    script_names = tuple(SCRIPTS[number][0] for number in scripts)
    by_script = np.searchsorted(scripts, world.table.scripts[characters])
    tasks = [_naming_task(f"glyphs-{split}-script", pictures, by_script, script_names)]
    for number, values in enumerate(ATTRIBUTES):
        labels = world.table.attributes[masks, number]
        tasks.append(_naming_task(f"glyphs-{split}-attribute-{number}", pictures, labels, values))
    return tasks


def _naming_task(name: str, pictures: np.ndarray, labels: np.ndarray, names: tuple[str, ...]) -> ClassificationTask:
    half = len(pictures) // 2
    support = ArraySource(f"{name}-support", pictures[:half], labels[:half], names)
    query = ArraySource(f"{name}-query", pictures[half:], labels[half:], names)
    return ClassificationTask(name, support, query, names, (), tuple((word,) for word in names))
