"""Synthetic worlds: pictures of characters, and vectors of latent factors."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from recollect.core.errors import UserError
from recollect.core.types import Source
from recollect.core.validation import check_choice
from recollect_papers.worlds.glyphs import GlyphCaptions, GlyphLabels, GlyphWorld, unseen_part
from recollect_papers.worlds.latents import LatentCaptions, LatentWorld
from recollect_papers.worlds.scenes import GlyphScenes, HardScenes

WORLDS: Mapping[str, Callable[[], Any]] = {"latents": LatentWorld, "glyphs": GlyphWorld}
"""Worlds by name; an address can change any numeric setting."""

LABEL_SETS: Mapping[str, Callable[[GlyphWorld], GlyphLabels]] = {
    "glyphs:labels": GlyphLabels,
    "glyphs:labels-half": partial(GlyphLabels, part="half", name="glyphs:labels-half"),
    "glyphs:labels-rest": partial(GlyphLabels, part="rest", name="glyphs:labels-rest"),
    "glyphs:labels-renamed": partial(GlyphLabels, renamed=True, name="glyphs:labels-renamed"),
}
"""Label sets by address; each has a test split with other pictures."""

SOURCES: Mapping[str, Callable[[Any], Source]] = {
    "latents:captions": LatentCaptions,
    "glyphs:captions": GlyphCaptions,
    **LABEL_SETS,
    "glyphs:scenes": GlyphScenes,
    "glyphs:hard": HardScenes,
}
"""Constructors of sources from a world, by address."""

AMOUNTS: Mapping[str, tuple[str, ...]] = {
    "latents:captions": ("size",),
    "glyphs:captions": ("size",),
    "glyphs:scenes": ("size", "turned"),
    "glyphs:hard": ("groups",),
}
"""Settings of the source itself, by address; all other settings are the world's."""


def open_world_source(spec: str, split: str | None = None) -> Source:
    """Open ``WORLD:NAME?setting=value&...``, e.g. ``glyphs:captions?edge=64`` or ``glyphs:scenes?seed=3&size=1000``.

    Args:
        spec: a name of `SOURCES`, and settings of its world or of `AMOUNTS`: ``size`` of a stream, number of
            ``groups`` of look-alikes, percentage of ``turned`` (reversed) captions of scenes.
        split: ``train`` or None; label sets also have ``test``.

    Raises:
        UserError: an unknown name, setting, value or split.
    """
    name = spec.partition("?")[0]
    if name not in SOURCES:
        raise UserError(f"{spec}: no such built-in source. Choose one of: {', '.join(SOURCES)}.")
    world, amounts = _settings(spec)
    source: Any = SOURCES[name](world)
    source = replace(source, **amounts) if amounts else source
    if split in (None, "train"):
        return source
    if split == "test" and name in LABEL_SETS:
        return unseen_part(source)
    raise UserError(f"{spec}: no split {split!r}; captions are an endless stream, use the world's tasks for tests")


def world_of(spec: str) -> Any:
    """Create the world of a source or task, with the settings of its address.

    Raises:
        UserError: an unknown world, setting or value.
    """
    return _settings(spec)[0]


def _settings(spec: str) -> tuple[Any, dict[str, int]]:
    """Return the world of an address, and the settings of its source."""
    name, _, query = spec.partition("?")
    world, amounts = WORLDS[check_choice(name.partition(":")[0], WORLDS, "built-in world")](), dict[str, int]()
    numbers = {each.name: getattr(world, each.name) for each in fields(world)}
    known: dict[str, Any] = {name: type(value) for name, value in numbers.items() if isinstance(value, int | float)}
    known |= dict.fromkeys(AMOUNTS.get(name, ()), int)
    for key, text in parse_qsl(query, keep_blank_values=True):
        try:
            value = known[check_choice(key, known, f"{spec}: setting")](text)
        except ValueError:
            raise UserError(f"{spec}: {key}={text!r} is not a number") from None
        if key not in AMOUNTS.get(name, ()):
            world = replace(world, **{key: value})
        elif value < 1:
            raise UserError(f"{spec}: {key}={text!r} is not a number of at least 1")
        else:
            amounts[key] = value
    return world, amounts
