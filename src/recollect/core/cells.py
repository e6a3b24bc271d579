"""CSV files that spreadsheets write and read."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, TextIO

from recollect.core.errors import UserError, user_errors
from recollect.core.words import counted

_CODE = re.compile(r"\s*0\d+\s*")
_ROWS_WITH_CODES = 10_000
"""Number of rows searched for codes; type inference reads as many rows at a time."""


def separator_of(file: Path) -> str:
    """Return the cell separator of a CSV or TSV, detected from the header.

    In many locales, spreadsheets write semicolons. A comma in the header always wins.

    Raises:
        UserError: the file is missing, or the header is not UTF-8.
    """
    if file.suffix.lower() == ".tsv":
        return "\t"
    with _opened(file) as lines:
        header = lines.readline()
    return "," if "," in header else max(",;\t|", key=header.count)


def read_cells(file: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return the column names (lower case) and the rows of a handwritten CSV, or one by `write_cells`.

    Raises:
        UserError: the file is missing, is not a CSV in UTF-8, or a row has more cells than the header.
    """
    separator = separator_of(file)
    with user_errors(f"{file}: not a CSV", csv.Error), _opened(file) as lines:
        reader = csv.reader(lines, delimiter=separator)
        names = [name.strip().lower() for name in next(reader, [])]
        rows = []
        for cells in filter(None, reader):
            _refuse_more_cells(file, f"line {reader.line_num}", cells, names, separator)
            cells = [cell[1:] if cell[:1] == "'" and _is_formula(cell[1:]) else cell for cell in cells]
            rows.append(dict(zip_longest(names, cells[: len(names)], fillvalue="")))
        return names, rows


def check_cells(file: Path, separator: str) -> tuple[bool, set[str]]:
    """Check the first row of a CSV against its header.

    Returns:
        Whether the file has any row; and the columns with codes such as 007, which are no numbers.

    Raises:
        UserError: the row has more cells than the header, or is not UTF-8.
    """
    codes = set[str]()
    try:
        with _opened(file) as lines:
            rows = (row for row in csv.reader(lines, delimiter=separator) if row)
            header, first = next(rows, []), next(rows, [])
            _refuse_more_cells(file, "the first row", first, header, separator)
            for row in chain([first], islice(rows, _ROWS_WITH_CODES)):
                codes |= {name for name, cell in zip(header, row, strict=False) if _CODE.fullmatch(cell)}
    except csv.Error:
        return True, codes  # for example a cell above csv's size limit; the table reader has no limit
    return bool(first), codes


def _refuse_more_cells(file: Path, which: str, cells: Sequence[str], header: Sequence[str], separator: str) -> None:
    if any(cells[len(header) :]):
        raise UserError(
            f"{file}: {which} has {counted(len(cells), 'cell')}, but the header has {len(header)}. Put double quotes "
            f"around texts that contain {separator!r}."
        )


@contextmanager
def _opened(file: Path) -> Iterator[TextIO]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            yield lines
    except FileNotFoundError:
        raise UserError(f"{file}: no such file") from None
    except UnicodeDecodeError:
        raise UserError(not_utf8(file)) from None


def write_cells(file: io.TextIOBase, columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a CSV; texts that a spreadsheet would read as formulas get an apostrophe, which `read_cells` removes."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([f"'{value}" if _is_formula(value) else value for value in row] for row in rows)


def _is_formula(value: Any) -> bool:
    """Whether a cell starts like a formula, possibly after apostrophes."""
    return isinstance(value, str) and value.lstrip("'")[:1] in ("=", "+", "-", "@", "\t", "\r")


def not_utf8(file: Path) -> str:
    """Return the error message for a file in another encoding."""
    return f'{file}: not in UTF-8. Save it as UTF-8 (in a spreadsheet: as "CSV UTF-8").'
