"""Tasks of the synthetic worlds, by address."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from recollect.core.errors import UserError
from recollect.evaluation.tasks.classification import RENAMED, ClassificationTask
from recollect_papers.worlds import LABEL_SETS, SOURCES, world_of
from recollect_papers.worlds.glyph_tasks import (
    glyph_few_shot_tasks,
    glyph_zero_shot_tasks,
    label_set_tasks,
    prompt_tasks,
)
from recollect_papers.worlds.latents import latent_few_shot_tasks, latent_zero_shot_tasks, sized_few_shot_tasks

MakeTasks = Callable[[Any, str], list[ClassificationTask]]
"""Creates tasks from a world or label set, and a split."""

FEW_SHOT: dict[str, MakeTasks] = {
    "latents": latent_few_shot_tasks,
    "latents:sizes": sized_few_shot_tasks,
    "glyphs": glyph_few_shot_tasks,
    **dict.fromkeys(LABEL_SETS, label_set_tasks),
}
ZERO_SHOT: dict[str, MakeTasks] = {
    "latents": latent_zero_shot_tasks,
    "glyphs": glyph_zero_shot_tasks,
    "glyphs:prompts": prompt_tasks,
    **dict.fromkeys(LABEL_SETS, label_set_tasks),
}
"""Tasks by address; other addresses of a world use the tasks of the world."""


def world_tasks(spec: str, split: str = "test") -> list[ClassificationTask]:
    """Return few-shot tasks over unseen classes, or over a label set's classes and their domain shifts."""
    return [task for task in _tasks(spec, split, True) if task.shift not in RENAMED]


def world_zero_shot_tasks(spec: str, split: str = "test") -> list[ClassificationTask]:
    """Return zero-shot tasks over a label set, or over contents of captions.

    ``glyphs:prompts`` uses prompt templates; other addresses without label set use the words of captions.
    """
    return list(_tasks(spec, split, False))


def _tasks(spec: str, split: str, examples: bool) -> tuple[ClassificationTask, ...]:
    if split not in {"validation", "test"}:
        raise UserError(f"{spec}: tasks have no split {split!r}; choose validation or test")
    return _created(spec.partition("?")[0], world_of(spec), split, examples)


@lru_cache(maxsize=12)
def _created(name: str, world: Any, split: str, examples: bool) -> tuple[ClassificationTask, ...]:
    """Create tasks, cached per process, since many models are evaluated on the same tasks."""
    makers = FEW_SHOT if examples else ZERO_SHOT
    make = makers.get(name) or makers[name.partition(":")[0]]
    return tuple(make(SOURCES[name](world) if name in LABEL_SETS else world, split))
