"""Figures that only the papers and the demo have: gains per classifier, training curves, rows of pictures."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from recollect.evaluation.reports.plots import (
    DASHES,
    METHOD_NAMES,
    colours_of,
    new_figure,
    say_beneath,
    seeds_of,
    sets_of,
)
from recollect.evaluation.results import summarise
from recollect.evaluation.tables import mean_over_tasks


def gain_per_classifier(
    frame: pd.DataFrame,
    pairs: Mapping[str, tuple[str, str]],
    methods: Sequence[str],
    shots: int,
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """Bars of the gain over the baseline for each classifier (LIxP, Fig. 3), error bars over paired seeds.

    Args:
        pairs: for each legend entry, the model and its baseline.
        colours: by legend entry; by order where one has none.
    """
    shown = colours_of(list(pairs), colours)
    figure, axes = new_figure(width=1.4 + 0.95 * len(methods), height=3.0)
    axis = axes[0, 0]
    chosen = frame[frame["shots"] == shots]
    places = np.arange(len(methods))
    width = 0.8 / len(pairs)
    for index, (label, (model, baseline)) in enumerate(pairs.items()):
        gains = [summarise(_paired_gain(chosen[chosen["method"] == method], model, baseline)) for method in methods]
        bars = axis.bar(
            places + (index - (len(pairs) - 1) / 2) * width,
            [gain.mean for gain in gains],
            width * 0.92,
            yerr=[np.nan_to_num(gain.std) for gain in gains],
            color=shown[label],
            capsize=2,
            label=label,
        )
        axis.bar_label(bars, [f"{gain.mean:+.1f}" for gain in gains], fontsize=7, padding=2)
    axis.axhline(0, color="0.3", linewidth=0.8)
    axis.set_xticks(places, [METHOD_NAMES.get(method, method) for method in methods])
    axis.set_ylabel(f"gain at {shots} shots (points)")
    axis.margins(y=0.15)
    say_beneath(figure, f"{sets_of(chosen)}; {seeds_of(chosen, 'whiskers: std over {} training seeds, paired')}")
    figure.legend(loc="outside upper right", ncols=len(pairs), frameon=False)
    return figure


def training_dynamics(metrics: Mapping[str, pd.DataFrame], colours: Mapping[str, str] | None = None) -> Figure:
    """Base loss, context loss, context temperature and effective neighbours over training (LIxP, Fig. 6).

    Args:
        metrics: for each run, its ``metrics.jsonl`` as a frame.
        colours: by run; by order where one has none.
    """
    shown = colours_of(list(metrics), colours)
    panels = {
        "base_loss": "base loss",
        "context_loss": "context loss",
        "tau_context": r"$\tau_{ctx}$",
        "effective_neighbours": "effective neighbours",
    }
    figure, axes = new_figure(columns=len(panels), width=3.0, height=2.6)
    for axis, (column, title) in zip(axes[0], panels.items(), strict=True):
        for place, (name, frame) in enumerate(metrics.items()):
            if column in frame and frame[column].notna().any():
                # Each later line is thinner and has its own dashes, so that a line below it stays visible.
                width, dash = max(1.0, 3.2 - 1.1 * place), DASHES[place % len(DASHES)]
                axis.plot(frame["step"], frame[column], color=shown[name], label=name, linewidth=width, linestyle=dash)
        axis.set_title(title)
        axis.set_xlabel("step")
        if column in {"tau_context", "effective_neighbours"}:
            axis.set_yscale("log")
    handles = {label: line for axis in axes[0] for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside upper right", ncols=min(4, len(handles)), frameon=False)
    return figure


@dataclass(frozen=True)
class Tile:
    """One picture of a row.

    Attributes:
        image: (height, width, 3), uint8.
        words: beneath it.
        right: draws a frame: green for what was looked for, none otherwise.
    """

    image: np.ndarray
    words: str
    right: bool = False


RIGHT = "#009E73"


_PICTURE, _GAP, _TITLES = 1.14, 0.11, 1.35  # inches
_LINE, _HEADING_LINE = 0.115, 0.18  # of words beneath a picture, and above all of them


def picture_rows(rows: Sequence[tuple[str, Sequence[Tile]]], colours: Sequence[str] = (), heading: str = "") -> Figure:
    """Rows of pictures with words beneath them, each row with its title at the left.

    Every place is computed from the number of lines: matplotlib's layouts make no room for words of a picture whose
    sides they keep equal, and cut the last ones.

    Args:
        rows: title and pictures; a row may be shorter than the others.
        colours: of the titles; black by default.
        heading: above all rows.
    """
    columns = max(len(tiles) for _, tiles in rows)
    words = [[_wrapped(tile.words) for tile in tiles] for _, tiles in rows]
    beneath = [0.06 + _LINE * max(text.count("\n") + 1 for text in line) for line in words]
    width = _TITLES + columns * (_PICTURE + _GAP)
    above = textwrap.wrap(heading, round(12 * width))
    top = _GAP + _HEADING_LINE * len(above)
    height = top + sum(_PICTURE + _GAP + each for each in beneath)
    figure = Figure(figsize=(width, height), dpi=150)
    if above:
        figure.text(0.5, 1 - 0.5 * _GAP / height, "\n".join(above), ha="center", va="top", fontsize=9)
    for number, (title, tiles) in enumerate(rows):
        floor = (height - top - _PICTURE) / height
        label = figure.add_axes((0.05 / width, floor, (_TITLES - 0.1) / width, _PICTURE / height))
        label.axis("off")
        colour = colours[number] if colours else "black"
        label.text(0.0, 0.55, textwrap.fill(title, 18), va="center", fontsize=8, color=colour, weight="bold")
        for place, (tile, text) in enumerate(zip(tiles, words[number], strict=True)):
            left = (_TITLES + place * (_PICTURE + _GAP)) / width
            axis = figure.add_axes((left, floor, _PICTURE / width, _PICTURE / height))
            axis.imshow(tile.image, interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
            axis.spines[:].set_visible(tile.right)
            axis.spines[:].set(color=RIGHT, linewidth=3)
            axis.set_xlabel(text, fontsize=6.5, labelpad=3)
        top += _PICTURE + _GAP + beneath[number]
    return figure


def _wrapped(words: str) -> str:
    return "\n".join(textwrap.fill(line, 22) for line in words.splitlines())


def _paired_gain(frame: pd.DataFrame, model: str, baseline: str) -> pd.Series:
    """``model`` minus ``baseline`` for each method and training seed, paired by seed."""
    means = {name: mean_over_tasks(frame[frame["model"] == name], ["method"]) for name in (model, baseline)}
    return (means[model] - means[baseline]).dropna()
