"""``recollect-papers results``: fill the tables and figures of a Markdown page from result files.

<!-- table lixp/table-4.json "4b" without="paper: .*" -->
<!-- end -->
gains <!-- cell lixp/table-4.json "4b" "alpha = 0.8" "gain" -->+11.4 ± 0.5<!-- end -->
in <!-- value bench/memory-1m.json "figures > index > exact, one (ms a query)" ".0f" -->53<!-- end --> ms
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from recollect.cli.parser import Arg
from recollect.core.errors import UserError
from recollect.core.files import read_json, write_text
from recollect_papers.study import StudyReport, StudyTable

_MARK = re.compile(r"<!-- (table|cell|words|value) ([^\n]*?) -->(.*?)<!-- end -->", re.DOTALL)


@dataclass(frozen=True)
class FillResults:
    """Fill the marked places of a Markdown page from result files, so that no figure is written by hand.

    `<!-- table FILE "TITLE" [only="COLUMNS"] [without="COLUMNS"] -->` takes a table of a report of `recollect-papers`
    or of a benchmark, `<!-- cell FILE "TITLE" "ROW" "COLUMN" -->` one figure, `<!-- words FILE "BEFORE" -->` the rest
    of a remark after some words, `<!-- value FILE "KEY > KEY" "FORMAT" [over="KEY > KEY"] [times="NUMBER"] -->` a
    number of any JSON file, divided by another; each ends with `<!-- end -->`. TITLE is a part of the table's title,
    COLUMNS are regular expressions, FORMAT is Python's, such as .1f.
    """

    page: Annotated[Path, Arg(place="PAGE")]
    """The page, e.g. docs/results.md."""
    results: Path = Path("results")
    """Folder of the result files, which the marks name relative to it."""
    check: bool = False
    """Change nothing; exit with status 2 if the page differs from the files."""

    def run(self) -> None:
        """Fill or check."""
        from recollect.core.progress import output

        if not self.page.is_file():
            raise UserError(f"{self.page}: no such page")
        text = self.page.read_text(encoding="utf-8")
        filled = fill_page(text, self.results)
        if self.check:
            lines = zip(text.split("\n"), filled.split("\n"), strict=False)
            for number, (line, made) in enumerate(lines, 1):
                if line != made:
                    raise UserError(f"{self.page}, line {number}: differs from the files: {line!r} should be {made!r}")
        elif filled != text:
            write_text(self.page, filled)
        output().print(f"{self.page}: {'filled in' if filled != text else 'agrees with the files'}", highlight=False)


def fill_page(text: str, folder: Path) -> str:
    """The page with everything between its marks made from the files in ``folder``.

    Raises:
        UserError: a mark that cannot be read, or names a file, table, row or column that is not there.
    """
    kept: dict[str, StudyReport] = {}

    def made(mark: re.Match[str]) -> str:
        kind, words = mark[1], shlex.split(mark[2])
        if len(words) < {"table": 2, "cell": 4, "words": 2, "value": 3}[kind]:
            raise UserError(f"<!-- {kind} {mark[2]} -->: too few words; see `recollect-papers results --help`.")
        if kind == "value":
            inside = _value(words, folder)
        else:
            if words[0] not in kept:
                kept[words[0]] = read_results(folder, words[0])
            inside = _MAKERS[kind](kept[words[0]], words, folder)
        return f"<!-- {kind} {mark[2]} -->{inside}<!-- end -->"

    if opened := len(re.findall(r"<!-- (?:table|cell|words|value) ", text)) - text.count("<!-- end -->"):
        raise UserError(f"{abs(opened)} mark{'s' if abs(opened) > 1 else ''} without <!-- end -->, or the other way.")
    return _MARK.sub(made, text)


def read_results(folder: Path, name: str) -> StudyReport:
    """The tables of one file.

    Raises:
        UserError: it is not there, or of no known form.
    """
    value = read_json(folder / name)
    if not isinstance(value, dict) or "tables" not in value:
        raise UserError(f"{folder / name}: not a report of a study")
    tables = [
        StudyTable(each["title"], tuple(each["columns"]), tuple(map(tuple, each["rows"])), tuple(each.get("notes", ())))
        for each in value["tables"]
    ]
    command = value.get("command") or f"recollect-papers {value['name']} --scale {value['scale']}"
    notes, name = value.get("notes", ()), value.get("name", "")
    return StudyReport(name, "small", value.get("world", ""), tables, notes=notes, command=command)


def _find(results: StudyReport, file: str, title: str) -> StudyTable:
    found = [table for table in results.tables if title in table.title]
    if len(found) != 1:
        titles = "; ".join(table.title for table in results.tables)
        raise UserError(f"{file}: {len(found)} tables with '{title}' in the title, of: {titles}")
    return found[0]


def _table(results: StudyReport, words: Sequence[str], folder: Path) -> str:
    """A table with its notes, its file and its command; ``only=`` and ``without=`` choose columns."""
    table = _find(results, words[0], words[1])
    chosen = dict(word.split("=", 1) for word in words[2:])
    places = [
        place
        for place, column in enumerate(table.columns)
        if (place == 0 or re.fullmatch(chosen.get("only", ".*"), column))
        and not re.fullmatch(chosen.get("without", "(?!)"), column)
    ]
    columns, *rows = (tuple(row[place] for place in places) for row in (table.columns, *table.rows))
    lines = StudyTable(table.title, columns, tuple(rows)).lines()
    notes = "".join(f"\n\n{note}" for note in table.notes if note != "paper: as printed there")
    source = f"\n\n`{folder.name}/{words[0]}`: `{results.command}`"
    return "\n\n" + "\n".join(lines) + notes + source + "\n\n"


def _cell(results: StudyReport, words: Sequence[str], folder: Path) -> str:
    """One cell, by its row's first cells (joined by " / " where one is not enough) and its column."""
    file, title, name, column = words[:4]
    table = _find(results, file, title)
    rows = [row for row in table.rows if name in (row[0], *(" / ".join(row[:size]) for size in range(2, 5)))]
    if len(rows) != 1 or column not in table.columns:
        raise UserError(f"{file}, {table.title}: no one cell of row '{name}' and column '{column}'")
    return rows[0][table.columns.index(column)]


def _words(results: StudyReport, words: Sequence[str], folder: Path) -> str:
    """The rest of a remark after the given words, up to a semicolon or the end of its line."""
    remarks = [results.world, *results.notes, *(note for table in results.tables for note in table.notes)]
    found = [text.split(words[1], 1)[1].split(";")[0].strip() for text in remarks if words[1] in text]
    if len(found) != 1:
        raise UserError(f"{words[0]}: {len(found)} remarks with '{words[1]}'")
    return found[0]


def _value(words: Sequence[str], folder: Path) -> str:
    """One number of a JSON file by the keys that lead to it; ``over=`` divides by another, ``times=`` multiplies."""
    value, chosen = read_json(folder / words[0]), dict(word.split("=", 1) for word in words[3:])
    number = _number(value, words[0], words[1]) * float(chosen.get("times", 1))
    if "over" in chosen:
        number /= _number(value, words[0], chosen["over"])
    try:
        return format(number, words[2])
    except ValueError as error:
        raise UserError(f"{words[0]}, {words[1]}: '{words[2]}' is not a number format such as .1f") from error


def _number(value: Any, file: str, path: str) -> float:
    for key in path.split(" > "):
        if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, dict) and key in value:
            value = value[key]
        else:
            there = ", ".join(value) if isinstance(value, dict) else "no such place"
            raise UserError(f"{file}: no '{key}' of '{path}' ({there})")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{file}: '{path}' is not a number")
    return float(value)


_MAKERS: Mapping[str, Callable[[StudyReport, Sequence[str], Path], str]] = {
    "table": _table,
    "cell": _cell,
    "words": _words,
}
