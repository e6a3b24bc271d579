"""`recollect-papers`: reproduce tables and figures of the four papers."""

import sys
from collections.abc import Sequence

from recollect.cli import Command, run

COMMANDS = {
    "": Command("recollect_papers.run_study:RunStudy", "run a table or figure, e.g. lixp/table-4", "PAPER/ITEM"),
    "results": Command("recollect_papers.page:FillResults", "fill the tables of a Markdown page"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 2 for bad input, 130 if interrupted."""
    return run("recollect-papers", COMMANDS, list(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
