"""``recollect evaluate zero-shot|probe|entities|multilabel``: figures on labelled sets."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from recollect.cli.evaluate import Entities, Multilabel, Probe, ZeroShot
from recollect.cli.evaluate_run import (
    check_models,
    check_named_data,
    columns_of,
    each_on,
    evaluate_each,
    open_data,
    prompt_templates,
    require_data,
    say_left_out,
    write_results,
)
from recollect.cli.fusion_encoder import with_index
from recollect.cli.parser import warn_unused
from recollect.core.errors import user_errors
from recollect.core.files import read_lines
from recollect.core.progress import output
from recollect.core.types import Encoder
from recollect.core.validation import check_choice
from recollect.data.sources import split_of
from recollect.evaluation.entities import entities, open_entities
from recollect.evaluation.multilabel import multilabel, multilabel_task
from recollect.evaluation.probe import linear_probe
from recollect.evaluation.results import Result
from recollect.evaluation.tasks.classification import ClassificationTask
from recollect.evaluation.zero_shot import UNLABELLED_METHODS, zero_shot


def run_zero_shot(options: ZeroShot) -> None:
    """Evaluate, print and write."""
    console = output()
    methods = tuple(UNLABELLED_METHODS) if options.methods == ("all",) else tuple(dict.fromkeys(options.methods))
    for name in methods:
        check_choice(name, (*UNLABELLED_METHODS, "all"), "--methods")
    check_named_data(options.data, "support", command="zero-shot")
    check_models(options.model, "zero-shot")
    opened = open_data(options.data, "zero-shot", options.synonyms_column)

    def measured(encoder: Encoder, task: ClassificationTask, **given: Any) -> Result:
        with user_errors(task.name, ValueError):  # e.g. too few images for a method
            return zero_shot(encoder, task, methods=methods, **given)

    results = evaluate_each(options.model, [(task, task.query) for task in opened.tasks], measured)
    console.print(_zero_shot_table(results, methods))
    say_left_out(opened.left_out)
    write_results(options.model, results)


def _zero_shot_table(results: Sequence[Result], methods: Sequence[str]) -> Table:
    column = ("method",) if methods else ()
    table = Table("model", "data", "classes", "images", *column, "top-1", "mean per class")
    for result in results:
        counts = (str(result.settings["classes"]), str(result.settings["queries"]))
        for method in ("", *methods):
            rows = [row for row in result.rows if row.get("method", "") == method]
            values = {row["metric"]: f"{row['value']:.1f}" for row in rows}
            named = (method or "prompt ensemble",) if methods else ()
            table.add_row(result.model, result.data, *counts, *named, values["top-1"], values["mean per class"])
    return table


def run_probe(options: Probe) -> None:
    """Evaluate, print and write."""
    console = output()
    check_named_data(options.data, "templates", "definitions", command="probe")
    warn_unused(options.model, "prefix", why="no texts are read")
    check_models(options.model, "probe")
    opened = open_data(options.data, "probe")
    results = []
    for name, encoder, cache, task in each_on(options.model, [(task, task.query) for task in opened.tasks]):
        found = linear_probe(encoder, task, task.metric, model=name, seed=options.model.seed, cache=cache)
        results.append(with_index(found, encoder))
    table = Table("model", "data", "metric", "accuracy", "C")
    for result in results:
        row = result.rows[0]
        table.add_row(result.model, result.data, row["metric"], f"{row['value']:.1f}", f"{row['C']:g}")
    console.print(table)
    say_left_out(opened.left_out)
    write_results(options.model, results)


def run_entities(options: Entities) -> None:
    """Evaluate, print and write."""
    require_data(options.data)
    check_models(options.model, "entities")
    console = output()
    templates, columns = prompt_templates(options.data), columns_of(options.data)
    tasks = [open_entities(spec, options.seen, options.unseen, templates, columns) for spec in options.data.data]
    tested = [(both, both[0].query) for both in tasks]
    results = evaluate_each(
        options.model, tested, lambda encoder, both, **given: entities(encoder, both[0], both[1], **given)
    )
    table = Table("model", "data", "entities", "images", "seen", "unseen", "harmonic mean", "calibration error")
    for result in results:
        counts = (f"{result.settings['classes']:,}", f"{result.settings['queries']:,}")
        values = (f"{row['value']:.1f}" for row in result.rows)
        table.add_row(result.model, result.data, *counts, *values, f"{result.rows[-1]['ece']:.1f}")
    console.print(table)
    write_results(options.model, results)


def run_multilabel(options: Multilabel) -> None:
    """Evaluate, print and write."""
    require_data(options.data)
    if not options.probe:
        warn_unused(options, "support", why="there is no probe")
    check_models(options.model, "multilabel")
    console = output()
    names = tuple(read_lines(options.class_names, "class names")) if options.class_names else ()
    tasks = [
        multilabel_task(
            spec,
            support=options.support if options.probe else None,
            query=options.query or split_of(spec) or "test",
            templates=prompt_templates(options.data),
            columns=columns_of(options.data),
            names=names,
        )
        for spec in options.data.data
    ]
    results = evaluate_each(options.model, [(task, task.query) for task in tasks], multilabel)
    table = Table("model", "data", "classes", "images", "method", "mean average precision", "11 points")
    for result in results:
        counts = (str(result.settings["classes"]), str(result.settings["queries"]))
        for method in dict.fromkeys(row["method"] for row in result.rows):
            values = (f"{row['value']:.1f}" for row in result.rows if row["method"] == method)
            table.add_row(result.model, result.data, *counts, method, *values)
    console.print(table)
    write_results(options.model, results)
