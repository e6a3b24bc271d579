"""RECO (Iscen et al., "Retrieval-Enhanced Contrastive Vision-Text Models"): Tables 1 to 4 and Figures 2 to 4.

``smoke`` and ``small`` take pictures of characters: a model is pretrained on half of them, the fusion is trained on
more, and tasks ask for those that only the memory holds. ``full`` takes the paper's models and the user's pairs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from recollect.evaluation.results import Summary, summarise
from recollect.memory.fusion.block import FusionSettings
from recollect.memory.fusion.encoder import Mode
from recollect.reports import plots
from recollect.studies.reco import figures as pictures
from recollect.studies.reco import paper
from recollect.studies.reco.bench import Bench, FusionArm, MemoryPart
from recollect.studies.reco.world import WORLDS, benches, entity_bench, main_model, models, parameter_count
from recollect.studies.study import StudyOptions, StudyReport, StudyTable

RECO = FusionArm()
READING = FusionArm(preset="reading")
"""Our own way to train: a gate, equal captions no negatives, simulated newness."""
READS = "RECO that learns to read"
SHARES = (0.01, 0.1, 1.0)
_SMOKE_SHARES = (0.05, 0.2, 1.0)  # of a small memory, which must hold k rows
MODES: tuple[Mode, ...] = ("image", "text", "both")

Figures = list[dict[str, float]]
"""Of each seed, what was measured."""


def _measure(all_benches: Sequence[Bench], arm: FusionArm | None, part: MemoryPart = "tasks") -> Figures:
    return [bench.figures(arm, part) for bench in all_benches]


def _values(figures: Figures, column: str) -> np.ndarray:
    return np.array([each[column] for each in figures])


def _cell(figures: Figures, column: str, base: Figures | None = None) -> str:
    """Mean ± std over seeds, and in brackets the mean gain over ``base``, paired by seed."""
    own = _values(figures, column)
    text = str(summarise(own))
    return text if base is None else f"{text} ({(own - _values(base, column)).mean():+.1f})"


def _notes(all_benches: Sequence[Bench], *more: str) -> tuple[str, ...]:
    seeds = f"mean ± std over {len(all_benches)} seeds of model and fusion; gains over the model alone, paired by seed"
    return (seeds, *more, "paper: as printed there; its columns are other sets than ours, so compare directions")


def _report(options: StudyOptions, name: str, **parts: object) -> StudyReport:
    return StudyReport(f"reco/{name}", options.scale, WORLDS[options.scale], **parts)  # type: ignore[arg-type]


def table_1(options: StudyOptions) -> StudyReport:
    """Zero-shot classification without and with RECO, of several models."""
    rows: list[tuple[str, ...]] = []
    columns: tuple[str, ...] = ()
    for label in models(options):
        mine = list(benches(options, label))
        base, reco, reading = (_measure(mine, arm) for arm in (None, RECO, READING))
        columns = columns or tuple(base[0])
        size = parameter_count(mine[0].model)
        more = sum(value.numel() for value in mine[0].fusion(RECO).parameters()) / 1e6
        blank = ("",) * (1 + len(paper.TABLE_1_COLUMNS))
        rows.append((label, f"{size:.2f}", *(_cell(base, column) for column in columns), *blank))
        for name, figures in (("RECO", reco), (READS, reading)):
            cells = (_cell(figures, column, base) for column in columns)
            rows.append((f"{label} + {name}", f"{size + more:.2f}", *cells, *blank))
    ours = ("",) * (1 + len(columns))
    rows += [(f"paper: {name}", *ours, *there) for name, there in paper.TABLE_1.items()]
    heads = ("model", "parameters (M)", *columns, "paper: parameters (M)")
    heads += tuple(f"paper: {column}" for column in paper.TABLE_1_COLUMNS)
    table = StudyTable("Table 1. Zero-shot classification", heads, tuple(rows), _notes(mine, _mode_note()))
    return _report(options, "table-1", tables=(table,))


def _mode_note() -> str:
    return "images and texts both read the memory, k = 10; choices were made on other characters than those tested"


def table_2(options: StudyOptions) -> StudyReport:
    """Entity recognition: seen, unseen and their harmonic mean, without and with RECO, and the controls."""
    mine = [entity_bench(options, bench) for bench in benches(options, models(options)[-1])]
    label = mine[0].label
    arms: dict[str, FusionArm | None] = {
        label: None,
        f"{label} + RECO": RECO,
        f"{label} + {READS}": READING,
        f"{label} + RECO, images only": replace(RECO, mode="image"),
        f"{label} + RECO, texts only": replace(RECO, mode="text"),
        f"{label} + mean": FusionArm(FusionSettings(1, "mean")),
        f"{label} + MLP, no memory": FusionArm(FusionSettings(1, "mlp")),
    }
    metrics = ("seen", "unseen", "harmonic mean")
    base = _measure(mine, None, "entities")
    rows: list[tuple[str, ...]] = []
    for name, arm in arms.items():
        figures = base if arm is None else _measure(mine, arm, "entities")
        cells = (_cell(figures, metric, None if arm is None else base) for metric in metrics)
        rows.append((name, *cells, "", "", "", ""))
    rows += [(f"paper: {name}", "", "", "", *there) for name, there in paper.TABLE_2.items()]
    heads = ("method", *metrics, "paper: parameters (M)", *(f"paper: {metric}" for metric in metrics))
    assert mine[0].entities is not None
    task, seen = mine[0].entities
    note = f"{len(task.class_names):,} entities, all of them candidates; {int((~seen).sum()):,} are unseen"
    table = StudyTable("Table 2. Entity recognition", heads, tuple(rows), _notes(mine, note))
    return _report(options, "table-2", tables=(table,))


def table_3(options: StudyOptions) -> StudyReport:
    """Uni- and cross-modal search and fusion, learned and as a mean."""
    mine = list(benches(options, main_model(options)))
    base = _measure(mine, None)
    columns = tuple(base[0])
    rows: list[tuple[str, ...]] = []
    for key, there in paper.TABLE_3.items():
        kind, search, read = key
        if kind == "none":
            rows.append(("none", "", "", *(_cell(base, column) for column in columns), "", *there))
            continue
        figures = _measure(mine, FusionArm(FusionSettings(1, kind, search, read)))  # type: ignore[arg-type]
        cells = (_cell(figures, column, base) for column in columns)
        rows.append((kind, search, read, *cells, _relative(figures, base), *there))
    reading = _measure(mine, READING)
    cells = (_cell(reading, column, base) for column in columns)
    nothing = ("",) * len(paper.TABLE_3_COLUMNS)
    rows.append(("transformer that learns to read", "uni", "cross", *cells, _relative(reading, base), *nothing))
    heads = ("fusion", "search", "reads", *columns, "avg. rel.", *(f"paper: {c}" for c in paper.TABLE_3_COLUMNS))
    note = f"{main_model(options)}; avg. rel.: mean over columns of the relative change"
    table = StudyTable("Table 3. Search and fusion", heads, tuple(rows), _notes(mine, note))
    return _report(options, "table-3", tables=(table,))


def _relative(figures: Figures, base: Figures) -> str:
    """Mean over columns of the relative change of the means over seeds."""
    means = [(_values(figures, column).mean(), _values(base, column).mean()) for column in base[0]]
    changes = [100 * (own - before) / before for own, before in means if before > 0]
    return f"{np.mean(changes):+.1f} %" if changes else ""


def table_4(options: StudyOptions) -> StudyReport:
    """Fusions of texts, of images and of both, in every mode that they have."""
    mine = list(benches(options, main_model(options)))
    first, generic = _table_4_columns(mine[0])
    parts: dict[str, tuple[MemoryPart, str]] = {first: ("tasks", first), generic: ("tasks", generic)}
    if mine[0].pool is not None:
        parts["text to image R@1"] = ("retrieval", "R@1")
    rows: list[tuple[str, ...]] = []
    alone = [_cell(_measure(mine, None, part), column) for part, column in parts.values()]
    rows.append(("none", *(cell for value in alone for cell in (value, "", "")), *("",) * 9))
    for modalities in ("text", "image", "both"):
        cells = []
        for part, column in parts.values():
            for mode in MODES:
                arm = FusionArm(FusionSettings(1, modalities=modalities), mode)
                cells.append(_cell(_measure(mine, arm, part), column) if modalities in ("both", mode) else "")
        rows.append((modalities, *cells, *paper.TABLE_4[modalities]))
    heads = ["trained to fuse", *(f"{name}: {mode}" for name in parts for mode in MODES)]
    heads += [f"paper: {name} {mode}" for name in ("CUB", "Dogs", "COCO T→I") for mode in MODES]
    notes = _notes(mine, f"{main_model(options)}; in the row of none the model alone")
    table = StudyTable("Table 4. Image and text fusion", tuple(heads), tuple(rows), notes)
    return _report(options, "table-4", tables=(table,))


def _table_4_columns(bench: Bench) -> tuple[str, str]:
    """A set of rare classes and one of another kind."""
    names = tuple(bench.tasks)
    return names[0], names[min(2, len(names) - 1)]


def figure_2(options: StudyOptions) -> StudyReport:
    """What uni- and cross-modal search and fusion are, as a diagram."""
    name = f"reco-figure-2-{options.scale}.png"
    plots.save_figure(pictures.diagram(), options.out / name)
    return _report(options, "figure-2", figures=(name,), notes=("a diagram; nothing is measured",))


def figure_3(options: StudyOptions) -> StudyReport:
    """Additional training, a memory that grows after training, and the number of rows that are read."""
    mine = list(benches(options, main_model(options)))
    column = next(iter(mine[0].tasks))

    def value(arm: FusionArm | None) -> Summary:
        return summarise(_values(_measure(mine, arm), column))

    training = {
        "model alone": value(None),
        "MLP, training pairs": value(FusionArm(FusionSettings(1, "mlp"))),
        "MLP, training pairs and what they find": value(FusionArm(FusionSettings(1, "mlp"), more=True)),
        "RECO": value(RECO),
        READS: value(READING),
    }
    shares = _SMOKE_SHARES if options.scale == "smoke" else SHARES
    growing = {
        "the memory of its training": {share: value(FusionArm(share=share)) for share in shares},
        "the whole memory": {share: value(FusionArm(share=share, test_share=1.0)) for share in shares},
    }
    trained, tested = _depths(options)
    reading = {
        f"trained with k = {k}": {float(other): value(FusionArm(k=k, test_k=other)) for other in tested}
        for k in trained
    }
    figure = pictures.additional_training(training, growing, reading, column)
    name = f"reco-figure-3-{options.scale}.png"
    plots.save_figure(figure, options.out / name)
    left = StudyTable(
        f"Figure 3, left. Additional training ({column})", ("", "top-1", "paper: CUB"),
        tuple((name, str(found), paper.FIGURE_3_LEFT.get(name, "")) for name, found in training.items()), _notes(mine),
    )  # fmt: skip
    middle = _curves_table(
        f"Figure 3, middle. Share of the memory in training ({column})", growing, lambda s: f"{s:.0%}"
    )
    right = _curves_table(f"Figure 3, right. Rows read in testing ({column})", reading, lambda k: f"k = {k:g}")
    notes = (f"paper, middle: {paper.FIGURE_3_MIDDLE}", f"paper, right: {paper.FIGURE_3_RIGHT}")
    return _report(options, "figure-3", tables=(left, middle, right), figures=(name,), notes=notes)


def _depths(options: StudyOptions) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The k of training and of testing."""
    return ((5, 10), (1, 5, 10)) if options.scale == "smoke" else ((5, 10), (1, 2, 5, 10, 20, 50))


def _curves_table(
    title: str, curves: Mapping[str, Mapping[float, Summary]], head: Callable[[float], str]
) -> StudyTable:
    places = list(next(iter(curves.values())))
    rows = tuple((name, *(str(found[place]) for place in places)) for name, found in curves.items())
    return StudyTable(title, ("", *map(head, places)), rows)


def figure_4(options: StudyOptions) -> StudyReport:
    """What uni- and cross-modal search find for images and for class names; how often it is right."""
    mine = list(benches(options, main_model(options)))
    column = next(iter(mine[0].tasks))
    shares: dict[tuple[str, str], list[float]] = {}
    for bench in mine:
        for (modality, search), share in pictures.relevant_shares(bench, column).items():
            shares.setdefault((modality, search), []).append(share)
    name = f"reco-figure-4-{options.scale}.png"
    plots.save_figure(pictures.nearest_items(mine[0], column), options.out / name)
    rows = tuple(
        (modality, *(str(summarise(shares[modality, search])) for search in ("uni", "cross")))
        for modality in ("image", "text")
    )
    notes = (
        f"percent of the 10 nearest rows that are of the query's own class; {main_model(options)}, {column}",
        f"mean ± std over {len(mine)} seeds",
    )
    table = StudyTable("Figure 4. Share of relevant rows", ("queries", "uni-modal", "cross-modal"), rows, notes)
    note = "two images and two class names, drawn at random; a green frame is relevant, a red one is not"
    return _report(options, "figure-4", tables=(table,), figures=(name,), notes=(note,))
