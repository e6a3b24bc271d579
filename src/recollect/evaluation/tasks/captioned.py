"""Suites of captioned data sets: EFSA's nine."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from recollect.core.errors import UserError
from recollect.core.validation import check_choice
from recollect.data.sources import open_source
from recollect.data.sources.columns import Columns
from recollect.evaluation.tasks.catalogue import own_copies


@dataclass(frozen=True)
class CaptionedEntry:
    """One captioned set of a suite.

    Attributes:
        name: as in ``--copies NAME=SOURCE``.
        title, domain: as in the paper.
        spec: address of the hub copy with its split, if there is one.
        split: that is searched, also of other copies.
        size: number of pictures in the paper, rounded.
        seen: whether the hub copy was found on a public page or in the paper; otherwise from memory.
    """

    name: str
    title: str
    domain: str
    spec: str | None
    split: str
    size: int
    seen: bool

    def address(self, place: str | None = None) -> str:
        """Address of the given copy, or of the hub copy.

        Raises:
            UserError: there is neither.
        """
        if place is not None:
            return place if "split=" in place else f"{place}{'&' if '?' in place else '?'}split={self.split}"
        if self.spec is None:
            raise UserError(f"{self.name}: no copy on the hub is known. Name your own: --copies {self.name}=SOURCE")
        return self.spec


def captioned_suite(name: str) -> tuple[CaptionedEntry, ...]:
    """The sets of a suite, in the paper's order: "efsa-9".

    Raises:
        UserError: no such suite.
    """
    suites = _read()["suites"]
    return tuple(_entry(row) for row in suites[check_choice(name, suites, "suite of captioned data sets")]["entries"])


def captioned_specs(
    name: str, copies: Sequence[str] = (), columns: Columns | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Addresses of the data sets of a suite that can be opened, and error messages of the others.

    Args:
        copies: ``NAME=SOURCE`` of other copies.

    Raises:
        UserError: no such suite or data set, or none can be opened.
    """
    entries = captioned_suite(name)
    own = own_copies(copies, [entry.name for entry in entries])
    found, left_out = [], []
    for entry in entries:
        try:
            spec = entry.address(own.get(entry.name))
            open_source(spec, kind="caption", columns=columns)
            found.append(spec)
        except UserError as error:
            left_out.append(f"{entry.name}: {error}")
    if not found:
        raise UserError(f"{name}: no set can be opened. The first: {left_out[0]}")
    return tuple(found), tuple(left_out)


def _entry(row: dict[str, Any]) -> CaptionedEntry:
    hub = row.get("hub")
    spec = f"{hub['id']}?split={row['split']}" if hub else None
    return CaptionedEntry(
        row["set"], row["title"], row["domain"], spec, row["split"], row["size"], bool(hub and hub["seen"])
    )


@cache
def _read() -> Any:
    file = resources.files("recollect.evaluation.tasks") / "catalogue_files" / "captioned.json"
    return json.loads(file.read_text(encoding="utf-8"))
