"""Public benchmark data sets: the suites of the papers, labeled and captioned, and how to open each data set."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from recollect.core.errors import UserError
from recollect.core.types import Source
from recollect.core.validation import check_choice
from recollect.data.prompts import GENERAL_TEMPLATES, readable
from recollect.data.sources import open_source
from recollect.data.sources.columns import Columns
from recollect.data.sources.subset import Subset
from recollect.evaluation.tasks.classification import ClassificationTask, Division, classification_task

_NAME_RULES: Mapping[str, str] = {
    "first": r",.*$",  # "tench, Tinca tinca" -> "tench"
    "number": r"^\d+\.",  # "001.Black_footed_Albatross"
    "wnid": r"^n\d{8}[-_]",  # "n02085620-Chihuahua"
    "place": r"^/?[a-z]/",  # "/a/apartment_building/outdoor"; further slashes become spaces
}
"""Patterns to remove from a data set's class names."""


@dataclass(frozen=True)
class Entry:
    """One data set of a suite.

    Attributes:
        name: name as in ``recollect evaluate ... --data NAME``.
        spec: address of the hub copy, in the form of `open_source`.
        columns: unusual column names of the hub copy.
        support, query: splits; ``support`` is None for a zero-shot set.
        support_size, query_size, classes: as in the paper.
        metric: "top-1", "mean per class" or "mean average precision".
        multilabel: whether an image may show several classes, so there is no single label to predict.
    """

    name: str
    spec: str
    columns: Columns
    support: str | None
    query: str
    support_size: int
    query_size: int
    classes: int
    metric: str
    multilabel: bool = False
    _names: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def open(self, place: str | None = None, templates: tuple[str, ...] = GENERAL_TEMPLATES) -> ClassificationTask:
        """Open the data set as a task.

        Args:
            place: another source with the same splits (see `open_source`); the hub copy by default.

        Raises:
            UserError: it cannot be opened, its number of classes differs from the paper, or it is multilabel.
        """
        if self.multilabel:
            raise UserError(
                f"{self.name}: images have several labels. Use `recollect evaluate multilabel --data {self.spec}`."
            )
        # Only the hub copy has unusual column names.
        columns = Columns() if place else self.columns
        division = Division(support=self.support, query=self.query)
        task = classification_task(
            place or self.spec, name=self.name, division=division, templates=templates, columns=columns
        )
        if len(task.class_names) != self.classes:
            raise UserError(f"{self.name}: {len(task.class_names)} classes, but the paper has {self.classes}")
        names = tuple(self.class_name(number, name) for number, name in enumerate(task.class_names))
        return replace(
            task,
            class_names=names,
            support=_renamed(task.support, names),
            query=_renamed(task.query, names),
            metric="mean per class" if self.metric == "mean per class" else "top-1",
        )

    def class_name(self, number: int, name: str) -> str:
        """Return the readable form of a class name of the data set."""
        if str(number) in self._names.get("rename_by_index", {}):
            return str(self._names["rename_by_index"][str(number)])
        rule = self._names.get("names")
        if rule:
            name = re.sub(_NAME_RULES[rule], "", name)
        if rule == "place":
            name = name.replace("/", " ")
        return str(self._names.get("rename", {}).get(name, readable(name)))


def _renamed(source: Source, names: tuple[str, ...]) -> Source:
    return Subset(source, np.arange(len(source)), class_names=names)


def suite(name: str) -> tuple[Entry, ...]:
    """Return the data sets of a suite, in the paper's order: "lixp-21", "lixp-11-ablation", "lixp-5" or "prefix-11".

    Raises:
        UserError: no such suite.
    """
    suites = _read("suites.json")["suites"]
    return tuple(_entry(row) for row in suites[check_choice(name, suites, "suite")]["entries"])


def captioned_specs(
    name: str, copies: Sequence[str] = (), columns: Columns | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return addresses of the captioned data sets of a suite ("efsa-9"), and error messages of unavailable ones.

    Args:
        copies: ``NAME=SOURCE`` of other copies.

    Raises:
        UserError: no such suite or data set, or none can be opened.
    """
    suites = _read("captioned.json")["suites"]
    rows = suites[check_choice(name, suites, "suite of captioned data sets")]["entries"]
    places = parse_copies(copies, [row["set"] for row in rows])
    found, left_out = [], []
    for row in rows:
        try:
            spec = _captioned_address(row, places.get(row["set"]))
            open_source(spec, kind="caption", columns=columns)
            found.append(spec)
        except UserError as error:
            left_out.append(f"{row['set']}: {error}")
    if not found:
        raise UserError(f"{name}: no data set can be opened. The first error: {left_out[0]}")
    return tuple(found), tuple(left_out)


def _captioned_address(row: Mapping[str, Any], place: str | None) -> str:
    """Return the address of a copy (default: on the hub), with the split that the paper searches."""
    if place is None and not row.get("hub"):
        raise UserError(f"{row['set']}: no known copy on the hub. Pass your own with --copies {row['set']}=SOURCE")
    place = place or row["hub"]["id"]
    return place if "split=" in place else f"{place}{'&' if '?' in place else '?'}split={row['split']}"


def parse_copies(copies: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Parse ``NAME=SOURCE`` into sources by name.

    Raises:
        UserError: an invalid form, or no such name.
    """
    found = {}
    for text in copies:
        name, _, place = text.partition("=")
        if not place:
            raise UserError(f"--copies {text}: write NAME=SOURCE, e.g. {names[0]}=data/{names[0]}.parquet")
        found[check_choice(name, names, "--copies: data set")] = place
    return found


def _entry(row: Mapping[str, Any]) -> Entry:
    facts = _read("sets.json")["sets"][row["set"]]
    hub = facts["hub"]
    options = {key: hub[key] for key in ("config", "revision") if key in hub} | hub.get("filter", {})
    if "shuffle" in row:
        options["shuffle"] = row["shuffle"]
    query = "&".join(f"{key}={value}" for key, value in options.items())
    return Entry(
        name=row["set"],
        spec=f"{hub['id']}?{query}" if query else hub["id"],
        columns=Columns(**hub.get("columns", {})),
        support=row["support"],
        query=row["query"],
        support_size=row["support_size"],
        query_size=row["query_size"],
        classes=row["classes"],
        metric=row["metric"],
        multilabel=facts.get("multilabel", False),
        _names={key: facts[key] for key in ("names", "rename", "rename_by_index") if key in facts},
    )


@cache
def _read(file: str) -> Any:
    return json.loads(
        (resources.files("recollect.evaluation.tasks") / "catalogue_files" / file).read_text(encoding="utf-8")
    )
