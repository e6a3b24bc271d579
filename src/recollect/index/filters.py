"""Filter language shared by all stores.

``folder = 'Norway' and taken > '2022' and label in ('boat', 'harbor') and not caption like '%flag%'``

A name is one of `NAMES`, a manual label column, or a metadata key. Missing values and values of another type never
match. If a picture has several values (captions, labels, sources, paths), one matching value is enough, except that
``!=`` and ``not like`` must hold for all values.
"""

import ast
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Int64

from recollect.core.errors import UserError

Value = str | int | float | bool | frozenset[str]
"""Right-hand side of a comparison; a set of strings for ``in`` and ``not in``."""

Operator = Literal["=", "!=", "<", "<=", ">", ">=", "like", "not like", "in", "not in"]
ValueKind = Literal["text", "number", "bool"]

TEXTS = ("id", "caption", "label", "source", "path", "folder", "camera", "taken")
NUMBERS = ("width", "height")
NAMES = (*TEXTS, *NUMBERS)
"""Built-in names; all other names are manual label columns or metadata keys."""

MULTI_VALUED = frozenset({"caption", "label", "source", "path", "folder"})
"""Names that may have several values per picture."""

PHYSICAL = {"caption": "captions", "label": "labels", "source": "files", "path": "files"}
"""Table column of a built-in name, if they differ; names not in `NAMES` are read from ``metadata``."""

_MAX_LISTED = 30

_OPPOSITE: dict[Operator, Operator] = {
    "=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">", "like": "not like", "not like": "like",
    "in": "not in", "not in": "in",
}  # fmt: skip


def filter_value(name: str, value: Any) -> Any:
    """Convert a table column's value to its filter value: None if missing, a list for names with several values."""
    if name in ("source", "path"):
        return [file[name] for file in value if file[name]]
    if name == "folder":
        return _folder_names(value) if value else None
    return json.loads(value) if name == "metadata" else value or None


def _folder_names(folder: str) -> list[str]:
    """Return the names that match a folder in a filter: its path, its parent paths, and each path component."""
    parts = folder.split("/")
    return list(dict.fromkeys([folder, *parts, *("/".join(parts[:depth]) for depth in range(2, len(parts)))]))


class FilterColumns:
    """Column values for filters, over the rows of one version; columns are read on first use.

    Args:
        count: number of rows.
        read: returns one value per row for a name in `NAMES` (a list if there may be several values), and one mapping
            per row for ``metadata``, which holds all other names.
    """

    def __init__(self, count: int, read: Callable[[str], Iterable[Any]]) -> None:
        self.count, self._read = count, read
        self._cache: dict[tuple[str, ValueKind], tuple[Any, Int64[np.ndarray, " values"]]] = {}

    @cached_property
    def metadata(self) -> list[Mapping[str, Any]]:
        """User-defined columns of each row."""
        return list(self._read("metadata"))

    def of(self, name: str, kind: ValueKind) -> tuple[Any, Int64[np.ndarray, " values"]]:
        """Return all values of a name that have the given type, and the row of each value."""
        if (name, kind) not in self._cache:
            column = self._read(name) if name in NAMES else (each.get(name) for each in self.metadata)
            found: dict[ValueKind, tuple[list[Any], list[int]]] = {key: ([], []) for key in _KINDS}
            for row, value in enumerate(column):
                for each in value if isinstance(value, list | tuple) else (value,):
                    if (which := _kind(each)) is not None:
                        found[which][0].append(each)
                        found[which][1].append(row)
            for key, (values, rows) in found.items():
                inexact = any(isinstance(each, int) and abs(each) > _MAX_EXACT_INT for each in values)
                dtype = object if inexact else _KINDS[key]  # objects are compared as Python integers
                self._cache[name, key] = np.array(values, dtype=dtype), np.array(rows, dtype=np.int64)
        return self._cache[name, kind]

    def keys(self) -> dict[str, str]:
        """Return the metadata keys with the type of their values."""
        found: dict[str, str] = {}
        for each in self.metadata:
            for key, value in each.items():
                if found.get(key, "missing") == "missing":
                    found[key] = _kind(value[0] if isinstance(value, list) and value else value) or "missing"
        return dict(sorted(found.items()))


_MAX_EXACT_INT = 2**53  # larger integers may not have an exact float64
_KINDS: dict[ValueKind, Any] = {"text": object, "number": np.float64, "bool": bool}


@dataclass(frozen=True)
class Condition:
    """``name operator value``."""

    name: str
    operator: Operator
    value: Value
    kind: ValueKind | None = field(init=False)  # distinguishes 1 from True, which are equal in Python

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", _kind(self.value))

    def negated(self) -> "Condition":
        """Return the opposite condition; like all conditions, it is false for missing values."""
        return replace(self, operator=_OPPOSITE[self.operator])

    def mask(self, columns: FilterColumns) -> Bool[np.ndarray, " rows"]:
        """Return which rows satisfy the condition."""
        assert self.kind is not None
        values, rows = columns.of(self.name, self.kind)
        found, negative = np.zeros(columns.count, dtype=bool), self.operator in ("!=", "not like", "not in")
        found[rows] = negative
        positive = self.negated() if negative else self
        found[rows[positive._holds(values)]] = not negative
        return found

    def _holds(self, values: Any) -> Bool[np.ndarray, " values"]:
        if isinstance(self.value, frozenset):
            return np.fromiter((each in self.value for each in values), bool, len(values))
        if self.operator != "like":
            return np.asarray(_COMPARE[self.operator](values, self.value), dtype=bool)
        parts = (re.escape(part) for part in re.split("([%_])", str(self.value)))
        pattern = re.compile("".join({"%": ".*", "_": "."}.get(part, part) for part in parts), re.DOTALL)
        return np.fromiter((pattern.fullmatch(each) is not None for each in values), bool, len(values))

    @property
    def names(self) -> frozenset[str]:
        """Names used in the condition."""
        return frozenset({self.name})


@dataclass(frozen=True)
class Junction:
    """Conjunction or disjunction of filters."""

    word: Literal["and", "or"]
    parts: "tuple[Filter, ...]"

    def negated(self) -> "Junction":
        """Return the negation by De Morgan's laws, which avoids ``not`` since stores define it differently."""
        return Junction("or" if self.word == "and" else "and", tuple(part.negated() for part in self.parts))

    def mask(self, columns: FilterColumns) -> Bool[np.ndarray, " rows"]:
        """Return which rows satisfy the filter."""
        join = np.logical_and if self.word == "and" else np.logical_or
        return np.asarray(join.reduce([part.mask(columns) for part in self.parts]))

    @property
    def names(self) -> frozenset[str]:
        """Names used in any part."""
        return frozenset[str]().union(*(part.names for part in self.parts))


Filter = Condition | Junction


def with_labels(where: Filter, labels: Callable[[str], Mapping[str, Collection[str]] | None]) -> Filter:
    """Replace conditions on manual labels by conditions on the ids of the matching pictures.

    Args:
        labels: returns the labels per id for the name of a label column; None for any other name.
    """
    if isinstance(where, Junction):
        return replace(where, parts=tuple(with_labels(part, labels) for part in where.parts))
    if where.name in NAMES or (by_id := labels(where.name)) is None:
        return where
    ids = list(by_id)
    matching = where.mask(FilterColumns(len(ids), lambda _: [{where.name: list(by_id[id])} for id in ids]))
    return match_ids(np.array(ids, dtype=object)[matching].tolist())


def match_ids(ids: Iterable[str]) -> Condition:
    """Return a filter that matches the given ids."""
    return Condition("id", "in", frozenset(ids))


def unknown_names(where: Filter, known: Iterable[str]) -> str:
    """Return the end of a "nothing matches" message that lists unknown names; "" if all names are known."""
    names = [*NAMES, *sorted(set(known) - {*NAMES})]
    missing = [f"'{name}'" for name in sorted(where.names - {*names})]
    if not missing:
        return ""
    more = " …" if len(names) > _MAX_LISTED else ""
    return f": no column {' or '.join(missing)}; there are {', '.join(names[:_MAX_LISTED])}{more}"


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": np.equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
}  # fmt: skip


def _kind(value: Any) -> ValueKind | None:
    if isinstance(value, str | frozenset):
        return "text"
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else None


_TOKEN = re.compile(
    r"\s*(?:(?P<string>'(?:[^']|'')*')|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)"
    r'|"(?P<quoted>[^"\\]+)"|(?P<sign><=|>=|!=|<>|==|=|<|>|\(|\)|,))'
)
_IN_PYTHON = {"=": "==", "<>": "!=", "true": "True", "false": "False", "like": "@", "and": "and", "or": "or",
              "not": "not", "in": "in"}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], Operator] = {
    ast.Eq: "=", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.In: "in",
    ast.NotIn: "not in",
}  # fmt: skip


def parse_filter(where: "str | Filter") -> Filter:
    """Parse a filter; a parsed filter is returned unchanged.

    The grammar is that of Python comparisons with SQL operators. Tokens are translated and parsed by `ast`: ``=``
    becomes ``==``, ``like`` becomes ``@`` and ``not like`` ``//``; each name becomes ``_0``, ``_1``, ..., since names
    may contain any characters.

    Raises:
        UserError: the filter is malformed; the message says where.
    """
    if not isinstance(where, str):
        return where
    names, words, position = list[str](), list[str](), 0
    while where[position:].strip():
        found = _TOKEN.match(where, position)
        if found is None:
            raise _malformed(where, f"cannot read {where[position:].strip()[:30]!r}")
        words.append(_in_python(found, names))
        if words[-2:] == ["not", "@"]:
            words[-2:] = ["//"]
        position = found.end()
    try:
        return _filter_of(ast.parse(" ".join(words), mode="eval").body, names)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two for thousands of tokens
        raise _malformed(
            where, str(error) if isinstance(error, _WrongTypeError) else "cannot be read; texts have single quotes"
        ) from None


def _in_python(found: "re.Match[str]", names: list[str]) -> str:
    """Translate a token to Python; names are appended to ``names``."""
    word = str(found[str(found.lastgroup)])
    if found["string"]:
        return f"({word[1:-1].replace(chr(39) * 2, chr(39))!r})"  # parentheses prevent implicit concatenation
    if found["number"]:
        return repr(int(word) if re.fullmatch(r"-?\d{1,20}", word) else float(word))
    if found["sign"] or (found["name"] and word.lower() in _IN_PYTHON):
        return _IN_PYTHON.get(word.lower(), word)
    names.append(word)
    return f"_{len(names) - 1}"


def _filter_of(node: ast.expr, names: Sequence[str]) -> Filter:
    """Convert a parsed expression to a filter.

    Raises:
        ValueError: anything but comparisons of a name with a value.
    """
    match node:
        case ast.BoolOp(op, values):
            parts = tuple(_filter_of(each, names) for each in values)
            return Junction("and" if isinstance(op, ast.And) else "or", parts)
        case ast.UnaryOp(ast.Not(), inner):
            return _filter_of(inner, names).negated()
        case ast.BinOp(ast.Name(id), ast.MatMult() | ast.FloorDiv() as op, ast.Constant(str(pattern))):
            like = _checked(Condition(names[int(id[1:])], "like", str(pattern)))
            return like if isinstance(op, ast.MatMult) else like.negated()
        case ast.Compare(ast.Name(id), [op], [right]):
            name, value = names[int(id[1:])], ast.literal_eval(right)
            if isinstance(op, ast.In | ast.NotIn):
                choices = value if isinstance(value, tuple) else (value,)
                if not choices:
                    raise ValueError
                among = Junction("or", tuple(_checked(Condition(name, "=", each)) for each in choices))
                return among if isinstance(op, ast.In) else among.negated()
            return _checked(Condition(name, _COMPARISONS[type(op)], value))
    raise ValueError


class _WrongTypeError(ValueError):
    pass


def _checked(found: Condition) -> Condition:
    """Reject comparisons that can never hold."""
    name, value, text = found.name, found.value, isinstance(found.value, str)
    if not isinstance(value, str | int | float):
        raise ValueError
    if (name in TEXTS and not text) or (name in NUMBERS and text):
        raise _WrongTypeError(f"{name} is {'a text' if name in TEXTS else 'a number'}, but is compared with {value!r}")
    if isinstance(value, bool) and found.operator not in {"=", "!="}:
        raise _WrongTypeError("true and false have no order")
    if found.operator == "like" and "\\" in str(value):
        raise _WrongTypeError("'like' needs a text without a backslash, and % for any characters")
    return found


def _malformed(where: str, why: str) -> UserError:
    example = "folder = 'Norway' and taken >= '2020' and caption like '%cat%'"
    return UserError(f'filter "{where}": {why}. Write e.g. {example}.')
