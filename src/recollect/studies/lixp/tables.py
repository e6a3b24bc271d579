"""LIxP (Roth et al., "Context-Aware Multimodal Pretraining"): Tables 1, 3, 4, 5, 6 and Figures 1 to 6.

``smoke`` and ``small`` take the vector world, in which the effect is clear in half a minute; ``full`` takes the paper's
recipes, the user's data (``--data``) and the paper's suites.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from recollect.core.errors import UserError
from recollect.evaluation.results import Summary
from recollect.evaluation.tables import gain_by_examples, log_linear_fit, mean_over_tasks, over_seeds, paired_gain
from recollect.evaluation.tables import sample_efficiency as efficiency
from recollect.fewshot.protocol import PAPER_METHODS
from recollect.objectives import Base, ContextOptions
from recollect.reports import plots
from recollect.studies.lixp import paper
from recollect.studies.runs import Evaluation, Job, frames, metrics, run, with_seeds
from recollect.studies.study import Scale, StudyOptions, StudyReport, StudyTable
from recollect.training.options import Data, Model, Recipe
from recollect.training.recipes import RECIPES, with_context

SHOTS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class LixpWorld:
    """One column of a table: a baseline and where context starts for it.

    Attributes:
        label: of the column.
        base: the recipe without context.
        tau: tau_context at the start.
    """

    label: str
    base: Recipe
    tau: float

    def arms(self, name: str) -> dict[str, Recipe]:
        """The baseline and the same with context."""
        return {f"{name} {self.label}": self.base, f"{_WITH[name]} {self.label}": self.context()}

    def context(self, alpha: float = 0.9, tau: float | None = None, options: ContextOptions | None = None) -> Recipe:
        """The recipe with context, ablated by ``options``."""
        recipe = with_context(self.base, self.tau if tau is None else tau, alpha)
        context = recipe.objective.context
        assert context is not None
        context = replace(context, options=options or ContextOptions())
        return replace(recipe, objective=replace(recipe.objective, context=context))


_WITH = {"SigLIP": "SigLIxP", "CLIP": "CLIxP"}
_WORLDS: Mapping[Scale, str] = {
    "smoke": "latents (vectors of latent factors, not images), a few steps: shows that it runs, not what it finds",
    "small": "latents (vectors of latent factors, not images), linear towers, batch 512, 800 steps unless it says so",
    "full": "the paper's recipes on your data",
}


def _shortened(recipe: Recipe, options: StudyOptions) -> Recipe:
    if options.scale == "smoke":
        return replace(recipe, steps=max(12, recipe.steps // 40), batch_size=128, log_every=2)
    if options.scale == "full":
        if not options.data:
            raise UserError("--scale full trains on your data. Name it with --data SOURCE ... (captions).")
        return replace(recipe, data=Data(sources=options.data))
    return recipe


def _settings(options: StudyOptions, base: Base = "sigmoid") -> list[LixpWorld]:
    """The columns of Tables 1 and 3: model and data scales."""
    if options.scale == "full":
        sizes = {"ViT-S/16 1.5B": "siglip-vit-s-16", "ViT-B/16 6B": "siglip-vit-b-16", "ViT-L/16 8B": "siglip-vit-l-16"}
        settings = [LixpWorld(label, RECIPES[name](), 1.0) for label, name in sizes.items()]
    else:
        strong, deep = RECIPES["latents-strong-siglip"](), RECIPES["latents-siglip"]()
        settings = [
            LixpWorld("MLP 0.3M", deep, 0.02),
            LixpWorld("linear 0.4M", strong, 0.003),
            LixpWorld("linear 0.8M", replace(strong, steps=2 * strong.steps), 0.003),
        ]
    as_asked = (replace(each.base, objective=replace(each.base.objective, base=base)) for each in settings)
    return [
        replace(setting, base=_shortened(recipe, options)) for setting, recipe in zip(settings, as_asked, strict=True)
    ]


def _main(options: StudyOptions) -> LixpWorld:
    """The one setting of the ablations."""
    return _settings(options)[0 if options.scale == "full" else 1]


def _evaluation(options: StudyOptions, methods: Sequence[str], suite: str = "lixp-21") -> Evaluation:
    if options.scale == "full":
        return Evaluation(suite=options.suite or suite, methods=tuple(methods), shots=SHOTS)
    world = ("latents:captions",)
    if options.scale == "smoke":
        return Evaluation(world, world, methods=tuple(methods), shots=(1, 16, 32), draws=2)
    return Evaluation(world, world, methods=tuple(methods), shots=SHOTS)


def _seeds(options: StudyOptions) -> int:
    return options.seeds or {"smoke": 2, "small": 3, "full": 1}[options.scale]


def _run(
    options: StudyOptions, arms: Mapping[str, Recipe], evaluation: Evaluation
) -> tuple[pd.DataFrame, pd.DataFrame]:
    return frames(run(with_seeds(arms, _seeds(options), evaluation), options.out, options.workers))


def _notes(options: StudyOptions) -> tuple[str, ...]:
    return (f"mean ± std over {_seeds(options)} training seeds; gains are paired by seed", "paper: as printed there")


def _select(frame: pd.DataFrame, **keys: object) -> pd.DataFrame:
    for key, value in keys.items():
        frame = frame[frame[key] == value]
    return frame


def _mean(frame: pd.DataFrame, model: str) -> Summary:
    return over_seeds(mean_over_tasks(_select(frame, model=model), ["model"]))


def _gain(frame: pd.DataFrame, model: str, baseline: str) -> Summary:
    return over_seeds(paired_gain(frame, model, baseline, ["protocol"]))


def _scale_table(
    options: StudyOptions, base: Base, methods: Sequence[str], printed: Mapping[str, tuple[str, ...]],
    printed_columns: tuple[str, ...], title: str,
) -> StudyTable:  # fmt: skip
    """Tables 1 and 3: 32-shot accuracy of every classifier, and the gain with context."""
    name = {"sigmoid": "SigLIP", "softmax": "CLIP"}[base]
    settings = _settings(options, base)
    arms = {arm: recipe for setting in settings for arm, recipe in setting.arms(name).items()}
    few, zero = _run(options, arms, _evaluation(options, PAPER_METHODS))
    most = max(few["shots"])
    rows = []
    gains: dict[str, list[float]] = {setting.label: [] for setting in settings}
    for method in ("zero-shot", *PAPER_METHODS):
        chosen = zero if method == "zero-shot" else _select(few, method=method, shots=most)
        cells = []
        for setting in settings:
            plain, context = setting.arms(name)
            gain = _gain(chosen, context, plain)
            cells += [str(_mean(chosen, plain)), gain.signed()]
            if method != "zero-shot":
                gains[setting.label].append(gain.mean)
        there = printed.get(method, ("",) * len(printed_columns))
        rows.append((plots.METHOD_NAMES[method], *cells, *there))
    average = [cell for setting in settings for cell in ("", f"{np.mean(gains[setting.label]):+.1f}")]
    there = paper.TABLE_1_AVERAGE_GAIN if base == "sigmoid" else ("",) * len(printed_columns)
    rows.append(("average few-shot gain", *average, *there))
    ours = [column for setting in settings for column in (f"{name}, {setting.label}", f"{_WITH[name]} gain")]
    columns = ("classifier", *ours, *(f"paper: {column}" for column in printed_columns))
    return StudyTable(f"{title}, {most} shots", columns, tuple(rows), _notes(options))


def table_1(options: StudyOptions) -> StudyReport:
    """SigLIP and SigLIxP over model and data scale."""
    table = _scale_table(
        options, "sigmoid", PAPER_METHODS, paper.TABLE_1, paper.TABLE_1_COLUMNS, "Table 1. SigLIP and SigLIxP"
    )
    return StudyReport("lixp/table-1", options.scale, _WORLDS[options.scale], (table,))


def table_3(options: StudyOptions) -> StudyReport:
    """CLIP and CLIxP."""
    table = _scale_table(
        options, "softmax", PAPER_METHODS, paper.TABLE_3, paper.TABLE_3_COLUMNS, "Table 3. CLIP and CLIxP"
    )
    return StudyReport("lixp/table-3", options.scale, _WORLDS[options.scale], (table,))


Arms = dict[str, tuple[str, Recipe]]
"""From the paper's key of a row to its label and its recipe."""


def _ablations(options: StudyOptions) -> dict[str, Arms]:
    """Every row of Tables 4, 5 and 6, by part."""
    setting = _main(options)
    batch = setting.base.batch_size

    def arm(label: str, alpha: float = 0.9, tau: float | None = None, **changes: object) -> tuple[str, Recipe]:
        return label, setting.context(alpha, tau, ContextOptions(**changes))  # type: ignore[arg-type]

    plain = {"siglip": ("SigLIP", setting.base), "siglixp": arm("SigLIxP")}
    return {
        "4a. Self-attention mask": plain | {"no-mask": arm("no mask", mask=False)},
        "4b. Loss weight": plain | {f"alpha-{a}": arm(f"alpha = {a}", a) for a in (0.95, 0.8, 0.6)},
        "4c. Form of the objective": plain | {
            "residual": arm("residual", residual=True),
            "multimodal": arm("multimodal values", values="texts"),
            "two-stage": arm("two stages", stages=2),
        },
        "4d. Temperatures": plain | {
            "tied-all": arm("tau_1 = tau_2 = tau_context", tied="all"),
            "tied-context": arm("tau_2 = tau_context", tied="context"),
            "tied-scales": arm("tau_1 = tau_2", tied="scales"),
            **{f"frozen-{tau}": arm(f"tau_context = {tau}, frozen", tau=tau, freeze_temperature=True)
               for tau in (1.0, 0.1, 0.01)},
        },
        "4e. Gradient": plain | {
            "stop-keys": arm("stop-gradient through keys", stop_gradient="keys"),
            "stop-values": arm("stop-gradient through values", stop_gradient="values"),
            "stop-both": arm("stop-gradient through both", stop_gradient="both"),
        },
        "5a. Separate batch": plain | {"separate-batch": arm("separate batch", separate=True)},
        "5b. Value heads": plain | {
            "head-linear": arm("linear", value_head=1),
            "head-2": arm("2-layer MLP", value_head=2),
            "head-3": arm("3-layer MLP", value_head=3),
        },
        "5c. Normalised queries and keys": plain | {"no-qk-norm": arm("no normalisation", normalise_keys=False)},
        "5d. Layer norm": plain | {
            "layernorm-keys": arm("of the keys", layer_norm="keys"),
            "layernorm-values": arm("of the values", layer_norm="values"),
            "layernorm-both": arm("of both", layer_norm="both"),
        },
        "5e. Stale entries": plain | {
            f"stale-{k}x": arm(f"+ {k} x batch of past steps", stale_rows=k * batch) for k in (1, 4, 16)
        },
        "5f. Active buffer": plain | {
            f"subset-1/{k}": arm(f"{batch // k} of {batch}", active_rows=max(2, batch // k)) for k in (32, 16, 4)
        },
        "6. Augmented entries": plain | {
            "augmented-buffer": arm("buffer only", augmented="buffer"),
            "augmented-all": arm("trained on too", augmented="all"),
            "augmented-all-infonce": arm("trained on too, with InfoNCE", augmented="all+infonce"),
        },
    }  # fmt: skip


def _ablation_report(options: StudyOptions, table: str) -> StudyReport:
    parts = {part: arms for part, arms in _ablations(options).items() if part.startswith(table)}
    recipes = {key: recipe for arms in parts.values() for key, (_, recipe) in arms.items()}
    few, zero = _run(options, recipes, _evaluation(options, ("prototype",), "lixp-11-ablation"))
    chosen = _select(few, method="prototype", shots=16)
    tables = []
    for part, arms in parts.items():
        rows = []
        for key, (label, _) in arms.items():
            there = _printed(key)
            gain = "" if key == "siglip" else _gain(chosen, key, "siglip").signed()
            rows.append((label, str(_mean(zero, key)), str(_mean(chosen, key)), gain, *there))
        columns = (part.split(". ")[1], "zero-shot", "16-shot", "gain", "paper: zero-shot", "paper: 16-shot")
        tables.append(StudyTable(f"Table {part}", columns, tuple(rows), _notes(options)))
    return StudyReport(f"lixp/table-{table}", options.scale, _WORLDS[options.scale], tables)


def _printed(key: str) -> tuple[str, str]:
    """The paper's figures; it prints the best of the frozen temperatures once, and has no row for some of ours."""
    return paper.ABLATIONS.get("frozen-tau" if key.startswith("frozen-") else key, ("", ""))


def table_4(options: StudyOptions) -> StudyReport:
    """Ablations of the objective."""
    return _ablation_report(options, "4")


def table_5(options: StudyOptions) -> StudyReport:
    """Ablations of the buffer."""
    return _ablation_report(options, "5")


def table_6(options: StudyOptions) -> StudyReport:
    """Augmented entries in the buffer."""
    return _ablation_report(options, "6")


@dataclass(frozen=True)
class _Pair:
    """The main pair of the figures: names and frames."""

    plain: str
    context: str
    few: pd.DataFrame
    zero: pd.DataFrame


def _pair(options: StudyOptions) -> _Pair:
    setting = _main(options)
    plain, context = setting.arms("SigLIP")
    few, zero = _run(options, setting.arms("SigLIP"), _evaluation(options, PAPER_METHODS))
    return _Pair(plain, context, few, zero)


def _figure_report(options: StudyOptions, number: int, figure: Figure, *notes: str) -> StudyReport:
    name = f"lixp-figure-{number}-{options.scale}.png"
    plots.save_figure(figure, options.out / name)
    return StudyReport(f"lixp/figure-{number}", options.scale, _WORLDS[options.scale], figures=(name,), notes=notes)


def figure_1(options: StudyOptions) -> StudyReport:
    """Accuracy over shots, and sample efficiency."""
    pair = _pair(options)
    means = {name: _mean(pair.zero, name).mean for name in (pair.plain, pair.context)}
    figure = plots.few_shot_curves(pair.few, [pair.plain, pair.context], PAPER_METHODS, means)
    saved = {method: efficiency(pair.few, pair.context, pair.plain, method) for method in PAPER_METHODS}
    words = ", ".join(f"{plots.METHOD_NAMES[m]} {v}" for m, v in saved.items())
    most = max(pair.few["shots"])
    note = f"fewer shots with context for what {pair.plain} reaches with {most}: {words}"
    return _figure_report(options, 1, figure, note, f"paper: {paper.FIGURE_1}")


def figure_2(options: StudyOptions) -> StudyReport:
    """Gain on each data set."""
    pair = _pair(options)
    most = int(max(pair.few["shots"]))
    figure = plots.gain_per_data_set(pair.few, pair.context, pair.plain, "tip-adapter", most)
    means = (
        _select(pair.few, method="tip-adapter", shots=most).groupby(["model", "data"])["value"].mean().unstack("model")
    )
    better = int((means[pair.context] > means[pair.plain]).sum())
    return _figure_report(options, 2, figure, f"context is better on {better} of {len(means)} data sets")


def figure_3(options: StudyOptions) -> StudyReport:
    """Gain of each classifier."""
    pair = _pair(options)
    most = int(max(pair.few["shots"]))
    figure = plots.gain_per_classifier(pair.few, {"SigLIxP": (pair.context, pair.plain)}, PAPER_METHODS, most)
    return _figure_report(options, 3, figure)


def figure_4(options: StudyOptions) -> StudyReport:
    """Post-training: a trained SigLIP goes on with and without context, for half and for all of its first length."""
    setting = _main(options)
    evaluation = _evaluation(options, ("tip-adapter",))
    first = with_seeds({"SigLIP": setting.base}, _seeds(options), evaluation)
    results = run(first, options.out, options.workers)
    later = [job for done in first for job in _post_training(done, setting, options, evaluation)]
    few, _ = frames([*results, *run(later, options.out, options.workers)])
    most = int(max(few["shots"]))
    chosen = _select(few, method="tip-adapter", shots=most)
    rows = [(name, str(_mean(chosen, name)), "" if name == "SigLIP" else _gain(chosen, name, "SigLIP").signed())
            for name in dict.fromkeys(chosen["model"])]  # fmt: skip
    table = StudyTable(
        f"Figure 4. Tip-Adapter at {most} shots after post-training", ("model", "accuracy", "gain"), tuple(rows),
        (*_notes(options), f"paper: {paper.FIGURE_4}"),
    )  # fmt: skip
    report = _figure_report(options, 4, _post_training_figure(chosen, setting.base.steps))
    return replace(report, tables=(table,))


POST_LENGTHS = (0.5, 1.0)
"""Lengths of post-training, in those of the first training."""


def _post_training(done: Job, setting: LixpWorld, options: StudyOptions, evaluation: Evaluation) -> list[Job]:
    """The jobs that start from the model of ``done``, at a third of the learning rate and on other samples."""
    jobs = []
    for share in POST_LENGTHS:
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
            jobs.append(Job(f"SigLIP + {share:g} x {name}", recipe, evaluation, seed=done.paired_seed))
    return jobs


def _post_training_figure(chosen: pd.DataFrame, steps: int) -> Figure:
    figure, axes = plots.new_figure()
    axis = axes[0, 0]
    start = _mean(chosen, "SigLIP")
    for name, colour in zip(("SigLIP", "SigLIxP"), plots.LINE_COLOURS, strict=False):
        points = [start, *(_mean(chosen, f"SigLIP + {share:g} x {name}") for share in POST_LENGTHS)]
        spread = np.nan_to_num([point.std for point in points])
        places = [steps * (1 + share) for share in (0.0, *POST_LENGTHS)]
        axis.errorbar(places, [point.mean for point in points], yerr=spread, marker="o", color=colour, capsize=2,
                      label=f"then {name}")  # fmt: skip
    axis.set_xlabel("steps")
    axis.set_ylabel("Tip-Adapter (%)")
    axis.legend(frameon=False)
    return figure


def figure_5(options: StudyOptions) -> StudyReport:
    """Gain against the number of examples."""
    pair = _pair(options)
    most = int(max(pair.few["shots"]))
    figure = plots.gain_against_examples(pair.few, pair.context, pair.plain, "tip-adapter", most)
    table = gain_by_examples(pair.few, pair.context, pair.plain, "tip-adapter", most)
    try:
        fit = log_linear_fit(table["examples"].to_numpy(), table["relative_gain"].to_numpy())
        note = f"relative gain: {fit.slope:+.2f} points a decade of examples, p = {fit.p_value:.2g}"
    except ValueError as error:
        note = f"no fit: {error}; data sets of several sizes are needed (--scale full)"
    return _figure_report(options, 5, figure, note)


def figure_6(options: StudyOptions) -> StudyReport:
    """Training dynamics, and tau_context from several starts."""
    setting = _main(options)
    starts = (1e-4, 1e-3, 3e-3, 1e-2, 1e-1, 1.0)
    arms = setting.arms("SigLIP") | {f"tau_context from {tau:g}": setting.context(tau=tau) for tau in starts}
    jobs = with_seeds(arms, 1, _evaluation(options, ("prototype",)))
    run(jobs, options.out, options.workers)
    logs = {job.name: metrics(job, options.out) for job in jobs}
    figure = plots.training_dynamics(logs)
    ends = ", ".join(f"{tau:g}: {logs[f'tau_context from {tau:g}']['tau_context'].iloc[-1]:.2g}" for tau in starts)
    return _figure_report(options, 6, figure, f"tau_context at the end by its start: {ends}")
