"""``recollect evaluate retrieval``: recall at 1, 5, 10 both ways, of one way of searching or of several."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.table import Table

from recollect.commands.evaluate import ModelOptions
from recollect.core.errors import UserError
from recollect.core.progress import output
from recollect.core.types import Encoder
from recollect.data.columns import Columns
from recollect.data.tasks import RetrievalTask, retrieval_task
from recollect.evaluation.opening import WORLDS
from recollect.evaluation.results import Result, Row
from recollect.evaluation.retrieval import DIRECTIONS, Comparison, compare_methods, merged, retrieval
from recollect.models import load_model
from recollect.models.dual import DualEncoder
from recollect.retrieval.caption_file import captions_of
from recollect.retrieval.methods import METHODS, MethodOptions
from recollect.retrieval.options import EpisodeOptions, RewardOptions, TuningOptions
from recollect.retrieval.rewording import PoolCaptions, Rewording, held_out, reworded, true_captions

_DEPTHS = (1, 5, 10)


@dataclass(frozen=True)
class Retrieval:
    """Search captioned images both ways: recall at 1, 5 and 10, with every true match counted.

    With --methods, several ways of searching are compared on the same queries, with gains over the first and the cost
    of a query. Intervals (95 %) are by bootstrap over queries and are in the JSON.
    """

    model: tyro.conf.OmitArgPrefixes[ModelOptions]
    data: tuple[str, ...] = ()
    """Sources with captions."""
    pool: Literal["single", "merged"] = "single"
    """Search every source by itself, or all as one pool of several domains."""
    methods: tuple[str, ...] = ("zero-shot",)
    """Of: zero-shot, fine-tuning, text-to-text, rlcf, episode-full, episode; or all."""
    captions: str | None = None
    """What methods that learn from captions are given: reworded (one true text of each image in other words, the
    stand-in of a captioner), held-out (an image's last text, which then is no query), true (its first text, though it
    is asked for: the ceiling), or a .jsonl file that `recollect caption` wrote."""
    rewording: Rewording = field(default_factory=Rewording)
    """How the stand-in words the truth."""
    teacher: str | None = None
    """A larger model that judges images for rlcf."""
    queries: int | None = None
    """Ask at most this many texts of each domain; the pool stays whole."""
    episode: EpisodeOptions = field(default_factory=EpisodeOptions)
    """Of episodes; fine-tuning has the same loss, adapters and optimiser."""
    tuning: TuningOptions = field(default_factory=TuningOptions)
    """Of fine-tuning."""
    reward: RewardOptions = field(default_factory=RewardOptions)
    """Of rlcf."""
    split: str = "test"
    """Split of each source."""
    caption_column: str | None = None
    """Where its name is unusual."""
    image_column: str | None = None
    """Where its name is unusual."""

    def run(self) -> None:
        """Evaluate, print and write."""
        console = output()
        methods = tuple(METHODS) if self.methods == ("all",) else self.methods
        if unknown := [name for name in methods if name not in METHODS]:
            raise UserError(f"--methods {unknown[0]}: no such method. Choose from: {', '.join(METHODS)}, all.")
        if "rlcf" in methods and self.teacher is None:
            raise UserError("--methods rlcf needs a larger model to judge the images. Name it with --teacher MODEL.")
        results = list(self._results(methods, self._tasks()))
        for result in results:
            console.print(f"\n{result.model} on {result.data}", highlight=False, soft_wrap=True)
            _show(result, console)
        self.model.save(results, console)

    def _results(self, methods: tuple[str, ...], tasks: list[RetrievalTask]) -> Iterator[Result]:
        plain = methods == ("zero-shot",) and self.captions is None and self.queries is None
        teacher: Encoder | None = load_model(self.teacher, self.model.device) if self.teacher else None
        options = MethodOptions(self.episode, self.tuning, self.reward)
        for name, encoder, cache in self.model.each():
            seed = self.model.seed
            for task in tasks:
                if plain:
                    yield retrieval(encoder, task, model=name, seed=seed, prefix=self.model.prefix, cache=cache)
                    continue
                assert isinstance(encoder, DualEncoder)
                comparison = Comparison(methods, options, teacher, self.queries)
                captions = self._captions(task)
                yield compare_methods(encoder, task, captions, comparison, model=name, seed=seed, cache=cache)

    def _captions(self, task: RetrievalTask) -> PoolCaptions | None:
        if self.captions is None:
            return None
        if self.captions == "reworded":
            return reworded(task.images, self.rewording)
        if self.captions in ("held-out", "true"):
            return {"held-out": held_out, "true": true_captions}[self.captions](task.images)
        if not self.captions.endswith(".jsonl"):
            raise UserError(f"--captions {self.captions}: write reworded, held-out, true, or name a .jsonl file")
        return PoolCaptions(captions_of(Path(self.captions), task.images))

    def _tasks(self) -> list[RetrievalTask]:
        if not self.data:
            raise UserError("no data was named. Name it with --data SOURCE ...")
        columns = Columns(image=self.image_column, caption=self.caption_column)
        each = [
            retrieval_task(spec, split=None if spec.startswith(WORLDS) else self.split, columns=columns)
            for spec in self.data
        ]
        return [merged(each)] if self.pool == "merged" else each


def _show(result: Result, console: Console) -> None:
    recalls = [row for row in result.rows if row["metric"] == "recall"]
    methods = list(dict.fromkeys(row["method"] for row in recalls))
    heads = [f"{direction} R@{k}" for direction in DIRECTIONS for k in _DEPTHS]
    table = Table("domain", *(["method"] if len(methods) > 1 else []), *heads)
    cells = {(row["domain"], row["method"], row["direction"], row["k"]): _cell(row) for row in recalls}
    names = dict.fromkeys(row["domain"] for row in recalls)
    if len(names) == 2:  # one domain and "all", which is the same
        names.pop("all", None)
    for name in sorted(names, key=lambda name: (name in {"all", "mean of domains"}, name)):
        for method in methods:
            figures = (cells.get((name, method, direction, k), "") for direction in DIRECTIONS for k in _DEPTHS)
            table.add_row(name, *([method] if len(methods) > 1 else []), *figures)
    console.print(table)
    costs = {(row["method"], row["metric"]): row["value"] for row in result.rows if row["metric"] != "recall"}
    if costs:
        console.print(_costs(methods, costs, result))


def _cell(row: Row) -> str:
    return f"{row['value']:.1f}" + (f" ({row['gain']:+.1f})" if "gain" in row else "")


def _costs(methods: list[str], costs: dict[tuple[str, str], float], result: Result) -> Table:
    columns = ("ms", "images forward", "images back", "products forward", "products back", "MiB at once", "fell back")
    table = Table("cost of a query", *columns)
    for method in methods:
        forward, back = (costs[method, f"images_{way} per query"] for way in ("forward", "backward"))
        products = [costs[method, f"{way}_products per query"] / 1e6 for way in ("forward", "backward")]
        report = result.settings["methods"][method]["report"]
        table.add_row(
            method,
            f"{1000 * costs[method, 'seconds per query']:.1f}",
            f"{forward:.1f}",
            f"{back:.1f}",
            *(f"{value:,.1f} M" for value in products),
            f"{costs[method, 'memory'] / 2**20:.1f}",
            str(report["not_finite"] + report["without_captions"]),
        )
    return table
