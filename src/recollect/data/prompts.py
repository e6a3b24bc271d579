"""Sentences made from class names."""

from pathlib import Path

from recollect.core.errors import UserError
from recollect.core.files import read_lines


def read_templates(path: Path) -> tuple[str, ...]:
    """Prompt templates of a text file, one a line.

    Raises:
        UserError: no such file, or a template has no ``{}``, so that every class would read the same.
    """
    lines = read_lines(path, "templates")
    if wrong := [line for line in lines if "{}" not in line]:
        raise UserError(f"{path}: a template needs {{}} for the class name, but one reads: {wrong[0]}")
    return tuple(lines)


GENERAL_TEMPLATES = read_templates(Path(__file__).with_name("clip_templates.txt"))
"""The 80 general templates of CLIP's ImageNet evaluation, in their order (Radford et al., 2021)."""

SIMPLE_TEMPLATES: tuple[str, ...] = ("a photo of a {}.",)
"""One plain sentence, where 80 per class are too many."""


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
