"""Gains over a baseline against the number of support examples (LIxP, Fig. 5)."""

import itertools
import os
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import linregress

from recollect.evaluation import plots


def gain_by_examples(frame: pd.DataFrame, model: str, baseline: str, method: str, shots: int) -> pd.DataFrame:
    """Compute relative gain in percent and number of support examples per data set (LIxP, Fig. 5)."""
    chosen = frame[(frame["method"] == method) & (frame["shots"] == shots)]
    means = chosen.groupby(["model", "data"])["value"].mean().unstack("model")
    classes = chosen.groupby("data")["classes"].first().astype(float)
    table = pd.DataFrame({"examples": classes * shots, "base": means[baseline], "model": means[model]}).dropna()
    table["relative_gain"] = 100.0 * (table["model"] - table["base"]) / table["base"]
    return table.reset_index()


def log_linear_fit(examples: np.ndarray, gains: np.ndarray) -> Any:
    """Fit ``gains`` on log10 of ``examples`` by least squares (LIxP, Fig. 5).

    Returns:
        ``slope``, ``intercept``, and the two-sided ``pvalue`` of the slope's t-test.

    Raises:
        ValueError: fewer than three points, or all with the same number of examples.
    """
    if len(examples) < 3 or np.unique(examples).size < 2:
        raise ValueError(f"{len(examples)} data sets with {np.unique(examples).size} sizes: a fit needs three and two")
    return linregress(np.log10(examples), gains)


def gain_against_examples(frame: pd.DataFrame, model: str, baseline: str, method: str, shots: int) -> Figure:
    """Plot each data set's relative gain against its number of support examples, with the fit (LIxP, Fig. 5)."""
    table = gain_by_examples(frame, model, baseline, method, shots)
    figure, axes = plots.new_figure(width=5.6)
    axis = axes[0, 0]
    axis.scatter(table["examples"], table["relative_gain"], color=plots.LINE_COLORS[0], s=18)
    axis.set_xscale("log")
    axis.set_xlabel("support examples (classes × shots)")
    axis.set_ylabel("relative gain (%)")
    axis.axhline(0, color="0.3", linewidth=0.8)
    # Set ticks explicitly: labels of minor ticks would overlap.
    sizes = np.unique(table["examples"])
    least, most = np.log10(sizes[[0, -1]]).round()
    ticks = sizes if len(sizes) <= 8 else 10.0 ** np.arange(least, most + 1)
    axis.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
    axis.set_xticks([], minor=True)
    names = table["data"].astype(str)
    shared = os.path.commonprefix(list(names)).rfind("-") + 1 if len(names) > 1 else 0  # noqa: RUF071 names, no paths
    for row, height in zip(table.itertuples(), _apart(table["examples"], table["relative_gain"]), strict=True):
        name = str(row.data)[shared:]
        axis.annotate(name, (row.examples, height), (4, -2), textcoords="offset points", fontsize=6,
                      bbox={"fc": "white", "ec": "none", "pad": 0.3, "alpha": 0.8})  # fmt: skip
    named = f"{plots.METHOD_NAMES.get(method, method)}, {shots} shots: {model} over {baseline}"
    figure.suptitle(plots.wrap_to_width(named, figure), fontsize=8)
    try:
        fit = log_linear_fit(table["examples"].to_numpy(), table["relative_gain"].to_numpy())
    except ValueError as error:
        axis.set_title(f"no fit: {error}", fontsize=7)
        return figure
    ends = np.array([table["examples"].min(), table["examples"].max()])
    axis.plot(ends, fit.slope * np.log10(ends) + fit.intercept, color=plots.LINE_COLORS[1])
    axis.set_title(f"slope {fit.slope:+.1f} a decade, p = {fit.pvalue:.2g}", fontsize=8)
    return figure


def _apart(across: pd.Series, up: pd.Series) -> list[float]:
    """Return heights of point labels, moved up to avoid overlap."""
    heights, line = list(map(float, up)), 0.045 * float(np.ptp([0.0, *up]))
    for x in set(across):
        column = sorted((point for point, each in enumerate(across) if each == x), key=lambda point: heights[point])
        for below, point in itertools.pairwise(column):
            heights[point] = max(heights[point], heights[below] + line)
    return heights
