"""Figures as pure functions of tables; each returns a matplotlib figure."""

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recollect.core.files import atomic_path
from recollect.evaluation.tables import mean_over_tasks

# Colors that color-blind readers can distinguish (Okabe and Ito, 2008), in order of use.
LINE_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C8C")

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1, 2)), (0, (1, 1)))
"""Line styles that distinguish overlapping lines."""

PANELS_IN_A_ROW = 5

METHOD_NAMES = {
    "zero-shot": "Zero-shot",
    "prototype": "Prototypical",
    "prototype-cosine": "Prototypical, cosine",
    "tip-adapter": "Default Tip",
    "tip-adapter-cv": "XVal Tip",
    "plurality": "Plurality NN",
    "rank": "Rank NN",
    "softmax": "Softmax NN",
    "softmax+zero-shot": "Softmax NN + zero-shot",
    "tip-x": "TIP-X",
    "ape": "APE",
    "gda": "GDA",
    "dmn-tf": "DMN-TF",
    "linear-probe": "Linear probe",
    "clip-adapter": "CLIP-Adapter",
    "tip-adapter-f": "Tip-Adapter-F",
    "ape-t": "APE-T",
}
"""Names in figures: LIxP's classifiers in the order of its Table 1, then others."""


def new_figure(columns: int = 1, rows: int = 1, width: float = 4.2, height: float = 3.2) -> tuple[Figure, np.ndarray]:
    """Create a figure with a (rows, columns) array of axes, in the common style."""
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained", dpi=150)
        axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="0.9", linewidth=0.6)
        axis.set_axisbelow(True)
    return figure, axes


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure atomically as PNG, PDF or SVG, by the file extension."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=Path(path).suffix.lstrip(".") or "png")


def colors_of(names: Sequence[str]) -> dict[str, str]:
    """Assign each name a color in the order of `LINE_COLORS`; all further names get the last one."""
    return dict(itertools.zip_longest(names, LINE_COLORS[: len(names)], fillvalue=LINE_COLORS[-1]))


def _curve(axis: Axes, frame: pd.DataFrame, label: str, color: str, number: int, count: int) -> None:
    """Draw one of ``count`` curves, with a small horizontal offset to keep equal curves visible."""
    curve = mean_over_tasks(frame, ["shots"]).groupby("shots").agg(["mean", "std"]).sort_index()
    aside = 2 ** (0.1 * (number - (count - 1) / 2))
    axis.errorbar(
        curve.index * aside, curve["mean"], yerr=curve["std"], label=label, color=color,
        marker=MARKERS[number % len(MARKERS)], linestyle=DASHES[number % len(DASHES)], markersize=3.5, capsize=2,
        linewidth=1.3,
    )  # fmt: skip


def few_shot_curves(
    frame: pd.DataFrame,
    models: Sequence[str],
    methods: Sequence[str],
    zero_shot: Mapping[str, float] | None = None,
) -> Figure:
    """Plot accuracy over shots, one panel per method, error bars over training seeds (LIxP, Fig. 1).

    Args:
        zero_shot: mean zero-shot accuracy of each model, drawn as a dotted line in its color.
    """
    shown = colors_of(models)
    rows = -(-len(methods) // PANELS_IN_A_ROW)
    columns = -(-len(methods) // rows)  # six panels are two rows of three
    figure, axes = new_figure(columns, rows, width=3.1, height=2.8)
    for axis in axes.flat[len(methods) :]:
        axis.set_visible(False)
    for axis, method in zip(axes.flat, methods, strict=False):
        for number, (model, color) in enumerate(shown.items()):
            curve = frame[(frame["model"] == model) & (frame["method"] == method)]
            _curve(axis, curve, model, color, number, len(shown))
            if zero_shot and model in zero_shot:
                gaps = (2, 2 * len(shown) - 2)  # dashes of lines at the same height alternate
                axis.axhline(zero_shot[model], color=color, linestyle=(2 * number, gaps), linewidth=1.2)
        shots = sorted(frame["shots"].dropna().unique())
        axis.set_xscale("log", base=2)
        axis.set_xticks(shots, [f"{int(shot)}" for shot in shots])
        axis.minorticks_off()
        axis.set_xlabel("shots per class")
        axis.set_title(METHOD_NAMES.get(method, method))
    for axis in axes[:, 0]:
        axis.set_ylabel("accuracy (%)")
    dashed = "; level dashes: zero-shot" if zero_shot else ""
    add_note_below(figure, f"{data_set_names(frame)}{dashed}; {seeds_note(frame, 'bars: std over {} training seeds')}")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=len(models), frameon=False)
    return figure


def gain_per_data_set(frame: pd.DataFrame, model: str, baseline: str, method: str, shots: int) -> Figure:
    """Plot the gain on each data set as bars, largest first (LIxP, Fig. 2)."""
    chosen = frame[(frame["method"] == method) & (frame["shots"] == shots)]
    means = chosen.groupby(["model", "data"])["value"].mean().unstack("model")
    gains = (means[model] - means[baseline]).dropna().sort_values(ascending=False)
    figure, axes = new_figure(width=max(4.0, 1.5 + 0.32 * len(gains)), height=3.4)
    axis = axes[0, 0]
    axis.bar(
        range(len(gains)), gains.to_numpy(), color=[LINE_COLORS[0] if gain >= 0 else LINE_COLORS[1] for gain in gains]
    )
    axis.axhline(0, color="0.3", linewidth=0.8)
    axis.set_xticks(range(len(gains)), list(gains.index), rotation=60, ha="right", fontsize=7)
    axis.set_ylabel(f"{METHOD_NAMES.get(method, method)}, {shots} shots:\ngain (points)")
    axis.set_title(wrap_to_width(f"{model} minus {baseline}", figure), fontsize=8)
    add_note_below(figure, seeds_note(chosen, "mean of {} training seeds"))
    return figure


def seeds_note(frame: pd.DataFrame, words: str) -> str:
    """Return a note on the number of training seeds."""
    count = frame["training_seed"].nunique()
    return "one training seed" if count == 1 else words.format(count)


_NOTE_LINE = 0.125
"""Line height of a note in inches."""


def add_note_below(figure: Figure, words: str) -> None:
    """Add a note below a figure and increase its height accordingly."""
    lines = wrap_to_width(words, figure)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + _NOTE_LINE * (lines.count("\n") + 1))
    figure.supxlabel(lines, fontsize=7, color="0.35")


def data_set_names(frame: pd.DataFrame) -> str:
    """Return the names of the data sets of a mean, without their common prefix."""
    names = [str(name) for name in dict.fromkeys(frame["data"])]
    if len(names) == 1:
        return names[0]
    words = zip(*(name.split("-")[:-1] for name in names), strict=False)
    shared = "-".join(each[0] for each in itertools.takewhile(lambda each: len(set(each)) == 1, words))
    own = ", ".join(name.removeprefix(f"{shared}-") for name in names)
    return f"mean of {len(names)} sets{f' of {shared}' if shared else ''}: {own}"


def wrap_to_width(words: str, figure: Figure) -> str:
    """Wrap text to the width of a figure."""
    return textwrap.fill(words, int(16 * figure.get_figwidth()), break_on_hyphens=False)
