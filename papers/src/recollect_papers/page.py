"""``recollect-papers results``: fill tables and figures in a Markdown page from result files.

<!-- table lixp/table-4.json "4b" without="paper: .*" -->
<!-- end -->
gains <!-- cell lixp/table-4.json "4b" "alpha = 0.8" "gain" -->+11.4 ± 0.5<!-- end -->
in <!-- value bench/memory-1m.json "figures > index > exact, one (ms per query)" ".0f" -->53<!-- end --> ms
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any

from recollect.cli.parser import Arg
from recollect.core.errors import UserError
from recollect.core.files import read_json, write_text
from recollect_papers.study import StudyReport, StudyTable

_MARK = re.compile(r"<!-- (table|cell|words|value) ([^\n]*?) -->(.*?)<!-- end -->", re.DOTALL)


@dataclass(frozen=True)
class FillResults:
    """Fill marked places in a Markdown page from result files.

    `<!-- table FILE "TITLE" [only="COLUMNS"] [without="COLUMNS"] -->` inserts a table from a report of
    `recollect-papers` or a benchmark, `<!-- cell FILE "TITLE" "ROW" "COLUMN" -->` one cell,
    `<!-- words FILE "BEFORE" -->` the text after BEFORE in a note, up to a semicolon, and
    `<!-- value FILE "KEY > KEY" "FORMAT" [over="KEY > KEY"] [times="NUMBER"] -->` a number of a JSON file, optionally
    divided by a second one and multiplied. Each mark ends with `<!-- end -->`. TITLE is part of the table's title,
    COLUMNS are regular expressions, and FORMAT is a Python format such as .1f.
    """

    page: Annotated[Path, Arg(place="PAGE")]
    """Markdown page, e.g. docs/results.md."""
    results: Path = Path("results")
    """Folder of the result files; FILE is relative to it."""
    check: bool = False
    """Change nothing; exit with status 2 if the page is out of date."""

    def run(self) -> None:
        """Fill or check the page."""
        from recollect.core.progress import output

        if not self.page.is_file():
            raise UserError(f"{self.page}: no such page")
        text = self.page.read_text(encoding="utf-8")
        filled = fill_page(text, self.results)
        if self.check:
            lines = zip(text.split("\n"), filled.split("\n"), strict=False)
            for number, (line, expected) in enumerate(lines, 1):
                if line != expected:
                    raise UserError(f"{self.page}, line {number}: out of date: {line!r} should be {expected!r}")
        elif filled != text:
            write_text(self.page, filled)
        output().print(f"{self.page}: {'updated' if filled != text else 'up to date'}", highlight=False)


def fill_page(text: str, folder: Path) -> str:
    """Return the page with the text between its marks regenerated from the files in ``folder``.

    Raises:
        UserError: a malformed mark, or a missing file, table, row or column.
    """
    read = lru_cache(None)(partial(read_results, folder))

    def filled(mark: re.Match[str]) -> str:
        kind, words = mark[1], shlex.split(mark[2])
        if len(words) < {"table": 2, "cell": 4, "words": 2, "value": 3}[kind]:
            raise UserError(f"<!-- {kind} {mark[2]} -->: too few words; see `recollect-papers results --help`.")
        inside = _value(words, folder) if kind == "value" else _MAKERS[kind](read(words[0]), words, folder)
        return f"<!-- {kind} {mark[2]} -->{inside}<!-- end -->"

    if unmatched := abs(len(re.findall(r"<!-- (?:table|cell|words|value) ", text)) - text.count("<!-- end -->")):
        raise UserError(f"{unmatched} unmatched mark{'s' if unmatched > 1 else ''}: every mark needs one <!-- end -->.")
    return _MARK.sub(filled, text)


def read_results(folder: Path, name: str) -> StudyReport:
    """Read the report in one file.

    Raises:
        UserError: the file is missing, or not a report.
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
        raise UserError(f"{file}: {len(found)} tables with '{title}' in the title; titles: {titles}")
    return found[0]


def _table(results: StudyReport, words: Sequence[str], folder: Path) -> str:
    """Return a table with its notes, file and command; ``only=`` and ``without=`` select columns."""
    table = _find(results, words[0], words[1])
    chosen = dict(word.split("=", 1) for word in words[2:])
    indices = [
        index
        for index, column in enumerate(table.columns)
        if (index == 0 or re.fullmatch(chosen.get("only", ".*"), column))
        and not re.fullmatch(chosen.get("without", "(?!)"), column)
    ]
    columns, *rows = (tuple(row[index] for index in indices) for row in (table.columns, *table.rows))
    lines = StudyTable(table.title, columns, tuple(rows)).lines()
    notes = "".join(f"\n\n{note}" for note in table.notes if note != "paper: as printed there")
    source = f"\n\n`{folder.name}/{words[0]}`: `{results.command}`"
    return "\n\n" + "\n".join(lines) + notes + source + "\n\n"


def _cell(results: StudyReport, words: Sequence[str], folder: Path) -> str:
    """Return one cell by column and row, where a row is its first cell or its first 2 to 4 joined by " / "."""
    file, title, name, column = words[:4]
    table = _find(results, file, title)
    rows = [row for row in table.rows if name in (row[0], *(" / ".join(row[:size]) for size in range(2, 5)))]
    if len(rows) != 1 or column not in table.columns:
        raise UserError(f"{file}, {table.title}: no cell, or several, in row '{name}', column '{column}'")
    return rows[0][table.columns.index(column)]


def _words(results: StudyReport, words: Sequence[str], folder: Path) -> str:
    """Return the rest of a note after the given words, up to a semicolon or its end."""
    notes = [results.world, *results.notes, *(note for table in results.tables for note in table.notes)]
    found = [text.split(words[1], 1)[1].split(";")[0].strip() for text in notes if words[1] in text]
    if len(found) != 1:
        raise UserError(f"{words[0]}: {len(found)} notes with '{words[1]}'")
    return found[0]


def _value(words: Sequence[str], folder: Path) -> str:
    """Return one number of a JSON file by its path of keys; ``over=`` divides, ``times=`` multiplies."""
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
            known = ", ".join(value) if isinstance(value, dict) else "not an object"
            raise UserError(f"{file}: no '{key}' of '{path}' ({known})")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{file}: '{path}' is not a number")
    return float(value)


_MAKERS: Mapping[str, Callable[[StudyReport, Sequence[str], Path], str]] = {
    "table": _table,
    "cell": _cell,
    "words": _words,
}
