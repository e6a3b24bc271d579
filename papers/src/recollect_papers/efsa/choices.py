"""What EFSA does not show: how settings were chosen, and what a better base model changes."""

from dataclasses import replace

from recollect.core.places import public_names, public_place
from recollect.efsa.options import EpisodeOptions
from recollect_papers.efsa.methods import MethodOptions, as_printed
from recollect_papers.efsa.tables import (
    AVERAGE,
    DEPTHS,
    ask,
    asked_of,
    measurements,
    notes_of,
    recall_at,
    recall_form,
    together,
)
from recollect_papers.efsa.world import EfsaWorld, SearchRun, base_recipe, efsa_world, searched, trained
from recollect_papers.engine import Column, Row, TableForm
from recollect_papers.measurements import Measurements
from recollect_papers.study import StudyOptions, StudyReport


def choices(options: StudyOptions) -> StudyReport:
    """One setting after the other on validation pools, merged, over base models and random starts of the adapters.

    With one step from B = 0, AdamW moves every entry of B by the learning rate, so scale and learning rate matter only
    as their product, the size of the step.
    """
    where = efsa_world(options).for_choices()
    arms: dict[str, Measurements] = {}
    methods = {"zero-shot": "zero-shot"}
    for name, (method, settings) in _choices(where, options.scale == "smoke").items():
        found = []
        for seed in range(where.adapter_seeds if method == "episode" else 1):
            mine = replace(settings, episode=replace(settings.episode, seed=seed))
            search = SearchRun(("zero-shot", method), mine, where.captions[0], "merged", where.data)
            found += searched(search, where, options)
        if not arms:  # before any start: one figure for each base model
            arms["zero-shot"] = measurements(found[: len(where.models)])
        arms[name], methods[name] = measurements(found), method
    made = together(arms)
    rows = {name: {"arm": name, "method": method} for name, method in methods.items()}
    notes = notes_of(where, "episodes", where.adapter_seeds)[:2]
    form = recall_form("Choices, on validation pools", "setting", rows, made, notes)
    validation = f"validation: {', '.join(map(public_place, where.data))}"
    return StudyReport(
        "efsa/choices", options.scale, where.world, (form.fill(made),), notes=(validation,), measured=made.as_json()
    )


def _choices(where: EfsaWorld, smoke: bool) -> dict[str, tuple[str, MethodOptions]]:
    """Every setting that is tried, by name, with its method."""
    start = as_printed(where.methods.episode)
    rates = (1e-3,) if smoke else (1.5e-4, 5e-4, 1.5e-3, 5e-3)
    episodes: dict[str, EpisodeOptions] = {}
    for rate in rates:
        each = replace(start, learning_rate=rate)
        episodes[f"step {rate * start.scale:.2g} (learning rate {rate:g})"] = each
        episodes[f"the same at temperature 1, {rate:g}"] = replace(each, temperature=1.0)
        both = replace(each, direction="symmetric")
        episodes[f"the same both ways, {rate:g}"] = both
        episodes[f"both ways, rank 16, {rate:g}"] = replace(both, rank=16)
    best = replace(start, learning_rate=1e-3 if smoke else 1.5e-3, direction="symmetric")
    episodes["both ways at temperature 1"] = replace(best, temperature=1.0)
    for share in (0.5,) if smoke else (0.5, 1.0):
        episodes[f"both ways, soft negatives {share:g}"] = replace(best, soft=share)
    for share in (0.5,) if smoke else (0.3, 0.5, 0.7):
        episodes[f"both ways, mixed {share:g} with the score before"] = replace(best, mix=share)
    arms = {name: ("episode", _with(where, each)) for name, each in episodes.items()}
    for rate in rates[::2]:
        low = rate / 50
        arms[f"all parameters, learning rate {low:g}"] = (
            "episode-full",
            replace(where.methods, full_learning_rate=low),
        )
    for rate in rates[:3]:
        tuning = replace(where.methods.tuning, learning_rate=rate)
        arms[f"fine-tuning, learning rate {rate:g}"] = ("fine-tuning", replace(where.methods, tuning=tuning))
    if where.teachers:
        for rate in (1e-6, 1e-5, 1e-4)[: len(rates)]:
            reward = replace(where.methods.reward, learning_rate=rate)
            arms[f"RLCF, learning rate {rate:g}"] = ("rlcf", replace(where.methods, reward=reward))
    return arms


def _with(where: EfsaWorld, episode: EpisodeOptions) -> MethodOptions:
    return replace(where.methods, episode=episode)


def base_model(options: StudyOptions) -> StudyReport:
    """What episodes gain as the base model gets better: one that is trained for longer, or each that is named."""
    where = efsa_world(options)
    models = {name: place for place, name in public_names(where.models).items()}
    if options.scale != "full":
        lengths = (2, 6) if options.scale == "smoke" else (100, 300, 1000)
        recipes = [base_recipe(options.scale, "softmax", 0, steps) for steps in lengths]
        models = {f"{steps} steps": model for steps, model in zip(lengths, trained(recipes, options), strict=True)}
    k, arms = where.methods.episode.k, {}
    for name, model in models.items():
        alone = replace(where, models=(model,))
        methods = ("zero-shot", "text-to-text", "episode")
        arms[name] = measurements(ask(options, alone, methods=methods, depths=tuple(dict.fromkeys((*DEPTHS, k)))))
    found = together(arms)
    zero, episode = {"method": "zero-shot"}, {"method": "episode"}
    first, reach, fifth = (recall_at(found, AVERAGE, depth) for depth in (1, k, 5))
    columns = (
        Column("zero-shot R@1", {**zero, **first}),
        Column(f"zero-shot R@{k}", {**zero, **reach}),
        Column("T2T R@1", {"method": "text-to-text", **first}),
        Column("EFSA R@1", {**episode, **first}),
        Column("gain in R@1", {**episode, **first}, "gain", zero),
        Column("gain in R@5", {**episode, **fifth}, "gain", zero),
    )
    rows = [Row((name,), {"arm": name}) for name in models]
    title, notes = "Base models, average of domains in one pool", (asked_of(where), notes_of(where)[1])
    table = TableForm(title, ("base model",), rows, columns, None, notes).fill(found)
    return StudyReport("efsa/base-model", options.scale, where.world, (table,), measured=found.as_json())
