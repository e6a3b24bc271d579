"""Checks of what users enter; inside the package values are trusted."""

import math
from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from recollect.core.errors import UserError

_Number = TypeVar("_Number", int, float)


def refuse(*found: tuple[object, str]) -> None:
    """Raise the message of the first pair whose condition is true.

    Args:
        found: what is wrong if it is true, and the message.

    Raises:
        UserError: any condition is true.
    """
    for wrong, message in found:
        if wrong:
            raise UserError(message)


def check_choice(name: str, known: Iterable[str], what: str) -> str:
    """Return ``name`` if it is known.

    Args:
        known: every valid name, in the order in which to list them.
        what: kind of thing, with its option or file if any: ``--methods: method``.

    Raises:
        UserError: it is not; the message suggests a similar name, or lists them all.
    """
    known = list(known)
    if name in known:
        return name
    close = get_close_matches(name, known, 1)
    guess = f"Did you mean '{close[0]}'? " if close else ""
    raise UserError(f"{what} '{name}' does not exist. {guess}Choose from: {', '.join(known)}.")


def check_number(
    option: str,
    value: _Number,
    *,
    above: float = -math.inf,
    below: float = math.inf,
    least: float = -math.inf,
    most: float = math.inf,
) -> _Number:
    """Return ``value`` if it is within the bounds: strictly ``above`` and ``below``, ``least`` and ``most`` inclusive.

    Raises:
        UserError: it is not, or is infinite or NaN.
    """
    if math.isfinite(value) and above < value < below and least <= value <= most:
        return value
    bounds = (("above", above), ("at least", least), ("below", below), ("at most", most))
    words = " and ".join(f"{word} {bound:g}" for word, bound in bounds if math.isfinite(bound)) or "finite"
    raise UserError(f"{option} {value:g}: must be {words}.")


def check_choices(options: Any) -> None:
    """Check that every field of a dataclass that is declared as a `Literal` holds one of its values.

    Raises:
        ValueError: naming the field, its value and what it may be.
    """
    hints = get_type_hints(type(options))
    for field in fields(options):
        hint, value = hints[field.name], getattr(options, field.name)
        choices = get_args(hint) if get_origin(hint) is Literal else None
        # True == 1, but is not one of the choices 1 and 2.
        if choices and not any(value == choice and type(value) is type(choice) for choice in choices):
            words = f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
            raise ValueError(f"{field.name} must be {words}, got {value!r}")
