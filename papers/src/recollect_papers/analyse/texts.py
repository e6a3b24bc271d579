"""``recollect-papers analyse attention|embeddings``: what a prefix does to a text, as figures a paper could print."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from rich.table import Table

from recollect.cli.split import split_for
from recollect.core.errors import UserError
from recollect.core.files import write_json
from recollect.core.paths import check_writable
from recollect.core.progress import output
from recollect.core.seeding import numpy_generator
from recollect.core.types import Encoder, Kind, Source
from recollect.core.validation import check_choice, refuse
from recollect.data.prompts import GENERAL_TEMPLATES
from recollect.data.sources import open_source
from recollect.data.sources.derived import Subset
from recollect.data.sources.generated import is_generated
from recollect.evaluation.features import class_prompts
from recollect.evaluation.reports.plots import save_figure
from recollect.evaluation.tasks.classification import ClassificationTask, Division, keep_classes
from recollect.evaluation.tasks.opening import Selection, open_tasks
from recollect.models import load_model
from recollect_papers.analyse.commands import Attention, Embeddings, PrefixName
from recollect_papers.analyse.language import AttentionMap, attention_map, in_plane, own_prefixes, reading_name
from recollect_papers.analyse.maps import attention_figure, clouds
from recollect_papers.analyse.panels import (
    Measured,
    Panel,
    captions_panel,
    classes_panel,
    images_panel,
    prefixes_panel,
)

FIGURE_ENDINGS = (".png", ".pdf", ".svg")


def _checked(out: Path) -> Path:
    check_choice(out.suffix.lower(), FIGURE_ENDINGS, "--out: format")
    check_writable(out, "--out")
    return out


def _readings(model: Encoder, asked: Sequence[PrefixName]) -> list[Kind | None]:
    """The prefixes to read with: those asked for, or all that the model has; a model without any has one reading."""
    own = own_prefixes(model)
    if not own:
        return [None]
    return [None if name == "none" else name for name in asked or own]


def run_attention(options: Attention) -> None:
    """Look, draw, print and write."""
    console = output()
    _checked(options.out)
    refuse((not options.models or not options.texts, "name a model, and --texts TEXT ..."))
    encoders = [(name, load_model(name)) for name in options.models]
    rows = [
        [shown for name, model in encoders for shown in _maps(options, name, model, text)] for text in options.texts
    ]
    save_figure(attention_figure([[(title, shown) for title, _, shown in row] for row in rows]), options.out)
    layers = max(len(shown.weights) for row in rows for _, _, shown in row)
    table = Table("text", "read with", *(f"words, layer {number}" for number in range(1, layers + 1)))
    for row in rows:
        for title, _, shown in row:
            table.add_row(shown.text, title, *(f"{value:.1f}" for value in shown.spread))
    console.print(table)
    console.print(f"figure: {options.out}", highlight=False, soft_wrap=True)
    if options.json:
        write_json(options.json, [_as_json(name, shown) for row in rows for _, name, shown in row])


def _maps(options: Attention, name: str, model: Encoder, text: str) -> list[tuple[str, str, AttentionMap]]:
    return [
        (reading_name(model, prefix), name, attention_map(model, text, prefix))
        for prefix in _readings(model, options.prefixes)
    ]


def _as_json(name: str, shown: AttentionMap) -> dict[str, object]:
    weights = [[round(float(weight), 6) for weight in layer] for layer in shown.weights]
    return {"model": name, "text": shown.text, "prefix": shown.prefix, "words": shown.words, "layers": weights}


def run_embeddings(options: Embeddings) -> None:
    """Embed, draw, print and write."""
    console = output()
    _checked(options.out)
    if not options.models or options.data is None:
        raise UserError("name a model, and --data SOURCE with classes")
    uncaptioned = options.show in ("captions", "images") and not options.captions
    refuse((uncaptioned, f"--show {options.show}: needs captions. Name their source with --captions SOURCE."))
    task = _task(options, options.data)
    panels = [(name, panel) for name in options.models for panel in _panels(options, name, load_model(name), task)]
    save_figure(clouds([panel.cloud for _, panel in panels]), options.out)
    rows: list[Measured] = [{"model": name, **panel.measured} for name, panel in panels]
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)
    console.print(f"figure: {options.out}", highlight=False, soft_wrap=True)
    if options.json:
        write_json(options.json, rows)


def _task(options: Embeddings, spec: str) -> ClassificationTask:
    selection = Selection((spec,), division=Division(support=None), templates=GENERAL_TEMPLATES[: options.templates])
    task = open_tasks(selection, "zero-shot").tasks[0]
    if len(task.class_names) > options.classes:
        drawn = numpy_generator("classes", options.seed).permutation(len(task.class_names))[: options.classes]
        task = keep_classes(task, np.sort(drawn))
    return task


def _panels(options: Embeddings, name: str, model: Encoder, task: ClassificationTask) -> list[Panel]:
    prompts, readings = class_prompts(task), _readings(model, options.prefixes)
    texts = [text for each in prompts for text in each]
    plane = partial(in_plane, perplexity=options.perplexity, seed=options.seed)
    if options.show == "classes":
        return [classes_panel(model, prompts, prefix, plane, task.class_names) for prefix in readings]
    if options.show == "prefixes":
        refuse((len(readings) < 2, f"{name}: --show prefixes needs two or more, and this model has {len(readings)}"))
        return [prefixes_panel(model, texts, readings, plane)]
    if options.show == "captions":
        captions = [text for source in _sources(options) for text in _texts(source)][: options.samples]
        return [captions_panel(model, _some(options, texts), captions, plane)]
    return [images_panel(model, _subset(options, task.query, options.samples), _sources(options), plane)]


def _some(options: Embeddings, texts: list[str]) -> list[str]:
    drawn = numpy_generator("texts", options.seed).permutation(len(texts))[: options.samples]
    return [texts[index] for index in np.sort(drawn)]


def _sources(options: Embeddings) -> list[Source]:
    each = max(1, options.samples // len(options.captions))
    opened = [
        open_source(spec, split=None if is_generated(spec) else split_for(spec, options.split, "test"), kind="caption")
        for spec in options.captions
    ]
    return [_subset(options, source, each) for source in opened]


def _subset(options: Embeddings, source: Source, count: int) -> Source:
    generator = numpy_generator("samples", options.seed)
    count = min(count, len(source))
    return Subset(source, np.sort(generator.choice(len(source), count, replace=False, shuffle=False)))


def _texts(source: Source) -> list[str]:
    return [text for index in range(len(source)) for text in source.texts(index)[:1]]
