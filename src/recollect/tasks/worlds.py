"""Tasks of the built-in worlds, by the world's address."""

from functools import lru_cache

from recollect.core.errors import UserError
from recollect.data.worlds import LABEL_SETS, SOURCES, World, world_of
from recollect.data.worlds.glyph_sources import GlyphLabels
from recollect.data.worlds.glyphs import GlyphWorld
from recollect.data.worlds.latents import LatentWorld
from recollect.tasks import glyph_labels, glyphs, latents
from recollect.tasks.classification import RENAMED, ClassificationTask

PROMPTS = "glyphs:prompts"


def world_tasks(spec: str, split: str = "test") -> list[ClassificationTask]:
    """Few-shot tasks over classes that training never saw; choices are made on ``validation`` alone.

    ``glyphs:labels`` and its parts stand for that label set's own classes, under shifts too.
    """
    world, name = _checked(spec, split), spec.partition("?")[0]
    if name in LABEL_SETS:
        return [task for task in _label_set_tasks(name, world, split) if task.shift not in RENAMED]
    return list(_few_shot_tasks(world, split))


@lru_cache(maxsize=4)
def _few_shot_tasks(world: World, split: str) -> tuple[ClassificationTask, ...]:
    """Drawn once in a process: many models are evaluated on the same tasks."""
    if isinstance(world, LatentWorld):
        return tuple(latents.few_shot_tasks(world, split))
    return tuple(glyphs.few_shot_tasks(world, split))


def world_zero_shot_tasks(spec: str, split: str = "test") -> list[ClassificationTask]:
    """Tasks for classification by names.

    ``glyphs:labels`` and its parts stand for that label set's own classes, under shifts too; ``glyphs:prompts`` for
    what captions speak of, asked with prompt templates; any other name for what captions have words for, in those
    words alone: coarse classes; scripts and attributes.
    """
    world, name = _checked(spec, split), spec.partition("?")[0]
    if name == PROMPTS and isinstance(world, GlyphWorld):
        return list(_prompt_tasks(world, split))
    if name in LABEL_SETS:
        return list(_label_set_tasks(name, world, split))
    return list(_zero_shot_tasks(world, split))


@lru_cache(maxsize=2)
def _prompt_tasks(world: GlyphWorld, split: str) -> tuple[ClassificationTask, ...]:
    return tuple(glyph_labels.prompt_tasks(world, split))


@lru_cache(maxsize=4)
def _label_set_tasks(name: str, world: World, split: str) -> tuple[ClassificationTask, ...]:
    source = SOURCES[name](world)
    assert isinstance(source, GlyphLabels)
    return tuple(glyph_labels.label_set_tasks(source, split))


@lru_cache(maxsize=4)
def _zero_shot_tasks(world: World, split: str) -> tuple[ClassificationTask, ...]:
    if isinstance(world, LatentWorld):
        return (latents.zero_shot_task(world, split),)
    return tuple(glyphs.zero_shot_tasks(world, split))


def _checked(spec: str, split: str) -> World:
    if split not in {"validation", "test"}:
        raise UserError(f"{spec}: no split {split!r} of its tasks; choose validation or test")
    return world_of(spec)
