"""Tasks of the generated worlds, by the world's address."""

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

Make = Callable[[Any, str], list[ClassificationTask]]
"""From a world, or a label set of it, and a split to tasks."""

FEW_SHOT: dict[str, Make] = {
    "latents": latent_few_shot_tasks,
    "latents:sizes": sized_few_shot_tasks,
    "glyphs": glyph_few_shot_tasks,
    **dict.fromkeys(LABEL_SETS, label_set_tasks),
}
ZERO_SHOT: dict[str, Make] = {
    "latents": latent_zero_shot_tasks,
    "glyphs": glyph_zero_shot_tasks,
    "glyphs:prompts": prompt_tasks,
    **dict.fromkeys(LABEL_SETS, label_set_tasks),
}
"""Tasks by address; any other address of a world has the world's."""


def world_tasks(spec: str, split: str = "test") -> list[ClassificationTask]:
    """Few-shot tasks over classes that training never saw, or over a label set's own classes, under shifts too."""
    return [task for task in _tasks(spec, split, True) if task.shift not in RENAMED]


def world_zero_shot_tasks(spec: str, split: str = "test") -> list[ClassificationTask]:
    """Tasks for classification by names: of a label set; ``glyphs:prompts``, what captions mention, asked with prompt
    templates; any other address, what captions have words for, asked in those words alone."""
    return list(_tasks(spec, split, False))


def _tasks(spec: str, split: str, examples: bool) -> tuple[ClassificationTask, ...]:
    if split not in {"validation", "test"}:
        raise UserError(f"{spec}: no split {split!r} of its tasks; choose validation or test")
    return _made(spec.partition("?")[0], world_of(spec), split, examples)


@lru_cache(maxsize=12)
def _made(name: str, world: Any, split: str, examples: bool) -> tuple[ClassificationTask, ...]:
    """Drawn once in a process: many models are evaluated on the same tasks."""
    makers = FEW_SHOT if examples else ZERO_SHOT
    make = makers.get(name) or makers[name.partition(":")[0]]
    return tuple(make(SOURCES[name](world) if name in LABEL_SETS else world, split))
