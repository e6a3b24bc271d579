"""Sentences made from class names."""

from pathlib import Path

from recollect.core.errors import UserError
from recollect.core.files import read_lines

GENERAL_TEMPLATES: tuple[str, ...] = (
    "a bad photo of a {}.",
    "a photo of many {}.",
    "a sculpture of a {}.",
    "a photo of the hard to see {}.",
    "a low resolution photo of the {}.",
    "a rendering of a {}.",
    "graffiti of a {}.",
    "a bad photo of the {}.",
    "a cropped photo of the {}.",
    "a tattoo of a {}.",
    "the embroidered {}.",
    "a photo of a hard to see {}.",
    "a bright photo of a {}.",
    "a photo of a clean {}.",
    "a photo of a dirty {}.",
    "a dark photo of the {}.",
    "a drawing of a {}.",
    "a photo of my {}.",
    "the plastic {}.",
    "a photo of the cool {}.",
    "a close-up photo of a {}.",
    "a black and white photo of the {}.",
    "a painting of the {}.",
    "a painting of a {}.",
    "a pixelated photo of the {}.",
    "a sculpture of the {}.",
    "a bright photo of the {}.",
    "a cropped photo of a {}.",
    "a plastic {}.",
    "a photo of the dirty {}.",
    "a jpeg corrupted photo of a {}.",
    "a blurry photo of the {}.",
    "a photo of the {}.",
    "a good photo of the {}.",
    "a rendering of the {}.",
    "a {} in a video game.",
    "a photo of one {}.",
    "a doodle of a {}.",
    "a close-up photo of the {}.",
    "a photo of a {}.",
    "the origami {}.",
    "the {} in a video game.",
    "a sketch of a {}.",
    "a doodle of the {}.",
    "a origami {}.",
    "a low resolution photo of a {}.",
    "the toy {}.",
    "a rendition of the {}.",
    "a photo of the clean {}.",
    "a photo of a large {}.",
    "a rendition of a {}.",
    "a photo of a nice {}.",
    "a photo of a weird {}.",
    "a blurry photo of a {}.",
    "a cartoon {}.",
    "art of a {}.",
    "a sketch of the {}.",
    "a embroidered {}.",
    "a pixelated photo of a {}.",
    "itap of the {}.",
    "a jpeg corrupted photo of the {}.",
    "a good photo of a {}.",
    "a plushie {}.",
    "a photo of the nice {}.",
    "a photo of the small {}.",
    "a photo of the weird {}.",
    "the cartoon {}.",
    "art of the {}.",
    "a drawing of the {}.",
    "a photo of the large {}.",
    "a black and white photo of a {}.",
    "the plushie {}.",
    "a dark photo of a {}.",
    "itap of a {}.",
    "graffiti of the {}.",
    "a toy {}.",
    "itap of my {}.",
    "a photo of a cool {}.",
    "a photo of a small {}.",
    "a tattoo of the {}.",
)
"""The 80 general templates of CLIP's ImageNet evaluation, in their order (Radford et al., 2021)."""

SIMPLE_TEMPLATES: tuple[str, ...] = ("a photo of a {}.",)
"""One plain sentence, where 80 per class are too many."""


def read_templates(path: Path) -> tuple[str, ...]:
    """Prompt templates of a text file, one a line.

    Raises:
        UserError: no such file, or a template has no ``{}``, so that every class would read the same.
    """
    lines = read_lines(path, "templates")
    if wrong := [line for line in lines if "{}" not in line]:
        raise UserError(f"{path}: a template needs {{}} for the class name, but one reads: {wrong[0]}")
    return tuple(lines)


def readable(name: str) -> str:
    """A class name as words: underscores become spaces, runs of spaces one.

    >>> readable("annual_crop__land ")
    'annual crop land'
    """
    return " ".join(name.replace("_", " ").split())


def fill(template: str, name: str) -> str:
    """Put a class name into a template's ``{}``.

    A plain replacement, so that braces in a name or elsewhere in the template are left alone.

    >>> fill("a photo of a {}.", "polka-dotted")
    'a photo of a polka-dotted.'

    Raises:
        ValueError: the template has no ``{}``, so every class would read the same.
    """
    if "{}" not in template:
        raise ValueError(f"template {template!r} has no {{}} to put the class name in")
    return template.replace("{}", readable(name))
