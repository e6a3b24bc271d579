"""Reads the filter language of `recollect.index.filters`."""

import re
from typing import Any

from recollect.core.errors import UserError
from recollect.index.filters import NUMBERS, TEXTS, Condition, Filter, Junction, Value

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
    parser.end()
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
