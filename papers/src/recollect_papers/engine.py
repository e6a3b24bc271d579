"""Table forms: rows are arms, columns are measures, next to the figures printed in the paper.

A table is a pure function of a study's `Measurements`: each cell shows the value whose address combines those of its
row and column. The report stores both in one JSON file.
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

from recollect.evaluation.plots import save_figure
from recollect.evaluation.results import summarize
from recollect_papers.measurements import FigureAddress, Measurements
from recollect_papers.study import Scale, StudyOptions, StudyReport, StudyTable

Show = Literal["mean", "gain", "mean (gain)", "mean or gain", "relative", "number"]
"""``mean``: 67.6 ± 0.7; ``gain``: +7.3 ± 0.5, paired by seed; ``mean (gain)``: 67.6 ± 0.7 (+7.3); ``mean or gain``:
gain in rows with ``over``, else mean; ``relative``: mean relative change in percent; ``number``: `Column.pattern`."""

TablesAndNotes = tuple[Sequence[StudyTable], Sequence[str]]
"""Tables of a study, and notes on all of them."""

Measure = Callable[[StudyOptions], Measurements]
Form = Callable[[Measurements], TablesAndNotes]


@dataclass(frozen=True)
class Printed:
    """A table as printed in a paper: column titles, and cells (text) by row."""

    columns: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]

    def only(self, columns: Iterable[str]) -> "Printed":
        """Select columns."""
        wanted = set(columns)
        indices = [index for index, name in enumerate(self.columns) if name in wanted]
        rows = {name: tuple(cells[index] for index in indices) for name, cells in self.rows.items()}
        return Printed(tuple(self.columns[index] for index in indices), rows)


@lru_cache(maxsize=8)
def _paper(name: str) -> dict[str, Any]:
    return json.loads(files("recollect_papers").joinpath(name, "paper.json").read_text(encoding="utf-8"))


def printed(paper: str, table: str) -> Printed:
    """Return a table of ``<paper>/paper.json``."""
    found = _paper(paper)["tables"][table]
    return Printed(tuple(found["columns"]), {name: tuple(cells) for name, cells in found["rows"].items()})


def paper_quote(paper: str, place: str) -> str:
    """Return a paper's statement about a figure without printed numbers."""
    return str(_paper(paper)["words"][place])


@dataclass(frozen=True)
class Row:
    """One arm.

    Attributes:
        head: first cells of the row.
        at: the row's part of the address; None for rows with the paper's figures only.
        printed: name of the row in the paper's table.
        over: baseline of the row's gains; overrides that of the column.
        only: kinds of columns to fill (default: all).
        spread: whether to show standard deviations of gains.
    """

    head: tuple[str, ...]
    at: FigureAddress | None = field(default_factory=dict)
    printed: str | None = None
    over: FigureAddress | None = None
    only: tuple[Show, ...] = ()
    spread: bool = True


@dataclass(frozen=True)
class Column:
    """One measure.

    Attributes:
        at: the column's part of the address.
        over: address entries of the baseline that differ from the row's.
        pattern: format of a ``number``, after division by ``unit``.
    """

    title: str
    at: FigureAddress = field(default_factory=dict)
    show: Show = "mean"
    over: FigureAddress = field(default_factory=dict)
    pattern: str = "{:.1f}"
    unit: float = 1.0


@dataclass(frozen=True)
class TableForm:
    """Rows and columns of a table, without figures.

    Attributes:
        heads: titles of the rows' first cells.
        paper: the paper's table to show next to ours; cells of missing rows stay empty.
        missing: text of cells that were not measured; None raises an error instead.
    """

    title: str
    heads: tuple[str, ...]
    rows: Sequence[Row]
    columns: Sequence[Column]
    paper: Printed | None = None
    notes: tuple[str, ...] = ()
    missing: str | None = None

    def fill(self, found: Measurements) -> StudyTable:
        """Fill in measurements.

        Raises:
            ValueError: a figure is missing and ``missing`` is None.
        """
        titles = [*self.heads, *(column.title for column in self.columns)]
        titles += [f"paper: {title}" for title in self.paper.columns] if self.paper else []
        rows = []
        for row in self.rows:
            cells = (self._cell(row, column, found) for column in self.columns)
            rows.append((*row.head, *cells, *self._paper_cells(row)))
        return StudyTable(self.title, tuple(titles), tuple(rows), self.notes)

    def as_printed(self, title: str) -> StudyTable:
        """Return the paper's figures as a separate table with the same rows."""
        assert self.paper is not None
        rows = tuple((*row.head, *self._paper_cells(row)) for row in self.rows)
        return StudyTable(title, (*self.heads, *self.paper.columns), rows)

    def _paper_cells(self, row: Row) -> tuple[str, ...]:
        if self.paper is None:
            return ()
        return ("",) * len(self.paper.columns) if row.printed is None else self.paper.rows[row.printed]

    def _cell(self, row: Row, column: Column, found: Measurements) -> str:
        if row.at is None or (row.only and column.show not in row.only):
            return ""
        address = {**row.at, **column.at}
        base = {**address, **column.over, **(row.over or {})}
        relative = column.show == "relative"
        shown = _relative(found, address, base) if relative else _show(found, address, base, column, row)
        if shown is None and self.missing is None:
            raise ValueError(f"{self.title}: {' '.join(row.head)}, {column.title}: not measured ({address})")
        return self.missing or "" if shown is None else shown


def paper_rows(paper: Printed) -> list[Row]:
    """Return a printed table's rows, for tables whose rows have no counterpart in ours."""
    return [Row((f"paper: {name}",), at=None, printed=name) for name in paper.rows]


def _show(found: Measurements, address: FigureAddress, base: FigureAddress, column: Column, row: Row) -> str | None:
    """Return the text of a cell, or None if it was not measured."""
    own, differences, show = found.at(address), found.differences(address, base), column.show
    if not own:
        return None
    if show == "number":
        return column.pattern.format(float(np.mean(list(own.values()))) / column.unit)
    if show == "mean or gain":
        show = "mean" if row.over is None else "gain"
    mean = summarize(own.values())
    if show == "mean":
        return str(mean)
    if base == address:  # the baseline itself has no gain
        return str(mean) if show == "mean (gain)" else ""
    if not differences:
        return None
    gain = summarize(differences.values())
    if show == "gain":
        return gain.signed() if row.spread else f"{gain.mean:+.1f}"
    return f"{mean} ({gain.mean:+.1f})"


def _relative(found: Measurements, address: FigureAddress, base: FigureAddress) -> str | None:
    """Return the relative change of means over seeds, averaged over the values in the address."""
    if address == base:
        return ""
    spread = {key: value if isinstance(value, tuple) else (value,) for key, value in address.items()}
    changed, changes = {key: value for key, value in base.items() if value != address.get(key)}, []
    for values in itertools.product(*spread.values()):
        one = dict(zip(spread, values, strict=True))
        own, before = (list(found.at(each).values()) for each in (one, {**one, **changed}))
        if not own or not before:
            return None
        if np.mean(before) > 0:
            changes.append(100 * (np.mean(own) - np.mean(before)) / np.mean(before))
    return f"{np.mean(changes):+.1f} %" if changes else ""


def report(
    name: str, options: StudyOptions, worlds: Mapping[Scale, str], figure: Figure | None,
    tables: Sequence[StudyTable] = (), notes: Sequence[str] = (), found: Measurements | None = None,
) -> StudyReport:  # fmt: skip
    """Create the report of a study and save its figure, if any."""
    file = f"{name.replace('/', '-')}-{options.scale}.png"
    if figure is not None:
        save_figure(figure, options.out / file)
    figures, measured = (file,) if figure is not None else (), {} if found is None else found.as_json()
    return StudyReport(name, options.scale, worlds[options.scale], tuple(tables), figures, tuple(notes), measured)


@dataclass(frozen=True)
class TableStudy:
    """A study whose tables and figure are functions of its measurements.

    Attributes:
        name: e.g. ``lixp/table-4``.
        measure: runs missing trainings and evaluations and collects all measurements.
        form: forms tables, and notes on all of them.
        worlds: description of data and models for each scale.
        draw: draws the figure, if there is one.
    """

    name: str
    measure: Measure
    form: Form
    worlds: Mapping[Scale, str]
    draw: Callable[[Measurements], Figure] | None = None

    def __call__(self, options: StudyOptions) -> StudyReport:
        """Measure, draw and report."""
        found = self.measure(options)
        tables, notes = self.form(found)
        figure = None if self.draw is None else self.draw(found)
        return report(self.name, options, self.worlds, figure, tables, notes, found)
