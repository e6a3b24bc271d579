"""One engine for every table: rows are arms, columns are measures, next to the figures that the paper printed.

A study measures (`Measurements`: figures by what they are of, one for each seed), and a table is a pure function of
that: the figure in a cell is the one whose address is its row's and its column's together. Both are kept in one JSON
file, so that a table can be formed again, and tested, without running anything.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from recollect.evaluation.reports.plots import save_figure
from recollect.evaluation.results import summarise
from recollect_papers.measurements import FigureAddress, Measurements
from recollect_papers.study import Scale, StudyOptions, StudyReport, StudyTable

Show = Literal["mean", "gain", "mean (gain)", "mean or gain", "relative", "number"]
"""``mean``: 67.6 ± 0.7; ``gain``: +7.3 ± 0.5, paired by seed; ``mean (gain)``: 67.6 ± 0.7 (+7.3); ``mean or gain``: a
gain in rows that have something to gain over; ``relative``: mean relative change in percent; ``number``: by a pattern.
"""

Formed = tuple[Sequence[StudyTable], Sequence[str]]
"""What a study's form returns: tables, and remarks on all of them."""


@dataclass(frozen=True)
class Printed:
    """One table of a paper, as it is printed there: cells are text.

    Attributes:
        columns: titles.
        rows: by name.
    """

    columns: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]

    def only(self, columns: Iterable[str]) -> "Printed":
        """Some of its columns."""
        kept = [place for place, name in enumerate(self.columns) if name in set(columns)]
        rows = {name: tuple(cells[place] for place in kept) for name, cells in self.rows.items()}
        return Printed(tuple(self.columns[place] for place in kept), rows)


@lru_cache(maxsize=8)
def _paper(name: str) -> dict[str, Any]:
    return json.loads(files("recollect_papers").joinpath(name, "paper.json").read_text(encoding="utf-8"))


def printed(paper: str, table: str) -> Printed:
    """A table of ``studies/<paper>/paper.json``."""
    found = _paper(paper)["tables"][table]
    return Printed(tuple(found["columns"]), {name: tuple(cells) for name, cells in found["rows"].items()})


def papers_words(paper: str, place: str) -> str:
    """What the text of a paper says of a figure that prints no numbers."""
    return str(_paper(paper)["words"][place])


@dataclass(frozen=True)
class Row:
    """One arm.

    Attributes:
        head: its first cells; ``{}`` in one is replaced by the figure at ``inset``.
        at: its part of the address; None for a row of the paper alone.
        printed: its name in the paper's table.
        over: what its gains are over, where its own address differs from that of the column.
        only: the kinds of columns that it has; all by default.
        spread: whether standard deviations are shown.
    """

    head: tuple[str, ...]
    at: FigureAddress | None = field(default_factory=dict)
    printed: str | None = None
    over: FigureAddress | None = None
    only: tuple[Show, ...] = ()
    inset: FigureAddress | None = None
    spread: bool = True


@dataclass(frozen=True)
class Column:
    """One measure.

    Attributes:
        title: of the column.
        at: its part of the address.
        show: see `Show`.
        over: the part of the address in which what a gain is over differs.
        pattern: of a plain number.
        unit: what a plain number is divided by.
    """

    title: str
    at: FigureAddress = field(default_factory=dict)
    show: Show = "mean"
    over: FigureAddress = field(default_factory=dict)
    pattern: str = "{:.1f}"
    unit: float = 1.0


@dataclass(frozen=True)
class TableForm:
    """What a table shows, without its figures.

    Attributes:
        title: of the table.
        heads: titles of the rows' first cells.
        rows: arms, in the paper's order.
        columns: measures.
        paper: the table to show next to ours; its cells are empty in rows that it lacks.
        missing: what a cell says that was not measured; an error where None.
    """

    title: str
    heads: tuple[str, ...]
    rows: Sequence[Row]
    columns: Sequence[Column]
    paper: Printed | None = None
    notes: tuple[str, ...] = ()
    missing: str | None = None

    def fill(self, found: Measurements) -> StudyTable:
        """The table of some figures.

        Raises:
            ValueError: a figure is missing.
        """
        titles = [*self.heads, *(column.title for column in self.columns)]
        titles += [f"paper: {title}" for title in self.paper.columns] if self.paper else []
        rows = [(*_head(row, found), *(self._cell(row, column, found) for column in self.columns), *self._beside(row))
                for row in self.rows]  # fmt: skip
        return StudyTable(self.title, tuple(titles), tuple(rows), self.notes)

    def as_printed(self, title: str) -> StudyTable:
        """The paper's figures as a table of their own, of the same rows."""
        assert self.paper is not None
        rows = tuple((*row.head, *self._beside(row)) for row in self.rows)
        return StudyTable(title, (*self.heads, *self.paper.columns), rows)

    def _beside(self, row: Row) -> tuple[str, ...]:
        if self.paper is None:
            return ()
        return ("",) * len(self.paper.columns) if row.printed is None else self.paper.rows[row.printed]

    def _cell(self, row: Row, column: Column, found: Measurements) -> str:
        if row.at is None or (row.only and column.show not in row.only):
            return ""
        address = {**row.at, **column.at}
        base = {**address, **column.over, **(row.over or {})}
        shown = _show(found, address, base, column, row)
        if shown is not None:
            return shown
        if self.missing is None:
            raise ValueError(f"{self.title}: {' '.join(row.head)}, {column.title}: not measured ({address})")
        return self.missing


def paper_rows(paper: Printed) -> list[Row]:
    """The rows of a printed table below ours, for those that have no counterpart."""
    return [Row((f"paper: {name}",), at=None, printed=name) for name in paper.rows]


def _head(row: Row, found: Measurements) -> tuple[str, ...]:
    if row.inset is None:
        return row.head
    return tuple(text.replace("{}", str(found.summary(row.inset))) for text in row.head)


def _show(found: Measurements, address: FigureAddress, base: FigureAddress, column: Column, row: Row) -> str | None:
    """The text of a cell, None where it was not measured."""
    if column.show == "relative":
        return _relative(found, address, base)
    own, differences = found.at(address), found.differences(address, base)
    if not own:
        return None
    if column.show == "number":
        return column.pattern.format(float(np.mean(list(own.values()))) / column.unit)
    show = column.show
    if show == "mean or gain":
        show = "mean" if row.over is None else "gain"
    if show != "mean" and base != address and not differences:
        return None
    mean, gain = summarise(own.values()), summarise(differences.values() or [0.0])
    if show == "mean":
        return str(mean)
    if base == address:  # nothing is gained over itself
        return str(mean) if show == "mean (gain)" else ""
    if show == "gain":
        return gain.signed() if row.spread else f"{gain.mean:+.1f}"
    return f"{mean} ({gain.mean:+.1f})"


def _relative(found: Measurements, address: FigureAddress, base: FigureAddress) -> str | None:
    """Mean over the values in the address of the relative change of means over seeds, where there is something."""
    if address == base:
        return ""
    spread = {key: value if isinstance(value, tuple) else (value,) for key, value in address.items()}
    changes = []
    for values in itertools.product(*spread.values()):
        one = dict(zip(spread, values, strict=True))
        other = {**one, **{key: value for key, value in base.items() if value != address.get(key)}}
        own, before = (list(found.at(each).values()) for each in (one, other))
        if not own or not before:
            return None
        if np.mean(before) > 0:
            changes.append(100 * (np.mean(own) - np.mean(before)) / np.mean(before))
    return f"{np.mean(changes):+.1f} %" if changes else ""


@dataclass(frozen=True)
class TableStudy:
    """A study of numbers: what is measured, and the tables and figure that are functions of it.

    Attributes:
        name: e.g. ``lixp/table-4``.
        measure: runs what is not there yet, and gathers the figures.
        form: the tables of these, and remarks on all of them.
        worlds: in words, for each scale.
        draw: the figure, from what was measured alone, so that a kept file is enough to draw it again; None for tables.
    """

    name: str
    measure: Callable[[StudyOptions], Measurements]
    form: Callable[[Measurements], Formed]
    worlds: Mapping[Scale, str]
    draw: Callable[[Measurements], Figure] | None = None

    def __call__(self, options: StudyOptions) -> StudyReport:
        """Measure, draw and report."""
        found, figures = self.measure(options), list[str]()
        tables, notes = self.form(found)
        if self.draw is not None:
            figures.append(f"{self.name.replace('/', '-')}-{options.scale}.png")
            save_figure(self.draw(found), options.out / figures[0])
        world = self.worlds[options.scale]
        return StudyReport(
            self.name, options.scale, world, tuple(tables), tuple(figures), tuple(notes), found.as_json()
        )
