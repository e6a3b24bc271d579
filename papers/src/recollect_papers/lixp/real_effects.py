"""What the effect in ``lixp/real`` depends on and where it goes: settings, energy, classes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from recollect.evaluation.reports.plots import LINE_COLOURS, MARKERS, new_figure
from recollect.evaluation.results import Summary, summarise
from recollect_papers.engine import Column, Row, TableForm
from recollect_papers.lixp.real_arms import ALPHA_AND_TAU, EQUAL_PAIRS
from recollect_papers.lixp.real_records import ENERGY, FEW_SHOT, GROUPS, RECALL, RealRuns
from recollect_papers.lixp.sets import TESTING, TRAINING_PAIRS

AXES = {
    "batch": "batch", "steps": "steps", EQUAL_PAIRS: "batch, equal pairs", "pairs": "pairs", "alpha": "alpha",
    "tau_context": "tau_context",
}  # fmt: skip
"""What figures vary: from an arm's axis to words."""


@dataclass(frozen=True)
class Point:
    """The gain of context where one setting was varied.

    Attributes:
        axis, value: which setting, and what it is here.
        arm, against: with context, and the baseline of the same setting.
        gain: of the one over the other, by group.
    """

    axis: str
    value: float
    arm: str
    against: str
    gain: Mapping[str, Summary]


def points(runs: RealRuns) -> list[Point]:
    """One for each setting that was varied and each of its values, the main setting among them."""
    varied = [(arm, *record["axis"]) for arm, record in runs.arms.items() if record.get("axis")]
    shown = {axis for _, axis, _ in varied} & AXES.keys()
    found = []
    for arm, axis, value in [*_unvaried(runs), *varied]:
        if not arm.startswith("SigLIxP") or axis not in shown or not runs.comparable(arm):
            continue
        against = runs.arms[arm]["against"]
        gain = {
            group: runs.found.gain(*({"arm": name, "measure": FEW_SHOT, "set": names} for name in (arm, against)))
            for group, names in runs.groups.items()
            if group != "choosing"
        }
        found.append(Point(axis, float(value), arm, against, gain))
    return sorted(found, key=lambda point: (list(AXES).index(point.axis), point.value))


def _unvaried(runs: RealRuns) -> Iterator[tuple[str, str, float]]:
    """The main setting on each axis."""
    first, context = (runs.arms[arm]["recipe"] for arm in ("SigLIP", "SigLIxP"))
    options = context["objective"]["context"]
    size = first["batch_size"]
    main = {"batch": size, EQUAL_PAIRS: size, "steps": first["steps"], "pairs": TRAINING_PAIRS,
            "alpha": options["alpha"], "tau_context": options["tau"]}  # fmt: skip
    yield from (("SigLIxP", axis, value) for axis, value in main.items())


def alpha_and_tau(runs: RealRuns) -> TableForm | None:
    """The gain of context by alpha and tau_context together; None where no two were varied at once."""
    arms = [
        arm for arm, record in runs.arms.items()
        if arm == "SigLIxP" or record.get("axis", [""])[0:1] in (["alpha"], ["tau_context"], [ALPHA_AND_TAU])
    ]  # fmt: skip
    arms = [arm for arm in arms if runs.comparable(arm)]
    if all(runs.arms[arm].get("axis", [""])[0:1] != [ALPHA_AND_TAU] for arm in arms):
        return None
    settings = {arm: runs.arms[arm]["recipe"]["objective"]["context"] for arm in arms}
    rows = [
        Row((f"{set_['alpha']:g}", f"{set_['tau']:g}", str(runs.seeds(arm))), {"arm": arm, "measure": FEW_SHOT})
        for arm, set_ in sorted(settings.items(), key=lambda item: (item[1]["alpha"], item[1]["tau"]))
    ]
    columns = [Column(GROUPS[group], {"set": names}, "gain", {"arm": "SigLIP"}) for group, names in runs.groups.items()]
    title = "Gain of SigLIxP over SigLIP by alpha and tau_context together"
    notes = (_picked(runs, settings),) if "choosing" in runs.groups else ()
    return TableForm(title, ("alpha", "tau_context", "seeds"), rows, columns, notes=notes)


def _picked(runs: RealRuns, settings: Mapping[str, Mapping[str, float]]) -> str:
    """What the choosing sets would pick, on the seeds that every setting has, and its gain on the test sets."""
    chosen = {arm: _over_baseline(runs, arm, runs.groups["choosing"]) for arm in settings}
    seeds = set.intersection(*map(set, chosen.values()))
    best = max(chosen, key=lambda arm: np.mean([chosen[arm][seed] for seed in seeds]))
    told = " and ".join(f"{key} {settings[best][name]:g}" for key, name in (("alpha", "alpha"), ("tau_context", "tau")))
    tested = summarise(list(_over_baseline(runs, best, runs.tested()).values())).signed()
    of_each = f"{len(seeds)} seed{'s' * (len(seeds) > 1)} of each"
    return f"by the choosing sets ({of_each}) the best is {told}; its gain on all test sets: {tested}"


def _over_baseline(runs: RealRuns, arm: str, names: Sequence[str]) -> dict[int, float]:
    """Of each seed, a mean over sets."""
    at: dict[str, str | tuple[str, ...]] = {"measure": FEW_SHOT, "set": tuple(names)}
    return runs.found.differences({"arm": arm, **at}, {"arm": "SigLIP", **at})


def varied(runs: RealRuns) -> TableForm:
    """The gain of context where one setting is varied and the others stay."""
    rows, groups = [], [group for group in runs.groups if group != "choosing"]
    for point in points(runs):
        head = (AXES[point.axis], f"{point.value:,g}", str(point.gain[groups[0]].count))
        rows.append(Row(head, {"arm": point.arm, "measure": FEW_SHOT}, over={"arm": point.against}))
    columns = [Column(GROUPS[group], {"set": runs.groups[group]}, "gain") for group in groups]
    title = "Gain of SigLIxP over SigLIP in the same setting, one setting varied at a time"
    return TableForm(title, ("setting", "value", "seeds"), rows, columns)


def gain_figure(found: Sequence[Point]) -> Figure:
    """The gain of context over each setting that was varied, a line for each group of sets, error bars over seeds.

    All panels share one scale, and groups have other colours than models have elsewhere.
    """
    axes_shown = list(dict.fromkeys(point.axis for point in found))
    rows = 1 if len(axes_shown) <= 3 else 2
    figure, panels = new_figure(columns=-(-len(axes_shown) // rows), rows=rows, width=3.0, height=2.7)
    axes = list(panels.flat)
    for axis in axes[len(axes_shown) :]:
        axis.set_visible(False)
    for axis, name in zip(axes, axes_shown, strict=False):
        own = [point for point in found if point.axis == name]
        for group, colour, marker in zip(own[0].gain, LINE_COLOURS[2:], MARKERS, strict=False):
            gains = [point.gain[group] for point in own]
            spread = [float(np.nan_to_num(gain.std)) for gain in gains]
            axis.errorbar([point.value for point in own], [gain.mean for gain in gains], yerr=spread, color=colour,
                          marker=marker, markersize=4, capsize=3, label=GROUPS[group])  # fmt: skip
        if name != "alpha":
            axis.set_xscale("log")
        axis.set_xticks([point.value for point in own], [f"{point.value:,g}" for point in own])
        axis.minorticks_off()
        axis.axhline(0, color="0.3", linewidth=0.8)
        axis.set_xlabel(AXES[name])
    low, high = (of(axis.get_ylim()[end] for axis in axes[: len(axes_shown)]) for end, of in ((0, min), (1, max)))
    for axis in axes:
        axis.set_ylim(low, high)
    for axis in panels[:, 0]:
        axis.set_ylabel("gain of SigLIxP (points)")
    counts = sorted({gain.count for point in found for gain in point.gain.values()})
    told = (
        f"bars: std over seeds, {counts[0]} to {counts[-1]} of each point; without a bar: one" if counts[-1] > 1 else ""
    )
    figure.supxlabel(told, fontsize=7, color="0.35")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    return figure


def split_by_class(runs: RealRuns) -> TableForm:
    """Where the energy goes, inside and outside the texts' span, between and within classes."""
    names = tuple(runs.arms["SigLIP"]["energy"])
    columns = [Column(title, {"measure": part, "set": names}) for part, title in ENERGY.items()]
    title = (
        "Energy of the image embeddings by class and by the span of the training captions, in percent, mean of the "
        "test sets"
    )
    return TableForm(title, ("arm",), [Row((arm,), {"arm": arm}) for arm in ("SigLIP", "SigLIxP")], columns)


def classes_most_changed(runs: RealRuns, shown: int = 6) -> TableForm:
    """The classes of test sets that gain and lose most: recall by prototypes of all examples."""
    gains: dict[tuple[str, str], Summary] = {}
    for name, classes in runs.arms["SigLIP"]["classes"].items():
        for each in classes if name not in TESTING or TESTING[name].named else ():  # four letters each say little
            at = {"measure": RECALL, "set": name, "class": each}
            gains[name, each] = runs.found.gain({"arm": "SigLIxP", **at}, {"arm": "SigLIP", **at})
    order = sorted(gains, key=lambda key: -gains[key].mean)
    up = sum(gain.mean > 0 for gain in gains.values())
    down = sum(gain.mean < 0 for gain in gains.values())
    chosen = order if len(order) <= 2 * shown else [*order[:shown], *order[-shown:]]
    seeds = next(iter(gains.values())).count
    return TableForm(
        "Named classes of the test sets that gain and lose most: recall by prototypes of all examples",
        ("class", "set"),
        [Row((each, name), {"set": name, "class": each}) for name, each in chosen],
        [Column("gain of SigLIxP", {"arm": "SigLIxP", "measure": RECALL}, "gain", {"arm": "SigLIP"})],
        notes=(
            f"of {len(gains)} classes {up} gain and {down} lose; seeds: {seeds}",
            *_spoken_or_not(gains),
            "those shown were picked because they are the extremes of all, so part of their distance is chance",
        ),
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
