"""Drawing functions of RECO's figures."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from recollect.core.seeding import numpy_generator
from recollect.evaluation.features import class_prompts, class_text_features, image_features
from recollect.evaluation.plots import LINE_COLORS, add_note_below, new_figure
from recollect.evaluation.results import Summary
from recollect.evaluation.tasks.classification import ClassificationTask
from recollect.index import By, Index, Picture
from recollect_papers.plots import empty, error_line, framed
from recollect_papers.reco.bench import Bench

Search = Literal["uni", "cross"]
_MODALITIES: tuple[By, By] = ("image", "text")
_SEARCHES: tuple[Search, Search] = ("uni", "cross")

_IMAGE, _TEXT = LINE_COLORS[:2]


def diagram() -> Figure:
    """Draw the four combinations of search and fusion for an image query (RECO, Figure 2)."""
    figure, axes = new_figure(columns=4, width=2.9, height=3.0)
    ways = [("uni", "cross"), ("cross", "cross"), ("uni", "uni"), ("cross", "uni")]
    for axis, (search, read) in zip(axes[0], ways, strict=True):
        axis.set_axis_off()
        axis.set_xlim(0, 10)
        axis.set_ylim(0, 10.4)
        ours = "\n(RECO)" if (search, read) == ("uni", "cross") else "\n"
        axis.set_title(f"{search}-modal search,\n{read}-modal fusion{ours}", fontsize=8)
        _box(axis, 0.3, 0.6, "image $v$", _IMAGE)
        axis.add_patch(Rectangle((4.2, 3.0), 5.5, 6.6, fill=False, edgecolor="0.6", linestyle="--"))
        axis.text(6.95, 9.8, "index", ha="center", fontsize=7, color="0.4")
        heights = (7.8, 5.7, 3.6)
        for number, height in enumerate(heights):
            _box(axis, 4.5, height, f"$v_{number + 1}$", _IMAGE, width=2.0, faint=read != "uni")
            _box(axis, 7.4, height, f"$t_{number + 1}$", _TEXT, width=2.0, faint=read != "cross")
        _box(axis, 4.9, 0.6, r"fusion $\varphi$", "0.35", width=3.4)
        target = 4.5 if search == "uni" else 7.4
        _arrow(axis, (1.6, 2.0), (target, 6.4), "compare", dashed=True, bend=-0.2)
        _arrow(axis, (5.5 if read == "uni" else 8.4, 3.6), (6.6, 2.1), "", bend=0.0)
        _arrow(axis, (3.0, 1.3), (4.9, 1.3), "", bend=0.0)
        axis.text(8.45, 1.3, r"$\rightarrow\ \hat v$", va="center", fontsize=10)
    return figure


def _box(
    axis: Axes, x: float, y: float, text: str, color: str, width: float = 2.7, height: float = 1.4, faint: bool = False
) -> None:
    alpha = 0.25 if faint else 0.9
    axis.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0.05", facecolor=color, alpha=alpha, edgecolor="none")
    )
    axis.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=8, color="0.2" if faint else "w")


def _arrow(
    axis: Axes, start: tuple[float, float], end: tuple[float, float], text: str, dashed: bool = False, bend: float = 0.0
) -> None:
    style = {"arrowstyle": "-|>", "mutation_scale": 9, "color": "0.25", "linestyle": "--" if dashed else "-"}
    axis.add_patch(FancyArrowPatch(start, end, connectionstyle=f"arc3,rad={bend}", **style))  # type: ignore[arg-type]
    if text:
        axis.text(0.3, 5.6, text, fontsize=7, color="0.25")


def additional_training(
    training: Mapping[str, Summary],
    growing: Mapping[str, Mapping[float, Summary]],
    reading: Mapping[str, Mapping[float, Summary]],
    what: str,
) -> Figure:
    """Draw additional training, the index's share in training, and k (RECO, Figure 3).

    Args:
        training: top-1 of each training variant.
        growing: for each test index, top-1 by the share of the index in training.
        reading: for each k in training, top-1 by k in testing.
        what: data set, for axis labels.
    """
    figure, axes = new_figure(columns=3, width=3.5, height=3.25)
    left, middle, right = axes[0]
    alone = training["model alone"].mean
    positions = np.arange(len(training))
    bars = left.barh(
        positions[::-1], [each.mean for each in training.values()],
        xerr=np.nan_to_num([each.std for each in training.values()]),
        color=["0.6", *LINE_COLORS[1 : len(training) - 1], LINE_COLORS[0]], capsize=2,
    )  # fmt: skip
    left.bar_label(bars, [f"{each.mean:.1f}" for each in training.values()], fontsize=7, padding=3)
    left.set_yticks(positions[::-1], [name.replace(" and", "\nand") for name in training], fontsize=7)
    left.grid(axis="y", visible=False)
    left.margins(x=0.15)
    left.set_xlabel(f"top-1 (%), {what}")
    left.set_title("additional training")
    _curves(middle, {name: {100 * share: found for share, found in each.items()} for name, each in growing.items()})
    _log_ticks(middle, [100 * share for share in next(iter(growing.values()))])
    middle.set_xlabel("share of the index in training (%)")
    middle.set_title("index updated after training")
    _curves(right, reading)
    _log_ticks(right, list(next(iter(reading.values()))))
    right.set_xlabel("k in testing")
    right.set_title("number of rows read")
    for axis in (middle, right):
        axis.axhline(alone, color="0.5", linestyle=":", linewidth=1.2, label="model alone")
        axis.legend(frameon=False, fontsize=6.5)
        axis.set_ylabel(f"top-1 (%), {what}")
    count = training["model alone"].count
    add_note_below(figure, f"bars: std over {count} seeds of model and fusion" if count > 1 else "one seed")
    return figure


def _log_ticks(axis: Axes, ticks: Sequence[float]) -> None:
    """Use a logarithmic axis with ticks at the measured values."""
    axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()


def _curves(axis: Axes, curves: Mapping[str, Mapping[float, Summary]]) -> None:
    for (name, found), color in zip(curves.items(), LINE_COLORS, strict=False):
        error_line(axis, list(found), list(found.values()), color, name)


def relevant_shares(bench: Bench, column: str, k: int = 10) -> dict[tuple[By, Search], float]:
    """Return the percentage of the k nearest rows that are of the query's class, for image and text queries.

    Args:
        bench: bench with a full index.
        column: column of tasks whose images and class texts are queries.
    """
    shares = {}
    for modality in _MODALITIES:
        queries = [_queries(bench, task, modality) for task in bench.tasks[column]]
        for search in _SEARCHES:
            right, count = 0, 0
            for vectors, names in queries:
                found = _nearest(bench, vectors, modality, search, k)
                right += sum(_relevant(item, name) for name, items in zip(names, found, strict=True) for item in items)
                count += k * len(names)
            shares[modality, search] = 100 * right / count
    return shares


def _queries(bench: Bench, task: ClassificationTask, modality: By) -> tuple[np.ndarray, Sequence[str]]:
    """Return embeddings of a task's images or class texts, and their class names."""
    if modality == "text":
        return class_text_features(bench.model, task), task.class_names
    features = image_features(bench.model, task.query, bench.cache)
    return features.images, [task.class_names[label] for label in features.labels]


def _nearest(bench: Bench, vectors: np.ndarray, modality: By, search: Search, k: int) -> list[list[Picture]]:
    """Return the k nearest rows of the full index for each vector, without near-duplicates of test pictures."""
    index, other = Index.open(bench.memory_of()), _MODALITIES[modality == "image"]
    compared = modality if search == "uni" else other
    ids = index.lookup(vectors, k, compared, exclude=bench.near_duplicates(1.0, "tasks") or None).ids
    pictures = {each.id: each for each in index.pictures(sorted(set(ids.ravel().tolist()) - {""}))}
    return [[pictures[id] for id in row if id] for row in ids.tolist()]


def _relevant(item: Picture, name: str) -> bool:
    """Return whether a row shows the class: by its ``name`` value if it has one, else by its caption."""
    known = item.metadata.get("name")
    return known == name if known is not None else name.lower() in item.caption.lower()


def nearest_items(bench: Bench, column: str, k: int = 4) -> Figure:
    """Draw the nearest rows of the index for two images and two class names, by uni- and cross-modal search."""
    generator = numpy_generator("figure 4", bench.label)
    tasks = bench.tasks[column]
    columns = 2 * k + 2  # query, k results, an empty column, k results
    figure, axes = new_figure(columns=columns, rows=4, width=1.25, height=1.5)
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=(0, 0, 1, 0.95))  # room for the headings
    for axis in axes.flat:
        empty(axis)
    for row, modality in enumerate(sorted(2 * _MODALITIES)):
        task = tasks[int(generator.integers(len(tasks)))]
        name, vectors = _draw_query(axes[row, 0], bench, task, modality, generator)
        for first, search in zip((1, 2 + k), _SEARCHES, strict=True):
            for axis, item in zip(axes[row, first:], _nearest(bench, vectors, modality, search, k)[0], strict=False):
                framed(axis, item.open(), _relevant(item, name), width=2)
                axis.set_title(_short(item.caption), fontsize=5)
    for first, title in ((0, "query"), (1, "uni-modal search"), (2 + k, "cross-modal search")):
        figure.text((first + 0.1) / columns, 0.965, title, fontsize=10, fontweight="bold")
    return figure


def _draw_query(
    axis: Axes, bench: Bench, task: ClassificationTask, modality: By, generator: np.random.Generator
) -> tuple[str, np.ndarray]:
    if modality == "image":
        sample = task.query[int(generator.integers(len(task.query)))]
        axis.imshow(np.asarray(sample.image), interpolation="nearest")
        name = task.class_names[sample.label]
        axis.set_title(_short(name), fontsize=5.5)
        return name, bench.model.embed_images([sample.image]).numpy()
    label = int(generator.integers(len(task.class_names)))
    text = class_prompts(task)[label][0]
    axis.text(0.5, 0.5, _short(text, 14, 6), ha="center", va="center", fontsize=7)
    return task.class_names[label], bench.model.embed_texts([text]).numpy()


def _short(text: str, width: int = 24, lines: int = 3) -> str:
    return "\n".join(textwrap.wrap(text, width, max_lines=lines, placeholder=" …"))
