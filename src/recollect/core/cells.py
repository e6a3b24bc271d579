"""CSV files as spreadsheets write them."""

import csv
from pathlib import Path

from recollect.core.errors import UserError
from recollect.core.words import counted


def separator_of(file: Path) -> str:
    """What separates the cells of a CSV or TSV.

    Spreadsheets of many countries write semicolons into a CSV. A header without a comma tells.

    Raises:
        UserError: the header is not UTF-8.
    """
    if file.suffix.lower() == ".tsv":
        return "\t"
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            header = lines.readline()
    except UnicodeDecodeError:
        raise UserError(not_utf8(file)) from None
    return "," if "," in header else max(",;\t|", key=header.count)


def read_cells(file: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The columns of a CSV that a person wrote, in lower case, and its rows.

    Raises:
        UserError: no such file, or it is not a CSV in UTF-8.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, delimiter=separator_of(file))
            reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
            return list(reader.fieldnames), list(reader)
    except FileNotFoundError:
        raise UserError(f"{file}: no such file") from None
    except UnicodeDecodeError:
        raise UserError(not_utf8(file)) from None
    except csv.Error as error:
        raise UserError(f"{file}: not a CSV ({error})") from None


def check_cells(file: Path, separator: str) -> bool:
    """Compare the first row of a CSV with its header.

    Returns:
        Whether there is a row.

    Raises:
        UserError: the row has more cells than the header, or is not UTF-8.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            rows = (row for row in csv.reader(lines, delimiter=separator) if row)
            header, first = next(rows, []), next(rows, None)
    except UnicodeDecodeError:
        raise UserError(not_utf8(file)) from None
    except csv.Error:
        return True  # such as a cell above the size that this module reads; the reader of the table has no limit
    if any((first or [])[len(header) :]):
        raise UserError(
            f"{file}: the first row has {counted(len(first or []), 'cell')}, the header {len(header)}. Put double "
            f"quotes around texts that contain {separator!r}."
        )
    return first is not None


def not_utf8(file: Path) -> str:
    """The message for a text of another encoding."""
    return f'{file}: not in UTF-8. Save it as UTF-8 (in a spreadsheet: as "CSV UTF-8").'
