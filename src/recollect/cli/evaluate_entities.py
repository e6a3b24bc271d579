"""``recollect evaluate entities``: name pictures among all entities, those never trained on included."""

from rich.table import Table

from recollect.cli.evaluate import Entities
from recollect.cli.evaluate_run import (
    check_models,
    check_named_data,
    columns_of,
    evaluate_each,
    prompt_templates,
    write_results,
)
from recollect.core.progress import output
from recollect.evaluation.entities import entities, open_entities


def run_entities(options: Entities) -> None:
    """Evaluate, print and write."""
    check_named_data(options.data, "suite", "copies", "support", "query", "within", "definitions", command="entities")
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
