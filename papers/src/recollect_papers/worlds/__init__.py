"""Generated worlds: pictures of characters, and vectors of latent factors."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from recollect.core.errors import UserError
from recollect.core.types import Source
from recollect_papers.worlds.glyph_sources import GlyphCaptions, GlyphLabels, unseen_part
from recollect_papers.worlds.glyphs import GlyphWorld
from recollect_papers.worlds.latents import LatentCaptions, LatentWorld
from recollect_papers.worlds.scenes import GlyphScenes, HardScenes

WORLDS: Mapping[str, Callable[[], Any]] = {"latents": LatentWorld, "glyphs": GlyphWorld}
"""Every world with its default settings; an address sets any of its numbers."""

LABEL_SETS: Mapping[str, Callable[[GlyphWorld], GlyphLabels]] = {
    "glyphs:labels": GlyphLabels,
    "glyphs:labels-half": partial(GlyphLabels, part="half", name="glyphs:labels-half"),
    "glyphs:labels-rest": partial(GlyphLabels, part="rest", name="glyphs:labels-rest"),
    "glyphs:labels-renamed": partial(GlyphLabels, renamed=True, name="glyphs:labels-renamed"),
}
"""The sources with classes; each has further pictures of them, for tests."""

SOURCES: Mapping[str, Callable[[Any], Source]] = {
    "latents:captions": LatentCaptions,
    "glyphs:captions": GlyphCaptions,
    **LABEL_SETS,
    "glyphs:scenes": GlyphScenes,
    "glyphs:hard": HardScenes,
}
"""From a world to each source, by its address."""

AMOUNTS: Mapping[str, tuple[str, ...]] = {
    "latents:captions": ("size",),
    "glyphs:captions": ("size",),
    "glyphs:scenes": ("size", "turned"),
    "glyphs:hard": ("groups",),
}
"""Numbers of a source itself; all other settings of an address are of its world."""


def open_world_source(spec: str, split: str | None = None) -> Source:
    """Open ``WORLD:NAME?setting=value&...``, e.g. ``glyphs:captions?edge=64`` or ``glyphs:scenes?seed=3&size=1000``.

    Args:
        spec: a name of `SOURCES`, and numbers of its world or of `AMOUNTS`: ``size`` of a stream, ``groups`` of
            look-alikes, ``turned`` percent of the scenes' captions reversed.
        split: ``train`` (or None); ``test`` for the label sets, whose classes have further pictures.

    Raises:
        UserError: an unknown name, setting, value or split.
    """
    name = spec.partition("?")[0]
    if name not in SOURCES:
        raise UserError(f"{spec}: no such built-in source. Choose one of: {', '.join(SOURCES)}.")
    source: Any = SOURCES[name](world_of(spec))
    for key, text in _settings(spec, AMOUNTS.get(name, ()), True):
        if not text.isdecimal() or int(text) < 1:
            raise UserError(f"{spec}: {key}={text!r} is not a number of at least 1")
        source = replace(source, **{key: int(text)})
    if split in (None, "train"):
        return source
    if split == "test" and name in LABEL_SETS:
        return unseen_part(source)
    raise UserError(f"{spec}: has no split {split!r}; captions are an endless stream, for tests see the world's tasks")


def world_of(spec: str) -> Any:
    """The world that a source or task is taken from, with the settings of its address.

    Raises:
        UserError: an unknown world, setting or value.
    """
    name = spec.partition("?")[0]
    kind = name.split(":")[0]
    if kind not in WORLDS:
        raise UserError(f"{spec}: no such built-in world. Choose one of: {', '.join(WORLDS)}.")
    world = WORLDS[kind]()
    for key, text in _settings(spec, AMOUNTS.get(name, ()), False):
        own = _numbers(world)
        inner = {part.name: getattr(world, part.name) for part in fields(world)
                 if is_dataclass(getattr(world, part.name))}  # fmt: skip
        known = {name: value for part in (world, *inner.values()) for name, value in _numbers(part).items()}
        if key not in known:
            raise UserError(f"{spec}: no setting {key!r}. Choose one of: {', '.join(known)}.")
        try:
            changed = {key: type(known[key])(text)}
        except ValueError:
            raise UserError(f"{spec}: {key}={text!r} is not a number of the kind of {known[key]!r}") from None
        if key not in own:
            part = next(part for part, value in inner.items() if key in _numbers(value))
            changed = {part: replace(inner[part], **changed)}
        world = replace(world, **changed)
    return world


def _settings(spec: str, amounts: tuple[str, ...], wanted: bool) -> list[tuple[str, str]]:
    """The settings of an address that are amounts of its source, or the others."""
    settings = parse_qsl(spec.partition("?")[2], keep_blank_values=True)
    return [(key, text) for key, text in settings if (key in amounts) == wanted]


def _numbers(of: Any) -> dict[str, int | float]:
    found = {each.name: getattr(of, each.name) for each in fields(of)}
    return {name: value for name, value in found.items() if isinstance(value, int | float)}
