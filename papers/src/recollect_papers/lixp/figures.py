"""LIxP (Roth et al.): Figures 1 to 6, drawn from measurements stored in the reports."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from recollect.classifiers.heads.methods import PAPER_METHODS
from recollect.evaluation import plots
from recollect.evaluation.tables import sample_efficiency as efficiency
from recollect.training.options import Model
from recollect_papers.engine import Column, Form, Measure, Row, TableForm, TablesAndNotes, TableStudy, paper_quote
from recollect_papers.lixp.gains import gain_against_examples, gain_by_examples, log_linear_fit
from recollect_papers.lixp.world import (
    WORLDS_BY_SCALE,
    LixpWorld,
    by_name,
    evaluation_of,
    few_shot,
    main_setting,
    notes_of,
    run_arms,
    seed_count,
)
from recollect_papers.measurements import Measurements
from recollect_papers.plots import error_line
from recollect_papers.runs import Job, StudyEvaluation, run, with_seeds
from recollect_papers.study import StudyOptions, over

_TIP = "tip-adapter"


# --- Figures 1, 2, 3 and 5: the main pair over shots, sets and classifiers --------------------------------------------


def _measure_pair(
    options: StudyOptions, methods: Sequence[str] = PAPER_METHODS, most: bool = False, sizes: bool = False
) -> Measurements:
    """Measure the accuracy of SigLIP and SigLIxP on every set, averaged over draws.

    Args:
        methods: methods in the figure.
        most: keep only the largest number of shots.
        sizes: use synthetic sets of 5 to 120 classes, except at scale full.
    """
    setting = main_setting(options)
    arms = setting.arms("SigLIP")
    evaluation = evaluation_of(options, methods if sizes else PAPER_METHODS)
    if sizes and options.scale != "full":
        last = evaluation.shots[-1:]
        evaluation = replace(evaluation, few_shot=("latents:sizes",), zero_shot=(), shots=last)
    every = run_arms(options, arms, evaluation)
    classes = {
        name: every.at({"arm": next(iter(arms)), "set": name, "measure": "classes"}) for name in every.context["sets"]
    }
    more = {"pair": list(arms), "methods": list(methods), "seeds": seed_count(options)}
    more["classes"] = {name: int(next(iter(count.values()))) for name, count in classes.items()}
    found = Measurements({**every.context, **more})
    fewest = every.context["shots"] if most else 1
    for address, seed, value in every.rows():
        learned = address.get("method") in methods and int(address["shots"]) >= fewest
        if learned or (address["measure"] == "top-1" and not most):
            found.add(address, seed, value)
    return found


def _frame(found: Measurements) -> pd.DataFrame:
    """Return a row per few-shot measurement, as plot functions expect."""
    lines = [
        {"model": at["arm"], "method": at["method"], "data": at["set"], "shots": int(at["shots"]), "value": value,
         "training_seed": seed, "classes": found.context["classes"][at["set"]]}
        for at, seed, value in found.rows() if "shots" in at
    ]  # fmt: skip
    return pd.DataFrame(lines)


def _draw_1(found: Measurements) -> Figure:
    pair = found.context["pair"]
    named = {arm: found.summary({"arm": arm, **by_name(found)}).mean for arm in pair}
    return plots.few_shot_curves(_frame(found), pair, found.context["methods"], named)


def _form_1(found: Measurements) -> TablesAndNotes:
    frame, (plain, context) = _frame(found), found.context["pair"]
    saved = {method: efficiency(frame, context, plain, method) for method in found.context["methods"]}
    words = ", ".join(f"{plots.METHOD_NAMES[m]} {v}" for m, v in saved.items())
    note = f"fewer shots with context for what {plain} reaches with {found.context['shots']}: {words}"
    return (), (note, over(found.context["seeds"], "training seed"), f"paper: {paper_quote('lixp', 'figure-1')}")


def _draw_2(found: Measurements) -> Figure:
    plain, context = found.context["pair"]
    return plots.gain_per_data_set(_frame(found), context, plain, _TIP, found.context["shots"])


def _form_2(found: Measurements) -> TablesAndNotes:
    (plain, context), sets, seeds = found.context["pair"], found.context["sets"], found.context["seeds"]
    gains = found.paired({**few_shot(found, _TIP), "arm": context}, {"arm": plain}, sets)
    rests = f"mean over {seeds} training seeds" if seeds > 1 else "one training seed"
    return (), (f"context is better on {gains.up()} of {len(sets)} data sets", rests)


def _draw_3(found: Measurements) -> Figure:
    """Draw the gain over the baseline for each classifier (LIxP, Fig. 3), with error bars over paired seeds."""
    (plain, context), methods = found.context["pair"], found.context["methods"]
    figure, axes = plots.new_figure(width=1.4 + 0.95 * len(methods), height=3.0)
    axis, positions, sets = axes[0, 0], np.arange(len(methods)), found.context["sets"]
    gains = [
        found.paired({**few_shot(found, method), "arm": context}, {"arm": plain}, sets).summary() for method in methods
    ]
    bars = axis.bar(
        positions, [gain.mean for gain in gains], 0.74, yerr=[np.nan_to_num(gain.std) for gain in gains],
        color=plots.LINE_COLORS[1], capsize=2, label="SigLIxP",  # same color as in Figure 1
    )  # fmt: skip
    axis.bar_label(bars, [f"{gain.mean:+.1f}" for gain in gains], fontsize=7, padding=2)
    axis.axhline(0, color="0.3", linewidth=0.8)
    axis.set_xticks(positions, [plots.METHOD_NAMES.get(method, method) for method in methods])
    axis.set_ylabel(f"gain at {found.context['shots']} shots (points)")
    axis.margins(y=0.15)
    frame = _frame(found)
    spread = plots.seeds_note(frame, "whiskers: std over {} training seeds, paired")
    plots.add_note_below(figure, f"{plots.data_set_names(frame)}; {spread}")
    figure.legend(loc="outside upper right", frameon=False)
    return figure


def _form_3(found: Measurements) -> TablesAndNotes:
    return (), found.context["notes"][:1]


def _draw_5(found: Measurements) -> Figure:
    plain, context = found.context["pair"]
    return gain_against_examples(_frame(found), context, plain, _TIP, found.context["shots"])


def _form_5(found: Measurements) -> TablesAndNotes:
    """Fit gains against the number of examples."""
    plain, context = found.context["pair"]
    table = gain_by_examples(_frame(found), context, plain, _TIP, found.context["shots"])
    columns = {
        ("relative gain", "percent"): table["relative_gain"],
        ("gain in accuracy", "points"): table["model"] - table["base"],
    }
    try:
        fits = {what: log_linear_fit(table["examples"].to_numpy(), gains.to_numpy()) for what, gains in columns.items()}
        notes = [f"{what}: {fit.slope:+.2f} {unit} per decade of examples, p = {fit.pvalue:.2g}"
                 for (what, unit), fit in fits.items()]  # fmt: skip
    except ValueError as error:
        notes = [f"no fit: {error}"]
    seeds = over(found.context["seeds"], "training seed").replace(" ± std", "")  # one point per set
    return (), (*notes, f"{len(table)} sets, {seeds}")


# --- Figure 4: post-training ------------------------------------------------------------------------------------------

POST_LENGTHS = {"1/3": 1 / 3, "2/3": 2 / 3}
"""Lengths of post-training relative to the first training: the paper's 0.5B and 1B examples after 1.5B."""


def _measure_4(options: StudyOptions) -> Measurements:
    """Post-train SigLIP with and without context, for one and two thirds of its training length."""
    setting = main_setting(options)
    evaluation = evaluation_of(options, (_TIP,))
    found = run_arms(options, {"SigLIP": setting.base}, evaluation)
    first = with_seeds({"SigLIP": setting.base}, seed_count(options), evaluation)
    later = [job for done in first for job in _post_training(done, setting, options, evaluation)]
    found.take(run(later, options.out, options.workers))
    notes = [*notes_of(options)[:1], f"paper: {paper_quote('lixp', 'figure-4')}"]
    found.context |= {"steps": setting.base.steps, "notes": notes}
    return found


def _post_training(done: Job, setting: LixpWorld, options: StudyOptions, evaluation: StudyEvaluation) -> list[Job]:
    """Return jobs that start from the model of ``done``, at a third of the learning rate and in a different order."""
    jobs = []
    for length, share in POST_LENGTHS.items():
        for name, recipe in (("SigLIP", setting.base), ("SigLIxP", setting.context())):
            optimizer = replace(recipe.optimizer, learning_rate=recipe.optimizer.learning_rate / 3)
            objective = replace(recipe.objective, scale=None, bias=None)
            recipe = replace(
                recipe,
                model=Model(str(done.folder(options.out) / "model")),
                optimizer=optimizer,
                objective=objective,
                steps=max(1, round(share * setting.base.steps)),
                seed=1000 + done.recipe.seed,
            )
            jobs.append(Job(f"SigLIP + {length} x {name}", recipe, evaluation, seed=done.paired_seed))
    return jobs


def _draw_4(found: Measurements) -> Figure:
    figure, axes = plots.new_figure()
    axis, steps, shots = axes[0, 0], found.context["steps"], found.context["shots"]
    start = found.summary({"arm": "SigLIP", **few_shot(found, _TIP)})
    for name, color in zip(("SigLIP", "SigLIxP"), plots.LINE_COLORS, strict=False):
        arms = [f"SigLIP + {length} x {name}" for length in POST_LENGTHS]
        points = [start, *(found.summary({"arm": arm, **few_shot(found, _TIP)}) for arm in arms)]
        lengths = [steps * (1 + share) for share in (0.0, *POST_LENGTHS.values())]
        error_line(axis, lengths, points, color, f"then {name}")
    axis.set_xlabel("steps")
    axis.set_ylabel(f"accuracy of Tip-Adapter, {shots} shots (%)")
    if start.count > 1:
        axis.set_title(f"bars: std over {start.count} training seeds", fontsize=8)
    axis.legend(frameon=False)
    return figure


def _form_4(found: Measurements) -> TablesAndNotes:
    at, notes = few_shot(found, _TIP), tuple(found.context["notes"])
    arms = ["SigLIP", *(f"SigLIP + {length} x {name}" for length in POST_LENGTHS for name in ("SigLIP", "SigLIxP"))]
    columns = (Column("accuracy", at), Column("gain", at, "gain", {"arm": "SigLIP"}))
    title = f"Figure 4. Tip-Adapter at {found.context['shots']} shots after post-training"
    return [
        TableForm(title, ("model",), [Row((arm,), {"arm": arm}) for arm in arms], columns, None, notes).fill(found)
    ], ()


# --- Figure 6: training dynamics --------------------------------------------------------------------------------------

_LOGGED = {
    "base_loss": "base loss",
    "context_loss": "context loss",
    "tau_context": r"$\tau_{ctx}$",
    "effective_neighbors": "effective neighbors",
}
"""Logged columns to draw, and their titles."""
_START = "tau_context from "


def _measure_6(options: StudyOptions) -> Measurements:
    """Collect training logs of SigLIP and SigLIxP, and of SigLIxP from other initial values of tau_context."""
    setting = main_setting(options)
    starts = (1e-3, 1e-1) if options.scale == "smoke" else (1e-4, 1e-3, 3e-3, 1e-2, 1e-1, 1.0)
    arms = setting.arms("SigLIP") | {f"{_START}{tau:g}": setting.context(tau=tau) for tau in starts}
    jobs = with_seeds(arms, 1, StudyEvaluation())
    run(jobs, options.out, options.workers)
    logs = {job.name: job.folder(options.out) / "metrics.jsonl" for job in jobs}
    return Measurements({"logs": {name: _logged(pd.read_json(file, lines=True)) for name, file in logs.items()}})


def _logged(frame: pd.DataFrame) -> dict[str, list[float | None]]:
    """Return columns rounded to four digits, with None for missing values."""
    columns: dict[str, list[float | None]] = {"step": frame["step"].tolist()}
    for column in _LOGGED:
        if column in frame and frame[column].notna().any():
            columns[column] = [None if np.isnan(value) else float(f"{value:.4g}") for value in frame[column]]
    return columns


def _logs(found: Measurements) -> Mapping[str, pd.DataFrame]:
    return {name: pd.DataFrame(columns, dtype=float) for name, columns in found.context["logs"].items()}


def _draw_6(found: Measurements) -> Figure:
    """Draw losses, context temperature and effective neighbors over training (LIxP, Fig. 6)."""
    logs = _logs(found)
    shown = plots.colors_of(list(logs))
    figure, axes = plots.new_figure(columns=len(_LOGGED), width=3.0, height=2.6)
    for axis, (column, title) in zip(axes[0], _LOGGED.items(), strict=True):
        for number, (name, frame) in enumerate(logs.items()):
            if column in frame:
                # Later lines are thinner and dashed differently, so lines below stay visible.
                width, dash = max(1.0, 3.2 - 1.1 * number), plots.DASHES[number % len(plots.DASHES)]
                axis.plot(frame["step"], frame[column], color=shown[name], label=name, linewidth=width, linestyle=dash)
        axis.set_title(title)
        axis.set_xlabel("step")
        if column in {"tau_context", "effective_neighbors"}:
            axis.set_yscale("log")
    handles = {label: line for axis in axes[0] for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside upper right", ncols=min(4, len(handles)), frameon=False)
    return figure


def _form_6(found: Measurements) -> TablesAndNotes:
    ends = ", ".join(
        f"{name.removeprefix(_START)}: {log['tau_context'].iloc[-1]:.2g}"
        for name, log in _logs(found).items()
        if name.startswith(_START)
    )
    return (), (f"tau_context at the end by its start: {ends}", "one training seed")


def _study(number: int, measure: Measure, draw: Callable[[Measurements], Figure], form: Form) -> TableStudy:
    return TableStudy(f"lixp/figure-{number}", measure, form, WORLDS_BY_SCALE, draw)


figure_1 = _study(1, _measure_pair, _draw_1, _form_1)
figure_2 = _study(2, partial(_measure_pair, methods=(_TIP,), most=True), _draw_2, _form_2)
figure_3 = _study(3, partial(_measure_pair, most=True), _draw_3, _form_3)
figure_4 = _study(4, _measure_4, _draw_4, _form_4)
figure_5 = _study(5, partial(_measure_pair, methods=(_TIP,), most=True, sizes=True), _draw_5, _form_5)
figure_6 = _study(6, _measure_6, _draw_6, _form_6)
