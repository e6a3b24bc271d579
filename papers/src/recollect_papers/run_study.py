"""``recollect-papers``: reproduce a table or figure of a paper."""

import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from recollect.cli.parser import Arg, warn
from recollect.core.errors import UserError, user_errors
from recollect.core.files import read_json
from recollect.core.paths import check_writable
from recollect.core.places import public_place
from recollect.core.validation import check_number
from recollect_papers.studies import STUDIES, find_study
from recollect_papers.study import StudyOptions


@dataclass(frozen=True)
class RunStudy(StudyOptions):
    """Run a study (a table or figure of a paper), or list all studies if no name is given.

    Training runs are stored under OUT/runs and reused, so an interrupted study resumes where it stopped and studies
    share common runs.
    """

    name: Annotated[str | None, Arg(place="PAPER/ITEM")] = None
    """Name of the study, e.g. lixp/table-4."""
    kept: Path | None = None
    """JSON report of a figure's study: draw OUT/PAPER-ITEM.png from it without running anything."""

    def run(self) -> None:
        """Run the study and print its report."""
        from rich.table import Table

        from recollect.core.progress import output

        console = output()
        if self.name is None:
            listing = Table("study", "content")
            for name, study in STUDIES.items():
                listing.add_row(name, study.title)
            console.print(listing)
            return
        for option, count in (("--seeds", self.seeds), ("--workers", self.workers)):
            check_number(option, 1 if count is None else count, least=1)
        study = find_study(self.name)
        check_writable(self.out, "--out")
        if self.kept is not None:
            unused = {each.name for each in fields(self)} - {"name", "out", "kept"}
            self._warn_unused(unused, "--kept only draws the figure")
            console.print(f"figure: {self._draw(self.name, self.kept)}", highlight=False)
            return
        if self.scale != "full":
            used = {"data"} if study.pictures else set[str]()
            self._warn_unused({"data", "suite", "entities", "search"} - used, "needs --scale full")
        report = replace(study.load()(self), command=self._command())
        path = report.save(self.out)
        console.print(f"World: {report.world}", highlight=False)
        for table in report.tables:
            table.show(console)
        lines = [f"- {remark}" for remark in report.notes]
        lines += [f"figure: {self.out / figure}" for figure in report.figures]
        console.print("\n".join([*lines, f"report: {path}"]), highlight=False)

    def _draw(self, name: str, file: Path) -> Path:
        """Draw a figure from the measurements in a report.

        Raises:
            UserError: the study draws no figure from measurements, or the report is of another study or incomplete.
        """
        from recollect.evaluation.plots import save_figure
        from recollect_papers.engine import TableStudy
        from recollect_papers.measurements import Measurements

        study, report = find_study(name).load(), read_json(file)
        if not isinstance(study, TableStudy) or study.draw is None:
            raise UserError(f"{name}: no figure to draw from a report. Run the study without --kept.")
        if not isinstance(report, dict) or report.get("name") != name:
            raise UserError(f"{file}: not a report of {name}. Pass the JSON file that `recollect-papers {name}` wrote.")
        with user_errors(f"{file}: some points of the figure are missing; run the study again", KeyError, ValueError):
            figure = study.draw(Measurements.from_json(report["measured"]))
        path = self.out / f"{name.replace('/', '-')}.png"
        save_figure(figure, path)
        return path

    def _warn_unused(self, options: Collection[str], why: str) -> None:
        """Warn about given options that have no effect."""
        for each in fields(self):
            if each.name in options and getattr(self, each.name) != getattr(RunStudy(), each.name):
                warn(f"--{each.name} has no effect: {why}")

    def _command(self) -> str:
        """Return the command that reproduces the report on another machine: no folders, no output options."""
        portable = replace(self, name=None, out=RunStudy.out, workers=None, scale=RunStudy.scale)
        words = ["recollect-papers", str(self.name), "--scale", self.scale]
        return shlex.join([*words, *_changed(portable, RunStudy(), "--")])


def _changed(options: Any, defaults: Any, prefix: str) -> Iterator[str]:
    """Yield the command-line words of every option that differs from its default."""
    for each in fields(options):
        value, default, option = getattr(options, each.name), getattr(defaults, each.name), each.name.replace("_", "-")
        if value == default:
            continue
        if is_dataclass(value) and is_dataclass(default):
            yield from _changed(value, default, f"{prefix}{option}.")
        elif isinstance(value, bool):
            yield f"{prefix}{option}" if value else f"{prefix}no-{option}"
        else:
            yield f"{prefix}{option}"
            yield from (public_place(str(word)) for word in (value if isinstance(value, tuple) else (value,)))
