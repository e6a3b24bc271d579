"""EFSA (Huzaifa and Kementchedjhieva, "Episodic Few-Shot Adaptation"): Tables 2 to 7 and Figures 1 and 3 to 6.

``smoke`` and ``small`` search look-alike scenes of the glyph world; ``full`` takes the paper's models and settings, or
those that ``--search`` names, the user's pools (``--data``) and their captions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from matplotlib.figure import Figure

from recollect.evaluation.pools import PoolKind
from recollect.evaluation.results import Result, Summary, summarise
from recollect.evaluation.retrieval import DIRECTIONS
from recollect.reports import plots
from recollect.search.episodes.options import EpisodeOptions
from recollect.search.methods import MethodOptions
from recollect.studies.efsa import paper
from recollect.studies.efsa.answers import answered
from recollect.studies.efsa.figures import Shown, bars, curves, examples, zero_shot_examples
from recollect.studies.efsa.world import (
    TRUE,
    Captions,
    EfsaWorld,
    SearchRun,
    base_recipe,
    efsa_world,
    searched,
    trained,
)
from recollect.studies.study import StudyOptions, StudyReport, StudyTable

DEPTHS = (1, 5, 10)
AVERAGE = "average"
_PAPER_METHODS = ("zero-shot", "fine-tuning", "text-to-text", "rlcf", "episode")
NAMES = paper.PRINTED_METHODS | {"episode-full": "full parameters"}
_ABLATED = ("zero-shot", "episode")


@dataclass(frozen=True)
class Recalls:
    """Text to image, in percent, of each method on each domain: one value for each base model.

    Attributes:
        values: by (method, domain, k).
        domains: by name, the average last.
        costs: by (method, what), mean over base models and pools.
    """

    values: Mapping[tuple[str, str, int], tuple[float, ...]]
    domains: tuple[str, ...]
    costs: Mapping[tuple[str, str], float]

    @classmethod
    def of(cls, found: Sequence[Sequence[Result]]) -> "Recalls":
        """Read the results of every base model."""
        values: dict[tuple[str, str, int], list[float]] = {}
        costs: dict[tuple[str, str], list[float]] = {}
        for results in found:
            each: dict[tuple[str, int], list[float]] = {}
            for result in results:
                for method, domain, k, value in _recall_rows(result):
                    values.setdefault((method, domain, k), []).append(value)
                    each.setdefault((method, k), []).append(value)
                for row in result.rows:
                    if row["metric"] != "recall":
                        costs.setdefault((row["method"], row["metric"]), []).append(row["value"])
            for (method, k), mine in each.items():
                values.setdefault((method, AVERAGE, k), []).append(float(np.mean(mine)))
        domains = sorted({domain for _, domain, _ in values if domain != AVERAGE})
        return cls(
            {key: tuple(each) for key, each in values.items()},
            (*domains, AVERAGE),
            {key: float(np.mean(each)) for key, each in costs.items()},
        )

    def at(self, method: str, domain: str, k: int) -> Summary:
        """Mean ± std over base models."""
        return summarise(self.values[method, domain, k])

    def gain(self, method: str, k: int = 1, domain: str = AVERAGE, over: str = "zero-shot") -> Summary:
        """Of one method over another, paired by base model."""
        mine, other = self.values[method, domain, k], self.values[over, domain, k]
        return summarise(np.subtract(mine, other))


def _recall_rows(result: Result) -> Iterable[tuple[str, str, int, float]]:
    """Method, domain, k and value of every row from text to image; a pool of one domain is called by it."""
    rows = [row for row in result.rows if row["metric"] == "recall" and row["direction"] == DIRECTIONS[0]]
    domains = list(dict.fromkeys(row["domain"] for row in rows if row["domain"] not in {"all", "mean of domains"}))
    for row in rows:
        if row["domain"] in domains:
            yield row["method"], row["domain"], row["k"], row["value"]


def _ask(
    options: StudyOptions,
    where: EfsaWorld,
    pool: PoolKind = "merged",
    methods: Sequence[str] = _ABLATED,
    *,
    changed: EpisodeOptions | None = None,
    captions: Captions | None = None,
    data: tuple[str, ...] | None = None,
    depths: Sequence[int] = DEPTHS,
) -> Recalls:
    settings = where.methods if changed is None else replace(where.methods, episode=changed)
    search = SearchRun(tuple(methods), settings, captions or where.captions[0], pool, data or where.data, tuple(depths))
    return Recalls.of(searched(search, where, options))


def _columns(domains: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{domain} R@{k}" for domain in domains for k in DEPTHS)


def _cells(recalls: Recalls, method: str) -> tuple[str, ...]:
    return tuple(str(recalls.at(method, domain, k)) for domain in recalls.domains for k in DEPTHS)


def _notes(where: EfsaWorld) -> tuple[str, ...]:
    episode = where.methods.episode
    asked = "all texts" if where.queries is None else f"at most {where.queries} texts a domain"
    return (
        f"mean ± std over {len(where.models)} base models; gains are in average R@1, paired by base model; {asked} are "
        f"asked; captions of the pool: {where.captions[0].label}",
        f"episodes: k {episode.k}, learning rate {episode.learning_rate:g}, scale {episode.scale:g}, temperature "
        f"{'of the model' if episode.temperature is None else f'{episode.temperature:g}'}, {episode.direction}",
        "paper: as printed there",
    )


def _report(
    name: str, options: StudyOptions, where: EfsaWorld, tables: Sequence[StudyTable], *notes: str
) -> StudyReport:
    return StudyReport(f"efsa/{name}", options.scale, where.world, tables, notes=notes)


# --- Tables 2, 3 and 7: every method on every domain ------------------------------------------------------------------


def _every_method(
    options: StudyOptions,
    where: EfsaWorld,
    number: int,
    pool: PoolKind,
    printed: Mapping[str, tuple[paper.Triple, ...]],
) -> StudyReport:
    methods = [name for name in _PAPER_METHODS if name != "rlcf" or where.teachers]
    k = where.methods.episode.k
    recalls = _ask(options, where, pool, [*methods, "episode-full"], depths=(*DEPTHS, k))
    rows = []
    for method in (*methods, "episode-full"):
        known = printed.get(method)
        gain = "" if method == "zero-shot" else recalls.gain(method).signed()
        beside = [cell for place in _printed_places(recalls.domains) for cell in (known[place] if known else ("",) * 3)]
        rows.append((NAMES[method], *_cells(recalls, method), gain, *beside))
    heads = [paper.DOMAINS[place] for place in _printed_places(recalls.domains)]
    columns = ("method", *_columns(recalls.domains), "gain", *(f"paper: {cell}" for cell in _columns(heads)))
    kind = {"single": "every domain is a pool by itself", "merged": "all domains are one pool"}[pool]
    table = StudyTable(f"Table {number}. Text to image, {kind}", columns, tuple(rows), _notes(where))
    ceiling = ", ".join(f"{domain} {recalls.at('zero-shot', domain, k)}" for domain in recalls.domains)
    left_out = () if where.teachers else ("RLCF is left out: name a larger model with --search.teacher",)
    return _report(
        f"table-{number}", options, where, (table, _costs(recalls, [*methods, "episode-full"])),
        f"what an episode can reach at best, zero-shot R@{k}: {ceiling}", *left_out,
    )  # fmt: skip


def _printed_places(domains: Sequence[str]) -> list[int]:
    """The columns of the paper that stand beside ours: sets of the same name, and the average."""
    return [
        place for place, name in enumerate(paper.DOMAINS) if any(name in domain.lower() for domain in domains)
    ]  # fmt: skip


def _costs(recalls: Recalls, methods: Sequence[str]) -> StudyTable:
    columns = ("method", "ms", "images forward", "images back", "M products forward", "M products back", "MiB at once")
    rows = []
    for method in methods:

        def cost(what: str, method: str = method) -> float:
            return recalls.costs[method, what]

        rows.append((
            NAMES[method],
            f"{1000 * cost('seconds per query'):.1f}",
            f"{cost('images_forward per query'):.1f}",
            f"{cost('images_backward per query'):.1f}",
            f"{cost('forward_products per query') / 1e6:,.1f}",
            f"{cost('backward_products per query') / 1e6:,.1f}",
            f"{cost('memory') / 2**20:.1f}",
        ))  # fmt: skip
    notes = ("of a query, after what is done once for a pool (fine-tuning, embedding captions)",)
    return StudyTable("Cost of a query", columns, tuple(rows), notes)


def table_2(options: StudyOptions) -> StudyReport:
    """Every method, each domain a pool by itself."""
    return _every_method(options, efsa_world(options), 2, "single", paper.TABLE_2)


def table_3(options: StudyOptions) -> StudyReport:
    """Every method, all domains in one pool."""
    return _every_method(options, efsa_world(options), 3, "merged", paper.TABLE_3)


def table_7(options: StudyOptions) -> StudyReport:
    """Every method, all domains in one pool, base models trained with SigLIP's loss."""
    return _every_method(options, efsa_world(options, "sigmoid"), 7, "merged", paper.TABLE_7)


# --- Tables 4, 5 and 6: ablations, all domains in one pool ------------------------------------------------------------


@dataclass(frozen=True)
class _Arm:
    """One row of an ablation: its name, what it found, and what the paper printed."""

    name: str
    recalls: Recalls
    printed: Sequence[paper.Triple] = ()


def _ablation(
    options: StudyOptions, where: EfsaWorld, title: str, head: str, arms: Sequence[_Arm], domains: Sequence[str]
) -> StudyReport:
    first = arms[0].recalls
    columns = (head, *_columns(first.domains), "gain", *(f"paper: {cell}" for cell in _columns(domains)))
    rows = [("zero-shot", *_cells(first, "zero-shot"), "", *("",) * 3 * len(domains))]
    for arm in arms:
        beside = [cell for triple in arm.printed for cell in triple] or [""] * 3 * len(domains)
        rows.append((arm.name, *_cells(arm.recalls, "episode"), arm.recalls.gain("episode").signed(), *beside))
    number = title.split(".")[0].removeprefix("Table ")
    return _report(f"table-{number}", options, where, (StudyTable(title, columns, tuple(rows), _notes(where)),))


Direction = Literal["image-to-text", "symmetric"]
_DIRECTIONS: Mapping[Direction, str] = {"image-to-text": "image to text alone", "symmetric": "both ways"}


def table_4(options: StudyOptions) -> StudyReport:
    """Loss functions."""
    where = efsa_world(options)
    start = where.methods.episode
    one = replace(start, temperature=1.0)
    other: Direction = "symmetric" if start.direction == "image-to-text" else "image-to-text"
    losses = {
        "Hinge": ("hinge", replace(start, contrastive=0.0)),
        "Contrastive": ("contrastive", replace(start, hinge=0.0)),
        "Combined": ("combined", start),
        "Contrastive, temperature 1": ("", replace(one, hinge=0.0)),
        "Combined, temperature 1": ("", one),
        f"Combined, {_DIRECTIONS[other]}": ("", replace(start, direction=other)),
    }
    arms = [
        _Arm(name, _ask(options, where, changed=changed), paper.TABLE_4.get(key, ()))
        for name, (key, changed) in losses.items()
    ]
    return _ablation(options, where, "Table 4. Loss of an episode", "loss", arms, paper.TABLE_4_DOMAINS)


def table_5(options: StudyOptions) -> StudyReport:
    """Candidates that an episode learns from and ranks again."""
    where = efsa_world(options)
    arms = []
    for k in (2, 4, 8) if options.scale == "smoke" else (8, 16, 32, 64):
        found = _ask(options, where, changed=replace(where.methods.episode, k=k), depths=(*DEPTHS, k))
        arms.append(_Arm(f"{k} (zero-shot R@{k} {found.at('zero-shot', AVERAGE, k)})", found, paper.TABLE_5.get(k, ())))
    return _ablation(options, where, "Table 5. Candidates", "top k", arms, paper.TABLE_5_DOMAINS)


def table_6(options: StudyOptions) -> StudyReport:
    """Captions from several captioners, and the truth."""
    where = efsa_world(options)
    kinds = (TRUE, *(kind for kind in where.captions if kind.kind != TRUE.kind))
    arms = [_Arm(kind.label, _ask(options, where, captions=kind), paper.TABLE_6.get(kind.label, ())) for kind in kinds]
    report = _ablation(options, where, "Table 6. Captioners", "captions from", arms, paper.TABLE_6_DOMAINS)
    note = "captions that are held out are not asked for, so those rows have a zero-shot of their own: see their gain"
    return replace(report, notes=(note,))


# --- Figures ----------------------------------------------------------------------------------------------------------


def _drawn(
    number: int, options: StudyOptions, where: EfsaWorld, figure: Figure, *notes: str, table: StudyTable | None = None
) -> StudyReport:
    name = f"efsa-figure-{number}-{options.scale}.png"
    plots.save_figure(figure, options.out / name)
    tables = () if table is None else (table,)
    return StudyReport(f"efsa/figure-{number}", options.scale, where.world, tables, (name,), notes)


def _recall_table(
    title: str, head: str, rows: Mapping[str, tuple[Recalls, str]], where: EfsaWorld, *notes: str
) -> StudyTable:
    """Recall in each domain for rows of (recalls, method), with the gain over zero-shot."""
    domains = next(iter(rows.values()))[0].domains
    lines = []
    for name, (recalls, method) in rows.items():
        gain = "" if method == "zero-shot" else recalls.gain(method).signed()
        lines.append((name, *_cells(recalls, method), gain))
    return StudyTable(title, (head, *_columns(domains), "gain"), tuple(lines), (*_notes(where)[:2], *notes))


def figure_1(options: StudyOptions) -> StudyReport:
    """Zero-shot recall at 1, 5, 10 of every domain by itself, and what stands in the way of R@1."""
    where = efsa_world(options)
    search = SearchRun(("zero-shot",), where.methods, where.captions[0], "single", where.data)
    recalls = Recalls.of(searched(search, where, options))
    wrong = [
        [each for each in answers if 1 < each.zero_shot_rank <= 5] for answers in answered(where, options, search)[:3]
    ]
    shown = [Shown(each.query, {"zero-shot": [each.zero_shot[0], each.truth]}) for few in wrong for each in few[:1]]
    bars_of = {
        domain: {k: recalls.at("zero-shot", domain, k) for k in DEPTHS}
        for domain in recalls.domains if domain != AVERAGE
    }  # fmt: skip
    table = _recall_table(
        "Figure 1. Zero-shot, every domain by itself", "method", {"zero-shot": (recalls, "zero-shot")}, where
    )
    note = "examples: found first (red) and a true match (green), of queries with a true match at ranks 2 to 5"
    return _drawn(1, options, where, zero_shot_examples(shown, bars_of), note, table=table)


def figure_3(options: StudyOptions) -> StudyReport:
    """What is found first before and after an episode."""
    where = efsa_world(options)
    search = SearchRun(_ABLATED, where.methods, where.captions[0], "merged", where.data)
    (answers,) = answered(where, options, search)
    better = [each for each in answers if each.episode_rank == 1 < each.zero_shot_rank]
    worse = [each for each in answers if each.zero_shot_rank == 1 < each.episode_rank]
    chosen = [*better[:2], *worse[:1]] or answers[:2]
    shown = [Shown(each.query, {"zero-shot": each.zero_shot, "EFSA": each.episode}) for each in chosen]
    note = (
        f"an episode brings a true match to the first rank for {len(better)} of {len(answers)} queries and drives one "
        f"from it for {len(worse)}; shown: the first two of the one kind, the first of the other"
    )
    return _drawn(3, options, where, examples(shown), note)


def figure_4(options: StudyOptions) -> StudyReport:
    """Low-rank adapters against all parameters."""
    where = efsa_world(options)
    recalls = _ask(options, where, methods=("zero-shot", "episode-full", "episode"))
    kinds = {"zero-shot": "zero-shot", "all parameters": "episode-full", "low-rank adapters": "episode"}
    panels = {
        domain: {name: {k: recalls.at(method, domain, k) for k in DEPTHS} for name, method in kinds.items()}
        for domain in recalls.domains
    }
    table = _recall_table(
        "Figure 4. What an episode changes", "parameters", {name: (recalls, kind) for name, kind in kinds.items()},
        where, f"paper: {paper.FIGURE_4}",
    )  # fmt: skip
    return _drawn(4, options, where, bars(panels), table=table)


def figure_5(options: StudyOptions) -> StudyReport:
    """More steps in an episode."""
    where = efsa_world(options)
    most = 2 if options.scale == "smoke" else 4
    each = {
        steps: _ask(options, where, changed=replace(where.methods.episode, steps=steps)) for steps in range(1, most + 1)
    }
    return _over(5, options, where, {str(steps): found for steps, found in each.items()}, "steps", paper.FIGURE_5)


def figure_6(options: StudyOptions) -> StudyReport:
    """Captions of several lengths; with one's own captions, each kind that was named."""
    where = efsa_world(options)
    kinds = list(where.captions)
    if options.scale != "full":
        first = where.captions[0]
        limits = (4, 8, None) if options.scale == "smoke" else (3, 5, 10, 15, None)
        kinds = [
            replace(first, label="no limit" if words is None else str(words),
                    rewording=replace(first.rewording, most_words=words)) for words in limits
        ]  # fmt: skip
    each = {kind.label: _ask(options, where, captions=kind) for kind in kinds}
    label = "captions" if options.scale == "full" else "most words of a caption"
    return _over(6, options, where, each, label, paper.FIGURE_6)


def _over(
    number: int, options: StudyOptions, where: EfsaWorld, each: Mapping[str, Recalls], label: str, said: str
) -> StudyReport:
    """Curves of EFSA's recall over something, with zero-shot as the first place."""
    first = next(iter(each.values()))
    panels = {
        k: {
            domain: [first.at("zero-shot", domain, k), *(found.at("episode", domain, k) for found in each.values())]
            for domain in first.domains
        }
        for k in DEPTHS
    }
    rows = {"zero-shot": (first, "zero-shot")} | {name: (found, "episode") for name, found in each.items()}
    table = _recall_table(f"Figure {number}. EFSA over {label}", label, rows, where, f"paper: {said}")
    return _drawn(number, options, where, curves(panels, ["zero-shot", *each], label), table=table)


# --- What the paper does not show: how settings were chosen, and what a better base model changes ---------------------


def choices(options: StudyOptions) -> StudyReport:
    """One setting after the other on validation pools, merged, over base models and random starts of the adapters.

    With one step from B = 0, AdamW moves every entry of B by the learning rate, so scale and learning rate matter only
    as their product, the size of the step.
    """
    where = efsa_world(options).for_choices()
    rows: dict[str, tuple[Recalls, str]] = {}
    for name, (method, settings) in _choices(where, options.scale == "smoke").items():
        found = []
        for seed in range(where.adapter_seeds if method == "episode" else 1):
            mine = replace(settings, episode=replace(settings.episode, seed=seed))
            search = SearchRun(("zero-shot", method), mine, where.captions[0], "merged", where.data)
            found += searched(search, where, options)
        rows[name] = (Recalls.of(found), method)
    first = next(iter(rows.values()))[0]
    table = _recall_table("Choices, on validation pools", "setting", {"zero-shot": (first, "zero-shot")} | rows, where)
    seeds = (
        f"episodes go over {where.adapter_seeds} random starts of their adapters; validation: {', '.join(where.data)}"
    )
    return StudyReport("efsa/choices", options.scale, where.world, (table,), notes=(seeds,))


def _choices(where: EfsaWorld, smoke: bool) -> dict[str, tuple[str, MethodOptions]]:
    """Every setting that is tried, by name, with its method."""
    start = where.methods.episode.as_printed()
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
    models = dict(zip(where.models, where.models, strict=True))
    if options.scale != "full":
        lengths = (2, 6) if options.scale == "smoke" else (100, 300, 1000)
        recipes = [base_recipe(options.scale, "softmax", 0, steps) for steps in lengths]
        models = {f"{steps} steps": model for steps, model in zip(lengths, trained(recipes, options), strict=True)}
    k = where.methods.episode.k
    rows = []
    for name, model in models.items():
        alone = replace(where, models=(model,))
        found = _ask(options, alone, methods=("zero-shot", "text-to-text", "episode"), depths=(*DEPTHS, k))
        first = [str(found.at(method, AVERAGE, 1)) for method in ("text-to-text", "episode")]
        gains = [found.gain("episode", depth).signed() for depth in (1, 5)]
        reach = [str(found.at("zero-shot", AVERAGE, depth)) for depth in (1, k)]
        rows.append((name, *reach, *first, *gains))
    columns = ("base model", "zero-shot R@1", f"zero-shot R@{k}", "T2T R@1", "EFSA R@1", "gain in R@1", "gain in R@5")
    table = StudyTable("Base models, average of domains in one pool", columns, tuple(rows), _notes(where)[1:2])
    return StudyReport("efsa/base-model", options.scale, where.world, (table,))
