"""Prefix conditioning (Saito et al., 2023), Figures 3 to 9: attention of the end token, and t-SNE maps."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from recollect.core.seeding import numpy_generator
from recollect.core.types import Encoder, Source
from recollect.data.prompts import fill
from recollect.data.sources import open_source
from recollect.data.sources.generated import is_generated
from recollect.data.sources.subset import Subset
from recollect.evaluation.features import class_prompts
from recollect.evaluation.tasks.classification import ClassificationTask, keep_classes
from recollect.evaluation.tasks.opening import open_tasks
from recollect.models import load_model
from recollect_papers.engine import paper_quote, report
from recollect_papers.prefix.attention import attention_figure, attention_map, own_prefixes, reading_name
from recollect_papers.prefix.maps import (
    Cloud,
    captions_panel,
    classes_panel,
    clouds,
    images_panel,
    prefixes_panel,
    project_tsne,
)
from recollect_papers.prefix.world import WORLDS_BY_SCALE, PrefixArm, job_of, measured, prefix_world
from recollect_papers.study import StudyOptions, StudyReport, StudyTable

WITH, WITHOUT = PrefixArm(prefix=True), PrefixArm()
CLASSES = 20
SAMPLES = {"smoke": 60, "small": 500, "full": 2000}


def _models(options: StudyOptions) -> tuple[Encoder, Encoder]:
    """Return the models with and without prefixes, of the first seed."""
    evaluation = prefix_world(options).zero_shot()
    measured([WITH, WITHOUT], replace(options, seeds=1), evaluation)
    folders = [job_of(arm, options, evaluation).folder(options.out) for arm in (WITH, WITHOUT)]
    return load_model(folders[0] / "model"), load_model(folders[1] / "model")


def _report(
    options: StudyOptions, number: int, figure: Figure, title: str, columns: Sequence[str],
    rows: Sequence[Sequence[str]],
) -> StudyReport:  # fmt: skip
    table = StudyTable(f"Figure {number}. {title}", tuple(columns), tuple(map(tuple, rows)))
    note = f"paper: {paper_quote('prefix', f'figure-{number}')}"
    return report(f"prefix/figure-{number}", options, WORLDS_BY_SCALE, figure, [table], [note])


# --- Attention --------------------------------------------------------------------------------------------------------


def _attention(options: StudyOptions, number: int, texts: Sequence[str]) -> StudyReport:
    models = _models(options)
    rows = [
        [(reading_name(model, prefix), attention_map(model, text, prefix))
         for model in models for prefix in own_prefixes(model) or (None,)]
        for text in texts
    ]  # fmt: skip
    layers = max(len(shown.weights) for row in rows for _, shown in row)
    cells = [(shown.text, title, *(f"{value:.1f}" for value in shown.spread)) for row in rows for title, shown in row]
    columns = ("text", "prefix", *(f"layer {layer}" for layer in range(1, layers + 1)))
    title = "Effective number of words attended to (exp of the entropy)"
    return _report(options, number, attention_figure(rows), title, columns, cells)


def figure_3(options: StudyOptions) -> StudyReport:
    """Draw attention for a class prompt."""
    if options.scale == "full":
        return _attention(options, 3, ["a sculpture of an airplane"])
    return _attention(options, 3, [fill("a sculpture of a {}.", _label_task(options).class_names[-12])])


def figure_5(options: StudyOptions) -> StudyReport:
    """Draw attention for a prompt of a class that is not in the label set."""
    full = options.scale == "full"
    return _attention(options, 5, ["a tattoo of the forest area." if full else "a tattoo of a hebrew letter."])


def figure_6(options: StudyOptions) -> StudyReport:
    """Draw attention for a caption."""
    return _attention(options, 6, [max(_caption_texts(options)[:10], key=len)])


# --- Maps -------------------------------------------------------------------------------------------------------------


def _label_task(options: StudyOptions) -> ClassificationTask:
    return open_tasks(prefix_world(options).own, "zero-shot").tasks[0]


def _some_classes(task: ClassificationTask, count: int) -> ClassificationTask:
    if len(task.class_names) <= count:
        return task
    drawn = numpy_generator("classes", 0).permutation(len(task.class_names))[:count]
    return keep_classes(task, np.sort(drawn))


def _captioned(options: StudyOptions) -> Source:
    spec = (prefix_world(options).retrieval or prefix_world(options).sources["captions"])[0]
    source = open_source(spec, split=None if is_generated(spec) else "test", kind="caption")
    return _subset(source, SAMPLES[options.scale])


def _subset(source: Source, count: int) -> Source:
    drawn = numpy_generator("samples", 0).choice(len(source), min(count, len(source)), replace=False, shuffle=False)
    return Subset(source, np.sort(drawn))


def _caption_texts(options: StudyOptions) -> list[str]:
    source = _captioned(options)
    return [source.texts(index)[0] for index in range(len(source))]


def _plane(options: StudyOptions) -> partial[np.ndarray]:
    return partial(project_tsne, perplexity=10.0 if options.scale == "smoke" else 30.0, seed=0)


def _prompts(task: ClassificationTask, options: StudyOptions) -> list[tuple[str, ...]]:
    every = prefix_world(options).templates
    return [texts[::every] for texts in class_prompts(task)]


def _maps(options: StudyOptions, number: int, panels: Sequence[Cloud]) -> StudyReport:
    columns = tuple(dict.fromkeys(("panel", *(key for panel in panels for key in panel.measured))))
    rows = [{"panel": panel.title, **panel.measured} for panel in panels]
    cells = [[f"{value:.3f}" if isinstance(value := row.get(column, ""), float) else value for column in columns]
             for row in rows]  # fmt: skip
    return _report(options, number, clouds(panels), "Measures of the embedding space", columns, cells)


def figure_4(options: StudyOptions) -> StudyReport:
    """Map prompts of twenty classes with each prefix."""
    conditioned, plain = _models(options)
    prompts, plane = _prompts(_some_classes(_label_task(options), CLASSES), options), _plane(options)
    texts = [text for each in prompts for text in each]
    panels = [prefixes_panel(conditioned, texts, ("label", "caption"), plane)]
    panels += [classes_panel(conditioned, prompts, prefix, plane) for prefix in ("label", "caption")]
    return _maps(options, 4, [*panels, classes_panel(plain, prompts, None, plane)])


def figure_7(options: StudyOptions) -> StudyReport:
    """Map prompts of all classes with each prefix."""
    conditioned, _ = _models(options)
    task = _some_classes(_label_task(options), 12 if options.scale == "smoke" else 1000)
    prompts = _prompts(task, options)
    panels = [classes_panel(conditioned, prompts, prefix, _plane(options)) for prefix in ("label", "caption")]
    return _maps(options, 7, panels)


def figure_8(options: StudyOptions) -> StudyReport:
    """Map images of both sources, without and with prefixes in training."""
    labeled, captioned = _subset(_label_task(options).query, SAMPLES[options.scale]), _captioned(options)
    conditioned, plain = _models(options)
    panels = [images_panel(model, labeled, captioned, _plane(options)) for model in (plain, conditioned)]
    return _maps(options, 8, panels)


def figure_9(options: StudyOptions) -> StudyReport:
    """Map class prompts and captions, without and with prefixes."""
    texts = [text for each in _prompts(_label_task(options), options) for text in each]
    drawn = numpy_generator("texts", 0).permutation(len(texts))[: SAMPLES[options.scale]]
    prompts, captions = [texts[index] for index in np.sort(drawn)], _caption_texts(options)
    conditioned, plain = _models(options)
    panels = [captions_panel(model, prompts, captions, _plane(options)) for model in (plain, conditioned)]
    return _maps(options, 9, panels)
