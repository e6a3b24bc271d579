"""EFSA: Figures 1 and 3 to 6."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recollect.core.types import ImageLike
from recollect.efsa.rerank import EpisodeReranker
from recollect.evaluation import plots
from recollect.evaluation.features import FeatureCache, image_features
from recollect.evaluation.results import Summary
from recollect.evaluation.retrieval import first_match, query_indices
from recollect.evaluation.tasks.retrieval import RetrievalTask
from recollect.index import Hits
from recollect.index.source import source_index
from recollect_papers.efsa.tables import (
    ABLATED,
    AVERAGE,
    DEPTHS,
    VariedPart,
    arms_of,
    domains_of,
    form_arms,
    held_out_note,
    measure_arms,
    measure_searches,
    notes_of,
    recall_form,
    summary_at,
)
from recollect_papers.efsa.world import (
    WORLDS_BY_SCALE,
    EfsaWorld,
    SearchRun,
    efsa_world,
    encoder_of,
    pools,
)
from recollect_papers.engine import TablesAndNotes, TableStudy, paper_quote, report
from recollect_papers.measurements import Measurements
from recollect_papers.plots import empty, error_line, framed
from recollect_papers.study import StudyOptions, StudyReport

SHOWN_HITS = 4
"""Number of images shown per query."""

_Picture = tuple[ImageLike, bool]
"""An image, and whether it is a true match."""


@dataclass(frozen=True)
class Answer:
    """Search results of one base model for a query, before and after its episode.

    Attributes:
        found: first images.
        ranks: rank of the first true match.
        truth: a true match.
    """

    query: str
    found: tuple[Sequence[_Picture], Sequence[_Picture]]
    ranks: tuple[int, int]
    truth: _Picture


def query_answers(where: EfsaWorld, options: StudyOptions, search: SearchRun) -> list[list[Answer]]:
    """Return the answers of the first base model for each pool of a search."""
    encoder, episode = encoder_of(where.models[0]), search.options.episode
    found = []
    for pool in pools(search, where):
        task, captions = pool.task, pool.captions.captions if pool.captions is not None else None
        features = image_features(encoder, task.images, FeatureCache(options.out / "features")).images
        index = source_index(encoder, task.images, captions, features)
        texts = query_indices(task, pool.captions, where.queries)
        queries = [task.texts[text] for text in texts]
        before = after = index.search_many(queries, episode.k)
        if "episode" in search.methods:
            after = index.search_many(queries, episode.k, rerank=EpisodeReranker(encoder, episode))
        found.append([_answer(task, *each) for each in zip(texts, before, after, strict=True)])
    return found


def _answer(task: RetrievalTask, text: int, before: Hits, after: Hits) -> Answer:
    true = {str(image) for image in task.matches[text]}
    first, other = ([(hit.picture.read(), hit.id in true) for hit in hits[:SHOWN_HITS]] for hits in (before, after))
    truth = task.images[task.matches[text][0]].image, True
    return Answer(before.query, (first, other), (first_match(before, true), first_match(after, true)), truth)


def examples(axes: np.ndarray, shown: Sequence[tuple[str, str, Sequence[_Picture]]]) -> None:
    """Draw a row of pictures for each query and method, with true matches framed in green and others in red."""
    previous = ""
    for row, (query, method, found) in zip(axes, shown, strict=True):
        for axis in row:
            empty(axis)
        for axis, picture in zip(row, found, strict=False):
            framed(axis, *picture)
        row[0].set_ylabel(method, fontsize=8)
        if query != previous:  # an empty title reserves the height of the annotation without widening the axis
            text = fill(query, 21 * len(row))
            row[0].set_title(" " + "\n" * (1 + text.count("\n")), fontsize=7)
            place = {"xycoords": "axes fraction", "fontsize": 6.5, "va": "bottom"}
            row[0].annotate(text, (0, 1.04), **place).set_in_layout(False)
        previous = query


def grouped(axis: Axes, recalls: Mapping[str, Mapping[int, Summary]]) -> None:
    """Draw bars of recall, grouped by k and colored by name."""
    depths = list(next(iter(recalls.values())))
    positions, width = np.arange(len(depths)), 0.8 / len(recalls)
    for number, ((name, values), color) in enumerate(zip(recalls.items(), plots.LINE_COLORS, strict=False)):
        where = positions + (number - (len(recalls) - 1) / 2) * width
        axis.bar(
            where, [values[k].mean for k in depths], width * 0.92, color=color, label=name, capsize=2,
            yerr=np.nan_to_num([values[k].std for k in depths]),
        )  # fmt: skip
    axis.set_xticks(positions, [f"R@{k}" for k in depths])
    axis.set_ylabel("text to image (%)")
    axis.set_ylim(bottom=0)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)


def _note_models(figure: Figure, found: Measurements) -> None:
    """Add a note on the error bars below a figure."""
    arm = {"arm": found.context["arms"][0]} if "arms" in found.context else {}
    count = summary_at(found, "zero-shot", AVERAGE, DEPTHS[0], **arm).count
    plots.add_note_below(figure, f"bars: std over {count} base models" if count > 1 else "one base model")


# --- The paper's figures ----------------------------------------------------------------------------------------------


def _depths(found: Measurements, method: str, domain: str, **more: str) -> dict[int, Summary]:
    return {k: summary_at(found, method, domain, k, **more) for k in DEPTHS}


def figure_1(options: StudyOptions) -> StudyReport:
    """Draw zero-shot recall at 1, 5 and 10 within each domain, with examples of errors."""
    where = efsa_world(options)
    search = SearchRun(("zero-shot",), where.methods, where.captions[0], "single", where.data)
    found = measure_searches(options, where, "single", ("zero-shot",))
    domains = query_answers(where, options, search)[:3]
    wrong = [next((each for each in answers if 1 < each.ranks[0] <= 5), None) for answers in domains]
    shown = [(each.query, "found, right", [each.found[0][0], each.truth]) for each in wrong if each is not None]
    figure = Figure(figsize=(7.6, 3.0 + 1.9 * len(shown)), layout="constrained", dpi=150)
    parts = figure.subfigures(1 + bool(shown), 1, squeeze=False, height_ratios=[1.9 * len(shown)] * bool(shown) + [3.0])
    grouped(parts[-1, 0].subplots(), {each: _depths(found, "zero-shot", each) for each in found.context["domains"]})
    if shown:
        examples(parts[0, 0].subplots(len(shown), SHOWN_HITS, squeeze=False), shown)
    title, rows = "Figure 1. Zero-shot, every domain by itself", {"zero-shot": {"method": "zero-shot"}}
    form = recall_form(title, "method", rows, found, notes_of(where, "nothing")[:1])
    form = replace(form, columns=[column for column in form.columns if column.show != "gain"])
    note = "examples: found first (red) and a true match (green), of queries with a true match at ranks 2 to 5"
    return report("efsa/figure-1", options, WORLDS_BY_SCALE, figure, [form.fill(found)], [note], found)


def figure_3(options: StudyOptions) -> StudyReport:
    """Draw the first results before and after an episode."""
    where = efsa_world(options)
    search = SearchRun(ABLATED, where.methods, where.captions[0], "merged", where.data)
    (answers,) = query_answers(where, options, search)
    better = [each for each in answers if each.ranks[1] == 1 < each.ranks[0]]
    worse = [each for each in answers if each.ranks[0] == 1 < each.ranks[1]]
    chosen = [*better[:2], *worse[:1]] or answers[:2]
    shown = [(each.query, method, found) for each in chosen
             for method, found in zip(("zero-shot", "EFSA"), each.found, strict=True)]  # fmt: skip
    figure, axes = plots.new_figure(columns=SHOWN_HITS, rows=len(shown), width=1.25, height=1.6)
    examples(axes, shown)
    note = (
        f"an episode brings a true match to the first rank for {len(better)} of {len(answers)} queries and drives one "
        f"from it for {len(worse)}; shown: the first two of the one kind, the first of the other"
    )
    first = () if len(where.models) == 1 else (f"of the first base model of {len(where.models)}",)
    return report("efsa/figure-3", options, WORLDS_BY_SCALE, figure, (), (note, *first))


_KINDS = {"zero-shot": "zero-shot", "all parameters": "episode-full", "low-rank adapters": "episode"}
"""Rows of Figure 4 and their methods."""


def _measure_4(options: StudyOptions) -> Measurements:
    where = efsa_world(options)
    notes = [*notes_of(where)[:2], f"paper: {paper_quote('efsa', 'figure-4')}"]
    found = measure_searches(options, where, methods=("zero-shot", "episode-full", "episode"))
    found.context["notes"] = notes
    return found


def _draw_4(found: Measurements) -> Figure:
    """Draw a panel per domain and a color per method."""
    domains = domains_of(found)
    figure, axes = plots.new_figure(columns=len(domains), width=3.2, height=2.7)
    for axis, domain in zip(axes[0], domains, strict=True):
        grouped(axis, {name: _depths(found, method, domain) for name, method in _KINDS.items()})
        axis.set_title(domain)
        if axis is not axes[0, 0]:
            axis.set_ylabel("")
            axis.legend().set_visible(False)
    _note_models(figure, found)
    return figure


def _form_4(found: Measurements) -> TablesAndNotes:
    rows = {name: {"method": method} for name, method in _KINDS.items()}
    title = "Figure 4. What an episode changes"
    return [recall_form(title, "parameters", rows, found, found.context["notes"]).fill(found)], ()


figure_4 = TableStudy("efsa/figure-4", _measure_4, _form_4, WORLDS_BY_SCALE, _draw_4)


def _measure_5(options: StudyOptions) -> Measurements:
    """Measure recall over the number of steps."""
    where = efsa_world(options)
    most = 2 if options.scale == "smoke" else 4
    arms = {str(steps): {"steps": steps} for steps in range(1, most + 1)}
    return _over(5, options, where, arms, "steps", "episodes")


def _measure_6(options: StudyOptions) -> Measurements:
    """Measure recall over caption length, or over the user's caption files at scale ``full``."""
    where = efsa_world(options)
    kinds = list(where.captions)
    if options.scale != "full":
        first = where.captions[0]
        limits = (4, 8, None) if options.scale == "smoke" else (3, 5, 10, 15, None)
        kinds = [
            replace(first, label="no limit" if words is None else str(words),
                    corruption=replace(first.corruption, most_words=words)) for words in limits
        ]  # fmt: skip
    arms = {kind.label: {"captions": kind} for kind in kinds}
    if options.scale == "full":
        return _over(6, options, where, arms, "captions", "captions", held_out_note(kinds))
    return _over(6, options, where, arms, "most words of a caption", "methods")


def _over(
    number: int, options: StudyOptions, where: EfsaWorld, arms: Mapping[str, Mapping[str, Any]], label: str,
    differs: VariedPart, remarks: Sequence[str] = (),
) -> Measurements:  # fmt: skip
    """Measure recall of several arms, and zero-shot recall."""
    notes = [*notes_of(where, differs)[:2], f"paper: {paper_quote('efsa', f'figure-{number}')}"]
    return measure_arms(options, where, arms, label=label, notes=notes, remarks=list(remarks))


def _draw_over(found: Measurements) -> Figure:
    """Draw a panel per R@k with a line per domain over the arms (Figures 5 and 6)."""
    figure, axes = plots.new_figure(columns=len(DEPTHS), width=3.1, height=2.8)
    rows, domains = arms_of(found), domains_of(found)
    for axis, k in zip(axes[0], DEPTHS, strict=True):
        for domain, color in zip(domains, plots.LINE_COLORS, strict=False):
            values = [summary_at(found, at["method"], domain, k, arm=at["arm"]) for at in rows.values()]
            error_line(axis, range(len(rows)), values, color, domain)
        axis.set_xticks(range(len(rows)), list(rows))
        axis.set_xlabel(found.context["label"])
        axis.set_title(f"R@{k}")
        axis.set_ylim(bottom=0)
    axes[0, 0].set_ylabel("text to image (%)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), frameon=False)
    _note_models(figure, found)
    return figure


def _form_over(found: Measurements, number: int) -> TablesAndNotes:
    label = found.context["label"]
    return form_arms(found, f"Figure {number}. EFSA over {label}", label)


figure_5 = TableStudy("efsa/figure-5", _measure_5, partial(_form_over, number=5), WORLDS_BY_SCALE, _draw_over)
figure_6 = TableStudy("efsa/figure-6", _measure_6, partial(_form_over, number=6), WORLDS_BY_SCALE, _draw_over)
