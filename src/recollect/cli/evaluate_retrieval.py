"""``recollect evaluate retrieval``: recall at 1, 5, 10 both ways, of one way of searching or of several."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import tyro
from rich.console import Console
from rich.table import Table

from recollect.cli.evaluate import ModelOptions, say_left_out
from recollect.cli.memory_reading import with_memory
from recollect.cli.unread import refuse_unread, split_for
from recollect.core.errors import UserError
from recollect.core.progress import output
from recollect.core.types import Encoder
from recollect.data.sources.columns import Columns
from recollect.efsa.corruption import CaptionCorruption
from recollect.efsa.methods import SEARCH_METHODS, MethodOptions
from recollect.efsa.options import PRINTED, EpisodeOptions, RewardOptions, TuningOptions
from recollect.evaluation.pools import CaptionedPool, PoolKind, PoolSelection, open_pools
from recollect.evaluation.results import Result, ResultRow
from recollect.evaluation.retrieval import DIRECTIONS, Comparison, compare_methods, retrieval
from recollect.evaluation.tasks.captioned import captioned_specs
from recollect.models import load_model
from recollect.models.dual import DualEncoder


@dataclass(frozen=True)
class Retrieval:
    """Search captioned images both ways: recall at 1, 5 and 10, with every true match counted.

    With --methods, several ways of searching are compared on the same queries, with gains over the first and the cost
    of a query. Intervals (95 %, in the JSON) are by bootstrap over pictures, whose captions stand or fall together.
    """

    model: tyro.conf.OmitArgPrefixes[ModelOptions]
    data: tuple[str, ...] = ()
    """Sources with captions."""
    suite: str | None = None
    """Captioned sets of a paper besides: efsa-9, its nine sets, read from the hub where there is a copy."""
    copies: tuple[str, ...] = ()
    """NAME=SOURCE: read a set of the suite from your own copy."""
    pool: PoolKind = "single"
    """Search every source by itself, or all as one pool of several domains."""
    methods: tuple[str, ...] = ("zero-shot",)
    """Of: zero-shot, normalised, fine-tuning, text-to-text, rlcf, episode-full, episode-paper, episode; or all."""
    captions: str | None = None
    """What methods that learn from captions are given: reworded (one true text of each image in other words, the
    stand-in of a captioner), held-out (an image's last text, which then is no query), true (its first text, though it
    is asked for: the ceiling), column:NAME (another column of the data), or a .jsonl file that `recollect caption`
    wrote. With commas between, one for each source."""
    corruption: CaptionCorruption = field(default_factory=CaptionCorruption)
    """How the stand-in words the truth."""
    teacher: str | None = None
    """A larger model that judges images for rlcf."""
    queries: int | None = None
    """Ask at most this many texts of each domain; the pool stays whole."""
    depths: tuple[int, ...] = (1, 5, 10)
    """The k of R@k. An episode changes no R@k from its own k on: zero-shot R@16 is what it can reach."""
    episode: EpisodeOptions = field(default_factory=EpisodeOptions)
    """Of episodes; fine-tuning has the same loss, adapters and optimiser."""
    tuning: TuningOptions = field(default_factory=TuningOptions)
    """Of fine-tuning."""
    full_learning_rate: float | None = None
    """Of episode-full; the episodes' own by default."""
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
        methods = tuple(SEARCH_METHODS) if self.methods == ("all",) else self.methods
        if unknown := [name for name in methods if name not in SEARCH_METHODS]:
            raise UserError(f"--methods {unknown[0]}: no such method. Choose from: {', '.join(SEARCH_METHODS)}, all.")
        if "rlcf" in methods and self.teacher is None:
            raise UserError("--methods rlcf needs a larger model to judge the images. Name it with --teacher MODEL.")
        if not self.depths or min(self.depths) < 1:
            raise UserError("--depths: at least one, and each at least 1")
        if self.queries is not None and self.queries < 1:
            raise UserError(f"--queries {self.queries}: at least 1")
        self._refuse_unread(methods)
        for spec in self.data:
            split_for(spec, self.split, "test")
        self.model.check("retrieval")
        columns = Columns(image=self.image_column, caption=self.caption_column)
        more, left_out = captioned_specs(self.suite, self.copies, columns) if self.suite else ((), ())
        selection = PoolSelection((*self.data, *more), self.pool, self.captions, self.corruption, self.split, columns)
        results = list(self._results(methods, open_pools(selection)))
        for result in results:
            console.print(f"\n{result.model} on {result.data}", highlight=False, soft_wrap=True)
            _show(result, console, self.depths)
        say_left_out(left_out, console)
        self.model.save(results, console)

    def _refuse_unread(self, methods: tuple[str, ...]) -> None:
        """Refuse options that say nothing beside the others."""
        episodes = [name for name in methods if name.startswith("episode")]
        for of, there, names in (
            ("--suite", self.suite is not None, ("copies",)),
            ("--captions reworded", "reworded" in (self.captions or "").split(","), ("corruption",)),
            ("--methods rlcf", "rlcf" in methods, ("teacher", "reward")),
            ("--methods fine-tuning", "fine-tuning" in methods, ("tuning",)),
            ("--methods episode-full", "episode-full" in methods, ("full_learning_rate",)),
            ("--methods episode", bool(episodes) or "fine-tuning" in methods, ("episode",)),
        ):
            if not there:
                refuse_unread(self, *names, why=f"is of {of}. Add that, or leave this out.")
        why = "--methods says it: episode learns adapters, episode-full all parameters."
        refuse_unread(self.episode, "parameters", why=why, before="episode.")
        if episodes == ["episode-paper"] and "fine-tuning" not in methods:
            why = "--methods episode-paper has the paper's own. Take --methods episode."
            refuse_unread(self.episode, *PRINTED, why=why, before="episode.")
        if not self._plain(methods):
            why = "only the plain search reads it. Leave it out, or --methods, --captions and --queries."
            refuse_unread(self.model, "prefix", why=why)

    def _plain(self, methods: tuple[str, ...]) -> bool:
        return methods == ("zero-shot",) and self.captions is None and self.queries is None

    def _results(self, methods: tuple[str, ...], pools: Sequence[CaptionedPool]) -> Iterator[Result]:
        plain = self._plain(methods)
        teacher: Encoder | None = load_model(self.teacher, self.model.device) if self.teacher else None
        options = MethodOptions(self.episode, self.tuning, self.reward, self.full_learning_rate)
        if self.model.reading.asked and not plain:
            raise UserError("--memory: only the plain search reads it. Leave out --methods, --captions and --queries.")
        seed = self.model.seed
        for name, encoder, cache, pool in self.model.each_on((pool, pool.task.images) for pool in pools):
            if plain:
                prefix = self.model.prefix_for(encoder)
                found = retrieval(
                    encoder, pool.task, model=name, seed=seed, prefix=prefix, cache=cache, depths=self.depths
                )
                yield with_memory(found, encoder)
                continue
            assert isinstance(encoder, DualEncoder)
            comparison = Comparison(methods, options, teacher, self.queries, depths=self.depths)
            yield compare_methods(encoder, pool.task, pool.captions, comparison, model=name, seed=seed, cache=cache)


def _show(result: Result, console: Console, depths: Sequence[int]) -> None:
    recalls = [row for row in result.rows if row["metric"] == "recall"]
    methods = list(dict.fromkeys(row["method"] for row in recalls))
    heads = [f"{direction} R@{k}" for direction in DIRECTIONS for k in depths]
    table = Table("domain", *(["method"] if len(methods) > 1 else []), *heads)
    cells = {(row["domain"], row["method"], row["direction"], row["k"]): _cell(row) for row in recalls}
    names = dict.fromkeys(row["domain"] for row in recalls)
    if len(names) == 2:  # one domain and "all", which is the same
        names.pop("all", None)
    for name in sorted(names, key=lambda name: (name in {"all", "mean of domains"}, name)):
        for method in methods:
            figures = (cells.get((name, method, direction, k), "") for direction in DIRECTIONS for k in depths)
            table.add_row(name, *([method] if len(methods) > 1 else []), *figures)
    console.print(table)
    costs = {(row["method"], row["metric"]): row["value"] for row in result.rows if row["metric"] != "recall"}
    if costs:
        console.print(_costs(methods, costs, result))


def _cell(row: ResultRow) -> str:
    return f"{row['value']:.1f}" + (f" ({row['gain']:+.1f})" if "gain" in row else "")


def _costs(methods: list[str], costs: dict[tuple[str, str], float], result: Result) -> Table:
    columns = ("ms", "images forward", "images back", "products forward", "products back", "MiB at once", "fell back")
    table = Table("cost of a query", *columns)
    for method in methods:
        forward, back = (costs[method, f"images_{way} per query"] for way in ("forward", "backward"))
        products = [costs[method, f"{way}_products per query"] / 1e6 for way in ("forward", "backward")]
        report = result.notes["methods"][method]["report"]
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
