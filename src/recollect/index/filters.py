"""One filter language for every store.

``folder = 'Norway' and taken > '2022' and label in ('boat', 'harbour') and not caption like '%flag%'``

A name is one of `NAMES`, a column of labels given by hand, or a key of the picture's own metadata. Missing values never
match, and neither do values of another type. Where a picture has several values (captions, labels, sources, paths), a
comparison holds if it holds for any of them; ``!=`` and ``not like`` hold if it holds for all.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

import numpy as np
from jaxtyping import Bool, Int64

from recollect.core.errors import UserError

Value = str | int | float | bool
Operator = Literal["=", "!=", "<", "<=", ">", ">=", "like", "not like"]
ValueKind = Literal["text", "number", "bool"]

TEXTS = ("id", "caption", "label", "source", "path", "folder", "camera", "taken")
NUMBERS = ("width", "height")
NAMES = (*TEXTS, *NUMBERS)
"""Names that every picture has; other names are labels given by hand, or keys of the metadata."""

SEVERAL = frozenset({"caption", "label", "source", "path", "folder"})
"""Names that may have several values per picture."""

PHYSICAL = {"caption": "captions", "label": "labels", "source": "files", "path": "files"}
"""The column behind a filter's name, where they differ; names that are none of `NAMES` are in ``metadata``."""


_SHOWN = 30

_OPPOSITE: dict[Operator, Operator] = {
    "=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">", "like": "not like", "not like": "like",
}  # fmt: skip


def asked_value(name: str, value: Any) -> Any:
    """A value of the column behind a name as filters see it: None where missing, a list where there may be several."""
    if name in ("source", "path"):
        return [file[name] for file in value if file[name]]
    if name == "folder":
        return _folder_names(value) if value else None
    return json.loads(value) if name == "metadata" else value or None


def _folder_names(folder: str) -> list[str]:
    """What a filter may call a folder: each of its parts, and each folder above it."""
    parts = folder.split("/")
    return list(dict.fromkeys([folder, *parts, *("/".join(parts[:depth]) for depth in range(2, len(parts)))]))


class FilterColumns:
    """The values that filters ask about, of the rows of one version; a column is read when it is first needed.

    Args:
        count: rows.
        read: returns one value per row for each of `NAMES` (a list where there may be several), and for ``metadata`` a
            mapping per row, which has all other names.
    """

    def __init__(self, count: int, read: Callable[[str], Iterable[Any]]) -> None:
        self.count, self._read = count, read
        self._kept: dict[tuple[str, ValueKind], tuple[Any, Int64[np.ndarray, " values"]]] = {}
        self._metadata: list[Mapping[str, Any]] | None = None

    @property
    def metadata(self) -> list[Mapping[str, Any]]:
        """The user's own columns of each row."""
        if self._metadata is None:
            self._metadata = list(self._read("metadata"))
        return self._metadata

    def of(self, name: str, kind: ValueKind) -> tuple[Any, Int64[np.ndarray, " values"]]:
        """All values of a name that are of a type, with the row of each."""
        if (name, kind) not in self._kept:
            column = self._read(name) if name in NAMES else (each.get(name) for each in self.metadata)
            found: dict[ValueKind, tuple[list[Any], list[int]]] = {key: ([], []) for key in _KINDS}
            for row, value in enumerate(column):
                for each in value if isinstance(value, list | tuple) else (value,):
                    if (which := _kind(each)) is not None:
                        found[which][0].append(each)
                        found[which][1].append(row)
            for key, (values, rows) in found.items():
                self._kept[name, key] = np.array(values, dtype=_KINDS[key]), np.array(rows, dtype=np.int64)
        return self._kept[name, kind]

    def keys(self) -> dict[str, str]:
        """Every key of the metadata with the type of its values."""
        found: dict[str, str] = {}
        for each in self.metadata:
            for key, value in each.items():
                if found.get(key, "missing") == "missing":
                    found[key] = _kind(value[0] if isinstance(value, list) and value else value) or "missing"
        return dict(sorted(found.items()))


_KINDS: dict[ValueKind, Any] = {"text": object, "number": np.float64, "bool": bool}


@dataclass(frozen=True)
class Condition:
    """``name operator value``."""

    name: str
    operator: Operator
    value: Value

    def negated(self) -> "Condition":
        """What holds instead, where there is a value."""
        return replace(self, operator=_OPPOSITE[self.operator])

    def mask(self, columns: FilterColumns) -> Bool[np.ndarray, " rows"]:
        """Which rows satisfy it."""
        kind = _kind(self.value)
        assert kind is not None
        values, rows = columns.of(self.name, kind)
        found, negative = np.zeros(columns.count, dtype=bool), self.operator in ("!=", "not like")
        found[rows] = negative
        positive = self.negated() if negative else self
        found[rows[positive._holds(values)]] = not negative
        return found

    def _holds(self, values: Any) -> Bool[np.ndarray, " values"]:
        if self.operator != "like":
            return np.asarray(_COMPARE[self.operator](values, self.value), dtype=bool)
        parts = (re.escape(part) for part in re.split("([%_])", str(self.value)))
        pattern = re.compile("".join({"%": ".*", "_": "."}.get(part, part) for part in parts), re.DOTALL)
        return np.fromiter((pattern.fullmatch(each) is not None for each in values), bool, len(values))

    @property
    def names(self) -> frozenset[str]:
        """What it asks about."""
        return frozenset({self.name})


@dataclass(frozen=True)
class Among:
    """``id in (...)`` for any number of ids, or its opposite."""

    ids: frozenset[str]
    inside: bool = True

    def negated(self) -> "Among":
        """All other pictures."""
        return replace(self, inside=not self.inside)

    def mask(self, columns: FilterColumns) -> Bool[np.ndarray, " rows"]:
        """Which rows satisfy it."""
        values, rows = columns.of("id", "text")
        found = np.zeros(columns.count, dtype=bool)
        found[rows] = np.fromiter(((each in self.ids) == self.inside for each in values), bool, len(values))
        return found

    @property
    def names(self) -> frozenset[str]:
        """What it asks about."""
        return frozenset({"id"})


@dataclass(frozen=True)
class Junction:
    """All of several filters, or any of them."""

    word: Literal["and", "or"]
    parts: "tuple[Filter, ...]"

    def negated(self) -> "Junction":
        """By De Morgan's laws, so that no store's notion of ``not`` matters."""
        return Junction("or" if self.word == "and" else "and", tuple(part.negated() for part in self.parts))

    def mask(self, columns: FilterColumns) -> Bool[np.ndarray, " rows"]:
        """Which rows satisfy it."""
        join = np.logical_and if self.word == "and" else np.logical_or
        return np.asarray(join.reduce([part.mask(columns) for part in self.parts]))

    @property
    def names(self) -> frozenset[str]:
        """What its parts ask about."""
        return frozenset[str]().union(*(part.names for part in self.parts))


Filter = Condition | Among | Junction


def with_labels(where: Filter, labels: Callable[[str], Mapping[str, Collection[str]] | None]) -> Filter:
    """A filter whose conditions on labels given by hand are replaced by the ids of the pictures that satisfy them.

    Args:
        labels: for the name of a label column the labels of each id; None for every other name.
    """
    if isinstance(where, Junction):
        return replace(where, parts=tuple(with_labels(part, labels) for part in where.parts))
    if not isinstance(where, Condition) or where.name in NAMES or (given := labels(where.name)) is None:
        return where
    ids = list(given)
    held = where.mask(FilterColumns(len(ids), lambda _: [{where.name: list(given[id])} for id in ids]))
    return Among(frozenset(np.array(ids, dtype=object)[held].tolist()))


def unknown_names(where: Filter, known: Iterable[str]) -> str:
    """The end of a message that nothing matches a filter: names in it that no picture has; "" if all are known."""
    names = [*NAMES, *sorted(set(known) - {*NAMES})]
    missing = [f"'{name}'" for name in sorted(where.names - {*names})]
    if not missing:
        return ""
    more = " …" if len(names) > _SHOWN else ""
    return f": no column {' or '.join(missing)}; there are {', '.join(names[:_SHOWN])}{more}"


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": np.equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
}  # fmt: skip


def _kind(value: Any) -> ValueKind | None:
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else None


_TOKEN = re.compile(
    r"\s*(?:(?P<string>'(?:[^']|'')*')|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)"
    r'|"(?P<quoted>[^"\\]+)"|(?P<sign><=|>=|!=|<>|==|=|<|>|\(|\)|,))'
)


def parse_filter(where: "str | Filter") -> Filter:
    """Read a filter; one that was read already is returned as it is.

    Raises:
        UserError: it is malformed; the message says where.
    """
    if not isinstance(where, str):
        return where
    parser = _Parser(where)
    parsed = parser.either()
    if parser.group != "end":
        parser.fail("expected 'and' or 'or'")
    return parsed


class _Parser:
    """Recursive descent with one token of look-ahead."""

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0
        self.group, self.word, self.after = "", "", 0
        self.step()

    def step(self) -> None:
        self.place = self.after
        found = _TOKEN.match(self.text, self.place)
        if found is None:
            if self.text[self.place :].strip():
                self.fail("cannot read this")
            self.group, self.word = "end", ""
            return
        self.group = str(found.lastgroup)
        self.word = found[self.group]
        self.after = found.end()

    def fail(self, why: str) -> NoReturn:
        rest = self.text[self.place :].strip()
        where = f"at '{rest[:30]}'" if rest else "at its end"
        raise UserError(
            f'filter "{self.text}": {why} {where}. '
            "Write e.g. folder = 'Norway' and year >= 2020 and caption like '%cat%'."
        )

    def keyword(self, *words: str) -> str | None:
        """Take the next token if it is one of these words."""
        word = self.word.lower()
        if self.group in {"name", "sign"} and word in words:
            self.step()
            return word
        return None

    def either(self) -> Filter:
        return self.joined("or", lambda: self.joined("and", self.single))

    def joined(self, word: Literal["and", "or"], part: Callable[[], Filter]) -> Filter:
        parts = [part()]
        while self.keyword(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Junction(word, tuple(parts))

    def single(self) -> Filter:
        if self.keyword("not"):
            return self.single().negated()
        if self.keyword("("):
            inner = self.either()
            if not self.keyword(")"):
                self.fail("a ')' is missing")
            return inner
        return self.comparison()

    def comparison(self) -> Filter:
        if self.group not in {"name", "quoted"}:
            self.fail("expected a name")
        name = self.word
        self.step()
        negated = self.keyword("not") is not None
        if self.keyword("in"):
            found: Filter = self.choice(name)
        elif self.keyword("like"):
            found = Condition(name, "like", self.pattern())
        else:
            sign = self.keyword("=", "==", "!=", "<>", "<", "<=", ">", ">=") if not negated else None
            if sign is None:
                self.fail("expected one of = != < <= > >= in like")
            operator: Any = {"==": "=", "<>": "!="}.get(sign, sign)
            found = Condition(name, operator, self.value())
        self.check(found)
        return found.negated() if negated else found

    def choice(self, name: str) -> Filter:
        if not self.keyword("("):
            self.fail("'in' needs a list such as ('a', 'b')")
        values = [self.value()]
        while self.keyword(","):
            values.append(self.value())
        if not self.keyword(")"):
            self.fail("a ')' is missing")
        return Junction("or", tuple(Condition(name, "=", value) for value in values))

    def pattern(self) -> str:
        value = self.value()
        if not isinstance(value, str) or "\\" in value:
            self.fail("'like' needs a text with % for any characters and without a backslash,")
        return value

    def value(self) -> Value:
        group, word = self.group, self.word
        if group == "string":
            self.step()
            return word[1:-1].replace("''", "'")
        if group == "number":
            self.step()
            return int(word) if re.fullmatch(r"-?\d{1,15}", word) else float(word)
        if group != "name" or word.lower() not in {"true", "false"}:
            self.fail("expected a 'text', a number, true or false")
        self.step()
        return word.lower() == "true"

    def check(self, found: Filter) -> None:
        """Reject comparisons that can never hold."""
        for part in found.parts if isinstance(found, Junction) else (found,):
            assert isinstance(part, Condition)
            text = isinstance(part.value, str)
            if (part.name in TEXTS and not text) or (part.name in NUMBERS and text):
                kind = "a text" if part.name in TEXTS else "a number"
                self.fail(f"{part.name} is {kind}, and is compared with {part.value!r} before this,")
            if isinstance(part.value, bool) and part.operator not in {"=", "!="}:
                self.fail("true and false have no order,")
