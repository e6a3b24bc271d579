"""``recollect-papers demo``: the main job on the built-in data."""

import time
from dataclasses import dataclass
from pathlib import Path

from recollect.core.paths import check_writable
from recollect_papers.demo import DemoScale


@dataclass(frozen=True)
class Demo:
    """What four papers' methods do, on the built-in data: train, compare, and write one page.

    OUT/report.html is the page, OUT/results.json every figure in it. Runs in OUT/runs are kept and not made again.
    """

    out: Path = Path("demo")
    """Folder for runs, page and figures."""
    scale: DemoScale = "default"
    """default: about six minutes on two free cores; smoke: a minute, to see that all works."""
    workers: int | None = None
    """Trainings side by side; one for each core on a CPU by default."""

    def run(self) -> None:
        """Make the page."""
        from recollect.core.progress import output
        from recollect_papers.demo.report import demo

        check_writable(self.out, "--out")
        start = time.monotonic()
        page = demo(self.out, self.scale, self.workers)
        output().print(
            f"{page} and {self.out / 'results.json'}, after {time.monotonic() - start:.0f} s", highlight=False
        )
