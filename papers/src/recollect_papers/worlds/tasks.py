"""Tasks of the built-in worlds, by the world's address."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from recollect.core.errors import UserError
from recollect.evaluation.tasks.classification import RENAMED, ClassificationTask
from recollect_papers.worlds import LABEL_SETS, SOURCES, world_of
from recollect_papers.worlds.glyph_label_tasks import label_set_tasks, prompt_tasks
from recollect_papers.worlds.glyph_tasks import glyph_few_shot_tasks, glyph_zero_shot_tasks
from recollect_papers.worlds.latent_tasks import latent_few_shot_tasks, latent_zero_shot_tasks, sized_few_shot_tasks

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
    """Few-shot tasks over classes that training never saw; choices are made on ``validation`` alone.

    ``glyphs:labels`` and its parts stand for that label set's own classes, under shifts too; ``latents:sizes`` for
    tasks of 5 to 120 classes.
    """
    name = _checked(spec, split)
    return [task for task in _made(name, world_of(spec), split, True) if task.shift not in RENAMED]


def world_zero_shot_tasks(spec: str, split: str = "test") -> list[ClassificationTask]:
    """Tasks for classification by names.

    ``glyphs:labels`` and its parts stand for that label set's own classes, under shifts too; ``glyphs:prompts`` for
    what captions speak of, asked with prompt templates; any other name for what captions have words for, in those
    words alone: coarse classes; scripts and attributes.
    """
    return list(_made(_checked(spec, split), world_of(spec), split, False))


@lru_cache(maxsize=12)
def _made(name: str, world: Any, split: str, examples: bool) -> tuple[ClassificationTask, ...]:
    """Drawn once in a process: many models are evaluated on the same tasks."""
    makers = FEW_SHOT if examples else ZERO_SHOT
    make = makers.get(name) or makers[name.partition(":")[0]]
    return tuple(make(SOURCES[name](world) if name in LABEL_SETS else world, split))


def _checked(spec: str, split: str) -> str:
    """The address without its settings."""
    if split not in {"validation", "test"}:
        raise UserError(f"{spec}: no split {split!r} of its tasks; choose validation or test")
    return spec.partition("?")[0]
