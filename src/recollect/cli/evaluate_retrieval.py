"""``recollect evaluate retrieval``: recall at 1, 5, 10 both ways, of one way of searching or of several."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from recollect.cli.defaults import split_for
from recollect.cli.evaluate import Retrieval
from recollect.cli.evaluate_run import check_models, each_on, prefix_for, say_left_out, write_results
from recollect.cli.fusion_encoder import with_index
from recollect.cli.parser import warn_unused
from recollect.core.progress import output
from recollect.core.validation import check_choice, check_number, refuse
from recollect.data.sources.columns import Columns
from recollect.efsa.methods import SEARCH_METHODS
from recollect.evaluation.pools import CaptionedPool, PoolSelection, open_pools
from recollect.evaluation.results import Result, ResultRow
from recollect.evaluation.retrieval import DIRECTIONS, Comparison, compare_methods, retrieval
from recollect.evaluation.tasks.catalogue import captioned_specs
from recollect.models.dual import DualEncoder


def run_retrieval(options: Retrieval) -> None:
    """Evaluate, print and write."""
    console = output()
    methods = tuple(SEARCH_METHODS) if options.methods == ("all",) else options.methods
    for name in methods:
        check_choice(name, (*SEARCH_METHODS, "all"), "--methods")
    refuse((not options.depths, "--depths: name at least one."))
    check_number("--depths", min(options.depths), least=1)
    if options.queries is not None:
        check_number("--queries", options.queries, least=1)
    _warn_unused(options, methods)
    for spec in options.data:
        split_for(spec, options.split, "test")
    check_models(options.model, "retrieval")
    columns = Columns(image=options.image_column, caption=options.caption_column)
    more, left_out = captioned_specs(options.suite, options.copies, columns) if options.suite else ((), ())
    specs = (*options.data, *more)
    selection = PoolSelection(specs, options.pool, options.captions, split=options.split, columns=columns)
    results = list(_results(options, methods, open_pools(selection)))
    for result in results:
        console.print(f"\n{result.model} on {result.data}", highlight=False, soft_wrap=True)
        _show(result, console, options.depths)
    say_left_out(left_out)
    write_results(options.model, results)


def _warn_unused(options: Retrieval, methods: tuple[str, ...]) -> None:
    """Warn of options without effect."""
    if options.suite is None:
        warn_unused(options, "copies", why="it is for --suite")
    if "episode" not in methods:
        warn_unused(options, "episode", why="it is for --methods episode")
    if not _plain(options, methods):
        why = "only the plain search reads it. Leave it out, or --methods, --captions and --queries."
        warn_unused(options.model, "prefix", why=why)


def _plain(options: Retrieval, methods: tuple[str, ...]) -> bool:
    return methods == ("zero-shot",) and options.captions is None and options.queries is None


def _results(options: Retrieval, methods: tuple[str, ...], pools: Sequence[CaptionedPool]) -> Iterator[Result]:
    plain = _plain(options, methods)
    unread = options.model.reading.asked and not plain
    refuse((unread, "--index: cannot be combined with --methods, --captions or --queries."))
    seed = options.model.seed
    for name, encoder, cache, pool in each_on(options.model, [(pool, pool.task.images) for pool in pools]):
        if plain:
            prefix = prefix_for(options.model, encoder)
            found = retrieval(
                encoder, pool.task, model=name, seed=seed, prefix=prefix, cache=cache, depths=options.depths
            )
            yield with_index(found, encoder)
            continue
        assert isinstance(encoder, DualEncoder)
        comparison = Comparison(methods, options.episode, options.queries, depths=options.depths)
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
