"""Figures of prefix conditioning: heat maps of attention, and t-SNE maps of texts and images."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recollect.evaluation.reports.plots import LINE_COLOURS, new_figure
from recollect_papers.analyse.language import AttentionMap

_LONGEST_WORD = 16


def attention_figure(rows: Sequence[Sequence[tuple[str, AttentionMap]]]) -> Figure:
    """A row of heat maps for each text, one for each way of reading it: layers down, words across (Fig. 3, 5, 6).

    Args:
        rows: for each text, the titles and maps side by side.
    """
    columns = max(map(len, rows))
    words = max(len(shown.words) for row in rows for _, shown in row)
    layers = max(len(shown.weights) for row in rows for _, shown in row)
    size = {"width": max(2.6, 1.0 + 0.28 * words), "height": 1.5 + 0.2 * layers}
    figure, axes = new_figure(columns, len(rows), **size)
    for line, row in zip(axes, rows, strict=True):
        # Words decide the colours: padding, where a tower attends to it, would leave them all pale.
        top = max(float(shown.weights[:, np.array(shown.content)].max()) for _, shown in row)
        for axis in line[len(row) :]:
            axis.set_visible(False)
        for axis, (title, shown) in zip(line, row, strict=False):
            picture = _heat_map(axis, title, shown, top)
        figure.colorbar(picture, ax=list(line[: len(row)]), label="attention", shrink=0.8, extend="max")
    return figure


def _heat_map(axis: Axes, title: str, shown: AttentionMap, top: float) -> matplotlib.image.AxesImage:
    axis.grid(False)
    picture = axis.imshow(shown.weights, cmap="Blues", vmin=0, vmax=top, aspect="auto")
    names = [word if len(word) <= _LONGEST_WORD else f"{word[: _LONGEST_WORD - 1]}…" for word in shown.words]
    axis.set_xticks(range(len(names)), names, rotation=60, ha="right", rotation_mode="anchor", fontsize=8)
    axis.set_yticks(range(len(shown.weights)), [str(number) for number in range(1, len(shown.weights) + 1)])
    axis.set_ylabel("layer")
    axis.set_title(title, fontsize=9)
    for label, own in zip(axis.get_xticklabels(), shown.content, strict=True):
        label.set_color("black" if own else "0.55")
    return picture


@dataclass(frozen=True)
class Cloud:
    """Points of one panel.

    Attributes:
        title: of the panel.
        points: (n, 2).
        groups: (n,), what decides a point's colour.
        names: of the groups for a legend; empty leaves it out, as for many classes.
    """

    title: str
    points: np.ndarray
    groups: np.ndarray
    names: tuple[str, ...] = ()


def clouds(panels: Sequence[Cloud], shades: Sequence[str] = ()) -> Figure:
    """t-SNE maps side by side (Fig. 4, 7, 8, 9); the axes of such a map mean nothing, so they are left out.

    Args:
        shades: colours of the groups; by their number by default.
    """
    figure, axes = new_figure(len(panels), width=3.4, height=3.4)
    for axis, panel in zip(axes[0], panels, strict=True):
        count = int(panel.groups.max()) + 1
        colours = np.array([matplotlib.colors.to_rgb(shade) for shade in shades]) if shades else _colours(count)
        order = np.random.default_rng(0).permutation(len(panel.points))  # so that no group hides the others
        axis.scatter(*panel.points[order].T, c=colours[panel.groups[order]], s=6, linewidths=0, alpha=0.8)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.spines[:].set_visible(True)
        axis.set_title(panel.title, fontsize=9)
        for number, name in enumerate(panel.names):
            axis.scatter([], [], color=colours[number], s=16, label=name)
        if panel.names:
            axis.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, frameon=False, fontsize=8)
    return figure


def _colours(count: int) -> np.ndarray:
    if count <= len(LINE_COLOURS):
        return np.array([matplotlib.colors.to_rgb(colour) for colour in LINE_COLOURS])
    if count <= 20:
        return matplotlib.colormaps["tab20"](np.arange(count))[:, :3]
    return matplotlib.colormaps["gist_rainbow"](np.linspace(0, 1, count))[:, :3]
