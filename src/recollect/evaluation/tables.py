"""Tables as pure functions of result files: tidy frames, gains over a baseline, sample efficiency."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import linregress

from recollect.evaluation.results import Result, Summary, summarise


def tidy(results: Iterable[Result]) -> pd.DataFrame:
    """One line for each figure: ``protocol, model, data, training_seed`` and the row's own keys.

    A few-shot row has its own ``seed`` (of the support draw); the result's seed is kept as ``training_seed``.
    """
    lines = [
        {
            "protocol": result.protocol,
            "model": result.model,
            "data": result.data,
            "training_seed": result.seed,
            "classes": result.settings.get("classes"),
            **row,
        }
        for result in results
        for row in result.rows
    ]
    return pd.DataFrame(lines)


def mean_over_tasks(frame: pd.DataFrame, keys: Sequence[str]) -> pd.Series:
    """Mean of ``value`` for each combination of ``keys`` and training seed, each data set counting the same.

    Support draws are averaged within a data set first, so that a set with more draws weighs no more.
    """
    groups = [*keys, "training_seed"]
    within = frame.groupby([*groups, "data"], dropna=False)["value"].mean()
    return within.groupby(groups, dropna=False).mean()


def over_seeds(values: pd.Series) -> Summary:
    """Mean ± standard deviation over training seeds, of a series that `mean_over_tasks` made and a key selected."""
    return summarise(values.to_numpy())


def paired_gain(frame: pd.DataFrame, model: str, baseline: str, keys: Sequence[str]) -> pd.Series:
    """``model`` minus ``baseline`` for each combination of ``keys`` and training seed, paired by seed.

    Raises:
        ValueError: one of the two has no results, or they share no seed.
    """
    means = {name: mean_over_tasks(frame[frame["model"] == name], keys) for name in (model, baseline)}
    gain = (means[model] - means[baseline]).dropna()
    if gain.empty:
        raise ValueError(f"{model!r} and {baseline!r} have no figure in common")
    return gain


def sample_efficiency(frame: pd.DataFrame, model: str, baseline: str, method: str) -> float | None:
    """How many times fewer shots ``model`` needs for what ``baseline`` reaches with the most (LIxP, Fig. 1).

    The ratio of the largest number of shots measured to the smallest at which the mean accuracy of ``model`` is at
    least the baseline's there; None if it never is.
    """
    frame = frame[frame["method"] == method]
    curves = {name: mean_over_tasks(frame[frame["model"] == name], ["shots"]) for name in (model, baseline)}
    curves = {name: curve.groupby("shots").mean().sort_index() for name, curve in curves.items()}
    most = curves[baseline].index.max()
    reached = curves[model][curves[model] >= curves[baseline][most]]
    return None if reached.empty else float(most) / float(reached.index.min())


@dataclass(frozen=True)
class LogLinearFit:
    """``gain = slope · log10(examples) + intercept`` with the two-sided p-value of the slope (LIxP, Fig. 5)."""

    slope: float
    intercept: float
    p_value: float


def gain_by_examples(frame: pd.DataFrame, model: str, baseline: str, method: str, shots: int) -> pd.DataFrame:
    """Relative gain in percent and number of support examples for each data set (LIxP, Fig. 5)."""
    chosen = frame[(frame["method"] == method) & (frame["shots"] == shots)]
    means = chosen.groupby(["model", "data"])["value"].mean().unstack("model")
    classes = chosen.groupby("data")["classes"].first().astype(float)
    table = pd.DataFrame({"examples": classes * shots, "base": means[baseline], "model": means[model]}).dropna()
    table["relative_gain"] = 100.0 * (table["model"] - table["base"]) / table["base"]
    return table.reset_index()


def log_linear_fit(examples: np.ndarray, gains: np.ndarray) -> LogLinearFit:
    """Ordinary least squares of ``gains`` on log10 of ``examples``; the p-value is that of the t-test of its slope.

    Raises:
        ValueError: fewer than three points, or all with the same number of examples: no slope to test.
    """
    if len(examples) < 3 or np.unique(examples).size < 2:
        raise ValueError(f"{len(examples)} data sets with {np.unique(examples).size} sizes: a fit needs three and two")
    fit = linregress(np.log10(examples), gains)
    return LogLinearFit(float(fit.slope), float(fit.intercept), float(fit.pvalue))
