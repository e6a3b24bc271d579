"""``recollect evaluate retrieval``: recall at 1, 5, 10 both ways."""

from dataclasses import dataclass
from typing import Literal

import tyro
from rich.table import Table

from recollect.commands.evaluate import ModelOptions
from recollect.core.errors import UserError
from recollect.core.progress import output
from recollect.data.columns import Columns
from recollect.data.tasks import RetrievalTask, retrieval_task
from recollect.evaluation.results import Result
from recollect.evaluation.retrieval import DIRECTIONS, retrieval


@dataclass(frozen=True)
class Retrieval:
    """Search captioned images both ways: recall at 1, 5 and 10, with every true match counted.

    Intervals (95 %) are by bootstrap over queries and are in the JSON.
    """

    model: tyro.conf.OmitArgPrefixes[ModelOptions]
    data: tuple[str, ...] = ()
    """Sources with captions."""
    pool: Literal["single", "merged"] = "single"
    """Search every source by itself, or all as one pool of several domains."""
    split: str = "test"
    """Split of each source."""
    caption_column: str | None = None
    """Where its name is unusual."""
    image_column: str | None = None
    """Where its name is unusual."""

    def run(self) -> None:
        """Evaluate, print and write."""
        console = output()
        tasks = self._tasks()
        results = [
            retrieval(encoder, task, model=name, seed=self.model.seed, prefix=self.model.prefix, cache=cache)
            for name, encoder, cache in self.model.each()
            for task in tasks
        ]
        for result in results:
            console.print(f"\n{result.model} on {result.data}", highlight=False, soft_wrap=True)
            console.print(_table(result))
        self.model.save(results, console)

    def _tasks(self) -> list[RetrievalTask]:
        if not self.data:
            raise UserError("no data was named. Name it with --data SOURCE ...")
        columns = Columns(image=self.image_column, caption=self.caption_column)
        pools = [list(self.data)] if self.pool == "merged" else [[spec] for spec in self.data]
        return [retrieval_task(specs, split=self.split, columns=columns) for specs in pools]


def _table(result: Result) -> Table:
    depths = sorted({row["k"] for row in result.rows})
    table = Table("domain", *(f"{direction} R@{k}" for direction in DIRECTIONS for k in depths))
    cells = {(row["domain"], row["direction"], row["k"]): f"{row['value']:.1f}" for row in result.rows}
    names = dict.fromkeys(row["domain"] for row in result.rows)
    for name in sorted(names, key=lambda name: (name in {"all", "mean of domains"}, name)):
        table.add_row(name, *(cells.get((name, direction, k), "") for direction in DIRECTIONS for k in depths))
    return table
