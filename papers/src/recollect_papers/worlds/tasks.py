"""Tasks of the built-in worlds, by the world's address."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from recollect.core.errors import UserError
from recollect.evaluation.tasks.classification import RENAMED, ClassificationTask
from recollect_papers.worlds import LABEL_SETS, SOURCES, WORLDS, glyph_label_tasks, glyph_tasks, latent_tasks, world_of

Make = Callable[[Any, str], list[ClassificationTask]]
"""From a world, or a label set of it, and a split to tasks."""


@dataclass(frozen=True)
class WorldTasks:
    """The tasks of one world.

    Attributes:
        few_shot: over classes that training never saw.
        zero_shot: what captions have words for, in those words.
        label_set: a label set's own classes, under shifts too; None where the world has no label sets.
        few_shot_parts, zero_shot_parts: other tasks in their place, by the name behind ``WORLD:``.
    """

    few_shot: Make
    zero_shot: Make
    label_set: Make | None = None
    few_shot_parts: Mapping[str, Make] = field(default_factory=dict)
    zero_shot_parts: Mapping[str, Make] = field(default_factory=dict)


WORLD_TASKS: Mapping[str, WorldTasks] = {
    "latents": WorldTasks(
        latent_tasks.latent_few_shot_tasks,
        latent_tasks.latent_zero_shot_tasks,
        few_shot_parts={"sizes": latent_tasks.sized_few_shot_tasks},
    ),
    "glyphs": WorldTasks(
        glyph_tasks.glyph_few_shot_tasks,
        glyph_tasks.glyph_zero_shot_tasks,
        glyph_label_tasks.label_set_tasks,
        zero_shot_parts={"prompts": glyph_label_tasks.prompt_tasks},
    ),
}
"""The tasks of every world of `recollect_papers.worlds.WORLDS`."""


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
    kind, _, part = name.partition(":")
    tasks = WORLD_TASKS[kind]
    if name in LABEL_SETS and tasks.label_set:
        return tuple(tasks.label_set(SOURCES[name](world), split))
    if examples:
        return tuple(tasks.few_shot_parts.get(part, tasks.few_shot)(world, split))
    return tuple(tasks.zero_shot_parts.get(part, tasks.zero_shot)(world, split))


def _checked(spec: str, split: str) -> str:
    """The address without its settings."""
    if split not in {"validation", "test"}:
        raise UserError(f"{spec}: no split {split!r} of its tasks; choose validation or test")
    name = spec.partition("?")[0]
    if (world := name.partition(":")[0]) in WORLDS and world not in WORLD_TASKS:
        raise UserError(f"{spec}: a world without tasks. Choose one of: {', '.join(WORLD_TASKS)}.")
    return name
