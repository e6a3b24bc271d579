"""``recollect evaluate``: open data and models, measure, print and write; few-shot is in `evaluate_few_shot`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from recollect.cli.defaults import default_model, split_for
from recollect.cli.evaluate import (
    DataOptions,
    Entities,
    LabeledData,
    ModelOptions,
    Multilabel,
    Probe,
    Retrieval,
    ZeroShot,
)
from recollect.cli.fusion import reads
from recollect.cli.parser import say, show_table, warn_unused
from recollect.core.files import read_lines
from recollect.core.paths import check_writable
from recollect.core.places import model_name
from recollect.core.types import Encoder, Kind, Source, caption_prefix
from recollect.core.validation import check_choice, check_number, refuse
from recollect.core.words import counted
from recollect.data.prompts import GENERAL_TEMPLATES, read_templates
from recollect.data.sources import split_of
from recollect.efsa.methods import SEARCH_METHODS
from recollect.evaluation.clip_benchmark import CLIP_BENCHMARK_TASKS, save_clip_benchmark
from recollect.evaluation.entities import entities, open_entities
from recollect.evaluation.features import FeatureCache
from recollect.evaluation.multilabel import multilabel, multilabel_task
from recollect.evaluation.pools import CaptionedPool, open_pools
from recollect.evaluation.probe import linear_probe
from recollect.evaluation.results import Result, ResultRow, check_place, save_together
from recollect.evaluation.retrieval import DIRECTIONS, Comparison, compare_methods, retrieval
from recollect.evaluation.tasks.catalogue import captioned_specs
from recollect.evaluation.tasks.classification import ClassificationTask, Division
from recollect.evaluation.tasks.opening import OpenedTasks, open_tasks
from recollect.evaluation.zero_shot import zero_shot
from recollect.models import load_model
from recollect.models.dual import DualEncoder
from recollect.models.parts import check_model_place
from recollect.models.pretrained import STARTER

DataArgument = TypeVar("DataArgument")


def open_data(
    options: DataOptions, purpose: Literal["zero-shot", "few-shot"], synonyms: str | None = None
) -> OpenedTasks:
    """Open the tasks; with a column of synonyms, classes are tested under both names."""
    division = Division(options.support, options.query, options.within)
    return open_tasks(
        options.data,
        purpose,
        options.suite,
        copies=options.copies,
        division=division,
        templates=_prompt_templates(options),
        columns=replace(options.columns, synonyms=synonyms),
        synonyms=synonyms is not None,
    )


def require_data(options: LabeledData, *unread: str, command: str = "") -> None:
    """Require data, and warn of options without effect.

    Args:
        unread: options that ``command`` does not read.
        command: subcommand of `recollect evaluate`.

    Raises:
        UserError: no data is given.
    """
    suite = options.suite if isinstance(options, DataOptions) else None
    refuse((not options.data and not suite, "missing: --data SOURCE. Give the data to evaluate on."))
    if unread:
        warn_unused(options, *unread, why=f"`recollect evaluate {command}` does not use it")
    if isinstance(options, DataOptions):
        if suite is None:
            warn_unused(options, "copies", why="only used with --suite")
        if options.within is not None:
            warn_unused(options, "support", "query", why="--within divides one split into both")


def _prompt_templates(options: LabeledData) -> tuple[str, ...]:
    """Return the prompt templates.

    Raises:
        UserError: a template has no {} for the class name.
    """
    return GENERAL_TEMPLATES if options.templates is None else read_templates(options.templates)


def check_models(options: ModelOptions, protocol: str) -> None:
    """Check models and output paths before any work.

    Raises:
        UserError: a model or path cannot be used; the message names the option.
    """
    options.fusion_options.check()
    check_writable(options.out, "--out")
    check_writable(options.cache, "--cache")
    check_place(options.out)
    if options.out is None:
        warn_unused(options, "form", why="nothing is written without --out FOLDER")
    elif options.form == "clip-benchmark":
        one_file = options.out.suffix == ".json"
        refuse((one_file, f"--out {options.out}: CLIP_benchmark has one file per model and data set; name a folder."))
    if options.form == "clip-benchmark":
        check_choice(protocol, CLIP_BENCHMARK_TASKS, "--form clip-benchmark: task")
    for name in options.models:  # now, not after the models before it are evaluated
        check_model_place(name)


def evaluate_each(
    options: ModelOptions, tested: Iterable[tuple[DataArgument, Source]], evaluate: Callable[..., Result]
) -> list[Result]:
    """Call ``evaluate(encoder, data, model=…, seed=…, prefix=…, cache=…)`` for every model and data set.

    Args:
        tested: data sets with their test images; near-duplicates of test images in an --index are left out.
    """
    sets, results = list(tested), []
    cache = FeatureCache(options.cache) if options.cache else None
    for name in options.models or (default_model(),):
        encoder = load_model(name, options.device)
        for data, images in sets:
            read = options.fusion_options.encoder(encoder, images, cache)
            full_name = options.fusion_options.name(model_name(name, encoder.fingerprint), read)
            prefix = prefix_for(options, read)
            result = evaluate(read, data, model=full_name, seed=options.seed, prefix=prefix, cache=cache)
            about = reads(read)
            results.append(replace(result, settings={**result.settings, "reads": about}) if about else result)
    return results


def prefix_for(options: ModelOptions, encoder: Encoder) -> Kind | None:
    """Return the prefix for texts; None for models without prefixes."""
    if options.prefix == "auto":
        return caption_prefix(encoder)
    unknown = options.prefix != "none" and options.prefix not in encoder.prefixes and len(options.models) < 2
    name = "".join(options.models) or STARTER
    refuse((unknown, f"--prefix {options.prefix}: {name} has no prefix for {options.prefix}s. Remove the option."))
    return None if options.prefix == "none" else options.prefix


def finish(options: ModelOptions, results: Sequence[Result], left_out: Sequence[str] = ()) -> None:
    """List the data sets of a suite that could not be opened, and write the JSON files."""
    for reason in left_out:
        say(f"skipped: {reason}", "yellow")
    if options.out is None:
        return
    if options.form == "recollect" and options.out.suffix == ".json":
        save_together(results, options.out)
        say(f"results: {options.out}")
        return
    for result in results:
        if options.form == "clip-benchmark":
            save_clip_benchmark(result, options.out)
        else:
            result.save(options.out)
    say(f"{counted(len(results), 'JSON file')} in {options.out}")


def _print_figures(results: Sequence[Result], more: Mapping[str, str] = {}) -> None:
    """Print a table with a row per model, data set and method, and a column per metric.

    Args:
        more: additional keys of result rows, with the headings of their columns.
    """
    rows, lines = [row for result in results for row in result.rows], []
    metrics, methods = dict.fromkeys(row["metric"] for row in rows), any("method" in row for row in rows)
    for result in results:
        counts = (f"{result.settings[name]:,}" for name in ("classes", "queries"))
        about = (result.model, result.data, *counts)
        for method in dict.fromkeys(row.get("method", "prompt ensemble") for row in result.rows):
            own = [row for row in result.rows if row.get("method", "prompt ensemble") == method]
            values = {row["metric"]: f"{row['value']:.1f}" for row in own}
            cells = [values.get(metric, "") for metric in metrics]
            cells += [f"{each:.4g}" if isinstance(each := own[-1].get(key, ""), float) else str(each) for key in more]
            lines.append((*about, *[method] * methods, *cells))
    show_table(("model", "data", "classes", "images", *["method"] * methods, *metrics, *more.values()), lines)


def run_zero_shot(options: ZeroShot) -> None:
    """Evaluate, print and write."""
    require_data(options.data, "support", command="zero-shot")
    check_models(options.model, "zero-shot")
    opened = open_data(options.data, "zero-shot", options.synonyms_column)

    results = evaluate_each(options.model, [(task, task.query) for task in opened.tasks], zero_shot)
    _print_figures(results)
    finish(options.model, results, opened.left_out)


def run_probe(options: Probe) -> None:
    """Evaluate, print and write."""
    require_data(options.data, "templates", command="probe")
    warn_unused(options.model, "prefix", why="the probe uses no texts")
    check_models(options.model, "probe")
    opened = open_data(options.data, "few-shot")

    def evaluate(encoder: Encoder, task: ClassificationTask, prefix: Kind | None, **given: Any) -> Result:
        return linear_probe(encoder, task, task.metric, **given)

    model = replace(options.model, prefix="none")
    results = evaluate_each(model, [(task, task.query) for task in opened.tasks], evaluate)
    _print_figures(results, {"C": "C"})
    finish(options.model, results, opened.left_out)


def run_entities(options: Entities) -> None:
    """Evaluate, print and write."""
    require_data(options.data)
    check_models(options.model, "entities")
    data, templates = options.data, _prompt_templates(options.data)
    tasks = [open_entities(spec, options.seen, options.unseen, templates, data.columns) for spec in data.data]
    results = evaluate_each(
        options.model,
        [(both, both[0].query) for both in tasks],
        lambda encoder, both, **given: entities(encoder, *both, **given),
    )
    _print_figures(results, {"ece": "calibration error"})
    finish(options.model, results)


def run_multilabel(options: Multilabel) -> None:
    """Evaluate, print and write."""
    require_data(options.data)
    if not options.probe:
        warn_unused(options, "support", why="only used by the probe")
    check_models(options.model, "multilabel")
    names = tuple(read_lines(options.class_names, "class names")) if options.class_names else ()
    tasks = [
        multilabel_task(
            spec,
            support=options.support if options.probe else None,
            query=options.query or split_of(spec) or "test",
            templates=_prompt_templates(options.data),
            columns=options.data.columns,
            names=names,
        )
        for spec in options.data.data
    ]
    results = evaluate_each(options.model, [(task, task.query) for task in tasks], multilabel)
    _print_figures(results)
    finish(options.model, results)


def run_retrieval(options: Retrieval) -> None:
    """Evaluate, print and write."""
    methods = tuple(SEARCH_METHODS) if options.methods == ("all",) else options.methods
    for name in methods:
        check_choice(name, (*SEARCH_METHODS, "all"), "--methods")
    refuse((not options.depths, "--depths: give at least one."))
    check_number("--depths", min(options.depths), least=1)
    if options.queries is not None:
        check_number("--queries", options.queries, least=1)
    plain = methods == ("zero-shot",) and options.captions is None and options.queries is None
    conflict = options.model.fusion_options.given and not plain
    refuse((conflict, "--index: cannot be combined with --methods, --captions or --queries."))
    if options.suite is None:
        warn_unused(options, "copies", why="only used with --suite")
    if "episode" not in methods:
        warn_unused(options.episode, why="only used by --methods episode", prefix="episode.")
    if not plain:
        warn_unused(options.model, "prefix", why="not used with --methods, --captions or --queries")
    for spec in options.data:
        split_for(spec, options.split, "test")
    check_models(options.model, "retrieval")
    more, left_out = captioned_specs(options.suite, options.copies, options.columns) if options.suite else ((), ())
    specs = (*options.data, *more)
    pools = open_pools(specs, options.pool, options.captions, split=options.split, columns=options.columns)
    comparison = Comparison(methods, options.episode, options.queries, depths=options.depths)

    def evaluate(encoder: Encoder, pool: CaptionedPool, prefix: Kind | None, **given: Any) -> Result:
        if plain:
            return retrieval(encoder, pool.task, prefix=prefix, depths=options.depths, **given)
        assert isinstance(encoder, DualEncoder)
        return compare_methods(encoder, pool.task, pool.captions, comparison, **given)

    model = options.model if plain else replace(options.model, prefix="auto")
    results = evaluate_each(model, [(pool, pool.task.images) for pool in pools], evaluate)
    for result in results:
        say("")
        say(f"{result.model} on {result.data}")
        _print_recalls(result, options.depths)
    finish(options.model, results, left_out)


def _print_recalls(result: Result, depths: Sequence[int]) -> None:
    """Print the recalls by domain and method, and the time per query if methods are compared."""
    recalls = [row for row in result.rows if row["metric"] == "recall"]
    methods, rows = list(dict.fromkeys(row["method"] for row in recalls)), []
    heads = [f"{direction} R@{k}" for direction in DIRECTIONS for k in depths]
    cells = {(row["domain"], row["method"], row["direction"], row["k"]): _recall(row) for row in recalls}
    names = dict.fromkeys(row["domain"] for row in recalls)
    if len(names) == 2:  # a single domain, which equals "all"
        names.pop("all", None)
    for name in sorted(names, key=lambda name: (name in {"all", "mean of domains"}, name)):
        for method in methods:
            figures = (cells.get((name, method, direction, k), "") for direction in DIRECTIONS for k in depths)
            rows.append((name, *([method] if len(methods) > 1 else []), *figures))
    show_table(("domain", *(["method"] if len(methods) > 1 else []), *heads), rows)
    if seconds := {row["method"]: row["value"] for row in result.rows if row["metric"] == "seconds per query"}:
        about = result.notes["methods"]
        times = [(name, f"{1e3 * value:,.1f}", str(about[name]["fell back"])) for name, value in seconds.items()]
        show_table(("method", "ms per query", "fell back"), times)


def _recall(row: ResultRow) -> str:
    return f"{row['value']:.1f}" + (f" ({row['gain']:+.1f})" if "gain" in row else "")
