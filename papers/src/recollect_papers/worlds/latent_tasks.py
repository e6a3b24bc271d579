"""Tasks of the vector world: fine classes that training never saw, and the coarse ones by their words."""

import numpy as np

from recollect.core.seeding import derive_seed, integers, numpy_generator, uniforms
from recollect.evaluation.tasks.classification import ClassificationTask
from recollect_papers.worlds.arrays import ArraySource
from recollect_papers.worlds.latents import SYNONYM_COUNT, LatentWorld, coarse_word

_SHOTS, _QUERIES, _WAYS = 32, 25, 20
_SIZES = (5, 8, 12, 20, 32, 50, 80, 120)


def latent_few_shot_tasks(world: LatentWorld, split: str) -> list[ClassificationTask]:
    """Eight tasks over fine classes that training never saw, those of the validation and the test split apart.

    Even tasks are fine-grained (siblings of a few parents), odd ones broad; every second pair is in a domain that
    training never saw.
    """
    pool, draw = _unseen(world, split), numpy_generator(world.seed, "tasks", split)
    siblings, seen, tasks = max(1, len(pool) // world.coarse), world.domains - world.held_out_domains, []
    for number in range(8):
        if number % 2 == 0:
            parents = draw.permutation(world.coarse)[: max(1, _WAYS // siblings)]
            classes = pool[np.isin(world.parent(pool), parents)][:_WAYS]
        else:
            classes = draw.permutation(pool)[:_WAYS]
        domain = int(draw.integers(seen)) if number % 4 < 2 else int(seen + draw.integers(world.held_out_domains))
        name = f"latents-{split}-{'fine' if number % 2 == 0 else 'broad'}-{number}"
        tasks.append(_task(world, name, classes, domain))
    return tasks


def sized_few_shot_tasks(world: LatentWorld, split: str) -> list[ClassificationTask]:
    """Two broad tasks of each number of classes in `_SIZES` that the split has (LIxP, Fig. 5): in a domain that
    training saw, and in one that it never saw."""
    pool, draw = _unseen(world, split), numpy_generator(world.seed, "sized tasks", split)
    seen, tasks = world.domains - world.held_out_domains, []
    for ways in (size for size in _SIZES if size <= len(pool)):
        places = {"seen": draw.integers(seen), "unseen": seen + draw.integers(world.held_out_domains)}
        for place, domain in places.items():
            classes = draw.permutation(pool)[:ways]
            tasks.append(_task(world, f"latents-{split}-{ways}-{place}", classes, int(domain)))
    return tasks


def _unseen(world: LatentWorld, split: str) -> np.ndarray:
    """The fine classes that training never saw: a sibling of each parent for validation, the others for the test."""
    held = np.arange(world.coarse * world.named, world.fine)
    first = held < world.coarse * (world.named + 1)
    return held[first] if split == "validation" else held[~first]


def _task(world: LatentWorld, name: str, classes: np.ndarray, domain: int) -> ClassificationTask:
    names, parts = tuple(f"class {label}" for label in classes), []
    for role, each in (("support", _SHOTS), ("query", _QUERIES)):
        labels = np.repeat(np.arange(len(classes)), each)
        fine, indices = classes[labels], np.arange(len(labels))
        key = derive_seed(world.seed, name, role)
        attributes = world.attribute_values(fine, key, indices)
        images = world.images(fine, np.full(len(fine), domain), attributes, key, indices)
        parts.append(ArraySource(f"{name}-{role}", images, labels, names, f"domain {domain}"))
    prompts = tuple(world.fine_prompts(int(label)) for label in classes)
    return ClassificationTask(name, parts[0], parts[1], names, (), prompts)


def latent_zero_shot_tasks(world: LatentWorld, split: str) -> list[ClassificationTask]:
    """Tell the coarse classes apart over all fine classes and domains, by their words."""
    name = f"latents-{split}-coarse"
    names = tuple(coarse_word(number, 0) for number in range(world.coarse))
    prompts = tuple(
        tuple(coarse_word(number, which) for which in range(SYNONYM_COUNT)) for number in range(world.coarse)
    )
    parts = []
    for role, count in (("support", _SHOTS * world.coarse), ("query", 4000)):
        key, indices = derive_seed(world.seed, name, role), np.arange(count)
        draws = uniforms(derive_seed(key, "class"), indices, 2)
        member = integers(draws[:, 0], world.named + world.held_out)
        coarse = indices % world.coarse
        fine = member * world.coarse + coarse
        attributes = world.attribute_values(fine, key, indices)
        images = world.images(fine, integers(draws[:, 1], world.domains), attributes, key, indices)
        parts.append(ArraySource(f"{name}-{role}", images, coarse, names))
    return [ClassificationTask(name, parts[0], parts[1], names, (), prompts)]
