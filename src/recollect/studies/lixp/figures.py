"""LIxP (Roth et al.): Figures 1 to 6, each with the numbers that it shows."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from recollect.evaluation.tables import gain_by_examples, log_linear_fit
from recollect.evaluation.tables import sample_efficiency as efficiency
from recollect.fewshot.methods import PAPER_METHODS
from recollect.reports import plots
from recollect.studies.engine import Column, Row, TableForm, papers_words
from recollect.studies.lixp.world import (
    WORLDS,
    LixpWorld,
    evaluation_of,
    main_setting,
    mean_of,
    measurements,
    notes_of,
    run_arms,
    seeds_of,
    select,
)
from recollect.studies.runs import Job, StudyEvaluation, frames, metrics, run, with_seeds
from recollect.studies.study import StudyOptions, StudyReport, over
from recollect.training.options import Model


@dataclass(frozen=True)
class _Pair:
    """The main pair of the figures: names and frames."""

    plain: str
    context: str
    few: pd.DataFrame
    zero: pd.DataFrame


def _pair(options: StudyOptions, evaluation: StudyEvaluation | None = None) -> _Pair:
    setting = main_setting(options)
    plain, context = setting.arms("SigLIP")
    few, zero = run_arms(options, setting.arms("SigLIP"), evaluation or evaluation_of(options, PAPER_METHODS))
    return _Pair(plain, context, few, zero)


def _figure_report(options: StudyOptions, number: int, figure: Figure, *notes: str) -> StudyReport:
    name = f"lixp-figure-{number}-{options.scale}.png"
    plots.save_figure(figure, options.out / name)
    return StudyReport(f"lixp/figure-{number}", options.scale, WORLDS[options.scale], figures=(name,), notes=notes)


def figure_1(options: StudyOptions) -> StudyReport:
    """Accuracy over shots, and sample efficiency."""
    pair = _pair(options)
    means = {name: mean_of(pair.zero, name).mean for name in (pair.plain, pair.context)}
    figure = plots.few_shot_curves(pair.few, [pair.plain, pair.context], PAPER_METHODS, means)
    saved = {method: efficiency(pair.few, pair.context, pair.plain, method) for method in PAPER_METHODS}
    words = ", ".join(f"{plots.METHOD_NAMES[m]} {v}" for m, v in saved.items())
    most = int(max(pair.few["shots"]))
    note = f"fewer shots with context for what {pair.plain} reaches with {most}: {words}"
    said = f"paper: {papers_words('lixp', 'figure-1')}"
    return _figure_report(options, 1, figure, note, over(seeds_of(options), "training seed"), said)


def figure_2(options: StudyOptions) -> StudyReport:
    """Gain on each data set."""
    pair = _pair(options)
    most = int(max(pair.few["shots"]))
    figure = plots.gain_per_data_set(pair.few, pair.context, pair.plain, "tip-adapter", most)
    means = (
        select(pair.few, method="tip-adapter", shots=most).groupby(["model", "data"])["value"].mean().unstack("model")
    )
    better = int((means[pair.context] > means[pair.plain]).sum())
    seeds = f"mean over {seeds_of(options)} training seeds" if seeds_of(options) > 1 else "one training seed"
    return _figure_report(options, 2, figure, f"context is better on {better} of {len(means)} data sets", seeds)


def figure_3(options: StudyOptions) -> StudyReport:
    """Gain of each classifier."""
    pair = _pair(options)
    most = int(max(pair.few["shots"]))
    pairs, colours = {"SigLIxP": (pair.context, pair.plain)}, {"SigLIxP": plots.LINE_COLOURS[1]}  # as in Figure 1
    figure = plots.gain_per_classifier(pair.few, pairs, PAPER_METHODS, most, colours)
    return _figure_report(options, 3, figure, notes_of(options)[0])


def figure_4(options: StudyOptions) -> StudyReport:
    """Post-training: a trained SigLIP goes on, with context and without, for one and two thirds of its length."""
    setting = main_setting(options)
    evaluation = evaluation_of(options, ("tip-adapter",))
    first = with_seeds({"SigLIP": setting.base}, seeds_of(options), evaluation)
    results = run(first, options.out, options.workers)
    later = [job for done in first for job in _post_training(done, setting, options, evaluation)]
    few, _ = frames([*results, *run(later, options.out, options.workers)])
    most = int(max(few["shots"]))
    chosen = select(few, method="tip-adapter", shots=most)
    found = measurements(chosen, few.iloc[:0], {})
    at = {"classifier": "tip-adapter", "shots": str(most)}
    rows = [Row((name,), {"arm": name}) for name in dict.fromkeys(chosen["model"])]
    columns = (Column("accuracy", at), Column("gain", at, "gain", {"arm": "SigLIP"}))
    said = (*notes_of(options)[:1], f"paper: {papers_words('lixp', 'figure-4')}")
    form = TableForm(
        f"Figure 4. Tip-Adapter at {most} shots after post-training", ("model",), rows, columns, None, said
    )
    report = _figure_report(options, 4, _post_training_figure(chosen, setting.base.steps, most))
    return replace(report, tables=(form.fill(found),), measured=found.as_json())


POST_LENGTHS = {"1/3": 1 / 3, "2/3": 2 / 3}
"""Lengths of post-training, in those of the first training: the paper's 0.5B and 1B examples after 1.5B."""


def _post_training(done: Job, setting: LixpWorld, options: StudyOptions, evaluation: StudyEvaluation) -> list[Job]:
    """The jobs that start from the model of ``done``, at a third of the learning rate and on other samples."""
    jobs = []
    for length, share in POST_LENGTHS.items():
        for name, recipe in (("SigLIP", setting.base), ("SigLIxP", setting.context())):
            optimiser = replace(recipe.optimiser, learning_rate=recipe.optimiser.learning_rate / 3)
            objective = replace(recipe.objective, scale=None, bias=None)
            recipe = replace(
                recipe,
                model=Model(str(done.folder(options.out) / "model")),
                optimiser=optimiser,
                objective=objective,
                steps=max(1, round(share * setting.base.steps)),
                seed=1000 + done.recipe.seed,
            )
            jobs.append(Job(f"SigLIP + {length} x {name}", recipe, evaluation, seed=done.paired_seed))
    return jobs


def _post_training_figure(chosen: pd.DataFrame, steps: int, shots: int) -> Figure:
    figure, axes = plots.new_figure()
    axis = axes[0, 0]
    start = mean_of(chosen, "SigLIP")
    for name, colour in zip(("SigLIP", "SigLIxP"), plots.LINE_COLOURS, strict=False):
        points = [start, *(mean_of(chosen, f"SigLIP + {length} x {name}") for length in POST_LENGTHS)]
        spread = np.nan_to_num([point.std for point in points])
        places = [steps * (1 + share) for share in (0.0, *POST_LENGTHS.values())]
        axis.errorbar(places, [point.mean for point in points], yerr=spread, marker="o", color=colour, capsize=2,
                      label=f"then {name}")  # fmt: skip
    axis.set_xlabel("steps")
    axis.set_ylabel(f"accuracy of Tip-Adapter, {shots} shots (%)")
    if start.count > 1:
        axis.set_title(f"bars: std over {start.count} training seeds", fontsize=8)
    axis.legend(frameon=False)
    return figure


def figure_5(options: StudyOptions) -> StudyReport:
    """Gain against the number of examples: of the suite's sets, or of made ones with 5 to 120 classes."""
    evaluation = evaluation_of(options, ("tip-adapter",))
    if options.scale != "full":
        evaluation = replace(evaluation, few_shot=("latents:sizes",), zero_shot=(), shots=evaluation.shots[-1:])
    pair = _pair(options, evaluation)
    most = int(max(pair.few["shots"]))
    figure = plots.gain_against_examples(pair.few, pair.context, pair.plain, "tip-adapter", most)
    table = gain_by_examples(pair.few, pair.context, pair.plain, "tip-adapter", most)
    try:
        notes = [
            f"{what}: {fit.slope:+.2f} {unit} a decade of examples, p = {fit.p_value:.2g}"
            for what, unit, gains in (
                ("relative gain", "percent", table["relative_gain"]),
                ("gain in accuracy", "points", table["model"] - table["base"]),
            )
            for fit in (log_linear_fit(table["examples"].to_numpy(), gains.to_numpy()),)
        ]
    except ValueError as error:
        notes = [f"no fit: {error}"]
    seeds = over(seeds_of(options), "training seed").replace(" ± std", "")  # one point for each set
    return _figure_report(options, 5, figure, *notes, f"{len(table)} sets, {seeds}")


def figure_6(options: StudyOptions) -> StudyReport:
    """Training dynamics, and tau_context from several starts."""
    setting = main_setting(options)
    starts = (1e-3, 1e-1) if options.scale == "smoke" else (1e-4, 1e-3, 3e-3, 1e-2, 1e-1, 1.0)
    arms = setting.arms("SigLIP") | {f"tau_context from {tau:g}": setting.context(tau=tau) for tau in starts}
    jobs = with_seeds(arms, 1, StudyEvaluation())  # what is shown was logged while they trained
    run(jobs, options.out, options.workers)
    logs = {job.name: metrics(job, options.out) for job in jobs}
    figure = plots.training_dynamics(logs)
    ends = ", ".join(f"{tau:g}: {logs[f'tau_context from {tau:g}']['tau_context'].iloc[-1]:.2g}" for tau in starts)
    return _figure_report(options, 6, figure, f"tau_context at the end by its start: {ends}", "one training seed")
