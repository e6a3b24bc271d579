"""Prefix conditioning (Saito et al., 2023): Tables 1, 2, 3, 4, 5, 7, 8 and 9; `prefix_figures` draws ArmFigures 3 to 9.

``smoke`` and ``small`` take the glyph world, whose label set is narrow in style and words where its captions are broad;
``full`` takes the paper's recipe, the user's data (``--data NAME=SOURCE``) and the paper's eleven sets.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from recollect.core.types import Kind
from recollect.evaluation.results import Summary
from recollect.evaluation.retrieval import DIRECTIONS
from recollect.studies.prefix import paper
from recollect.studies.prefix.world import (
    WORLDS,
    ArmFigures,
    LabelSets,
    PrefixArm,
    PrefixWorld,
    figures,
    prefix_world,
    seeds,
)
from recollect.studies.study import StudyOptions, StudyReport, StudyTable
from recollect.tasks.classification import RENAMED
from recollect.tasks.opening import Selection, open_tasks

LABELS: dict[LabelSets, str] = {
    "none": "–", "small": "IN-1K", "large": "IN-21K", "rest": "IN-21K w/o IN-1K", "renamed": "IN-21K",
}  # fmt: skip
CAPTION_COLUMNS = {"none": "–", "small": "CC-3M", "all": "CC-12M"}
OBJECTIVES = {"softmax": "CLIP", "label": "UniCL", "sigmoid": "SigLIP"}
READINGS: dict[Kind | None, str] = {None: "N/A", "label": "label", "caption": "caption"}


@dataclass(frozen=True)
class Sets:
    """Which sets a figure is the mean of.

    Attributes:
        own: the small label set's own test images, and its shifts of domain, in the order of Table 5.
        names, synonyms: its classes under both names.
        unseen: titles of columns, with the sets of each.
    """

    own: tuple[str, ...]
    names: tuple[str, ...]
    synonyms: tuple[str, ...]
    unseen: dict[str, tuple[str, ...]]

    @property
    def everything_unseen(self) -> tuple[str, ...]:
        """Every set of classes that the label set lacks, each counting the same."""
        return tuple(name for names in self.unseen.values() for name in names)


def sets_of(chosen: PrefixWorld) -> Sets:
    """The sets of a setting."""
    own = open_tasks(Selection(chosen.own), "zero-shot").tasks
    shifts = tuple(task.name for task in own if task.shift not in RENAMED)
    renamed = own
    if chosen.synonyms:
        renamed = open_tasks(Selection(chosen.synonyms, synonyms=True), "zero-shot").tasks
    names, synonyms = (tuple(task.name for task in renamed if task.shift == shift) for shift in RENAMED)
    columns: dict[str, tuple[str, ...]] = {}
    for task in open_tasks(Selection(chosen.unseen, chosen.suite), "zero-shot").tasks:
        title = task.group or task.name
        columns[title] = (*columns.get(title, ()), task.name)
    return Sets(shifts, names, synonyms, columns)


def _cell(found: Summary | None) -> str:
    return "not run" if found is None else str(found)


def _reading(arm: PrefixArm) -> Kind | None:
    """The caption prefix at the test, as in the paper, for models that have it."""
    return "caption" if arm.prefix else None


def _report(options: StudyOptions, number: int, tables: Sequence[StudyTable], *notes: str) -> StudyReport:
    return StudyReport(f"prefix/table-{number}", options.scale, WORLDS[options.scale], tables, notes=notes)


def _notes(options: StudyOptions) -> tuple[str, ...]:
    templates = len(range(0, 80, prefix_world(options).templates))
    count = seeds(options)
    return (f"mean ± std over {count} training seed{'s' if count > 1 else ''}; {templates} templates a class",)


TABLE_1_ARMS = (
    PrefixArm("none", captions="small"),
    PrefixArm("none"),
    PrefixArm("small", captions="none"),
    PrefixArm("large", captions="none"),
    PrefixArm("small"),
    PrefixArm("small", prefix=True),
    PrefixArm("small", base="label"),
    PrefixArm("small", base="label", prefix=True),
    PrefixArm(),
    PrefixArm(prefix=True),
    PrefixArm(base="label"),
    PrefixArm(base="label", prefix=True),
    PrefixArm("rest"),
    PrefixArm("rest", prefix=True),
)
CONTEXT_ARMS = (
    PrefixArm(context=True),
    PrefixArm(context=True, prefix=True),
    PrefixArm(base="label", context=True, prefix=True),
)
"""Nobody's: LIxP's context objective with and without prefix tokens."""


def table_1(options: StudyOptions) -> StudyReport:
    """Labels, captions and both, with and without prefixes; then with context."""
    chosen = prefix_world(options)
    found, sets = figures((*TABLE_1_ARMS, *CONTEXT_ARMS), options, chosen.zero_shot()), sets_of(chosen)
    rows = []
    for arm in (*TABLE_1_ARMS, *CONTEXT_ARMS):
        keys = (LABELS[arm.labels], CAPTION_COLUMNS[arm.captions], OBJECTIVES[arm.base], arm.prefix)
        objective = {"CLIP": "CLIxP", "UniCL": "UniCL with context"}[keys[2]] if arm.context else keys[2]
        printed = ("", "") if arm.context else paper.TABLE_1[keys]
        ours = [_cell(found.of(arm, _reading(arm), part)) for part in (sets.own[:1], sets.everything_unseen)]
        rows.append((*keys[:2], objective, "✓" if arm.prefix else "", *ours, *printed))
    unseen = len(sets.everything_unseen)
    columns = ("labels", "captions", "objective", "prefix", "own set", f"zero-shot, {unseen} sets", "paper: IN-1K",
               "paper: 11 sets")  # fmt: skip
    table = StudyTable("Table 1. LabelSets and captions", columns, tuple(rows), _notes(options))
    sampling = "as in the paper, arms with prefix have debiased sampling and the others equal sampling: see Table 2"
    return _report(options, 1, [table], sampling)


def _by_set(found: ArmFigures, sets: Sets, arm: PrefixArm, prefix: Kind | None) -> list[str]:
    parts = [sets.own[:1], *sets.unseen.values(), sets.everything_unseen]
    return [_cell(found.of(arm, prefix, part)) for part in parts]


def _set_columns(sets: Sets) -> tuple[str, ...]:
    return ("own set", *sets.unseen, "AVG")


TABLE_2_ARMS = tuple(
    PrefixArm(prefix=prefix, sampling=way) for way in ("equal", "debiased") for prefix in (False, True)
)


def table_2(options: StudyOptions) -> StudyReport:
    """Sampling with and without prefixes."""
    chosen = prefix_world(options)
    found, sets = figures(TABLE_2_ARMS, options, chosen.zero_shot()), sets_of(chosen)
    ours, printed = [], []
    for arm in TABLE_2_ARMS:
        head = ("✓" if arm.prefix else "", "ES" if arm.sampled == "equal" else "DS")
        ours.append((*head, *_by_set(found, sets, arm, _reading(arm))))
        printed.append((*head, *paper.TABLE_2[arm.prefix, arm.sampled]))
    return _report(options, 2, [
        StudyTable("Table 2. Sampling", ("prefix", "sampling", *_set_columns(sets)), tuple(ours), _notes(options)),
        StudyTable("Table 2 as the paper prints it", ("prefix", "sampling", *paper.SETS), tuple(printed)),
    ])  # fmt: skip


TABLE_3_ARMS = (PrefixArm(captions="none"), PrefixArm(), PrefixArm(prefix=True))


def table_3(options: StudyOptions) -> StudyReport:
    """Linear probes."""
    chosen = prefix_world(options)
    found = figures(TABLE_3_ARMS, options, chosen.probes())
    shift_of = {task.name: task.shift for task in open_tasks(Selection(chosen.own), "few-shot").tasks}
    names = [name for name in found.data() if shift_of.get(name) == ""] or found.data()[:1]
    shifts = [name for name in found.data() if shift_of.get(name)]
    rest = [name for name in found.data() if name not in (*names, *shifts)]
    parts = {"own set": names, "own classes, shifted": shifts, f"{len(rest)} sets of unseen classes": rest}
    parts = {title: part for title, part in parts.items() if part}
    ours, printed = [], []
    for arm in TABLE_3_ARMS:
        head = (LABELS[arm.labels] + ("" if arm.captions == "none" else " + CC-12M"), "✓" if arm.prefix else "")
        values = [found.of(arm, None, part) or found.of(arm, None, part, "mean per class") for part in parts.values()]
        ours.append((*head, *map(_cell, values)))
        printed.append((*head, *paper.TABLE_3[head[0], arm.prefix]))
    return _report(options, 3, [
        StudyTable("Table 3. Linear probe", ("training data", "prefix", *parts), tuple(ours), _notes(options)[:1]),
        StudyTable("Table 3 as the paper prints it", ("training data", "prefix", *paper.TABLE_3_SETS), tuple(printed)),
    ])  # fmt: skip


def table_4(options: StudyOptions) -> StudyReport:
    """The prefix at the test."""
    chosen = prefix_world(options)
    blocks: tuple[LabelSets, ...] = ("small", "large", "rest")
    arms = [PrefixArm(labels, prefix=prefix) for labels in blocks for prefix in (False, True)]
    found, sets = figures(arms, options, chosen.zero_shot()), sets_of(chosen)
    ours, printed = [], []
    for labels in blocks:
        for prefix, name in READINGS.items():
            arm, head = PrefixArm(labels, prefix=prefix is not None), (f"{LABELS[labels]} + CC-12M", name)
            ours.append((*head, *_by_set(found, sets, arm, prefix)))
            printed.append((*head, *paper.TABLE_4[LABELS[labels], name]))
    columns = ("training data", "test-time prefix")
    return _report(options, 4, [
        StudyTable("Table 4. Test-time prefix", (*columns, *_set_columns(sets)), tuple(ours), _notes(options)),
        StudyTable("Table 4 as the paper prints it", (*columns, *paper.SETS), tuple(printed)),
    ])  # fmt: skip


def table_5(options: StudyOptions) -> StudyReport:
    """Shift of image domain."""
    chosen = prefix_world(options)
    found = figures([arm for block in _TABLE_5_BLOCKS for arm, _ in block], options, chosen.zero_shot())
    sets = sets_of(chosen)
    rows = []
    for block in _TABLE_5_BLOCKS:
        for arm, prefix in block:
            head = LABELS[arm.labels] + ("" if arm.captions == "none" else " + CC-12M")
            printed = paper.TABLE_5[head, READINGS[prefix]]
            ours = [_cell(found.of(arm, prefix, [name])) for name in sets.own]
            rows.append((head, "✓" if arm.prefix else "", READINGS[prefix], *ours, *printed))
    shared = sets.own[0].removesuffix("own")
    titles = tuple(name.removeprefix(shared) for name in sets.own)
    columns = (
        "training data",
        "prefix",
        "test-time prefix",
        *titles,
        *(f"paper: {name}" for name in paper.TABLE_5_SETS),
    )
    return _report(options, 5, [StudyTable("Table 5. Shift of image domain", columns, tuple(rows), _notes(options))])


_TABLE_5_BLOCKS: tuple[tuple[tuple[PrefixArm, Kind | None], ...], ...] = tuple(
    (
        (PrefixArm(labels, captions="none"), None),
        (PrefixArm(labels), None),
        (PrefixArm(labels, prefix=True), "caption"),
        (PrefixArm(labels, prefix=True), "label"),
    )
    for labels in ("small", "large")
)


def table_7(options: StudyOptions) -> StudyReport:
    """Shift of class names."""
    chosen = prefix_world(options)
    lines: list[tuple[PrefixArm, Kind | None]] = []
    for labels in ("small", "large", "renamed"):
        readings: tuple[Kind | None, ...] = ("label", "caption") if labels == "renamed" else (None, "label", "caption")
        lines += [(PrefixArm(labels, prefix=prefix is not None), prefix) for prefix in readings]
    found, sets = figures([arm for arm, _ in lines], options, chosen.zero_shot()), sets_of(chosen)
    rows = []
    for arm, prefix in lines:
        renamed = arm.labels == "renamed"
        ours = [_cell(found.of(arm, prefix, part, metric))
                for part in (sets.names, sets.synonyms) for metric in ("top-1", "top-5")]  # fmt: skip
        head = (f"{LABELS[arm.labels]} + CC-12M", "✓" if renamed else "", "✓" if arm.prefix else "", READINGS[prefix])
        rows.append((*head, *ours, *paper.TABLE_7[LABELS[arm.labels], renamed, READINGS[prefix]]))
    measured = ("original top-1", "original top-5", "synonym top-1", "synonym top-5")
    columns = ("training data", "trained on synonyms", "prefix", "test-time prefix", *measured,
               *(f"paper: {name}" for name in measured))  # fmt: skip
    return _report(options, 7, [StudyTable("Table 7. Shift of class names", columns, tuple(rows), _notes(options))])


def table_8(options: StudyOptions) -> StudyReport:
    """Retrieval with each prefix."""
    chosen = prefix_world(options)
    found = figures([PrefixArm(), PrefixArm(prefix=True)], options, chosen.search())
    rows = []
    for prefix, name in READINGS.items():
        ours = [
            _cell(found.of(
                PrefixArm(prefix=prefix is not None), prefix, [data], "recall", direction=way, k=k, domain="all",
            ))
            for data in found.data() for way in reversed(DIRECTIONS) for k in (1, 5)
        ]  # fmt: skip
        rows.append(("" if prefix is None else "✓", name, *ours, *paper.TABLE_8[name]))
    measured = ("I2T@1", "I2T@5", "T2I@1", "T2I@5")
    titles = [f"{data.removeprefix('glyphs:')} {name}" for data in found.data() for name in measured]
    printed = [f"paper: {data} {name}" for data in paper.TABLE_8_SETS for name in measured]
    notes = _notes(options)[:1]
    columns = ("prefix", "test-time prefix", *titles, *printed)
    return _report(options, 8, [StudyTable("Table 8. Retrieval", columns, tuple(rows), notes)])


_HALF = PrefixArm(prefix=True, length=0.5)
TABLE_9_ARMS: dict[PrefixArm, tuple[str, str, str, int, int]] = {
    replace(_HALF, batch=0.5): ("IN-22K", "CC-15M", "CLIP", 1024, 15),
    _HALF: ("IN-22K", "CC-15M", "CLIP", 4096, 15),
    replace(_HALF, length=1.0): ("IN-22K", "CC-15M", "CLIP", 4096, 30),
    replace(_HALF, base="label", batch=0.5): ("IN-22K", "CC-15M", "UniCL", 1024, 15),
    replace(_HALF, base="label"): ("IN-22K", "CC-15M", "UniCL", 4096, 15),
    replace(_HALF, base="label", length=1.0): ("IN-22K", "CC-15M", "UniCL", 4096, 30),
}
"""Half the recipe's batch and length stand for the paper's 1,024 and 15 epochs; each with the row it stands beside."""


def table_9(options: StudyOptions) -> StudyReport:
    """Batch size and length."""
    chosen = prefix_world(options)
    full = options.scale == "full"  # there as printed: four times the batch and twice the length of the recipe
    arms = [
        (replace(arm, batch=4.0 if arm.batch == 1 else 1.0, length=2 * arm.length) if full else arm, printed)
        for arm, printed in TABLE_9_ARMS.items()
    ]
    found, sets = figures([arm for arm, _ in arms], options, chosen.zero_shot()), sets_of(chosen)
    rows = []
    for arm, printed in arms:
        recipe = chosen.make(arm)
        ours = [_cell(found.of(arm, "caption", part)) for part in (sets.own[:1], sets.everything_unseen)]
        examples = f"{recipe.batch_size * recipe.steps:,}"
        beside = f"{printed[3]}, {printed[4]} epochs"
        rows.append((OBJECTIVES[arm.base], str(recipe.batch_size), examples, *ours, beside, *paper.TABLE_9[printed]))
    columns = (
        "objective",
        "batch",
        "examples",
        "own set",
        "zero-shot",
        "paper: batch",
        "paper: IN-1K",
        "paper: 11 sets",
    )
    return _report(
        options, 9, [StudyTable("Table 9. Batch and length, with prefix", columns, tuple(rows), _notes(options))]
    )
