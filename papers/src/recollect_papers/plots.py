"""Figures that only the papers have: gains per classifier, training curves."""

from collections.abc import Mapping, Sequence

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


def _paired_gain(frame: pd.DataFrame, model: str, baseline: str) -> pd.Series:
    """``model`` minus ``baseline`` for each method and training seed, paired by seed."""
    means = {name: mean_over_tasks(frame[frame["model"] == name], ["method"]) for name in (model, baseline)}
    return (means[model] - means[baseline]).dropna()
