"""EFSA (Huzaifa and Kementchedjhieva, "Episodic Few-Shot Adaptation"): Tables 2 to 7.

``smoke`` and ``small`` search look-alike scenes of the glyph world; ``full`` uses the user's pools (``--data``) and
captions, with the paper's models and settings or those given by ``--search``.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from recollect.efsa.options import EpisodeOptions
from recollect.evaluation.pools import PoolKind
from recollect.evaluation.results import Summary
from recollect.objectives import Base
from recollect_papers.efsa.world import (
    TRUE,
    WORLDS_BY_SCALE,
    Captions,
    EfsaWorld,
    SearchRun,
    efsa_world,
    searched,
)
from recollect_papers.engine import Column, Printed, Row, TableForm, TablesAndNotes, TableStudy, printed
from recollect_papers.measurements import Measurements
from recollect_papers.study import StudyOptions, over

DEPTHS = (1, 5, 10)
AVERAGE = "average"
_PAPER_METHODS = ("zero-shot", "fine-tuning", "text-to-text", "rlcf", "episode")
_NAMES = {
    "zero-shot": "Z.S",
    "fine-tuning": "F.T",
    "text-to-text": "T2T",
    "rlcf": "RLCF",
    "episode": "EFSA",
    "episode-full": "full parameters",
}
"""Names of methods in the paper; full parameters occur only in Figure 4."""
ABLATED = ("zero-shot", "episode")


def domains_of(found: Measurements) -> dict[str, tuple[str, ...]]:
    """Return the domains of each column: every domain, and all for the average."""
    domains = tuple(found.context["domains"])
    return {**{domain: (domain,) for domain in domains}, AVERAGE: domains}


def recall_at(found: Measurements, domain: str, k: int) -> dict[str, str | tuple[str, ...]]:
    """Return a column's part of the address."""
    return {"domain": domains_of(found)[domain], "measure": f"R@{k}"}


def summary_at(found: Measurements, method: str, domain: str, k: int, **more: str) -> Summary:
    """Return mean ± std over base models."""
    return found.summary({"method": method, **recall_at(found, domain, k), **more})


def measure_searches(
    options: StudyOptions,
    where: EfsaWorld,
    pool: PoolKind = "merged",
    methods: Sequence[str] = ABLATED,
    *,
    changed: EpisodeOptions | None = None,
    steps: int = 1,
    captions: Captions | None = None,
    depths: Sequence[int] = DEPTHS,
) -> Measurements:
    """Measure methods on the pools of ``where``.

    Args:
        changed, captions: episodes and captions (default: those of ``where``).

    Returns:
        figures of each base model by ``method`` and ``measure``, recall also by ``domain``.
    """
    settings = replace(where.methods, episode=changed or where.methods.episode, steps=steps)
    search = SearchRun(tuple(methods), settings, captions or where.captions[0], pool, where.data, tuple(depths))
    found = Measurements()
    for seed, figures in enumerate(searched(search, where, options)):
        found.add_all(figures, seed)
    found.context["domains"] = sorted(found.names("domain"))
    return found


def measure_arms(
    options: StudyOptions, where: EfsaWorld, arms: Mapping[str, Mapping[str, Any]], **context: Any
) -> Measurements:
    """Measure several searches, by ``arm``; each arm gives the arguments of `measure_searches` that it changes."""
    found = Measurements({**context, "arms": list(arms)})
    for name, changed in arms.items():
        found.take(measure_searches(options, where, **changed), arm=name)
    found.context["domains"] = sorted(found.names("domain"))
    return found


def columns_of(found: Measurements) -> list[Column]:
    """Return columns of recall in each domain and on average, and of the gain in average R@1 over zero-shot."""
    recalls = [Column(f"{domain} R@{k}", recall_at(found, domain, k)) for domain in domains_of(found) for k in DEPTHS]
    return [*recalls, Column("gain", recall_at(found, AVERAGE, 1), "gain", {"method": "zero-shot"})]


VariedPart = Literal["methods", "episodes", "captions", "nothing"]


def notes_of(where: EfsaWorld, rows: VariedPart = "methods") -> tuple[str, ...]:
    """Return the notes below a table, by what differs between its rows."""
    episode = where.methods.episode
    gains = "" if rows == "nothing" else "gains are in average R@1, paired by base model; "
    named = "episodes, unless the row says otherwise" if rows == "episodes" else "episodes"
    captions = "the row's own" if rows == "captions" else where.captions[0].label
    queries = "all texts" if where.queries is None else f"at most {where.queries} texts per domain"
    return (
        f"{over(len(where.models), 'base model')}; {gains}{queries} as queries; captions of the pool: {captions}",
        f"{named}: k {episode.k}, learning rate {episode.rate:g}, scale {episode.scale:g}, temperature "
        f"{'of the model' if episode.temperature is None else f'{episode.temperature:g}'}, {episode.direction}",
        "paper: as printed there",
    )


# --- Tables 2, 3 and 7: every method on every domain ------------------------------------------------------------------


def _measure_methods(options: StudyOptions, loss: Base, pool: PoolKind) -> Measurements:
    where = efsa_world(options, loss)
    methods = [name for name in _PAPER_METHODS if name != "rlcf" or where.teachers] + ["episode-full"]
    k = where.methods.episode.k
    notes = (*notes_of(where)[:2], "paper: as printed; its average is over its own eight sets")
    found = measure_searches(options, where, pool, methods, depths=(*DEPTHS, k))
    found.context |= {"methods": methods, "k": k, "notes": list(notes), "judged": bool(where.teachers)}
    return found


def _every_method(found: Measurements, number: int, pool: PoolKind) -> TablesAndNotes:
    context, k = found.context, found.context["k"]
    paper, domains = printed("efsa", f"table-{number}"), domains_of(found)
    paper = paper.only(name for name in paper.columns if any(name.split(" ")[0] in each.lower() for each in domains))
    rows = [
        Row((_NAMES[method],), {"method": method}, method if method in paper.rows else None)
        for method in context["methods"]
    ]  # fmt: skip
    kind = {"single": "every domain is a pool by itself", "merged": "all domains are one pool"}[pool]
    title = f"Table {number}. Text to image, {kind}"
    form = TableForm(title, ("method",), rows, columns_of(found), paper, tuple(context["notes"]))
    ceiling = ", ".join(f"{domain} {summary_at(found, 'zero-shot', domain, k)}" for domain in domains_of(found))
    left_out = () if context["judged"] else ("RLCF is left out: name a larger model with --search.teacher",)
    costs = TableForm(
        "Cost of a query", ("method",), [replace(row, printed=None) for row in rows], _COSTS, None, _COST_NOTES
    )
    notes = (f"upper limit for episodes, zero-shot R@{k}: {ceiling}", *left_out)
    return [form.fill(found), costs.fill(found)], notes


_COSTS = (
    Column("ms", {"measure": "seconds per query"}, "number", unit=1e-3),
    Column("M products forward", {"measure": "forward_products per query"}, "number", pattern="{:,.1f}", unit=1e6),
    Column("M products back", {"measure": "backward_products per query"}, "number", pattern="{:,.1f}", unit=1e6),
    Column("MiB at once", {"measure": "memory"}, "number", unit=2.0**20),
)
_COST_NOTES = ("per query, without work done once per pool (fine-tuning, embedding captions)",)


def _methods_study(number: int, loss: Base, pool: PoolKind) -> TableStudy:
    measure, form = partial(_measure_methods, loss=loss, pool=pool), partial(_every_method, number=number, pool=pool)
    return TableStudy(f"efsa/table-{number}", measure, form, WORLDS_BY_SCALE)


table_2 = _methods_study(2, "softmax", "single")
table_3 = _methods_study(3, "softmax", "merged")
table_7 = _methods_study(7, "sigmoid", "merged")


# --- Tables 4, 5 and 6: ablations, all domains in one pool ------------------------------------------------------------


def arms_of(found: Measurements) -> dict[str, dict[str, str]]:
    """Return the rows: zero-shot of the first arm, then episodes of every arm."""
    arms = found.context["arms"]
    rows = {"zero-shot": {"arm": arms[0], "method": "zero-shot"}}
    return rows | {name: {"arm": name, "method": "episode"} for name in arms}


def form_arms(found: Measurements, title: str, head: str, paper: Printed | None = None) -> TablesAndNotes:
    """Form a table with a row for each of `arms_of`; labels give the limit set by the number of candidates."""
    context, rows = found.context, []
    for arm, at in arms_of(found).items():
        label, depth = arm, context.get("depths", {}).get(arm)
        if depth is not None:
            label += f" (zero-shot R@{depth} {summary_at(found, 'zero-shot', AVERAGE, depth, arm=arm)})"
        rows.append(Row((label,), at, context.get("printed", {}).get(arm)))
    form = TableForm(title, (head,), rows, columns_of(found), paper, tuple(context["notes"]))
    return [form.fill(found)], tuple(context.get("remarks", ()))


Direction = Literal["image-to-text", "symmetric"]
_DIRECTIONS: Mapping[Direction, str] = {"image-to-text": "image to text alone", "symmetric": "both ways"}


def _measure_4(options: StudyOptions) -> Measurements:
    where = efsa_world(options)
    start = where.methods.episode
    one = replace(start, temperature=1.0)
    other: Direction = "symmetric" if start.direction == "image-to-text" else "image-to-text"
    losses = {
        "Hinge": replace(start, contrastive=0.0),
        "Contrastive": replace(start, hinge=0.0),
        "Combined": start,
        "Contrastive, temperature 1": replace(one, hinge=0.0),
        "Combined, temperature 1": one,
        f"Combined, {_DIRECTIONS[other]}": replace(start, direction=other),
    }
    arms = {name: {"changed": changed} for name, changed in losses.items()}
    printed_row = {name: name.lower() for name in ("Hinge", "Contrastive", "Combined")}
    return measure_arms(options, where, arms, printed=printed_row, notes=notes_of(where, "episodes"))


def _measure_5(options: StudyOptions) -> Measurements:
    """Measure recall over the number of candidates per episode."""
    where, arms = efsa_world(options), {}
    for k in (2, 4, 8) if options.scale == "smoke" else (8, 16, 32, 64):
        arms[str(k)] = {"changed": replace(where.methods.episode, k=k), "depths": (*DEPTHS, k)}
    context = {"printed": {name: name for name in arms if name in printed("efsa", "table-5").rows},
               "depths": {name: int(name) for name in arms}}  # fmt: skip
    return measure_arms(options, where, arms, **context, notes=notes_of(where, "episodes"))


def _measure_6(options: StudyOptions) -> Measurements:
    """Measure recall with several captioners and with true captions."""
    where = efsa_world(options)
    kinds = (TRUE, *(kind for kind in where.captions if kind.kind != TRUE.kind))
    arms = {kind.label: {"captions": kind} for kind in kinds}
    rows = printed("efsa", "table-6").rows
    printed_row = {name: row for name in arms if (row := printed_captioner(name, rows)) is not None}
    about = {"notes": notes_of(where, "captions"), "remarks": held_out_note(kinds)}
    return measure_arms(options, where, arms, printed=printed_row, **about)


def printed_captioner(label: str, rows: Iterable[str]) -> str | None:
    """Return the paper's row whose captioner is named by caption files, ignoring case and punctuation.

    Examples: ``llava_13b.jsonl``, ``LLaVA-13B/coco.jsonl``.
    """

    def plain(name: str) -> str:
        return re.sub(r"[^a-z0-9]", "", name.lower())

    files = [{plain(part.removesuffix(".jsonl")) for part in Path(file).parts[-2:]} for file in label.split(",")]
    return next((row for row in rows if all(plain(row) in names for names in files)), None)


def held_out_note(kinds: Iterable[Captions]) -> list[str]:
    """Return the note for tables with held-out captions."""
    if not any("held-out" in kind.kind for kind in kinds):
        return []
    return ["held-out captions are not queries, so these rows have a different zero-shot recall: compare gains"]


def _ablation_study(number: int, measure: Callable[[StudyOptions], Measurements], title: str, head: str) -> TableStudy:
    paper = printed("efsa", f"table-{number}")
    form = partial(form_arms, title=f"Table {number}. {title}", head=head, paper=paper)
    return TableStudy(f"efsa/table-{number}", measure, form, WORLDS_BY_SCALE)


table_4 = _ablation_study(4, _measure_4, "Loss of an episode", "loss")
table_5 = _ablation_study(5, _measure_5, "Candidates", "top k")
table_6 = _ablation_study(6, _measure_6, "Captioners", "captions from")


def recall_form(
    title: str, head: str, rows: Mapping[str, Mapping[str, str]], found: Measurements, notes: Sequence[str]
) -> TableForm:
    """Return a table of recall in each domain, with the gain over zero-shot."""
    lines = [Row((name,), at) for name, at in rows.items()]
    return TableForm(title, (head,), lines, columns_of(found), None, tuple(notes))
