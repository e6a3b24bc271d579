"""Tables as pure functions of result files: tidy frames, gains over a baseline, sample efficiency."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from recollect.evaluation.results import Result, Summary, summarize


def tidy(results: Iterable[Result]) -> pd.DataFrame:
    """Return one line per figure: ``protocol, model, data, training_seed`` and the row's own keys.

    A few-shot row has its own ``seed`` (of the support draw); the result's seed is ``training_seed``. Different data
    sets of a protocol with the same name are numbered: ``birds``, ``birds (2)``. Data sets of different protocols are
    not compared, since protocols read different parts of a data set.
    """
    results = list(results)
    names = _unique_names(results)
    lines = [
        {
            "protocol": result.protocol,
            "model": result.model,
            "data": names[_identity(result)],
            "training_seed": result.seed,
            "classes": result.settings.get("classes"),
            **row,
        }
        for result in results
        for row in result.rows
    ]
    return pd.DataFrame(lines)


def _identity(result: Result) -> tuple[str, str, str | None]:
    return result.protocol, result.data, result.settings.get("data_content")


def _unique_names(results: Sequence[Result]) -> dict[tuple[str, str, str | None], str]:
    """Return a name for each data set, unique within its protocol."""
    names, seen = dict[tuple[str, str, str | None], str](), Counter[tuple[str, str]]()
    for key in dict.fromkeys(map(_identity, results)):
        seen[key[:2]] += 1
        names[key] = key[1] if seen[key[:2]] == 1 else f"{key[1]} ({seen[key[:2]]})"
    return names


def mean_over_tasks(frame: pd.DataFrame, keys: Sequence[str]) -> pd.Series:
    """Average ``value`` over data sets, for each combination of ``keys`` and training seed.

    Support draws are averaged within a data set first, so that all data sets have the same weight.
    """
    groups = [*keys, "training_seed"]
    within = frame.groupby([*groups, "data"], dropna=False)["value"].mean()
    return within.groupby(groups, dropna=False).mean()


def gain_over_draws(frame: pd.DataFrame, model: str, baseline: str, method: str, shots: int) -> Summary:
    """Summarize ``model`` minus ``baseline`` on the same supports, over draws and training seeds.

    Each value is the mean difference over data sets of one draw.
    """
    chosen = frame[(frame["method"] == method) & (frame["shots"] == shots)]
    values = chosen.groupby(["model", "data", "seed", "training_seed"])["value"].mean()
    pairs = (values.loc[model] - values.loc[baseline]).dropna()
    return summarize(pairs.groupby(["seed", "training_seed"]).mean().to_numpy())


@dataclass(frozen=True)
class SampleEfficiency:
    """Ratio of the shots that baseline and model need for the same accuracy (LIxP, Fig. 1).

    Attributes:
        factor: the baseline's shots over the model's.
        bound: ``exactly``; ``at least`` if the model reaches the accuracy at the fewest measured shots; ``less than``
            if it never does.
        accuracy: accuracy of the baseline at the most shots, in percent.
        shots: shots at which the model reaches it, or NaN.
        baseline_shots: shots at which the baseline first reaches it.
    """

    factor: float
    bound: Literal["exactly", "at least", "less than"]
    accuracy: float
    shots: float
    baseline_shots: float

    def __str__(self) -> str:
        sign = {"exactly": "", "at least": "at least ", "less than": "less than "}[self.bound]
        return f"{sign}{self.factor:.2g}x"


def sample_efficiency(frame: pd.DataFrame, model: str, baseline: str, method: str) -> SampleEfficiency:
    """Compute `SampleEfficiency` of ``model`` at the accuracy that ``baseline`` has with the most shots.

    Curves are means over data sets, draws and seeds, interpolated linearly over the logarithm of the shots; the first
    crossing counts for both, so a model against itself gives 1.

    Raises:
        ValueError: ``model`` or ``baseline`` has no figures of ``method``.
    """
    frame = frame[(frame["method"] == method) & (frame["shots"] > 0)]
    curves = {}
    for name in (model, baseline):
        if (frame["model"] == name).sum() == 0:
            raise ValueError(f"{name!r} has no figures of {method}")
        curve = mean_over_tasks(frame[frame["model"] == name], ["shots"]).groupby("shots").mean().sort_index()
        curves[name] = curve.index.to_numpy(dtype=float), curve.to_numpy(dtype=float)
    accuracy = float(curves[baseline][1][-1])
    mine, theirs = (_first_reached(*curves[name], accuracy) for name in (model, baseline))
    shots = curves[model][0]
    if np.isnan(mine):
        return SampleEfficiency(theirs / shots[-1], "less than", accuracy, mine, theirs)
    # At the fewest measured shots the true crossing may be earlier, unless the baseline also crosses there.
    beyond = mine <= shots[0] and theirs > mine
    return SampleEfficiency(theirs / mine, "at least" if beyond else "exactly", accuracy, mine, theirs)


def _first_reached(shots: np.ndarray, values: np.ndarray, wanted: float) -> float:
    """Return the fewest shots at which the curve reaches ``wanted``, or NaN."""
    at = np.flatnonzero(values >= wanted - 1e-9)
    if not len(at):
        return float("nan")
    first = int(at[0])
    if first == 0 or values[first] <= wanted + 1e-9:
        return float(shots[first])
    share = (wanted - values[first - 1]) / (values[first] - values[first - 1])
    low, high = np.log(shots[first - 1 : first + 1])
    return float(np.exp(low + share * (high - low)))
