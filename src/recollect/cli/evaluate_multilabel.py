"""``recollect evaluate multilabel``: mean average precision of pictures that show several classes."""

from rich.table import Table

from recollect.cli.evaluate import Multilabel
from recollect.cli.evaluate_run import (
    check_models,
    check_named_data,
    columns_of,
    evaluate_each,
    prompt_templates,
    write_results,
)
from recollect.cli.parser import warn_unused
from recollect.core.files import read_lines
from recollect.core.progress import output
from recollect.data.sources.opening import split_of
from recollect.evaluation.multilabel import multilabel, multilabel_task


def run_multilabel(options: Multilabel) -> None:
    """Evaluate, print and write."""
    check_named_data(options.data, "suite", "copies", "within", "definitions", command="multilabel")
    if not options.probe:
        warn_unused(options.data, "support", why="there is no probe")
    check_models(options.model, "multilabel")
    console = output()
    names = tuple(read_lines(options.class_names, "class names")) if options.class_names else ()
    tasks = [
        multilabel_task(
            spec,
            support=options.data.support if options.probe else None,
            query=options.data.query or split_of(spec) or "test",
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
