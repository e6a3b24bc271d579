"""The tables of ``prefix/real``: nothing but what the files of its runs say."""

from collections.abc import Mapping, Sequence
from typing import Any

from recollect_papers.engine import Column, Row, Show, TableForm
from recollect_papers.measurements import Measurements, corrected
from recollect_papers.prefix.real_arms import ARMS, ATTENDING_PLAIN, ATTENDING_PREFIX, KINDS_READ, PLAIN, PREFIX
from recollect_papers.study import StudyTable

READ = {"caption": "caption", "label": "label", "plain": ""}
"""What tables call a reading; arms without prefixes have one."""


def tables(records: Sequence[Mapping[str, Any]]) -> tuple[StudyTable, ...]:
    """Accuracy by group of sets, gains of the prefixes paired by seed, and every set."""
    found = _measured(records)
    there = {record["arm"]: record for record in records}
    lines = [
        (arm.name, reading)
        for arm in ARMS if arm.name in there
        for reading in next(iter(there[arm.name]["zero-shot"].values()))
    ]  # fmt: skip
    groups: dict[str, tuple[str, ...]] = {}
    for name, group in records[0]["groups"].items():
        groups[group] = (*groups.get(group, ()), name)
    forms = (
        _by_group(records, groups, lines),
        _gains(found, groups, lines),
        _by_set(list(records[0]["groups"]), lines),
    )
    return tuple(form.fill(found) for form in forms)


def _measured(records: Sequence[Mapping[str, Any]]) -> Measurements:
    """The files' figures by arm, reading, measure and set."""
    found = Measurements()
    for record in records:
        for measure in ("zero-shot", "retrieval"):
            for name, readings in record[measure].items():
                for reading, value in readings.items():
                    at = {"arm": record["arm"], "read": reading, "measure": measure, "set": name}
                    found.add(at, record["seed"], value)
    return found


Groups = Mapping[str, tuple[str, ...]]
Lines = Sequence[tuple[str, str]]
"""Every arm with each of its readings, in the order of the arms."""


def _group_columns(groups: Groups, show: Show = "mean") -> list[Column]:
    return [
        Column(f"{len(names)}: {group}", {"measure": "zero-shot", "set": names}, show)
        for group, names in groups.items()
    ]


def _by_group(records: Sequence[Mapping[str, Any]], groups: Groups, lines: Lines) -> TableForm:
    rows = [Row((arm, READ[reading]), {"arm": arm, "read": reading}) for arm, reading in lines]
    columns = _group_columns(groups)
    columns += [Column(f"R@10 {pool}", {"measure": "retrieval", "set": pool}) for pool in records[0]["retrieval"]]
    recipe, seeds = records[0]["recipe"], len({record["seed"] for record in records})
    note = f"batch {recipe['batch_size']:,}, {recipe['steps']} steps an arm; mean over sets ± std of {seeds} seeds"
    title = "Zero-shot accuracy by names, and recall at 10 from text to image"
    return TableForm(title, ("training", "reading"), rows, columns, notes=(note,))


COMPARED = (
    *((f"{reading} reading over no prefixes", (PREFIX, reading), (PLAIN, "plain")) for reading in KINDS_READ),
    ("caption over label reading", (PREFIX, "caption"), (PREFIX, "label")),
    ("caption reading over captions alone", (PREFIX, "caption"), ("captions alone", "plain")),
    *(
        (f"transformer: {reading} reading over no prefixes", (ATTENDING_PREFIX, reading), (ATTENDING_PLAIN, "plain"))
        for reading in KINDS_READ
    ),
    ("transformer: caption over label reading", (ATTENDING_PREFIX, "caption"), (ATTENDING_PREFIX, "label")),
)
"""What prefixes add to the same batches without, and what one reading has over the other: each an arm and a reading."""


def _gains(found: Measurements, groups: Groups, lines: Lines) -> TableForm:
    rows, notes, tested = [], [], []
    every = tuple(name for names in groups.values() for name in names)
    for title, own, other in COMPARED:
        if not {own, other} <= set(lines):
            continue
        at, over = ({"arm": arm, "read": reading} for arm, reading in (own, other))
        rows.append(Row((title,), at, over=over))
        if len(every) > 1:
            gain = found.paired({**at, "measure": "zero-shot"}, over, every)
            told = f"{title}: up on {gain.up()} of {len(every)} sets, {gain.summary().signed()}"
            notes.append(f"{told}; {gain.tests()}")
            tested.append(gain)
    if len(tested) > 1:
        notes.append(corrected(tested))
    heads = ("difference, paired by seed",)
    return TableForm("What prefixes change", heads, rows, _group_columns(groups, "gain"), notes=tuple(notes))


def _by_set(names: Sequence[str], lines: Lines) -> TableForm:
    rows = [Row((name,), {"set": name}) for name in names]
    columns = [
        Column(f"{arm}: {reading}" if READ[reading] else arm, {"arm": arm, "read": reading, "measure": "zero-shot"})
        for arm, reading in lines
    ]
    return TableForm("Zero-shot accuracy set by set", ("set",), rows, columns)
