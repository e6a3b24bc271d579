"""Worlds that a fresh machine can make for itself: pictures of characters, and vectors of latent factors."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import lru_cache, partial
from typing import Any
from urllib.parse import parse_qsl

from recollect.core.errors import UserError
from recollect.core.types import Source
from recollect.data.tasks import ClassificationTask
from recollect.data.worlds import glyph_tasks, label_tasks, latents
from recollect.data.worlds.glyph_sources import GlyphCaptions, GlyphLabels, unseen_part
from recollect.data.worlds.glyphs import GlyphWorld
from recollect.data.worlds.latents import LatentCaptions, LatentWorld
from recollect.data.worlds.rendering import Nuisance
from recollect.data.worlds.scenes import GlyphScenes, HardScenes

World = LatentWorld | GlyphWorld

_WORLDS: Mapping[str, Callable[[], World]] = {"latents": LatentWorld, "glyphs": GlyphWorld}
_SOURCES: Mapping[str, Callable[[Any], Source]] = {
    "latents:captions": LatentCaptions,
    "glyphs:captions": GlyphCaptions,
    "glyphs:labels": GlyphLabels,
    "glyphs:labels-half": partial(GlyphLabels, part="half", name="glyphs:labels-half"),
    "glyphs:labels-rest": partial(GlyphLabels, part="rest", name="glyphs:labels-rest"),
    "glyphs:labels-renamed": partial(GlyphLabels, renamed=True, name="glyphs:labels-renamed"),
    "glyphs:scenes": GlyphScenes,
    "glyphs:hard": HardScenes,
}
"""Every named source of the built-in worlds."""

LABEL_SETS = tuple(name for name in _SOURCES if name.startswith("glyphs:labels"))
PROMPTS = "glyphs:prompts"


def open_world_source(spec: str, split: str | None = None) -> Source:
    """Open ``WORLD:NAME?setting=value&...``, e.g. ``glyphs:captions?edge=64`` or ``glyphs:scenes?seed=3&size=1000``.

    Args:
        spec: a name of the built-in worlds and settings (numbers): of the world, or how many samples: ``size`` of an
            endless stream, ``groups`` of the look-alikes, ``turned`` percent of the scenes' captions said the other way
            round.
        split: ``train`` (or None); ``test`` for the label set, whose classes have further pictures.

    Raises:
        UserError: an unknown name, setting, value or split.
    """
    name, _, _ = spec.partition("?")
    if name not in _SOURCES:
        raise UserError(f"{spec}: no such built-in source. Choose one of: {', '.join(_SOURCES)}.")
    source = _sized(_SOURCES[name], spec)
    if split in (None, "train"):
        return source
    if split == "test" and isinstance(source, GlyphLabels):
        return unseen_part(source)
    raise UserError(f"{spec}: has no split {split!r}; captions are an endless stream, for tests see the world's tasks")


_AMOUNTS = ("size", "groups", "turned")


def _sized(make: Callable[..., Source], spec: str) -> Source:
    """The source, with as many samples as its address says."""
    name, _, query = spec.partition("?")
    settings = parse_qsl(query, keep_blank_values=True)
    rest = "&".join(f"{key}={text}" for key, text in settings if key not in _AMOUNTS)
    source: Any = make(world_of(f"{name}?{rest}"))
    for key, text in settings:
        if key not in _AMOUNTS:
            continue
        if not hasattr(source, key):
            raise UserError(f"{spec}: {name} has no {key!r}")
        if not text.isdecimal() or int(text) < 1:
            raise UserError(f"{spec}: {key}={text!r} is not a number of at least 1")
        source = replace(source, **{key: int(text)})
    return source


def world_of(spec: str) -> World:
    """The world that a source or task is taken from, with the settings of its address.

    Raises:
        UserError: an unknown world, setting or value.
    """
    name, _, query = spec.partition("?")
    kind = name.split(":")[0]
    if kind not in _WORLDS:
        raise UserError(f"{spec}: no such built-in world. Choose one of: {', '.join(_WORLDS)}.")
    world = _WORLDS[kind]()
    for key, text in parse_qsl(query, keep_blank_values=True):
        world = _with_setting(world, key, text, spec)
    return world


def _with_setting(world: World, key: str, text: str, spec: str) -> World:
    settings = {field.name: getattr(world, field.name) for field in fields(world)}
    inner = settings["nuisance"]
    nuisance: dict[str, Any] = {}
    if isinstance(inner, Nuisance):
        nuisance = {field.name: getattr(inner, field.name) for field in fields(Nuisance)}
    known = {name: value for name, value in {**settings, **nuisance}.items() if isinstance(value, int | float)}
    if key not in known:
        raise UserError(f"{spec}: no setting {key!r}. Choose one of: {', '.join(known)}.")
    try:
        value = type(known[key])(text)
    except ValueError:
        raise UserError(f"{spec}: {key}={text!r} is not a number of the kind of {known[key]!r}") from None
    if key in nuisance:
        return replace(world, nuisance=replace(inner, **{key: value}))
    return replace(world, **{key: value})  # type: ignore[arg-type]


def world_tasks(spec: str, split: str = "test") -> list[ClassificationTask]:
    """Few-shot tasks over classes that training never saw; choices are made on ``validation`` alone.

    ``glyphs:labels`` and its parts stand for that label set's own classes, under shifts too.
    """
    world, name = _checked(spec, split), spec.partition("?")[0]
    if name in LABEL_SETS:
        return [
            task for task in _label_set_tasks(name, world, split) if not task.name.endswith(("-names", "-synonyms"))
        ]
    return list(_few_shot_tasks(world, split))


@lru_cache(maxsize=4)
def _few_shot_tasks(world: World, split: str) -> tuple[ClassificationTask, ...]:
    """Drawn once in a process: many models are evaluated on the same tasks."""
    if isinstance(world, LatentWorld):
        return tuple(latents.few_shot_tasks(world, split))
    return tuple(glyph_tasks.few_shot_tasks(world, split))


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
    return tuple(label_tasks.prompt_tasks(world, split))


@lru_cache(maxsize=4)
def _label_set_tasks(name: str, world: World, split: str) -> tuple[ClassificationTask, ...]:
    source = _SOURCES[name](world)
    assert isinstance(source, GlyphLabels)
    return tuple(label_tasks.label_set_tasks(source, split))


@lru_cache(maxsize=4)
def _zero_shot_tasks(world: World, split: str) -> tuple[ClassificationTask, ...]:
    if isinstance(world, LatentWorld):
        return (latents.zero_shot_task(world, split),)
    return tuple(glyph_tasks.zero_shot_tasks(world, split))


def _checked(spec: str, split: str) -> World:
    if split not in {"validation", "test"}:
        raise UserError(f"{spec}: no split {split!r} of its tasks; choose validation or test")
    return world_of(spec)
