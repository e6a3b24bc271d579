"""One filter language for every store, parsed here.

``folder = 'Norway' and taken > '2022' and label in ('boat', 'harbour') and not caption like '%flag%'``

A name is one of `NAMES`, a column of labels given by hand, or a key of the picture's own metadata. A missing value
satisfies no comparison, and neither does a value of another type. Where a picture has several values (captions, labels,
sources, paths), a comparison holds if it holds for any of them; ``!=`` and ``not like`` hold if it holds for all.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

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

_SHOWN = 30

_OPPOSITE: dict[Operator, Operator] = {
    "=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">", "like": "not like", "not like": "like",
}  # fmt: skip
_TOKEN = re.compile(
    r"\s*(?:(?P<string>'(?:[^']|'')*')|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)"
    r'|"(?P<quoted>[^"\\]+)"|(?P<sign><=|>=|!=|<>|==|=|<|>|\(|\)|,))'
)


class FilterColumns:
    """The values that filters ask about, of the rows of one version; a column is read when it is first needed.

    Args:
        count: rows.
        read: returns one value per row for each of the names asked for (a list where there may be several); every name
            that is not one of `NAMES` is read from ``metadata``, a mapping per row.
    """

    def __init__(self, count: int, read: Callable[[str], Iterable[Any]]) -> None:
        self.count, self._read = count, read
        self._kept: dict[tuple[str, ValueKind], tuple[Any, Int64[np.ndarray, " values"]]] = {}
        self._metadata: list[Mapping[str, Any]] | None = None

    def of(self, name: str, kind: ValueKind) -> tuple[Any, Int64[np.ndarray, " values"]]:
        """All values of a name that are of a type, with the row of each."""
        if (name, kind) not in self._kept:
            found: dict[ValueKind, tuple[list[Any], list[int]]] = {key: ([], []) for key in _KINDS}
            for row, value in enumerate(self.values(name)):
                for each in value if isinstance(value, list | tuple) else (value,):
                    if (which := _kind(each)) is not None:
                        found[which][0].append(each)
                        found[which][1].append(row)
            for key, (values, rows) in found.items():
                array: Any = np.array(values, dtype=_KINDS[key]) if key != "text" else _arrow(values)
                self._kept[name, key] = array, np.array(rows, dtype=np.int64)
        return self._kept[name, kind]

    def values(self, name: str) -> Iterable[Any]:
        """One value per row, None where it is missing, a list where there may be several."""
        if name in NAMES:
            return self._read(name)
        if self._metadata is None:
            self._metadata = list(self._read("metadata"))
        return [each.get(name) for each in self._metadata]

    def keys(self) -> dict[str, str]:
        """Every key of the metadata with the type of its values."""
        _ = self.values("")
        found: dict[str, str] = {}
        for each in self._metadata or ():
            for key, value in each.items():
                if key not in found or found[key] == "missing":
                    first = value[0] if isinstance(value, list) and value else value
                    found[key] = _kind(first) or "missing"
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
        found = np.zeros(columns.count, dtype=bool)
        if self.operator in ("!=", "not like"):
            found[rows] = True
            found[rows[self.negated()._holds(values, kind)]] = False
        else:
            found[rows[self._holds(values, kind)]] = True
        return found

    def _holds(self, values: Any, kind: ValueKind) -> Bool[np.ndarray, " values"]:
        if kind != "text":
            return np.asarray(_COMPARE[self.operator](values, self.value), dtype=bool)
        import pyarrow.compute as pc

        if self.operator == "like":
            held = pc.match_like(values, str(self.value))
        else:
            held = getattr(pc, _ARROW[self.operator])(values, str(self.value))
        return held.to_numpy(zero_copy_only=False).astype(bool)

    @property
    def names(self) -> frozenset[str]:
        """What it asks about."""
        return frozenset({self.name})

    def milvus(self) -> str:
        """As Milvus reads it.

        Raises:
            UserError: Milvus cannot compare several values in this way.
        """
        name = "id" if self.name == "id" else f"facts[{json.dumps(self.name, ensure_ascii=False)}]"
        value = milvus_text(self.value) if isinstance(self.value, str) else json.dumps(self.value)
        if self.name in SEVERAL:
            return self._milvus_several(name, value)
        if self.operator == "!=":  # Milvus also lets != hold between values of two types
            if isinstance(self.value, bool):
                return f"{name} == {json.dumps(not self.value)}"
            return f"({name} < {value} or {name} > {value})"
        if self.operator == "not like":
            # `not` would also hold for missing values; every string that exists is >= "".
            return f'({name} >= "" and not ({name} like {value}))'
        return f"{name} {'==' if self.operator == '=' else self.operator} {value}"

    def _milvus_several(self, name: str, value: str) -> str:
        """Lists are also stored as one text with a line per value, which ``like '%words%'`` reads."""
        lines = f'facts["{self.name} lines"]'
        inner = str(self.value).strip("%")
        if self.operator in ("=", "!="):
            held = f"json_contains({name}, {value})"
        elif self.operator in ("like", "not like") and str(self.value) == f"%{inner}%" and not {*"%\n"} & {*inner}:
            held = f"{lines} like {value}"
        else:
            raise UserError(
                f"{self.name} {self.operator} {self.value!r}: Milvus compares the {self.name}s of a picture only by "
                "=, !=, in and like '%words%'"
            )
        return f'({lines} >= "" and not ({held}))' if self.operator in ("!=", "not like") else held


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
        import pyarrow.compute as pc

        values, rows = columns.of("id", "text")
        found = np.zeros(columns.count, dtype=bool)
        held = pc.is_in(values, value_set=_arrow(sorted(self.ids))).to_numpy(zero_copy_only=False).astype(bool)
        found[rows[held == self.inside]] = True
        return found

    @property
    def names(self) -> frozenset[str]:
        """What it asks about."""
        return frozenset({"id"})

    def milvus(self) -> str:
        """As Milvus reads it."""
        return f"id {'in' if self.inside else 'not in'} [{', '.join(map(milvus_text, sorted(self.ids)))}]"


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

    def milvus(self) -> str:
        """As Milvus reads it."""
        return "(" + f" {self.word} ".join(part.milvus() for part in self.parts) + ")"


Filter = Condition | Among | Junction


def parse_filter(where: "str | Filter") -> Filter:
    """Read a filter; one that was read already is returned as it is.

    Raises:
        UserError: it is malformed; the message says where.
    """
    if not isinstance(where, str):
        return where
    parser = _Parser(where)
    parsed = parser.either()
    parser.end()
    return parsed


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


def milvus_text(text: str) -> str:
    """A text as Milvus reads it: its escapes are those of C, without JSON's ``\\u``."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(escapes.get(char, char) for char in text) + '"'


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": np.equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
}  # fmt: skip
_ARROW = {"=": "equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}


def _kind(value: Any) -> ValueKind | None:
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else None


def _arrow(values: list[str]) -> Any:
    import pyarrow as pa

    return pa.array(values, pa.string())


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

    def fail(self, why: str) -> None:
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
        parts = [self.both()]
        while self.keyword("or"):
            parts.append(self.both())
        return parts[0] if len(parts) == 1 else Junction("or", tuple(parts))

    def both(self) -> Filter:
        parts = [self.single()]
        while self.keyword("and"):
            parts.append(self.single())
        return parts[0] if len(parts) == 1 else Junction("and", tuple(parts))

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
            operator: Any = {"==": "=", "<>": "!="}.get(str(sign), sign)
            found = Condition(name, operator, self.value())
        self.check(found)
        return found.negated() if negated else found

    def choice(self, name: str) -> Filter:
        if not self.keyword("("):
            self.fail("'in' needs a list such as ('a', 'b')")
        parts = [Condition(name, "=", self.value())]
        while self.keyword(","):
            parts.append(Condition(name, "=", self.value()))
        if not self.keyword(")"):
            self.fail("a ')' is missing")
        return parts[0] if len(parts) == 1 else Junction("or", tuple(parts))

    def pattern(self) -> str:
        value = self.value()
        if not isinstance(value, str) or "\\" in value:
            self.fail("'like' needs a text with % for any characters and without a backslash,")
        return str(value)

    def value(self) -> Value:
        group, word = self.group, self.word
        if group == "string":
            self.step()
            return word[1:-1].replace("''", "'")
        if group == "number":
            self.step()
            return int(word) if re.fullmatch(r"-?\d{1,15}", word) else float(word)
        if group == "name" and word.lower() in {"true", "false"}:
            self.step()
            return word.lower() == "true"
        self.fail("expected a 'text', a number, true or false")
        raise AssertionError

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

    def end(self) -> None:
        if self.group != "end":
            self.fail("expected 'and' or 'or'")
