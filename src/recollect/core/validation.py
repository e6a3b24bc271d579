"""Checks of user input; inside the package, values are trusted."""

import math
from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from recollect.core.errors import UserError

_Number = TypeVar("_Number", int, float)


def refuse(*checks: tuple[object, str]) -> None:
    """Raise a `UserError` with the message of the first pair whose condition is true.

    Args:
        checks: pairs of a condition that must be false and an error message.

    Raises:
        UserError: any condition is true.
    """
    for condition, message in checks:
        if condition:
            raise UserError(message)


def check_choice(name: str, known: Iterable[str], what: str) -> str:
    """Return ``name`` if it is in ``known``.

    Args:
        known: all valid names, in the order in which to list them.
        what: what the name denotes, with its option or file if any: ``--methods: method``.

    Raises:
        UserError: the name is unknown; the message lists all names and suggests a similar one.
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
    """Return ``value`` if it is within the bounds: ``above`` and ``below`` exclusive, ``least`` and ``most`` inclusive.

    Raises:
        UserError: the value is out of bounds, infinite or NaN.
    """
    if math.isfinite(value) and above < value < below and least <= value <= most:
        return value
    bounds = (("above", above), ("at least", least), ("below", below), ("at most", most))
    words = " and ".join(f"{word} {bound:g}" for word, bound in bounds if math.isfinite(bound)) or "finite"
    raise UserError(f"{option} {value:g}: must be {words}.")


def check_choices(options: Any) -> None:
    """Check that every field of a dataclass with a `Literal`, or a tuple of them, has one of its allowed values.

    Raises:
        ValueError: a field has another value.
    """
    hints = get_type_hints(type(options))
    for field in fields(options):
        hint, value = hints[field.name], getattr(options, field.name)
        several = get_origin(hint) is tuple
        hint = get_args(hint)[0] if several else hint
        choices = get_args(hint) if get_origin(hint) is Literal else None
        for each in value if several else (value,):
            # True == 1, but is not one of the choices 1 and 2.
            if choices and not any(each == choice and type(each) is type(choice) for choice in choices):
                words = f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
                raise ValueError(f"{field.name} must be {words}, got {each!r}")
