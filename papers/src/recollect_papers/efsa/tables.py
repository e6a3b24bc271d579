"""EFSA (Huzaifa and Kementchedjhieva, "Episodic Few-Shot Adaptation"): Tables 2 to 7; `figures` draws 1 and 3 to 6.

``smoke`` and ``small`` search look-alike scenes of the glyph world; ``full`` takes the paper's models and settings, or
those that ``--search`` names, the user's pools (``--data``) and their captions.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from recollect.efsa.options import EpisodeOptions
from recollect.evaluation.pools import PoolKind
from recollect.evaluation.results import Result, Summary
from recollect.evaluation.retrieval import DIRECTIONS
from recollect.objectives import Base
from recollect_papers.efsa.world import TRUE, WORLDS_BY_SCALE, Captions, EfsaWorld, SearchRun, efsa_world, searched
from recollect_papers.engine import Column, Formed, Printed, Row, TableForm, TableStudy, printed
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
"""The paper's names of the methods, and one that it has only in a figure."""
ABLATED = ("zero-shot", "episode")


def measurements(found: Sequence[Sequence[Result]], **context: Any) -> Measurements:
    """Text to image recall of each method on each domain, and what a query costs; one figure for each base model.

    Args:
        found: for each base model the results of its pools.
    """
    made = Measurements({**context, "domains": []})
    for seed, results in enumerate(found):
        values: dict[tuple[tuple[str, str], ...], list[float]] = {}
        for result in results:
            for method, domain, k, value in _recall_rows(result):
                of = (("method", method), ("domain", domain), ("measure", f"R@{k}"))
                values.setdefault(of, []).append(value)
                made.context["domains"] = sorted({*made.context["domains"], domain})
            for row in result.rows:
                if row["metric"] != "recall":
                    values.setdefault((("method", row["method"]), ("cost", row["metric"])), []).append(row["value"])
        for address, each in values.items():
            made.add(dict(address), seed, float(np.mean(each)))
    return made


def domains_of(found: Measurements) -> dict[str, tuple[str, ...]]:
    """The columns of a table: every domain, and their mean."""
    domains = tuple(found.context["domains"])
    return {**{domain: (domain,) for domain in domains}, AVERAGE: domains}


def recall_at(found: Measurements, domain: str, k: int) -> dict[str, str | tuple[str, ...]]:
    """The part of an address that a column gives."""
    return {"domain": domains_of(found)[domain], "measure": f"R@{k}"}


def summary_at(found: Measurements, method: str, domain: str, k: int, **more: str) -> Summary:
    """Mean ± std over base models."""
    return found.summary({"method": method, **recall_at(found, domain, k), **more})


def _recall_rows(result: Result) -> Iterable[tuple[str, str, int, float]]:
    """Method, domain, k and value of every row from text to image; a pool of one domain is called by it."""
    rows = [row for row in result.rows if row["metric"] == "recall" and row["direction"] == DIRECTIONS[0]]
    domains = list(dict.fromkeys(row["domain"] for row in rows if row["domain"] not in {"all", "mean of domains"}))
    for row in rows:
        if row["domain"] in domains:
            yield row["method"], row["domain"], row["k"], row["value"]


def ask(
    options: StudyOptions,
    where: EfsaWorld,
    pool: PoolKind = "merged",
    methods: Sequence[str] = ABLATED,
    *,
    changed: EpisodeOptions | None = None,
    captions: Captions | None = None,
    data: tuple[str, ...] | None = None,
    depths: Sequence[int] = DEPTHS,
) -> list[list[Result]]:
    """For each base model the results of a search, with the setting's own episodes and captions unless named."""
    settings = where.methods if changed is None else replace(where.methods, episode=changed)
    search = SearchRun(tuple(methods), settings, captions or where.captions[0], pool, data or where.data, tuple(depths))
    return searched(search, where, options)


def together(arms: Mapping[str, Measurements], **context: Any) -> Measurements:
    """The figures of several searches in one, by ``arm``."""
    first = next(iter(arms.values()))
    made = Measurements({**first.context, **context, "arms": list(arms)})
    for name, found in arms.items():
        made.take(found, arm=name)
    return made


def columns_of(found: Measurements) -> list[Column]:
    """Recall in each domain and on average, and the gain in average R@1 over zero-shot."""
    recalls = [Column(f"{domain} R@{k}", recall_at(found, domain, k)) for domain in domains_of(found) for k in DEPTHS]
    return [*recalls, Column("gain", recall_at(found, AVERAGE, 1), "gain", {"method": "zero-shot"})]


Differs = Literal["methods", "episodes", "captions", "nothing"]


def notes_of(where: EfsaWorld, rows: Differs = "methods") -> tuple[str, ...]:
    """The notes below every table, by what differs between its rows."""
    episode = where.methods.episode
    gains = "" if rows == "nothing" else "gains are in average R@1, paired by base model; "
    named = "episodes, unless the row says otherwise" if rows == "episodes" else "episodes"
    captions = "the row's own" if rows == "captions" else where.captions[0].label
    asked = "all texts" if where.queries is None else f"at most {where.queries} texts a domain"
    return (
        f"{over(len(where.models), 'base model')}; {gains}{asked} are asked; captions of the pool: {captions}",
        f"{named}: k {episode.k}, learning rate {episode.rate:g}, scale {episode.scale:g}, temperature "
        f"{'of the model' if episode.temperature is None else f'{episode.temperature:g}'}, {episode.direction}",
        "paper: as printed there",
    )


# --- Tables 2, 3 and 7: every method on every domain ------------------------------------------------------------------


def _measure_methods(options: StudyOptions, loss: Base, pool: PoolKind) -> Measurements:
    where = efsa_world(options, loss)
    methods = [name for name in _PAPER_METHODS if name != "rlcf" or where.teachers] + ["episode-full"]
    k = where.methods.episode.k
    notes = (*notes_of(where)[:2], "paper: as printed there, its average over its own eight sets")
    found = ask(options, where, pool, methods, depths=(*DEPTHS, k))
    return measurements(found, methods=methods, k=k, world=where.world, notes=notes, judged=bool(where.teachers))


def _every_method(found: Measurements, number: int, pool: PoolKind) -> Formed:
    context, k = found.context, found.context["k"]
    paper = printed("efsa", f"table-{number}")
    paper = paper.only(_printed_columns(paper, tuple(domains_of(found))))
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
    said = (f"what an episode can reach at best, zero-shot R@{k}: {ceiling}", *left_out)
    return [form.fill(found), costs.fill(found)], said


_COSTS = (
    Column("ms", {"cost": "seconds per query"}, "number", unit=1e-3),
    Column("images forward", {"cost": "images_forward per query"}, "number"),
    Column("images back", {"cost": "images_backward per query"}, "number"),
    Column("M products forward", {"cost": "forward_products per query"}, "number", pattern="{:,.1f}", unit=1e6),
    Column("M products back", {"cost": "backward_products per query"}, "number", pattern="{:,.1f}", unit=1e6),
    Column("MiB at once", {"cost": "memory"}, "number", unit=2.0**20),
)
_COST_NOTES = ("of a query, after what is done once for a pool (fine-tuning, embedding captions)",)


def _printed_columns(paper: Printed, domains: Sequence[str]) -> list[str]:
    """The columns of the paper shown next to ours: sets of the same name, and the average."""
    return [name for name in paper.columns if any(name.split(" ")[0] in domain.lower() for domain in domains)]


def _methods_study(number: int, loss: Base, pool: PoolKind) -> TableStudy:
    measure, form = partial(_measure_methods, loss=loss, pool=pool), partial(_every_method, number=number, pool=pool)
    return TableStudy(f"efsa/table-{number}", measure, form, WORLDS_BY_SCALE)


table_2 = _methods_study(2, "softmax", "single")
table_3 = _methods_study(3, "softmax", "merged")
table_7 = _methods_study(7, "sigmoid", "merged")


# --- Tables 4, 5 and 6: ablations, all domains in one pool ------------------------------------------------------------


def _ablation(found: Measurements, number: int, title: str, head: str) -> Formed:
    """Zero-shot of the first arm, then what an episode finds in every arm."""
    paper, context = printed("efsa", f"table-{number}"), found.context
    rows = [Row(("zero-shot",), {"arm": context["arms"][0], "method": "zero-shot"})]
    for arm in context["arms"]:
        printed_row = context["printed"].get(arm)
        depth, inset = context.get("depths", {}).get(arm), None
        if depth is not None:
            inset = {"arm": arm, "method": "zero-shot", **recall_at(found, AVERAGE, depth)}
        label = arm if depth is None else f"{arm} (zero-shot R@{depth} {{}})"
        rows.append(Row((label,), {"arm": arm, "method": "episode"}, printed_row, inset=inset))
    form = TableForm(f"Table {number}. {title}", (head,), rows, columns_of(found), paper, tuple(context["notes"]))
    return [form.fill(found)], tuple(context.get("remarks", ()))


Direction = Literal["image-to-text", "symmetric"]
_DIRECTIONS: Mapping[Direction, str] = {"image-to-text": "image to text alone", "symmetric": "both ways"}


def _measure_4(options: StudyOptions) -> Measurements:
    """Loss functions."""
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
    arms = {name: measurements(ask(options, where, changed=changed)) for name, changed in losses.items()}
    printed_row = {name: name.lower() for name in ("Hinge", "Contrastive", "Combined")}
    return together(arms, printed=printed_row, notes=notes_of(where, "episodes"))


def _measure_5(options: StudyOptions) -> Measurements:
    """Candidates that an episode learns from and ranks again."""
    where, arms = efsa_world(options), {}
    for k in (2, 4, 8) if options.scale == "smoke" else (8, 16, 32, 64):
        changed = replace(where.methods.episode, k=k)
        arms[str(k)] = measurements(ask(options, where, changed=changed, depths=(*DEPTHS, k)))
    printed_row = {name: name for name in arms if name in printed("efsa", "table-5").rows}
    return together(
        arms, printed=printed_row, depths={name: int(name) for name in arms}, notes=notes_of(where, "episodes")
    )


def _measure_6(options: StudyOptions) -> Measurements:
    """Captions from several captioners, and the truth."""
    where = efsa_world(options)
    kinds = (TRUE, *(kind for kind in where.captions if kind.kind != TRUE.kind))
    arms = {kind.label: measurements(ask(options, where, captions=kind)) for kind in kinds}
    rows = printed("efsa", "table-6").rows
    printed_row = {name: row for name in arms if (row := printed_captioner(name, rows)) is not None}
    return together(arms, printed=printed_row, notes=notes_of(where, "captions"), remarks=held_out_note(kinds))


def printed_captioner(label: str, rows: Iterable[str]) -> str | None:
    """The row of the paper's captioner whose name files of captions have, in any case and with any marks:
    ``llava_13b.jsonl`` or ``LLaVA-13B/coco.jsonl``."""

    def plain(name: str) -> str:
        return re.sub(r"[^a-z0-9]", "", name.lower())

    called = [{plain(part.removesuffix(".jsonl")) for part in Path(file).parts[-2:]} for file in label.split(",")]
    return next((row for row in rows if all(plain(row) in names for names in called)), None)


def held_out_note(kinds: Iterable[Captions]) -> list[str]:
    """The notes below rows of captions when some were not requested."""
    if not any("held-out" in kind.kind for kind in kinds):
        return []
    return ["captions that are held out are not asked for, so those rows have a zero-shot of their own: see their gain"]


def _ablation_study(number: int, measure: Callable[[StudyOptions], Measurements], title: str, head: str) -> TableStudy:
    form = partial(_ablation, number=number, title=title, head=head)
    return TableStudy(f"efsa/table-{number}", measure, form, WORLDS_BY_SCALE)


table_4 = _ablation_study(4, _measure_4, "Loss of an episode", "loss")
table_5 = _ablation_study(5, _measure_5, "Candidates", "top k")
table_6 = _ablation_study(6, _measure_6, "Captioners", "captions from")


def recall_form(
    title: str, head: str, rows: Mapping[str, Mapping[str, str]], found: Measurements, notes: Sequence[str]
) -> TableForm:
    """Recall in each domain for rows of addresses, with the gain over zero-shot."""
    lines = [Row((name,), at) for name, at in rows.items()]
    return TableForm(title, (head,), lines, columns_of(found), None, tuple(notes))
