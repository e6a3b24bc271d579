"""RECO (Iscen et al., "Retrieval-Enhanced Contrastive Vision-Text Models"): Tables 1 to 4 and Figures 2 to 4.

``smoke`` and ``small`` use pictures of characters: pretraining covers half of them, fusion training some more, and
tasks test characters that only the index contains. ``full`` uses the paper's models and the user's pairs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from matplotlib.figure import Figure

from recollect.evaluation.results import Summary
from recollect.reco.block import FusionSettings
from recollect.reco.encoder import Mode
from recollect_papers.engine import (
    Column,
    Row,
    TableForm,
    TablesAndNotes,
    TableStudy,
    paper_quote,
    paper_rows,
    printed,
    report,
)
from recollect_papers.measurements import Measurements
from recollect_papers.reco import figures as pictures
from recollect_papers.reco.bench import Bench, FusionArm, MemoryPart
from recollect_papers.reco.world import (
    PAPERS_SETS,
    WORLDS_BY_SCALE,
    benches,
    columns_like,
    entity_bench,
    main_model,
    models,
)
from recollect_papers.study import StudyOptions, StudyReport, over

RECO = FusionArm()
READING = FusionArm(preset="reading")
"""Our training: a gate, no negatives among equal captions, and embedding noise."""
READS = "RECO that learns to read"
SHARES = (0.01, 0.1, 1.0)
_SMOKE_SHARES = (0.05, 0.2, 1.0)  # larger, so a small index still has k rows
MODES: tuple[Mode, ...] = ("image", "text", "both")

_MODEL = "model alone"
"""The arm without an index, the baseline of all gains."""


def _add(
    found: Measurements,
    benches: Sequence[Bench],
    arms: Mapping[str, FusionArm | None],
    part: MemoryPart = "tasks",
    **more: str,
) -> None:
    """Measure arms on the bench of every seed, by arm, measure and ``more``."""
    for name, arm in arms.items():
        for bench in benches:
            for measure, value in bench.figures(arm, part).items():
                found.add({"arm": name, "measure": measure, **more}, bench.seed, value)


_TESTED: Mapping[MemoryPart, str] = {
    "tasks": "pictures to classify", "retrieval": "pictures to search", "entities": "pictures of entities",
}  # fmt: skip


def _notes(
    options: StudyOptions, benches: Sequence[Bench], *more: str, gains: bool = True,
    parts: Iterable[MemoryPart] = ("tasks",),
) -> list[str]:  # fmt: skip
    """Return the notes below every table.

    Args:
        gains: whether the table has gains.
        parts: what is tested.
    """
    full, first = options.scale == "full", benches[0]
    trained = "each fusion trained once" if full else f"{over(len(benches), 'seed')} of model and fusion"
    baseline = f"; gains over the model alone{'' if full else ', paired by seed'}" if gains else ""
    papers = full and bool(first.tasks) and set(first.tasks) <= set(PAPERS_SETS.values())
    left_out = [
        f"{len(first.near_duplicates(1.0, part)):,} of {first.rows_of(1.0):,} rows in the index are near-duplicates "
        f"of {_TESTED[part]} and excluded"
        for part in parts if first.near is not None
    ]  # fmt: skip
    paper_note = "" if papers else "; its columns are different data sets, so compare directions only"
    return [f"{trained}{baseline}", *more, *left_out, f"paper: as printed there{paper_note}"]


def _gains(measures: Sequence[str], base: str = _MODEL) -> list[Column]:
    """Return a column per measure, with the mean and the gain over the model alone."""
    return [Column(measure, {"measure": measure}, "mean (gain)", {"arm": base}) for measure in measures]


# --- Table 1: zero-shot classification of several models --------------------------------------------------------------

_SIZE = "parameters (M)"
_PLACED = (
    "paper: K-Lite, RA-CLIP and PaLI have empty cells; the columns of their figures were inferred from what these "
    "methods report"
)


def _measure_1(options: StudyOptions) -> Measurements:
    found = Measurements({"models": list(models(options))})
    reads = "images and texts both read the index, k = 10"
    if options.scale != "full":
        reads += "; settings were chosen on other characters"
    for label in models(options):
        mine = list(benches(options, label))
        _add(found, mine, {_MODEL: None, "RECO": RECO, READS: READING}, model=label)
        size, more = (
            sum(value.numel() for value in each.parameters()) / 1e6 for each in (mine[0].model, mine[0].fusion(RECO))
        )
        for arm, parameters in ((_MODEL, size), ("RECO", size + more), (READS, size + more)):
            found.add({"arm": arm, "measure": _SIZE, "model": label}, 0, parameters)
        found.context |= {"columns": list(mine[0].tasks), "notes": _notes(options, mine, reads)}
    return found


def _form_1(found: Measurements) -> TablesAndNotes:
    paper, rows = printed("reco", "table-1"), []
    for label in found.context["models"]:
        rows.append(Row((label,), {"model": label, "arm": _MODEL}))
        rows += [Row((f"{label} + {arm}",), {"model": label, "arm": arm}) for arm in ("RECO", READS)]
    columns = [Column(_SIZE, {"measure": _SIZE}, "number", pattern="{:.2f}"), *_gains(found.context["columns"])]
    title, notes = "Table 1. Zero-shot classification", (*found.context["notes"], _PLACED)
    return [TableForm(title, ("model",), [*rows, *paper_rows(paper)], columns, paper, notes).fill(found)], ()


table_1 = TableStudy("reco/table-1", _measure_1, _form_1, WORLDS_BY_SCALE)


# --- Table 2: entities, seen and unseen -------------------------------------------------------------------------------

ENTITY_ARMS: Mapping[str, FusionArm | None] = {
    _MODEL: None,
    "RECO": RECO,
    READS: READING,
    "RECO, images only": replace(RECO, mode="image"),
    "RECO, texts only": replace(RECO, mode="text"),
    "mean": FusionArm(FusionSettings(1, "mean")),
    "MLP, no index": FusionArm(FusionSettings(1, "mlp")),
}


def _measure_2(options: StudyOptions) -> Measurements:
    mine = [entity_bench(options, bench) for bench in benches(options, models(options)[-1], classify=False)]
    assert mine[0].entities is not None
    task, seen = mine[0].entities
    note = f"{len(task.class_names):,} entities, all of them candidates; {int((~seen).sum()):,} are unseen"
    notes = _notes(options, mine, note, parts=("entities",))
    found = Measurements({"model": mine[0].label, "notes": notes})
    _add(found, mine, ENTITY_ARMS, "entities")
    return found


def _form_2(found: Measurements) -> TablesAndNotes:
    paper, label = printed("reco", "table-2"), found.context["model"]
    rows = [Row((label if arm == _MODEL else f"{label} + {arm}",), {"arm": arm}) for arm in ENTITY_ARMS]
    columns, notes = _gains(("seen", "unseen", "harmonic mean")), tuple(found.context["notes"])
    form = TableForm("Table 2. Entity recognition", ("method",), [*rows, *paper_rows(paper)], columns, paper, notes)
    return [form.fill(found)], ()


table_2 = TableStudy("reco/table-2", _measure_2, _form_2, WORLDS_BY_SCALE)


# --- Table 3: search and fusion, learned and as a mean ----------------------------------------------------------------

_WAYS: tuple[tuple[Literal["uni", "cross"], Literal["uni", "cross"]], ...] = (
    ("uni", "cross"), ("cross", "cross"), ("uni", "uni"), ("cross", "uni"),
)  # fmt: skip
_KINDS: tuple[Literal["transformer", "mean"], ...] = ("transformer", "mean")
SEARCHES: Mapping[str, FusionArm | None] = {
    "none": None,
    **{
        f"{kind} / {search} / {read}": FusionArm(FusionSettings(1, kind, search, read))
        for kind in _KINDS
        for search, read in _WAYS
    },
    "transformer that learns to read / uni / cross": READING,
}


def _measure_3(options: StudyOptions) -> Measurements:
    mine = list(benches(options, main_model(options)))
    note = f"{main_model(options)}; avg. rel.: mean over columns of the relative change"
    columns = columns_like(mine[0].tasks, printed("reco", "table-3").columns) or tuple(mine[0].tasks)
    found = Measurements({"columns": list(columns), "notes": _notes(options, mine, note)})
    _add(found, mine, SEARCHES)
    return found


def _form_3(found: Measurements) -> TablesAndNotes:
    paper, measures = printed("reco", "table-3"), tuple(found.context["columns"])
    rows = []
    for arm in SEARCHES:
        kind, search, read = (*arm.split(" / "), "", "")[:3]
        rows.append(Row((kind, search, read), {"arm": arm}, arm if arm in paper.rows else None))
    columns = [*_gains(measures, "none"), Column("avg. rel.", {"measure": measures}, "relative", {"arm": "none"})]
    heads, notes = ("fusion", "search", "reads"), tuple(found.context["notes"])
    return [TableForm("Table 3. Search and fusion", heads, rows, columns, paper, notes).fill(found)], ()


table_3 = TableStudy("reco/table-3", _measure_3, _form_3, WORLDS_BY_SCALE)


# --- Table 4: fusions of texts, of images and of both, in every mode that they have -----------------------------------


def _measure_4(options: StudyOptions) -> Measurements:
    mine = list(benches(options, main_model(options)))
    first, names = mine[0], tuple(mine[0].tasks)
    rare = tuple(dict.fromkeys((names[0], names[min(2, len(names) - 1)])))  # plus a set of another kind
    parts: dict[str, tuple[MemoryPart, str]] = {
        column: ("tasks", column) for column in columns_like(first.tasks, ("CUB", "Dogs")) or rare
    }
    notes, split = [f"{main_model(options)}; row none: the model alone"], options.search.split
    if first.pool is not None:
        parts["text to image R@1"] = ("retrieval", "R@1")
        if options.scale == "full":
            notes.append(f"text to image: {first.pool.name}; the paper's column is COCO")
    else:
        notes.append(
            f"text to image is left out: the first source of --data has no split '{split}' other than what it trains on"
        )
    tested = tuple(dict.fromkeys(part for part, _ in parts.values()))
    found = Measurements({"parts": parts, "notes": _notes(options, mine, *notes, gains=False, parts=tested)})
    for part in tested:
        _add(found, mine, {"none": None}, part, mode="image")
        for modalities in ("text", "image", "both"):
            for mode in MODES:
                if modalities in ("both", mode):
                    arm = FusionArm(FusionSettings(1, modalities=modalities), mode)
                    _add(found, mine, {modalities: arm}, part, mode=mode)
    return found


def _form_4(found: Measurements) -> TablesAndNotes:
    paper = printed("reco", "table-4")
    rows = [Row((arm,), {"arm": arm}, arm if arm in paper.rows else None) for arm in ("none", "text", "image", "both")]
    columns = [
        Column(f"{title}: {mode}", {"measure": measure, "mode": mode})
        for title, (_, measure) in found.context["parts"].items()
        for mode in MODES
    ]
    title, notes = "Table 4. Image and text fusion", tuple(found.context["notes"])
    return [TableForm(title, ("trained to fuse",), rows, columns, paper, notes, missing="").fill(found)], ()


table_4 = TableStudy("reco/table-4", _measure_4, _form_4, WORLDS_BY_SCALE)


# --- Figures ----------------------------------------------------------------------------------------------------------


def _main_column(bench: Bench) -> str:
    """Return the column that figures show: the paper's CUB, else the first."""
    return (*columns_like(bench.tasks, ("CUB",)), *bench.tasks)[0]


def figure_2(options: StudyOptions) -> StudyReport:
    """Draw a diagram of uni- and cross-modal search and fusion."""
    note = "a diagram; nothing is measured"
    return report("reco/figure-2", options, WORLDS_BY_SCALE, pictures.diagram(), notes=[note])


TRAININGS: Mapping[str, FusionArm | None] = {
    _MODEL: None,
    "MLP, training pairs": FusionArm(FusionSettings(1, "mlp")),
    "MLP, training pairs and retrieved pairs": FusionArm(FusionSettings(1, "mlp"), more=True),
    "RECO": RECO,
    READS: READING,
}


def _measure_figure_3(options: StudyOptions) -> Measurements:
    """Measure additional training, an index that grows after training, and the number of retrieved rows."""
    mine = list(benches(options, main_model(options)))
    shares, tested, left_out = _readable(options, mine[0])
    growing = {
        "tested with the same share": {share: FusionArm(share=share) for share in shares},
        "tested with the whole index": {share: FusionArm(share=share, test_share=1.0) for share in shares},
    }
    reading = {
        f"trained with k = {k}": {float(other): FusionArm(k=k, test_k=other) for other in tested} for k in (5, 10)
    }
    curves = {"growing": growing, "reading": reading}
    notes = _notes(options, mine, main_model(options), gains=False)
    places = {kind: {name: list(arms) for name, arms in each.items()} for kind, each in curves.items()}
    found = Measurements({"column": _main_column(mine[0]), **places, "notes": notes, "remarks": left_out})
    _add(found, mine, TRAININGS)
    for each in curves.values():
        for name, arms in each.items():
            for place, arm in arms.items():
                _add(found, mine, {name: arm}, place=f"{place:g}")
    return found


def _readable(options: StudyOptions, bench: Bench) -> tuple[tuple[float, ...], tuple[int, ...], list[str]]:
    """Return the shares of the index and k that have enough rows, and a note on those left out."""
    smoke = options.scale == "smoke"
    shares, tested = (_SMOKE_SHARES, (1, 5, 10)) if smoke else (SHARES, (1, 2, 5, 10, 20, 50))
    rows = {share: bench.rows_of(share) - len(bench.near_duplicates(share, "tasks")) for share in shares}
    large = tuple(share for share in shares if share == shares[-1] or rows[share] >= RECO.k)
    ks = tuple(k for k in tested if k <= rows[shares[-1]])
    left_out = [f"{share:.0%} of the index" for share in shares if share not in large]
    left_out += [f"k = {k}" for k in tested if k not in ks]
    notes = [f"left out, since {rows[shares[-1]]:,} rows can be read: {', '.join(left_out)}"] if left_out else []
    return large, ks, notes


def _curves(found: Measurements, kind: str) -> dict[str, dict[float, Summary]]:
    column = found.context["column"]
    return {
        name: {place: found.summary({"arm": name, "measure": column, "place": f"{place:g}"}) for place in places}
        for name, places in found.context[kind].items()
    }


def _draw_figure_3(found: Measurements) -> Figure:
    column = found.context["column"]
    training = {name: found.summary({"arm": name, "measure": column}) for name in TRAININGS}
    return pictures.additional_training(training, _curves(found, "growing"), _curves(found, "reading"), column)


def _form_figure_3(found: Measurements) -> TablesAndNotes:
    column, paper = found.context["column"], printed("reco", "figure-3")
    rows = [Row((name,), {"arm": name}, name if name in paper.rows else None) for name in TRAININGS]
    notes = tuple(found.context["notes"])
    left = TableForm(f"Figure 3, left. Additional training ({column})", ("",), rows,
                     [Column("top-1", {"measure": column})], paper, notes)  # fmt: skip
    forms = [left]
    for title, kind, head in (
        (f"Figure 3, middle. Share of the index in training ({column})", "growing", "{:.0%}"),
        (f"Figure 3, right. Rows read in testing ({column})", "reading", "k = {:g}"),
    ):
        curves = found.context[kind]
        places = next(iter(curves.values()))
        columns = [Column(head.format(place), {"measure": column, "place": f"{place:g}"}) for place in places]
        forms.append(TableForm(title, ("",), [Row((name,), {"arm": name}) for name in curves], columns))
    remarks = [f"paper, {part}: {paper_quote('reco', f'figure-3, {part}')}" for part in ("middle", "right")]
    return [form.fill(found) for form in forms], (*remarks, *found.context["remarks"])


figure_3 = TableStudy("reco/figure-3", _measure_figure_3, _form_figure_3, WORLDS_BY_SCALE, _draw_figure_3)


def figure_4(options: StudyOptions) -> StudyReport:
    """Draw example results of uni- and cross-modal search, and measure the share of relevant rows."""
    mine = list(benches(options, main_model(options)))
    column, found, full = _main_column(mine[0]), Measurements(), options.scale == "full"
    for bench in mine:
        for (modality, search), share in pictures.relevant_shares(bench, column).items():
            found.add({"queries": modality, "search": search}, bench.seed, share)
    relevant = "whose captions say the query's class" if full else "that are of the query's own class"
    notes = (
        f"percent of the 10 nearest rows {relevant}; {main_model(options)}, {column}",
        over(len(mine), "model" if full else "seed"),
    )
    rows = [Row((modality,), {"queries": modality}) for modality in ("image", "text")]
    columns = [Column(f"{search}-modal", {"search": search}) for search in ("uni", "cross")]
    form = TableForm("Figure 4. Share of relevant rows", ("queries",), rows, columns, None, notes)
    note = "two images and two class names, drawn at random; a green frame is relevant, a red one is not"
    figure = pictures.nearest_items(mine[0], column)
    return report("reco/figure-4", options, WORLDS_BY_SCALE, figure, [form.fill(found)], [note], found)
