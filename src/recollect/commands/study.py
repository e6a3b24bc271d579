"""``recollect study``: run a table or figure of a paper."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from recollect.core.progress import output
from recollect.studies import STUDIES, find_study
from recollect.studies.study import Scale, SearchSettings, StudyOptions


@dataclass(frozen=True)
class RunStudy:
    """Run a table or figure of a paper; without a name, list them.

    Training runs are kept under OUT/runs and are not repeated, so a study that was stopped goes on where it was and
    tables that share runs share the work.
    """

    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[PAPER/ITEM]")] = None
    """Which study, e.g. lixp/table-4."""
    scale: Scale = "smoke"
    """smoke: minutes, shows that it runs; small: several seeds where an effect can be seen; full: the paper's."""
    out: Path = Path("runs/studies")
    """Folder for runs, results and reports."""
    data: tuple[str, ...] = ()
    """Training sources, for --scale full."""
    suite: str | None = None
    """Evaluation suite, for --scale full; the paper's own by default."""
    seeds: int | None = None
    """Number of training seeds; the scale's own by default."""
    workers: int | None = None
    """Training runs side by side; one for each core on a CPU by default."""
    search: SearchSettings = field(default_factory=SearchSettings)

    def run(self) -> None:
        """Run the study and print its report."""
        console = output()
        if self.name is None:
            listing = Table("study", "what it shows")
            for name, study in STUDIES.items():
                listing.add_row(name, study.title)
            console.print(listing)
            return
        options = StudyOptions(self.scale, self.out, self.data, self.suite, self.seeds, self.workers, self.search)
        report = find_study(self.name).load()(options)
        path = report.save(self.out)
        console.print(f"World: {report.world}", highlight=False)
        for table in report.tables:
            table.show(console)
        for note in report.notes:
            console.print(f"- {note}", highlight=False)
        for figure in report.figures:
            console.print(f"figure: {self.out / figure}", highlight=False)
        console.print(f"report: {path}", highlight=False)
