"""What the effect in ``lixp/real`` depends on and where it goes: settings, energy, classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from recollect.evaluation.results import Summary, summarise
from recollect.reports.plots import LINE_COLOURS, new_figure
from recollect.studies.lixp.real_gains import GROUPS, Record, by_group, paired
from recollect.studies.lixp.sets import TESTING
from recollect.studies.study import StudyTable

AXES = {"batch": "batch", "steps": "steps", "pairs": "pairs", "alpha": "alpha", "tau_context": "tau_context"}
"""What figures vary: from an arm's axis to words."""


@dataclass(frozen=True)
class Point:
    """The gain of context where one setting was varied.

    Attributes:
        axis, value: which setting, and what it is here.
        gain: over the baseline of the same setting, by group.
    """

    axis: str
    value: float
    gain: Mapping[str, Summary]


def points(records: Sequence[Record]) -> list[Point]:
    """One for each setting that was varied and each of its values, the main setting among them."""
    groups = {group: names for group, names in by_group(records).items() if group != "choosing"}
    first = next(record["recipe"] for record in records if record["arm"] == "SigLIP")
    context = next(record["recipe"] for record in records if record["arm"] == "SigLIxP")["objective"]["context"]
    main = {
        "batch": first["batch_size"], "steps": first["steps"], "pairs": 42359, "alpha": context["alpha"],
        "tau_context": context["tau"],
    }  # fmt: skip
    found = []
    varied = {record["arm"]: tuple(record["axis"]) for record in records if record.get("axis")}
    for arm, (axis, value) in [("SigLIxP", (axis, value)) for axis, value in main.items()] + list(varied.items()):
        against = next(record["against"] for record in records if record["arm"] == arm)
        if not arm.startswith("SigLIxP") or axis not in {own for own, _ in varied.values()}:
            continue
        try:
            gains = paired(records, arm, against)
        except ValueError:  # its baseline is not there yet
            continue
        found.append(Point(axis, float(value), {group: gains.over(names) for group, names in groups.items()}))
    return sorted(found, key=lambda point: (list(AXES).index(point.axis), point.value))


def varied(records: Sequence[Record]) -> StudyTable:
    """The gain of context where one setting is varied and the others stay."""
    found = points(records)
    groups = [group for group in GROUPS if found and group in found[0].gain]
    rows = []
    for point in found:
        cells = [point.gain[group].signed() for group in groups]
        rows.append((AXES[point.axis], f"{point.value:,g}", str(point.gain[groups[0]].count), *cells))
    return StudyTable(
        "Gain of SigLIxP over SigLIP in the same setting, one setting varied at a time",
        ("setting", "value", "seeds", *(GROUPS[group] for group in groups)),
        tuple(rows),
    )


def gain_figure(found: Sequence[Point]) -> Figure:
    """The gain of context over each setting that was varied, a line for each group of sets, error bars over seeds."""
    axes_shown = list(dict.fromkeys(point.axis for point in found))
    figure, axes = new_figure(columns=len(axes_shown), width=3.0, height=2.7)
    for axis, name in zip(axes[0], axes_shown, strict=True):
        own = [point for point in found if point.axis == name]
        for group, colour in zip(own[0].gain, LINE_COLOURS, strict=False):
            gains = [point.gain[group] for point in own]
            spread = [float(np.nan_to_num(gain.std)) for gain in gains]
            axis.errorbar([point.value for point in own], [gain.mean for gain in gains], yerr=spread, color=colour,
                          marker="o", markersize=4, capsize=3, label=GROUPS[group])  # fmt: skip
        if name != "alpha":
            axis.set_xscale("log")
        axis.set_xticks([point.value for point in own], [f"{point.value:,g}" for point in own])
        axis.minorticks_off()
        axis.axhline(0, color="0.3", linewidth=0.8)
        axis.set_xlabel(AXES[name])
    axes[0, 0].set_ylabel("gain of SigLIxP (points)")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    return figure


def split_by_class(records: Sequence[Record]) -> StudyTable:
    """Where the energy goes, inside and outside the texts' span, between and within classes."""
    parts = {
        "between_inside": "between classes, inside",
        "between_outside": "between classes, outside",
        "within_inside": "within classes, inside",
        "within_outside": "within classes, outside",
    }
    rows = []
    for arm in ("SigLIP", "SigLIxP"):
        own = [record["energy"] for record in records if record["arm"] == arm]
        cells = [
            str(summarise(float(np.mean([each[part] for each in energy.values()])) for energy in own)) for part in parts
        ]
        rows.append((arm, *cells))
    return StudyTable(
        "Energy of the image embeddings by class and by the span of the training captions, in percent, mean of the "
        "test sets",
        ("arm", *parts.values()),
        tuple(rows),
    )


def classes_most_changed(records: Sequence[Record], shown: int = 6) -> StudyTable:
    """The classes of test sets that gain and lose most: recall by prototypes of all examples."""
    by_arm = {
        arm: {record["seed"]: record["classes"] for record in records if record["arm"] == arm}
        for arm in ("SigLIP", "SigLIxP")
    }
    seeds = sorted(by_arm["SigLIP"].keys() & by_arm["SigLIxP"].keys())
    gains: dict[tuple[str, str], Summary] = {}
    for name, classes in by_arm["SigLIP"][seeds[0]].items():
        for each in classes if name not in TESTING or TESTING[name].named else ():  # four letters each say little
            gains[name, each] = summarise(
                by_arm["SigLIxP"][seed][name][each] - by_arm["SigLIP"][seed][name][each] for seed in seeds
            )
    order = sorted(gains, key=lambda key: -gains[key].mean)
    up = sum(gain.mean > 0 for gain in gains.values())
    down = sum(gain.mean < 0 for gain in gains.values())
    chosen = order if len(order) <= 2 * shown else [*order[:shown], *order[-shown:]]
    return StudyTable(
        "Named classes of the test sets that gain and lose most: recall by prototypes of all examples",
        ("class", "set", "gain of SigLIxP"),
        tuple((each, name, gains[name, each].signed()) for name, each in chosen),
        (f"of {len(gains)} classes {up} gain and {down} lose; seeds: {len(seeds)}", *_spoken_or_not(gains)),
    )


def _spoken_or_not(gains: Mapping[tuple[str, str], Summary]) -> list[str]:
    """Mean gain over classes, by what captions speak of; of the study's own sets."""
    means: dict[bool, list[float]] = {True: [], False: []}
    for (name, _), gain in gains.items():
        if name in TESTING:
            means[TESTING[name].scenes].append(gain.mean)
    if not all(means.values()):
        return []
    spoken, other = (float(np.mean(means[whether])) for whether in (True, False))
    return [f"mean over classes: {spoken:+.1f} in sets that captions speak of, {other:+.1f} in the others"]
