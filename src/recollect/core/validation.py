"""Checks of what users enter; inside the package values are trusted."""

import math
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TypeVar

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
