"""One small filter language for every kind of memory: parsed here, pushed down to the store, and checkable row by row.

``source = 'emoji' and domain in ('noto', 'twemoji') and not caption like '%flag%'``

A name is ``id``, ``caption`` or ``source``, or else a key of the row's metadata. A value that is missing, or of another
type than what it is compared with, satisfies no comparison, whether or not ``not`` stands before it.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from recollect.core.errors import UserError

Value = str | int | float | bool
Operator = Literal["=", "!=", "<", "<=", ">", ">=", "like", "not like"]

FILTER_COLUMNS = ("id", "caption", "source")
"""Names that are columns; every other name is a key of the metadata."""

_SHOWN = 30

_OPPOSITE: dict[Operator, Operator] = {
    "=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">", "like": "not like", "not like": "like",
}  # fmt: skip
_TOKEN = re.compile(
    r"\s*(?:(?P<string>'(?:[^']|'')*')|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)"
    r'|"(?P<quoted>[^"\\]+)"|(?P<sign><=|>=|!=|<>|==|=|<|>|\(|\)|,))'
)


@dataclass(frozen=True)
class Condition:
    """``name operator value``."""

    name: str
    operator: Operator
    value: Value

    def negated(self) -> "Condition":
        """What holds instead, where the value is there."""
        return replace(self, operator=_OPPOSITE[self.operator])

    def matches(self, row: Mapping[str, Any]) -> bool:
        """Whether a row (columns and metadata in one mapping) satisfies it."""
        found: Any = row.get(self.name)
        if _kind(found) != _kind(self.value):
            return False
        match self.operator:
            case "=":
                return found == self.value
            case "!=":
                return found != self.value
            case "like" | "not like":
                pattern = re.escape(str(self.value)).replace("%", ".*").replace("_", ".")
                return (re.fullmatch(pattern, found, re.DOTALL) is not None) == (self.operator == "like")
        smaller, equal = found < self.value, found == self.value
        return {"<": smaller, "<=": smaller or equal, ">": not (smaller or equal), ">=": not smaller}[self.operator]

    @property
    def names(self) -> frozenset[str]:
        """What it asks about."""
        return frozenset({self.name})

    def sql(self) -> str:
        """As Lance reads it."""
        value = _sql_value(self.value)
        if self.name in FILTER_COLUMNS:
            return f"{self.name} {self.operator} {value}"
        raw = f"json_extract(metadata, {_sql_value('$.' + json.dumps(self.name, ensure_ascii=False))})"
        if isinstance(self.value, bool):
            other = _sql_value(not self.value)
            return f"{raw} = '{value if self.operator == '=' else other}'"
        if isinstance(self.value, str):
            # json_get_string fails where it meets a list, and AND looks at both its sides. Lance writes a text as
            # Python does, so equality needs no reading of it.
            if self.operator in ("=", "!="):
                written = _sql_value(json.dumps(self.value, ensure_ascii=False))
                return f"({raw} LIKE '\"%' AND {raw} {self.operator} {written})"
            return f"({raw} LIKE '\"%' AND {_unescaped(f'left(substr({raw}, 2), -1)')} {self.operator} {value})"
        # json_get_float fails on a text that is no number; in JSON, texts stand in quotes and cast to nothing.
        return f"TRY_CAST({raw} AS DOUBLE) {self.operator} {value}"

    def milvus(self) -> str:
        """As Milvus reads it."""
        name = self.name if self.name in FILTER_COLUMNS else f"metadata[{json.dumps(self.name, ensure_ascii=False)}]"
        value = milvus_text(self.value) if isinstance(self.value, str) else json.dumps(self.value)
        if self.operator == "!=":  # which Milvus also takes to hold between values of two types
            if isinstance(self.value, bool):
                return f"{name} == {json.dumps(not self.value)}"
            return f"({name} < {value} or {name} > {value})"
        if self.operator == "not like":
            # Where the value is missing, so is the whole: an ordering holds for every string that is there.
            return f'({name} >= "" and not ({name} like {value}))'
        return f"{name} {'==' if self.operator == '=' else self.operator} {value}"


@dataclass(frozen=True)
class Junction:
    """All of several filters, or any of them."""

    word: Literal["and", "or"]
    parts: "tuple[Filter, ...]"

    def negated(self) -> "Junction":
        """By De Morgan's laws, so that no store's idea of ``not`` matters."""
        return Junction("or" if self.word == "and" else "and", tuple(part.negated() for part in self.parts))

    def matches(self, row: Mapping[str, Any]) -> bool:
        """Whether a row satisfies it."""
        return (all if self.word == "and" else any)(part.matches(row) for part in self.parts)

    @property
    def names(self) -> frozenset[str]:
        """What they ask about."""
        return frozenset[str]().union(*(part.names for part in self.parts))

    def sql(self) -> str:
        """As Lance reads it."""
        return "(" + f" {self.word} ".join(part.sql() for part in self.parts) + ")"

    def milvus(self) -> str:
        """As Milvus reads it."""
        return "(" + f" {self.word} ".join(part.milvus() for part in self.parts) + ")"


Filter = Condition | Junction


def parse_filter(text: str) -> Filter:
    """Read a filter.

    Raises:
        UserError: it is malformed; the message says where.
    """
    parser = _Parser(text)
    parsed = parser.either()
    parser.end()
    return parsed


def unknown_names(where: str, keys: Iterable[str]) -> str:
    """What to say, behind that nothing satisfies a filter, of names in it that no row has; "" where there are none.

    Args:
        where: the filter.
        keys: of the rows' metadata.
    """
    known = [*FILTER_COLUMNS, *sorted(set(keys) - {*FILTER_COLUMNS})]
    missing = [f"'{name}'" for name in sorted(parse_filter(where).names - {*known})]
    if not missing:
        return ""
    more = " …" if len(known) > _SHOWN else ""
    return f": no column {' or '.join(missing)}; there are {', '.join(known[:_SHOWN])}{more}"


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else type(value).__name__


def _sql_value(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def milvus_text(text: str) -> str:
    """A text as Milvus reads it: its escapes are those of C, without JSON's ``\\u``."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(escapes.get(char, char) for char in text) + '"'


def _unescaped(sql: str) -> str:
    """The text that a JSON string stands for.

    No control character stands in JSON as it is, so one of them can stand for what is not to be read twice: a backslash
    that was escaped becomes ``\\x01\\x02`` and ``\\x01`` itself ``\\x01\\x03``, until all else is read.
    """
    escapes = {"\\\\": "\x01\x02", '\\"': '"', "\\u0001": "\x01\x03"}
    escapes |= {json.dumps(chr(code))[1:-1]: chr(code) for code in range(32) if code != 1}
    for written, meant in (escapes | {"\x01\x02": "\\", "\x01\x03": "\x01"}).items():
        sql = f"replace({sql}, {_sql_value(written)}, {_sql_value(meant)})"
    return sql


class _Parser:
    """Recursive descent; one token of look-ahead."""

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0
        self.group, self.word, self.after = "", "", 0
        self.step()

    def step(self) -> None:
        self.place = self.after
        found = _TOKEN.match(self.text, self.place)
        if found is None:
            if self.text[self.place :].strip():
                self.fail("this cannot be read")
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
            "Write e.g. source = 'emoji' and year >= 2020 and caption like '%cat%'."
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
            self.fail("a name should stand")
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
                self.fail("one of = != < <= > >= in like should stand")
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
            self.fail("'like' needs a text with % for any characters, without a backslash,")
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
        self.fail("a 'text', a number, true or false should stand")
        raise AssertionError

    def check(self, found: Filter) -> None:
        """Columns hold texts; only an order among numbers and texts means anything."""
        for part in found.parts if isinstance(found, Junction) else (found,):
            assert isinstance(part, Condition)
            if part.name in FILTER_COLUMNS and not isinstance(part.value, str):
                self.fail(f"{part.name} is a text, and compared with {part.value} before this,")
            if isinstance(part.value, bool) and part.operator not in {"=", "!="}:
                self.fail("true and false have no order;")

    def end(self) -> None:
        if self.group != "end":
            self.fail("'and' or 'or' should stand")
