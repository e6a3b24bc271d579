"""Prefix conditioning (Saito et al., 2023): Tables 1, 2, 3, 4, 5, 7, 8 and 9.

``smoke`` and ``small`` use the glyph world, whose label set has few styles and words and whose captions have many;
``full`` uses the paper's recipe and eleven sets, and the user's data (``--data NAME=SOURCE``).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from recollect.core.errors import UserError
from recollect.core.types import Kind
from recollect.evaluation.retrieval import DIRECTIONS
from recollect.evaluation.tasks.classification import RENAMED
from recollect.evaluation.tasks.opening import open_tasks
from recollect_papers.engine import Column, Row, TableForm, TablesAndNotes, TableStudy, printed
from recollect_papers.measurements import Measurements
from recollect_papers.prefix.world import (
    READINGS,
    WORLDS_BY_SCALE,
    LabelSets,
    PrefixArm,
    PrefixWorld,
    measured,
    prefix_world,
    read_at,
    seeds,
)
from recollect_papers.runs import StudyEvaluation, open_synonym_tasks
from recollect_papers.study import StudyOptions, over

_LABELS: dict[LabelSets, str] = {
    "none": "–", "small": "IN-1K", "large": "IN-21K", "rest": "IN-21K w/o IN-1K", "renamed": "IN-21K",
}  # fmt: skip
CAPTION_COLUMNS = {"none": "–", "small": "CC-3M", "all": "CC-12M"}
_OBJECTIVES = {"softmax": "CLIP", "label": "UniCL", "sigmoid": "SigLIP"}

Line = tuple[tuple[str, ...], PrefixArm, Kind | None, str | None]
"""A row: first cells, arm, test-time prefix, name in the paper's table."""


def _tick(value: bool) -> str:
    return "✓" if value else ""


def _data(arm: PrefixArm) -> str:
    return _LABELS[arm.labels] + ("" if arm.captions == "none" else " + CC-12M")


def _reading(arm: PrefixArm) -> Kind | None:
    """Return the test-time prefix: ``caption``, as in the paper, for models with prefixes."""
    return "caption" if arm.prefix else None


# --- What is measured -------------------------------------------------------------------------------------------------


def sets_of(chosen: PrefixWorld) -> dict[str, Any]:
    """Return the sets that figures average over.

    ``own``: test images of the small label set and its domain shifts; ``names`` and ``synonyms``: its classes by either
    name; ``unseen``: sets of unseen classes by column.
    """
    own = open_tasks(chosen.own, "zero-shot").tasks
    renamed = open_synonym_tasks(chosen.synonyms).tasks if chosen.synonyms else own
    unseen: dict[str, list[str]] = {}
    for task in open_tasks(chosen.unseen, "zero-shot", chosen.suite).tasks:
        unseen.setdefault(task.group or task.name, []).append(task.name)
    names, synonyms = ([task.name for task in renamed if task.shift == shift] for shift in RENAMED)
    shifts = [task.name for task in own if task.shift not in RENAMED]
    return {"own": shifts, "names": names, "synonyms": synonyms, "unseen": unseen}


def _measured(
    arms: Sequence[PrefixArm], options: StudyOptions, evaluation: StudyEvaluation, templates: bool = True, **more: Any
) -> Measurements:
    note = over(seeds(options), "training seed")
    if templates:
        note += f"; {len(range(0, 80, prefix_world(options).templates))} templates per class"
    return measured(arms, options, evaluation, notes=[note], **more)


def _classified(options: StudyOptions, arms: Sequence[PrefixArm]) -> Measurements:
    chosen = prefix_world(options)
    sets = sets_of(chosen)
    return _measured(arms, options, chosen.zero_shot(), sets=sets)


def _probed(options: StudyOptions, arms: Sequence[PrefixArm]) -> Measurements:
    """Measure linear probes, by each set's own metric."""
    chosen = prefix_world(options)
    found = _measured(arms, options, chosen.probes(), templates=False)
    shift_of = {task.name: task.shift for task in open_tasks(chosen.own, "few-shot").tasks}
    data = found.context["data"]
    names = [name for name in data if shift_of.get(name) == ""] or data[:1]
    shifts = [name for name in data if shift_of.get(name)]
    rest = [name for name in data if name not in (*names, *shifts)]
    parts = {"own set": names, "own classes, shifted": shifts, f"{len(rest)} sets of unseen classes": rest}
    if chosen.probe_suite:  # one column per set, in the paper's order: ImageNet first
        parts = {name: [name] for name in (*names, *shifts, *rest)}
    found.context["parts"] = {title: part for title, part in parts.items() if part}
    return found


def _searched(options: StudyOptions, arms: Sequence[PrefixArm]) -> Measurements:
    return _measured(arms, options, prefix_world(options).search(), templates=False)


# --- Columns ----------------------------------------------------------------------------------------------------------


def _top(title: str, sets: Sequence[str], measure: str = "top-1") -> Column:
    return Column(title, {"set": tuple(sets), "measure": measure})


def _every_unseen(found: Measurements) -> list[str]:
    """Return all sets of unseen classes."""
    return [name for names in found.context["sets"]["unseen"].values() for name in names]


def _two_columns(found: Measurements) -> list[Column]:
    unseen = _every_unseen(found)
    return [_top("own set", found.context["sets"]["own"][:1]), _top(f"zero-shot, {len(unseen)} sets", unseen)]


def _set_columns(found: Measurements) -> list[Column]:
    sets = found.context["sets"]
    parts = {"own set": sets["own"][:1], **sets["unseen"], "AVG": _every_unseen(found)}
    return [_top(title, names) for title, names in parts.items()]


def _probe_columns(found: Measurements) -> list[Column]:
    return [_top(title, part, "accuracy of the probe") for title, part in found.context["parts"].items()]


def _domain_columns(found: Measurements) -> list[Column]:
    own = found.context["sets"]["own"]
    shared = own[0].removesuffix("own") if own[0].endswith("own") else ""  # user's sets keep their names
    return [_top(name.removeprefix(shared), [name]) for name in own]


def _name_columns(found: Measurements) -> list[Column]:
    parts = {"original": found.context["sets"]["names"], "synonym": found.context["sets"]["synonyms"]}
    return [_top(f"{title} {metric}", part, metric) for title, part in parts.items() for metric in ("top-1", "top-5")]


def _search_columns(found: Measurements) -> list[Column]:
    ways = [("I2T", DIRECTIONS[1]), ("T2I", DIRECTIONS[0])]
    shown = [(f"{short}@{k}", {"direction": way, "measure": f"R@{k}"}) for short, way in ways for k in (1, 5)]
    every = {"domain": "all", "method": "zero-shot"}
    return [
        Column(f"{data.removeprefix('glyphs:')} {title}", {**every, **at, "set": data})
        for data in found.context["data"]
        for title, at in shown
    ]


def _table(
    number: int, title: str, heads: tuple[str, ...], lines: Sequence[Line],
    columns: Callable[[Measurements], list[Column]], *, apart: bool = False, remarks: Sequence[str] = (),
    measure: Callable[[StudyOptions, Sequence[PrefixArm]], Measurements] = _classified,
    needs: tuple[str, str] | None = None,
) -> TableStudy:  # fmt: skip
    """Define a study of some arms.

    Args:
        apart: show the paper's table separately, because its columns are different sets.
        needs: source that this table requires at scale ``full``, and a description of its content.
    """
    name, arms = f"Table {number}", [arm for _, arm, *_ in lines]

    def checked(options: StudyOptions) -> Measurements:
        if needs and options.scale == "full" and not any(each.startswith(f"{needs[0]}=") for each in options.data):
            raise UserError(f"prefix/table-{number} --scale full needs {needs[1]}. Add --data {needs[0]}=SOURCE.")
        return measure(options, arms)

    def form(found: Measurements) -> TablesAndNotes:
        rows = [Row(head, read_at(arm.name, read), key) for head, arm, read, key in lines]
        paper, notes = printed("prefix", f"table-{number}"), tuple(found.context["notes"])
        table = TableForm(f"{name}. {title}", heads, rows, columns(found), paper, notes, "not run")
        if not apart:
            return [table.fill(found)], remarks
        return [replace(table, paper=None).fill(found), table.as_printed(f"{name} as the paper prints it")], remarks

    return TableStudy(f"prefix/table-{number}", checked, form, WORLDS_BY_SCALE)


# --- The tables -------------------------------------------------------------------------------------------------------

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
"""Not in the paper: LIxP's context objective with and without prefix tokens."""


def _line_1(arm: PrefixArm) -> Line:
    parts = (_LABELS[arm.labels], CAPTION_COLUMNS[arm.captions], _OBJECTIVES[arm.base])
    if arm.context:
        objective = {"CLIP": "CLIxP", "UniCL": "UniCL with context"}[parts[2]]
        return (*parts[:2], objective, _tick(arm.prefix)), arm, _reading(arm), None
    return (*parts, _tick(arm.prefix)), arm, _reading(arm), " / ".join([*parts, *(["prefix"] if arm.prefix else [])])


table_1 = _table(
    1, "Labels and captions", ("labels", "captions", "objective", "prefix"),
    [_line_1(arm) for arm in (*TABLE_1_ARMS, *CONTEXT_ARMS)], _two_columns,
    remarks=("as in the paper, arms with prefix use debiased sampling and the others equal sampling: see Table 2",),
)  # fmt: skip

TABLE_2_ARMS = tuple(
    PrefixArm(prefix=prefix, sampling=way) for way in ("equal", "debiased") for prefix in (False, True)
)
table_2 = _table(
    2, "Sampling", ("prefix", "sampling"),
    [((_tick(arm.prefix), "ES" if arm.sampled == "equal" else "DS"), arm, _reading(arm),
      f"{arm.sampled} / prefix" if arm.prefix else arm.sampled) for arm in TABLE_2_ARMS],
    _set_columns, apart=True,
)  # fmt: skip

table_3 = _table(
    3, "Linear probe", ("training data", "prefix"),
    [((_data(arm), _tick(arm.prefix)), arm, None, _data(arm) + (" / prefix" if arm.prefix else ""))
     for arm in (PrefixArm(captions="none"), PrefixArm(), PrefixArm(prefix=True))],
    _probe_columns, apart=True, measure=_probed,
)  # fmt: skip

table_4 = _table(
    4, "Test-time prefix", ("training data", "test-time prefix"),
    [((_data(arm), name), arm, read, f"{_LABELS[arm.labels]} / {name}")
     for labels in ("small", "large", "rest") for read, name in READINGS.items()
     for arm in (PrefixArm(labels, prefix=read is not None),)],
    _set_columns, apart=True,
)  # fmt: skip

_WAYS: tuple[tuple[dict[str, Any], Kind | None], ...] = (
    ({"captions": "none"}, None), ({}, None), ({"prefix": True}, "caption"), ({"prefix": True}, "label"),
)  # fmt: skip
_BOTH: tuple[LabelSets, ...] = ("small", "large")
table_5 = _table(
    5, "Shift of image domain", ("training data", "prefix", "test-time prefix"),
    [((_data(arm), _tick(arm.prefix), READINGS[read]), arm, read, f"{_data(arm)} / {READINGS[read]}")
     for labels in _BOTH for settings, read in _WAYS for arm in (PrefixArm(labels, **settings),)],
    _domain_columns, needs=("shift", "the same classes in other domains"),
)  # fmt: skip

table_7 = _table(
    7, "Shift of class names", ("training data", "trained on synonyms", "prefix", "test-time prefix"),
    [((_data(arm), _tick(labels == "renamed"), _tick(arm.prefix), name), arm, read,
      " / ".join([_LABELS[labels], *(["renamed"] if labels == "renamed" else []), name]))
     for labels in ("small", "large", "renamed") for read, name in READINGS.items()
     if read is not None or labels != "renamed" for arm in (PrefixArm(labels, prefix=read is not None),)],
    _name_columns, needs=("synonyms", "a labeled source with a column of that name"),
)  # fmt: skip

table_8 = _table(
    8, "Retrieval", ("prefix", "test-time prefix"),
    [((_tick(read is not None), name), PrefixArm(prefix=read is not None), read, name)
     for read, name in READINGS.items()],
    _search_columns, measure=_searched, needs=("search", "captioned pictures to search"),
)  # fmt: skip


_HALF = PrefixArm(prefix=True, length=0.5)
TABLE_9_ARMS: dict[PrefixArm, str] = {
    replace(_HALF, batch=0.5): "IN-22K / CC-15M / CLIP / 1,024 / 15 epochs",
    _HALF: "IN-22K / CC-15M / CLIP / 4,096 / 15 epochs",
    replace(_HALF, length=1.0): "IN-22K / CC-15M / CLIP / 4,096 / 30 epochs",
    replace(_HALF, base="label", batch=0.5): "IN-22K / CC-15M / UniCL / 1,024 / 15 epochs",
    replace(_HALF, base="label"): "IN-22K / CC-15M / UniCL / 4,096 / 15 epochs",
    replace(_HALF, base="label", length=1.0): "IN-22K / CC-15M / UniCL / 4,096 / 30 epochs",
}
"""Arms of Table 9 and their rows in the paper; half the recipe's batch and length stand for 1,024 and 15 epochs."""


def _measure_9(options: StudyOptions) -> Measurements:
    chosen = prefix_world(options)
    full = options.scale == "full"  # uses the paper's sizes: four times the batch and twice the length of the recipe
    arms = [
        replace(arm, batch=4.0 if arm.batch == 1 else 1.0, length=2 * arm.length) if full else arm
        for arm in TABLE_9_ARMS
    ]
    found = _classified(options, arms)
    recipes = [(arm, chosen.make(arm)) for arm in arms]
    found.context["lines"] = [[arm.name, each.batch_size, each.batch_size * each.steps] for arm, each in recipes]
    return found


def _form_9(found: Measurements) -> TablesAndNotes:
    rows = [
        Row((_OBJECTIVES[arm.base], str(batch), f"{examples:,}"), read_at(name, "caption"), key)
        for (arm, key), (name, batch, examples) in zip(TABLE_9_ARMS.items(), found.context["lines"], strict=True)
    ]
    columns = [_top("own set", found.context["sets"]["own"][:1]), _top("zero-shot", _every_unseen(found))]
    title, heads = "Table 9. Batch and length, with prefix", ("objective", "batch", "examples")
    notes = (*found.context["notes"], "paper: IN-21K and IN-1K together with CC-12M and CC-3M")
    return [TableForm(title, heads, rows, columns, printed("prefix", "table-9"), notes, "not run").fill(found)], ()


table_9 = TableStudy("prefix/table-9", _measure_9, _form_9, WORLDS_BY_SCALE)
