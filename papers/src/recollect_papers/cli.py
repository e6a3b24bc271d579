"""`recollect-papers`: run tables and figures of the four papers, or the demo on generated data."""

import sys
import traceback
from collections.abc import Sequence
from typing import Any

from recollect.core.errors import UserError

USAGE = """\
usage: recollect-papers PAPER/ITEM [options]      run a table or figure, e.g. lixp/table-4
       recollect-papers                           list all tables and figures
       recollect-papers demo [options]            the main results on generated data: a report in one file
       recollect-papers results PAGE [options]    fill the tables of a Markdown page from result files

Add --help after any of these to list its options; --debug shows the traceback of an error.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, 2 for bad input, 130 when interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if words[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    try:
        parse(words).run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (UserError, OSError) as error:
        if debug:
            traceback.print_exc()
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def parse(words: list[str]) -> Any:
    """The chosen command with its options."""
    import tyro

    from recollect_papers.demo.command import Demo
    from recollect_papers.fill_results import FillResults
    from recollect_papers.run_study import RunStudy

    named = {"demo": Demo, "results": FillResults}
    if words and words[0] in named:
        return tyro.cli(named[words[0]], args=words[1:], prog=f"recollect-papers {words[0]}")
    return tyro.cli(RunStudy, args=words, prog="recollect-papers")


if __name__ == "__main__":
    sys.exit(main())
