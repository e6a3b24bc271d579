"""Prefix conditioning (Saito et al., 2023): Tables 1, 2, 3, 4, 5, 7, 8 and 9; `figures` draws Figures 3 to 9.

``smoke`` and ``small`` take the glyph world, whose label set is narrow in style and words where its captions are broad;
``full`` takes the paper's recipe, the user's data (``--data NAME=SOURCE``) and the paper's eleven sets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from recollect.core.errors import UserError
from recollect.core.types import Kind
from recollect.evaluation.retrieval import DIRECTIONS
from recollect.evaluation.tasks.classification import RENAMED
from recollect.evaluation.tasks.opening import Selection, open_tasks
from recollect_papers.engine import Column, Formed, Printed, Row, TableForm, TableStudy, printed
from recollect_papers.measurements import Measurements
from recollect_papers.prefix.world import (
    PROBED,
    READINGS,
    WORLDS_BY_SCALE,
    LabelSets,
    PrefixArm,
    PrefixWorld,
    figures,
    prefix_world,
    seeds,
)
from recollect_papers.runs import StudyEvaluation, renamed_classes
from recollect_papers.study import StudyOptions, StudyTable, over

_LABELS: dict[LabelSets, str] = {
    "none": "–", "small": "IN-1K", "large": "IN-21K", "rest": "IN-21K w/o IN-1K", "renamed": "IN-21K",
}  # fmt: skip
CAPTION_COLUMNS = {"none": "–", "small": "CC-3M", "all": "CC-12M"}
_OBJECTIVES = {"softmax": "CLIP", "label": "UniCL", "sigmoid": "SigLIP"}


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
        renamed = open_tasks(renamed_classes(chosen.synonyms), "zero-shot").tasks
    names, synonyms = (tuple(task.name for task in renamed if task.shift == shift) for shift in RENAMED)
    columns: dict[str, tuple[str, ...]] = {}
    for task in open_tasks(Selection(chosen.unseen, chosen.suite), "zero-shot").tasks:
        title = task.group or task.name
        columns[title] = (*columns.get(title, ()), task.name)
    return Sets(shifts, names, synonyms, columns)


def _reading(arm: PrefixArm) -> Kind | None:
    """The caption prefix at the test, as in the paper, for models that have it."""
    return "caption" if arm.prefix else None


def _measured(
    arms: Sequence[PrefixArm], options: StudyOptions, evaluation: StudyEvaluation, sets: Sets | None = None
) -> Measurements:
    """Every figure of some arms, by arm, reading, set and metric."""
    templates = len(range(0, 80, prefix_world(options).templates))
    seeds_words = over(seeds(options), "training seed")
    context: dict[str, Any] = {"seeds": seeds_words, "notes": [f"{seeds_words}; {templates} templates a class"]}
    if sets is not None:
        context |= {"sets": {"own": sets.own, "names": sets.names, "synonyms": sets.synonyms, "unseen": sets.unseen}}
    found = figures(arms, options, evaluation)
    return found.measurements(context)


def _classified(options: StudyOptions, arms: Sequence[PrefixArm]) -> Measurements:
    chosen = prefix_world(options)
    return _measured(arms, options, chosen.zero_shot(), sets_of(chosen))


def _sets(found: Measurements) -> Sets:
    kept = found.context["sets"]
    unseen = {title: tuple(names) for title, names in kept["unseen"].items()}
    own, names, synonyms = (tuple(kept[part]) for part in ("own", "names", "synonyms"))
    return Sets(own, names, synonyms, unseen)


def _at(arm: PrefixArm, prefix: Kind | None = None) -> dict[str, str]:
    """The part of an address that a row gives."""
    return {"arm": arm.name, "read": READINGS[prefix]}


def _top(title: str, sets: Sequence[str], metric: str = "top-1") -> Column:
    return Column(title, {"set": tuple(sets), "metric": metric})


def _table(
    found: Measurements, title: str, heads: tuple[str, ...], rows: Sequence[Row], columns: Sequence[Column],
    paper: Printed | None, notes: Sequence[str] | None = None,
) -> TableForm:  # fmt: skip
    chosen = tuple(found.context["notes"] if notes is None else notes)
    return TableForm(title, heads, rows, columns, paper, chosen, missing="not run")


def _apart(form: TableForm, found: Measurements, printed_title: str) -> list[StudyTable]:
    """Ours, and the paper's in a table of its own where its columns are other sets."""
    return [replace(form, paper=None).fill(found), form.as_printed(printed_title)]


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


def _table_1(found: Measurements) -> Formed:
    """Labels, captions and both, with and without prefixes; then with context."""
    sets, rows = _sets(found), []
    for arm in (*TABLE_1_ARMS, *CONTEXT_ARMS):
        parts = [_LABELS[arm.labels], CAPTION_COLUMNS[arm.captions], _OBJECTIVES[arm.base]]
        key = None if arm.context else " / ".join([*parts, *(["prefix"] if arm.prefix else [])])
        if arm.context:
            parts[2] = {"CLIP": "CLIxP", "UniCL": "UniCL with context"}[parts[2]]
        rows.append(Row((*parts, "✓" if arm.prefix else ""), _at(arm, _reading(arm)), key))
    columns = [_top("own set", sets.own[:1])]
    columns.append(_top(f"zero-shot, {len(sets.everything_unseen)} sets", sets.everything_unseen))
    heads = ("labels", "captions", "objective", "prefix")
    form = _table(found, "Table 1. Labels and captions", heads, rows, columns, printed("prefix", "table-1"))
    sampling = "as in the paper, arms with prefix have debiased sampling and the others equal sampling: see Table 2"
    return [form.fill(found)], (sampling,)


def _set_columns(sets: Sets) -> list[Column]:
    parts = {"own set": sets.own[:1], **sets.unseen, "AVG": sets.everything_unseen}
    return [_top(title, names) for title, names in parts.items()]


TABLE_2_ARMS = tuple(
    PrefixArm(prefix=prefix, sampling=way) for way in ("equal", "debiased") for prefix in (False, True)
)


def _table_2(found: Measurements) -> Formed:
    """Sampling with and without prefixes."""
    rows = []
    for arm in TABLE_2_ARMS:
        head = ("✓" if arm.prefix else "", "ES" if arm.sampled == "equal" else "DS")
        key = f"{arm.sampled} / prefix" if arm.prefix else arm.sampled
        rows.append(Row(head, _at(arm, _reading(arm)), key))
    columns, paper = _set_columns(_sets(found)), printed("prefix", "table-2")
    form = _table(found, "Table 2. Sampling", ("prefix", "sampling"), rows, columns, paper)
    return _apart(form, found, "Table 2 as the paper prints it"), ()


TABLE_3_ARMS = (PrefixArm(captions="none"), PrefixArm(), PrefixArm(prefix=True))


def _measure_3(options: StudyOptions) -> Measurements:
    """Linear probes; the accuracy is each set's own metric."""
    chosen = prefix_world(options)
    found = _measured(TABLE_3_ARMS, options, chosen.probes())
    shift_of = {task.name: task.shift for task in open_tasks(Selection(chosen.own), "few-shot").tasks}
    data = found.context["data"]
    names = [name for name in data if shift_of.get(name) == ""] or data[:1]
    shifts = [name for name in data if shift_of.get(name)]
    rest = [name for name in data if name not in (*names, *shifts)]
    parts = {"own set": names, "own classes, shifted": shifts, f"{len(rest)} sets of unseen classes": rest}
    if chosen.probe_suite:  # each next to the paper's own column, in its order: ImageNet first
        parts = {name: [name] for name in (*names, *shifts, *rest)}
    found.context["parts"] = {title: part for title, part in parts.items() if part}
    found.context["notes"] = [found.context["seeds"]]  # no texts, so no templates
    return found


def _table_3(found: Measurements) -> Formed:
    """Linear probes."""
    rows = []
    for arm in TABLE_3_ARMS:
        data = _LABELS[arm.labels] + ("" if arm.captions == "none" else " + CC-12M")
        rows.append(Row((data, "✓" if arm.prefix else ""), _at(arm), f"{data} / prefix" if arm.prefix else data))
    columns = [_top(title, part, PROBED) for title, part in found.context["parts"].items()]
    paper = printed("prefix", "table-3")
    form = _table(found, "Table 3. Linear probe", ("training data", "prefix"), rows, columns, paper)
    return _apart(form, found, "Table 3 as the paper prints it"), ()


TABLE_4_BLOCKS: tuple[LabelSets, ...] = ("small", "large", "rest")


def _table_4(found: Measurements) -> Formed:
    """The prefix at the test."""
    rows = []
    for labels in TABLE_4_BLOCKS:
        for prefix, name in READINGS.items():
            arm = PrefixArm(labels, prefix=prefix is not None)
            rows.append(Row((f"{_LABELS[labels]} + CC-12M", name), _at(arm, prefix), f"{_LABELS[labels]} / {name}"))
    columns, paper = _set_columns(_sets(found)), printed("prefix", "table-4")
    form = _table(found, "Table 4. Test-time prefix", ("training data", "test-time prefix"), rows, columns, paper)
    return _apart(form, found, "Table 4 as the paper prints it"), ()


TABLE_5_LINES: tuple[tuple[PrefixArm, Kind | None], ...] = tuple(
    line
    for labels in ("small", "large")
    for line in (
        (PrefixArm(labels, captions="none"), None),
        (PrefixArm(labels), None),
        (PrefixArm(labels, prefix=True), "caption"),
        (PrefixArm(labels, prefix=True), "label"),
    )
)


def _table_5(found: Measurements) -> Formed:
    """Shift of image domain."""
    rows, own = [], _sets(found).own
    for arm, prefix in TABLE_5_LINES:
        data = _LABELS[arm.labels] + ("" if arm.captions == "none" else " + CC-12M")
        head = (data, "✓" if arm.prefix else "", READINGS[prefix])
        rows.append(Row(head, _at(arm, prefix), f"{data} / {READINGS[prefix]}"))
    shared = own[0].removesuffix("own") if own[0].endswith("own") else ""  # one's own sets keep their names
    columns = [_top(name.removeprefix(shared), [name]) for name in own]
    heads = ("training data", "prefix", "test-time prefix")
    form = _table(found, "Table 5. Shift of image domain", heads, rows, columns, printed("prefix", "table-5"))
    return [form.fill(found)], ()


TABLE_7_LINES: tuple[tuple[PrefixArm, Kind | None], ...] = tuple(
    (PrefixArm(labels, prefix=prefix is not None), prefix)
    for labels in ("small", "large", "renamed")
    for prefix in READINGS
    if prefix is not None or labels != "renamed"
)


def _table_7(found: Measurements) -> Formed:
    """Shift of class names."""
    rows, sets = [], _sets(found)
    for arm, prefix in TABLE_7_LINES:
        renamed, data = arm.labels == "renamed", _LABELS[arm.labels]
        head = (f"{data} + CC-12M", "✓" if renamed else "", "✓" if arm.prefix else "", READINGS[prefix])
        key = " / ".join([data, *(["renamed"] if renamed else []), READINGS[prefix]])
        rows.append(Row(head, _at(arm, prefix), key))
    columns = [
        _top(f"{title} {metric}", part, metric)
        for title, part in (("original", sets.names), ("synonym", sets.synonyms))
        for metric in ("top-1", "top-5")
    ]
    heads = ("training data", "trained on synonyms", "prefix", "test-time prefix")
    form = _table(found, "Table 7. Shift of class names", heads, rows, columns, printed("prefix", "table-7"))
    return [form.fill(found)], ()


def _measure_5(options: StudyOptions) -> Measurements:
    if len(sets_of(prefix_world(options)).own) < 2:
        raise _lacking(5, "the same classes in other domains", "shift")
    return _classified(options, [arm for arm, _ in TABLE_5_LINES])


def _measure_7(options: StudyOptions) -> Measurements:
    if not sets_of(prefix_world(options)).synonyms:
        raise _lacking(7, "a labelled source with a column of that name", "synonyms")
    return _classified(options, [arm for arm, _ in TABLE_7_LINES])


def _lacking(number: int, what: str, name: str) -> UserError:
    """Said before trainings that would take days."""
    return UserError(f"prefix/table-{number} --scale full needs {what}: --data {name}=SOURCE in addition to the others")


def _measure_8(options: StudyOptions) -> Measurements:
    arms, chosen = [PrefixArm(), PrefixArm(prefix=True)], prefix_world(options)
    if not chosen.retrieval:
        raise _lacking(8, "captioned pictures to search", "search")
    found = _measured(arms, options, chosen.search())
    found.context["notes"] = [found.context["seeds"]]  # captions are read as they are, without templates
    return found


def _table_8(found: Measurements) -> Formed:
    """Retrieval with each prefix."""
    rows = [
        Row(("" if prefix is None else "✓", name), _at(PrefixArm(prefix=prefix is not None), prefix), name)
        for prefix, name in READINGS.items()
    ]
    ways = zip(("I2T", "T2I"), reversed(DIRECTIONS), strict=True)
    measured = [(f"{short}@{k}", f"{way} R@{k}") for short, way in ways for k in (1, 5)]
    columns = [
        Column(f"{data.removeprefix('glyphs:')} {title}", {"set": data, "metric": metric})
        for data in found.context["data"] for title, metric in measured
    ]  # fmt: skip
    heads, notes = ("prefix", "test-time prefix"), found.context["notes"]
    form = _table(found, "Table 8. Retrieval", heads, rows, columns, printed("prefix", "table-8"), notes)
    return [form.fill(found)], ()


_HALF = PrefixArm(prefix=True, length=0.5)
TABLE_9_ARMS: dict[PrefixArm, tuple[str, str, str, int, int]] = {
    replace(_HALF, batch=0.5): ("IN-22K", "CC-15M", "CLIP", 1024, 15),
    _HALF: ("IN-22K", "CC-15M", "CLIP", 4096, 15),
    replace(_HALF, length=1.0): ("IN-22K", "CC-15M", "CLIP", 4096, 30),
    replace(_HALF, base="label", batch=0.5): ("IN-22K", "CC-15M", "UniCL", 1024, 15),
    replace(_HALF, base="label"): ("IN-22K", "CC-15M", "UniCL", 4096, 15),
    replace(_HALF, base="label", length=1.0): ("IN-22K", "CC-15M", "UniCL", 4096, 30),
}
"""Half the recipe's batch and length play the paper's 1,024 and 15 epochs; each with the row it is compared with."""


def _measure_9(options: StudyOptions) -> Measurements:
    chosen = prefix_world(options)
    full = options.scale == "full"  # there as printed: four times the batch and twice the length of the recipe
    arms = [
        replace(arm, batch=4.0 if arm.batch == 1 else 1.0, length=2 * arm.length) if full else arm
        for arm in TABLE_9_ARMS
    ]
    found = _classified(options, arms)
    found.context["lines"] = [
        [arm.name, recipe.batch_size, recipe.batch_size * recipe.steps]
        for arm, recipe in ((arm, chosen.make(arm)) for arm in arms)
    ]
    return found


def _table_9(found: Measurements) -> Formed:
    """Batch size and length."""
    rows, sets = [], _sets(found)
    for (arm, key), (name, batch, examples) in zip(TABLE_9_ARMS.items(), found.context["lines"], strict=True):
        head = (_OBJECTIVES[arm.base], str(batch), f"{examples:,}")
        row = " / ".join([*key[:3], f"{key[3]:,}", f"{key[4]} epochs"])
        rows.append(Row(head, {"arm": name, "read": "caption"}, row))
    columns = [_top("own set", sets.own[:1]), _top("zero-shot", sets.everything_unseen)]
    heads = ("objective", "batch", "examples")
    notes = (*found.context["notes"], "paper: IN-21K and IN-1K together with CC-12M and CC-3M")
    title, paper = "Table 9. Batch and length, with prefix", printed("prefix", "table-9")
    form = _table(found, title, heads, rows, columns, paper, notes)
    return [form.fill(found)], ()


def _zero_shot_study(number: int, arms: Sequence[PrefixArm], form: Callable[[Measurements], Formed]) -> TableStudy:
    measure = partial(_classified, arms=arms)
    return TableStudy(f"prefix/table-{number}", measure, form, WORLDS_BY_SCALE)


table_1 = _zero_shot_study(1, (*TABLE_1_ARMS, *CONTEXT_ARMS), _table_1)
table_2 = _zero_shot_study(2, TABLE_2_ARMS, _table_2)
table_3 = TableStudy("prefix/table-3", _measure_3, _table_3, WORLDS_BY_SCALE)
table_4 = _zero_shot_study(
    4, [PrefixArm(labels, prefix=prefix) for labels in TABLE_4_BLOCKS for prefix in (False, True)], _table_4
)
table_5 = TableStudy("prefix/table-5", _measure_5, _table_5, WORLDS_BY_SCALE)
table_7 = TableStudy("prefix/table-7", _measure_7, _table_7, WORLDS_BY_SCALE)
table_8 = TableStudy("prefix/table-8", _measure_8, _table_8, WORLDS_BY_SCALE)
table_9 = TableStudy("prefix/table-9", _measure_9, _table_9, WORLDS_BY_SCALE)
