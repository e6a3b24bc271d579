"""One filter language for every store; `recollect.index.filter_parser` reads it.

``folder = 'Norway' and taken > '2022' and label in ('boat', 'harbour') and not caption like '%flag%'``

A name is one of `NAMES`, a column of labels given by hand, or a key of the picture's own metadata. A missing value
satisfies no comparison, and neither does a value of another type. Where a picture has several values (captions, labels,
sources, paths), a comparison holds if it holds for any of them; ``!=`` and ``not like`` hold if it holds for all.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Int64

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
