"""Prompt templates for class names."""

from pathlib import Path

from recollect.core.errors import UserError
from recollect.core.files import read_lines


def read_templates(path: Path) -> tuple[str, ...]:
    """Read prompt templates from a text file, one per line.

    Raises:
        UserError: the file is missing, or a template has no ``{}``.
    """
    lines = read_lines(path, "templates")
    if invalid := [line for line in lines if "{}" not in line]:
        raise UserError(f"{path}: a template has no {{}} for the class name: {invalid[0]}")
    return tuple(lines)


GENERAL_TEMPLATES = read_templates(Path(__file__).with_name("clip_templates.txt"))
"""The 80 general templates of CLIP's ImageNet evaluation, in the original order (Radford et al., 2021)."""

SIMPLE_TEMPLATES: tuple[str, ...] = ("a photo of a {}.",)
"""A single template, for uses where 80 per class are too many."""


def readable(name: str) -> str:
    """Convert a class name to words by replacing underscores with spaces and collapsing whitespace.

    >>> readable("annual_crop__land ")
    'annual crop land'
    """
    return " ".join(name.replace("_", " ").split())


def fill(template: str, name: str) -> str:
    """Insert a class name into a template.

    Only ``{}`` is replaced; other braces in the template or the name are unchanged.

    >>> fill("a photo of a {}.", "polka-dotted")
    'a photo of a polka-dotted.'

    Raises:
        ValueError: the template has no ``{}``.
    """
    if "{}" not in template:
        raise ValueError(f"template {template!r} has no {{}} for the class name")
    return template.replace("{}", readable(name))
