"""Worlds that a fresh machine can make for itself: pictures of characters, and vectors of latent factors."""

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


def open_world_source(spec: str, split: str | None = None) -> Source:
    """Open ``WORLD:NAME?setting=value&...``, e.g. ``glyphs:captions?edge=64`` or ``glyphs:scenes?seed=3&size=1000``.

    Args:
        spec: a name of the built-in worlds and settings (numbers): of the world, or how many samples: ``size`` of an
            endless stream, ``groups`` of the look-alikes, ``turned`` percent of the scenes' captions said the other way
            round.
        split: ``train`` (or None); ``test`` for the label sets, whose classes have further pictures.

    Raises:
        UserError: an unknown name, setting, value or split.
    """
    name, _, _ = spec.partition("?")
    if name not in SOURCES:
        raise UserError(f"{spec}: no such built-in source. Choose one of: {', '.join(SOURCES)}.")
    source = _sized(SOURCES[name], spec)
    if split in (None, "train"):
        return source
    if split == "test" and name in LABEL_SETS:
        return unseen_part(source)
    raise UserError(f"{spec}: has no split {split!r}; captions are an endless stream, for tests see the world's tasks")


_AMOUNTS = ("size", "groups", "turned")


def _sized(make: Callable[..., Source], spec: str) -> Any:
    """The source, with as many samples as its address says."""
    name, _, query = spec.partition("?")
    settings = parse_qsl(query, keep_blank_values=True)
    rest = "&".join(f"{key}={text}" for key, text in settings if key not in _AMOUNTS)
    source: Any = make(world_of(f"{name}?{rest}"))
    for key, text in settings:
        if key not in _AMOUNTS:
            continue
        if key not in _settings(source):
            raise UserError(f"{spec}: {name} has no {key!r}")
        if not text.isdecimal() or int(text) < 1:
            raise UserError(f"{spec}: {key}={text!r} is not a number of at least 1")
        source = replace(source, **{key: int(text)})
    return source


def world_of(spec: str) -> Any:
    """The world that a source or task is taken from, with the settings of its address.

    Raises:
        UserError: an unknown world, setting or value.
    """
    name, _, query = spec.partition("?")
    kind = name.split(":")[0]
    if kind not in WORLDS:
        raise UserError(f"{spec}: no such built-in world. Choose one of: {', '.join(WORLDS)}.")
    world = WORLDS[kind]()
    for key, text in parse_qsl(query, keep_blank_values=True):
        world = _with_setting(world, key, text, spec)
    return world


def _with_setting(world: Any, key: str, text: str, spec: str) -> Any:
    own = _settings(world)
    inner = {name: _settings(value) for name, value in own.items() if is_dataclass(value)}
    known = {name: value for part in (own, *inner.values()) for name, value in part.items()
             if isinstance(value, int | float)}  # fmt: skip
    if key not in known:
        raise UserError(f"{spec}: no setting {key!r}. Choose one of: {', '.join(known)}.")
    try:
        value = type(known[key])(text)
    except ValueError:
        raise UserError(f"{spec}: {key}={text!r} is not a number of the kind of {known[key]!r}") from None
    if key in own:
        return replace(world, **{key: value})
    name = next(name for name, part in inner.items() if key in part)
    return replace(world, **{name: replace(own[name], **{key: value})})


def _settings(of: Any) -> dict[str, Any]:
    return {field.name: getattr(of, field.name) for field in fields(of)} if is_dataclass(of) else {}
