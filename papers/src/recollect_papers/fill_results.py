"""``recollect-papers results``: fill a page's tables and figures from result files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from recollect.cli.parser import Arg
from recollect.core.errors import UserError


@dataclass(frozen=True)
class FillResults:
    """Fill the marked places of a Markdown page from result files, so that no figure is written by hand.

    `<!-- table FILE "TITLE" [only="COLUMNS"] [without="COLUMNS"] -->` takes a table of a report of `recollect-papers`,
    `<!-- cell FILE "TITLE" "ROW" "COLUMN" -->` one figure, `<!-- words FILE "BEFORE" -->` what a remark says after
    some words, `<!-- value FILE "KEY > KEY" "FORMAT" [over="KEY > KEY"] [times="NUMBER"] -->` a number of any JSON
    file, divided by another of it where asked; each ends with `<!-- end -->`. COLUMNS are regular expressions, FORMAT
    is Python's, such as .1f.
    """

    page: Annotated[Path, Arg(place="PAGE")]
    """The page, e.g. docs/results.md."""
    results: Path = Path("results")
    """Folder of the result files, which the marks name relative to it."""
    check: bool = False
    """Change nothing; say whether the page is what the files give (exit status 2 where it is not)."""

    def run(self) -> None:
        """Fill or check."""
        from recollect.core.progress import output
        from recollect_papers.page import fill_page, write_page

        console = output()
        if not self.check:
            changed = write_page(self.page, self.results)
            console.print(
                f"{self.page}: {'filled in again' if changed else 'already agrees with the files'}", highlight=False
            )
            return
        if not self.page.is_file():
            raise UserError(f"{self.page}: no such page")
        text = self.page.read_text(encoding="utf-8")
        for number, (line, made) in enumerate(
            zip(text.split("\n"), fill_page(text, self.results).split("\n"), strict=False), 1
        ):
            if line != made:
                raise UserError(f"{self.page}, line {number}: not what the files give: {line!r} should be {made!r}")
        console.print(f"{self.page}: is what the files give", highlight=False)
