"""``recollect evaluate several``: mean average precision of pictures that show several classes."""

from dataclasses import dataclass, field
from pathlib import Path

import tyro
from rich.table import Table

from recollect.cli.evaluate import DataOptions, ModelOptions
from recollect.cli.memory_reading import with_memory
from recollect.cli.unread import refuse_unread
from recollect.core.errors import UserError
from recollect.core.files import read_lines
from recollect.core.progress import output
from recollect.data.sources.opening import split_of
from recollect.evaluation.several import several_labels
from recollect.evaluation.tasks.several import several_labels_task


@dataclass(frozen=True)
class Several:
    """Pictures that show several classes (VOC2007): mean average precision by class names, and by a linear probe.

    The label column holds a list for each picture: class numbers, names, or one 0 or 1 for each class.
    """

    model: tyro.conf.OmitArgPrefixes[ModelOptions]
    data: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)
    probe: bool = True
    """Learn one logistic regression for each class from the support split, too."""
    class_names: Path | None = None
    """A text file of class names, one a line, in the order of their numbers, where the data has none."""

    def run(self) -> None:
        """Evaluate, print and write."""
        self.data.refuse("several", "suite", "copies", "within", "definitions")
        if not self.probe:
            refuse_unread(self.data, "support", why="is of the probe, which --no-probe leaves out.")
        self.model.check("several-labels")
        console = output()
        if not self.data.data:
            raise UserError("no data was named. Name it with --data SOURCE ...")
        names = tuple(read_lines(self.class_names, "class names")) if self.class_names else ()
        tasks = [
            several_labels_task(
                spec,
                support=self.data.support if self.probe else None,
                query=self.data.query or split_of(spec) or "test",
                templates=self.data.read_templates(),
                columns=self.data.columns,
                names=names,
            )
            for spec in self.data.data
        ]
        results = []
        for name, encoder, cache, task in self.model.each_on((task, task.query) for task in tasks):
            options = {"model": name, "seed": self.model.seed, "prefix": self.model.prefix_for(encoder), "cache": cache}
            results.append(with_memory(several_labels(encoder, task, **options), encoder))  # type: ignore[arg-type]
        table = Table("model", "data", "classes", "images", "method", "mean average precision", "11 points")
        for result in results:
            counts = (str(result.settings["classes"]), str(result.settings["queries"]))
            for method in dict.fromkeys(row["method"] for row in result.rows):
                values = (f"{row['value']:.1f}" for row in result.rows if row["method"] == method)
                table.add_row(result.model, result.data, *counts, method, *values)
        console.print(table)
        self.model.save(results, console)
