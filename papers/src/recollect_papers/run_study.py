"""``recollect-papers``: run a table or figure of a paper."""

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
    """Run a table or figure of a paper; without a name, list them.

    Training runs are kept under OUT/runs and are not repeated, so a study that was stopped goes on where it was and
    tables that share runs share the work.
    """

    name: Annotated[str | None, Arg(place="PAPER/ITEM")] = None
    """Which study, e.g. lixp/table-4."""
    kept: Path | None = None
    """The JSON file that a figure's study left: draw OUT/PAPER-ITEM.png from it, and run nothing."""

    def run(self) -> None:
        """Run the study and print its report."""
        from rich.table import Table

        from recollect.core.progress import output

        console = output()
        if self.name is None:
            listing = Table("study", "what it shows")
            for name, study in STUDIES.items():
                listing.add_row(name, study.title)
            console.print(listing)
            return
        for option, count in (("--seeds", self.seeds), ("--workers", self.workers)):
            check_number(option, 1 if count is None else count, least=1)
        study = find_study(self.name)
        check_writable(self.out, "--out")
        if self.kept is not None:
            self._warn_unused({each.name for each in fields(self)} - {"name", "out", "kept"}, "--kept runs nothing")
            console.print(f"figure: {self._draw(self.name, self.kept)}", highlight=False)
            return
        if self.scale != "full":
            own = ("data",) if study.pictures else ()
            self._warn_unused({"data", "suite", "entities", "search"}.difference(own), "needs --scale full")
        report = replace(study.load()(self), command=self._command())
        path = report.save(self.out)
        console.print(f"World: {report.world}", highlight=False)
        for table in report.tables:
            table.show(console)
        lines = [f"- {remark}" for remark in report.notes]
        lines += [f"figure: {self.out / figure}" for figure in report.figures]
        console.print("\n".join([*lines, f"report: {path}"]), highlight=False)

    def _draw(self, name: str, kept: Path) -> Path:
        """Draw a figure from what its study measured.

        Raises:
            UserError: the study is not a figure of numbers; the file belongs to another study, or lacks the points.
        """
        from recollect.evaluation.plots import save_figure
        from recollect_papers.engine import TableStudy
        from recollect_papers.measurements import Measurements

        study, report = find_study(name).load(), read_json(kept)
        if not isinstance(study, TableStudy) or study.draw is None:
            raise UserError(f"{name}: --kept draws figures of numbers, and this is none. Leave out --kept to run it.")
        if not isinstance(report, dict) or report.get("name") != name:
            raise UserError(f"{kept}: no report of {name}. Take the JSON file that `recollect-papers {name}` left.")
        with user_errors(
            f"{kept}: does not hold all points of the figure; run the study once more", KeyError, ValueError
        ):
            figure = study.draw(Measurements.from_json(report["measured"]))
        path = self.out / f"{name.replace('/', '-')}.png"
        save_figure(figure, path)
        return path

    def _warn_unused(self, options: Collection[str], why: str) -> None:
        """Warn about options that differ from their default although they have no effect here."""
        for each in fields(self):
            if each.name in options and getattr(self, each.name) != getattr(RunStudy(), each.name):
                warn(f"--{each.name} has no effect: {why}")

    def _command(self) -> str:
        """The command that makes the same report elsewhere: files by name, and not where results go."""
        other = replace(self, name=None, out=RunStudy.out, workers=None, scale=RunStudy.scale)
        words = ["recollect-papers", str(self.name), "--scale", self.scale]
        return shlex.join([*words, *_changed(other, RunStudy(), "--")])


def _changed(value: Any, usual: Any, prefix: str) -> Iterator[str]:
    """Every option that differs from its default, as words."""
    for each in fields(value):
        own, default, option = getattr(value, each.name), getattr(usual, each.name), each.name.replace("_", "-")
        if own == default:
            continue
        if is_dataclass(own) and is_dataclass(default):
            yield from _changed(own, default, f"{prefix}{option}.")
        elif isinstance(own, bool):
            yield f"{prefix}{option}" if own else f"{prefix}no-{option}"
        else:
            yield f"{prefix}{option}"
            yield from (public_place(str(word)) for word in (own if isinstance(own, tuple) else (own,)))
