"""Build frozen option dataclasses from mappings (JSON or TOML files), and choices shared by several of them."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from recollect.core.errors import UserError, user_errors
from recollect.core.files import read_text

_T = TypeVar("_T")

Kind = Literal["caption", "label"]
"""What a text is: a free caption, or the wording of a class label."""

Sampling = Literal["proportional", "equal", "debiased"]
"""How a batch is divided among sources: by weight; half captions, half labels; or entirely from one source."""

Precision = Literal["float32", "tf32", "bfloat16", "float16"]
"""Arithmetic of the towers."""

_TYPE_NAMES: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    Path: "a path",
}


def read_options_file(file: Path) -> Mapping[str, Any]:
    """Read a mapping from a TOML file (``.toml``) or a JSON file (any other name).

    Raises:
        UserError: the file is missing or malformed, or does not contain a mapping.
    """
    with user_errors(f"{file}: cannot be read", OSError, ValueError):
        text = read_text(file)
        options = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    if not isinstance(options, Mapping):
        raise UserError(f"{file}: contains no options. Write it in the format that --print-config prints.")
    return options


OptionPath = tuple[str, ...]
"""Field names that lead from a command or recipe to an option."""


def build(kind: type[_T], default: _T | None, values: Mapping[OptionPath, Any], path: OptionPath = ()) -> _T:
    """Build a dataclass from some of its field values.

    Args:
        kind: a dataclass; its fields may be dataclasses too.
        default: instance that provides the other fields; their declared defaults if None.
        values: field values by path. For a nested dataclass, True creates it and False means None.
        path: path of ``kind`` in ``values``.

    Raises:
        UserError: a required field is missing, or the dataclass rejects its values.
    """
    hints, parts = get_type_hints(kind), {}
    for each in fields(kind):  # type: ignore[arg-type]
        if not each.init:
            continue
        here = (*path, each.name)
        usual = default_of(each) if default is None else getattr(default, each.name)
        inner = without_none(hints[each.name])[0]
        if is_dataclass(inner) and values.get(here) is not False:
            assert isinstance(inner, type)
            if usual is MISSING or any(key[: len(here)] == here for key in values):
                usual = build(inner, None if usual is MISSING else usual, values, here)
            parts[each.name] = usual
        else:
            parts[each.name] = None if is_dataclass(inner) else values.get(here, usual)
        if parts[each.name] is MISSING:
            raise UserError(f"{'.'.join(here)} is missing")
    try:
        return kind(**parts)
    except ValueError as error:
        raise UserError(f"{'.'.join(path)}{': ' if path else ''}{error}") from None


def default_of(field: "Field[Any]") -> Any:
    """Return the default of a field, or `dataclasses.MISSING` if it is required."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


def without_none(hint: Any) -> tuple[Any, bool]:
    """Return a type without its ``None``, and whether it had one."""
    if get_origin(hint) not in (UnionType, Union):
        return hint, False
    members = tuple(member for member in get_args(hint) if member is not NoneType)
    return Union[members], len(members) < len(get_args(hint))  # noqa: UP007  (built at run time)


def converted(hint: Any, value: Any, file: Path, name: str) -> Any:
    """Convert a value from an options file to the type of its field.

    Raises:
        UserError: the value has another type.
    """
    kind, optional = without_none(hint)
    if optional and (value is None or value == "None"):  # TOML has no null
        return None
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        if not isinstance(value, list) or (parts[-1] is not ... and len(value) != len(parts)):
            raise UserError(f"{file}: {name} is {value!r}; it must be a list")
        kinds = (parts[0],) * len(value) if parts[-1] is ... else parts
        return tuple(converted(*pair, file, name) for pair in zip(kinds, value, strict=True))
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    members = get_args(kind) if get_origin(kind) in (UnionType, Union) else (kind,)
    if choices:  # True equals 1
        fits = any(value == choice and type(value) is type(choice) for choice in choices)
    else:
        allowed = tuple({float: (int, float), Path: (str,)}.get(member, (member,)) for member in members)
        fits = isinstance(value, sum(allowed, ())) and (not isinstance(value, bool) or bool in members)
    if not fits:
        words = (
            f"one of {', '.join(map(repr, choices))}" if choices else " or ".join(_TYPE_NAMES[each] for each in members)
        )
        raise UserError(f"{file}: {name} is {value!r}; it must be {words}")
    return kind(value) if kind in (float, Path) else value
