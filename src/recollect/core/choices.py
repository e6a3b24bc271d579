"""Options with a few named choices, checked where Python checks nothing."""

from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints


def check_choices(options: Any) -> None:
    """Raise where a field of a dataclass that is declared as a `Literal` holds anything else.

    Raises:
        ValueError: naming the field, its value and what it may be.
    """
    hints = get_type_hints(type(options))
    for field in fields(options):
        hint, value = hints[field.name], getattr(options, field.name)
        choices = get_args(hint) if get_origin(hint) is Literal else None
        # True equals 1 in Python, and is none of 1 or 2.
        if choices and not any(value == choice and type(value) is type(choice) for choice in choices):
            words = f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
            raise ValueError(f"{field.name} must be {words}, got {value!r}")
