"""Filters as Milvus reads them."""

import json
from collections.abc import Sequence

from recollect.core.errors import UserError
from recollect.index.filters import SEVERAL, Condition, Filter, Junction


def milvus_filter(where: Filter) -> str:
    """An expression of Milvus for a filter.

    Raises:
        UserError: Milvus cannot compare several values in this way.
    """
    if isinstance(where, Junction):
        return "(" + f" {where.word} ".join(map(milvus_filter, where.parts)) + ")"
    if isinstance(where, Condition):
        return _condition(where)
    return among("id", sorted(where.ids), where.inside)


def among(name: str, values: Sequence[str], inside: bool = True) -> str:
    """A condition that a text is one of some; pymilvus's own would read a backslash as an escape."""
    return f"{name} {'in' if inside else 'not in'} [{', '.join(map(milvus_text, values))}]"


def milvus_text(text: str) -> str:
    """A text as Milvus reads it: its escapes are those of C, without JSON's ``\\u``."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(escapes.get(char, char) for char in text) + '"'


def _condition(where: Condition) -> str:
    name = "id" if where.name == "id" else f"facts[{json.dumps(where.name, ensure_ascii=False)}]"
    value = milvus_text(where.value) if isinstance(where.value, str) else json.dumps(where.value)
    if where.name in SEVERAL:
        return _several(where, name, value)
    if where.operator == "!=":  # Milvus also lets != hold between values of two types
        if isinstance(where.value, bool):
            return f"{name} == {json.dumps(not where.value)}"
        return f"({name} < {value} or {name} > {value})"
    if where.operator == "not like":
        # `not` would also hold for missing values; every string that exists is >= "".
        return f'({name} >= "" and not ({name} like {value}))'
    return f"{name} {'==' if where.operator == '=' else where.operator} {value}"


def _several(where: Condition, name: str, value: str) -> str:
    """Lists are also stored as one text with a line per value, which ``like '%words%'`` reads."""
    lines = f'facts["{where.name} lines"]'
    inner = str(where.value).strip("%")
    if where.operator in ("=", "!="):
        held = f"json_contains({name}, {value})"
    elif where.operator in ("like", "not like") and str(where.value) == f"%{inner}%" and not {*"%\n"} & {*inner}:
        held = f"{lines} like {value}"
    else:
        raise UserError(
            f"{where.name} {where.operator} {where.value!r}: Milvus compares the {where.name}s of a picture only by "
            "=, !=, in and like '%words%'"
        )
    return f'({lines} >= "" and not ({held}))' if where.operator in ("!=", "not like") else held
