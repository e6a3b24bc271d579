"""The tables of ``lixp/real``: nothing but what the files of its runs say."""

from collections.abc import Mapping, Sequence

import numpy as np

from recollect.evaluation.results import Summary, summarise
from recollect.studies.lixp.real_effects import classes_most_changed, split_by_class, varied
from recollect.studies.lixp.real_gains import (
    GROUPS,
    PAIRS,
    Paired,
    Read,
    Record,
    by_group,
    few_shot,
    few_shot_on_the_span,
    paired,
)
from recollect.studies.lixp.sets import MOVED
from recollect.studies.study import StudyTable

SPAN = "+ projection onto the span of the texts"


def tables(records: Sequence[Record]) -> tuple[StudyTable, ...]:
    """Gains by group with their controls, gains by set, zero-shot and retrieval, where the energy lies, by class."""
    arms = list(dict.fromkeys(record["arm"] for record in sorted(records, key=_order) if not record.get("axis")))
    groups = by_group(records)
    found = [_gains(records, arms, groups), _by_set(records, groups), _names(records, arms, groups)]
    found += [_energy(records, arms, groups)]
    if len(arms) < len({record["arm"] for record in records}):
        found.append(varied(records))
    main = [record for record in records if record["arm"] in ("SigLIP", "SigLIxP") and record.get("classes")]
    if {record["arm"] for record in main} == {"SigLIP", "SigLIxP"}:
        found += [split_by_class(main), classes_most_changed(main)]
    return tuple(found)


def _order(record: Record) -> tuple[bool, bool, str]:
    return record["arm"].startswith("CL"), bool(record["against"]), record["arm"]


def _summary(records: Sequence[Record], arm: str, read: Read, names: Sequence[str]) -> Summary:
    own = [read(record) for record in records if record["arm"] == arm]
    return summarise(float(np.mean([cells[name] for name in names])) for cells in own)


def _seeds(records: Sequence[Record], arm: str) -> int:
    return sum(record["arm"] == arm for record in records)


def _gains(records: Sequence[Record], arms: Sequence[str], groups: Mapping[str, list[str]]) -> StudyTable:
    rows = []
    for arm in arms:
        against = next(record["against"] for record in records if record["arm"] == arm)
        try:
            gains = paired(records, arm, against) if against else None
        except ValueError:  # its baseline's file is not there yet
            continue
        cells = [
            gains.over(names).signed() if gains else str(_summary(records, arm, few_shot, names))
            for names in groups.values()
        ]
        rows.append((arm, against and f"gain over {against}", str(_seeds(records, arm)), *cells))
        if arm in PAIRS or arm in PAIRS.values():
            span = paired(records, arm, arm, few_shot_on_the_span, few_shot)
            kept = [span.over(names).signed() for names in groups.values()]
            rows.append((f"{arm} {SPAN}", f"gain over {arm}", str(_seeds(records, arm)), *kept))
    columns = ("arm", "figures", "seeds", *(f"{len(names)} {GROUPS[group]}" for group, names in groups.items()))
    recipes = {record["arm"]: record["recipe"] for record in records}
    first = next(iter(recipes.values()))
    return StudyTable(
        "Few-shot accuracy: mean of prototypes and softmax voting at 4 and 16 shots, five draws",
        columns,
        tuple(rows),
        (
            f"batch {first['batch_size']:,}, {first['steps']} steps; mean over sets ± std over training seeds; gains "
            "are paired by seed",
            *_tests(records, groups),
        ),
    )


def _tests(records: Sequence[Record], groups: Mapping[str, list[str]]) -> list[str]:
    tested = [name for group, names in groups.items() if group != "choosing" for name in names]
    notes = []
    for arm, against in PAIRS.items():
        try:
            gains = paired(records, arm, against)
        except ValueError:
            continue
        words = f"{arm} is above {against} on {gains.sets_up(tested)} of {len(tested)} test sets"
        words += f" (mean {gains.over(tested).signed()}); over sets, Wilcoxon p = {gains.over_sets_p(tested):.2g}"
        if gains.over(tested).count > 1:
            words += f"; over seeds, t-test p = {gains.over_seeds_p(tested):.2g}"
        notes.append(words)
        notes += _either_way(gains, groups)
        notes += _over_other_baselines(records, arm, against, groups)
        notes += _over_the_best(records, arm, against, tested, groups.get("choosing", []))
    return notes


def _either_way(gains: Paired, groups: Mapping[str, list[str]]) -> list[str]:
    """The same gains with the set whose group was settled late in the other group."""
    foreign, scenes = groups.get("foreign", []), groups.get("scenes", [])
    if MOVED not in scenes:
        return []
    told = f"{gains.over([*foreign, MOVED]).signed()} on {len(foreign) + 1} foreign sets"
    others = [name for name in scenes if name != MOVED]
    if others:
        told += f", {gains.over(others).signed()} on {len(others)} that captions speak of"
    return [f"with {MOVED} among the foreign sets: {told}"]


def _over_the_best(
    records: Sequence[Record], arm: str, against: str, tested: Sequence[str], choosing: Sequence[str]
) -> list[str]:
    """The gain over the baseline that the choosing sets would have picked among all that were tried."""
    tried = [against, *_other_baselines(records, against)]
    if len(tried) < 2 or not choosing:
        return []
    scores = {other: paired(records, other, against).over(choosing).mean for other in tried if other != against}
    best = max({against: 0.0, **scores}.items(), key=lambda item: item[1])[0]
    gain = paired(records, arm, best).over(tested)
    return [
        f"of {len(tried)} baselines the choosing sets pick '{best}'; {arm} over it on all test sets: {gain.signed()}"
    ]


def _over_other_baselines(
    records: Sequence[Record], arm: str, against: str, groups: Mapping[str, list[str]]
) -> list[str]:
    """The same gain over every other way of regularising the baseline, so that a weak one explains nothing."""
    notes = []
    for other in _other_baselines(records, against):
        gains = paired(records, arm, other)
        parts = (f"{gains.over(names).signed()} on {GROUPS[group]}" for group, names in groups.items())
        notes.append(f"{arm} over '{other}': {', '.join(parts)}")
    return notes


def _other_baselines(records: Sequence[Record], against: str) -> list[str]:
    """Arms without context that are compared with the baseline, and share seeds with what is compared with it too."""
    return sorted(
        {
            record["arm"]
            for record in records
            if record["against"] == against and record["recipe"]["objective"]["context"] is None
        }
    )


def _by_set(records: Sequence[Record], groups: Mapping[str, list[str]]) -> StudyTable:
    rows = []
    pairs = [
        (arm, against) for arm, against in PAIRS.items() if {arm, against} <= {record["arm"] for record in records}
    ]
    for group, names in groups.items():
        for name in names:
            cells = []
            for arm, against in pairs:
                cells.append(str(_summary(records, against, few_shot, [name])))
                cells.append(paired(records, arm, against).over([name]).signed())
                span = paired(records, against, against, few_shot_on_the_span, few_shot)
                cells.append(span.over([name]).signed())
            rows.append((name, GROUPS[group], *cells))
    columns = [column for arm, against in pairs for column in (against, f"gain of {arm}", "gain of the projection")]
    return StudyTable("Few-shot accuracy set by set", ("set", "", *columns), tuple(rows))


def _names(records: Sequence[Record], arms: Sequence[str], groups: Mapping[str, list[str]]) -> StudyTable:
    """Zero-shot accuracy by groups of sets, and retrieval."""

    def zero(record: Record) -> dict[str, float]:
        return {name: cells["top-1"] for name, cells in record["zero-shot"].items()}

    def found(record: Record) -> dict[str, float]:
        return dict(record["retrieval"])

    asked = {group: [name for name in names if name in zero(records[0])] for group, names in groups.items()}
    asked = {group: names for group, names in asked.items() if names}
    pools = list(found(records[0]))
    rows = []
    for arm in arms:
        cells = [str(_summary(records, arm, zero, names)) for names in asked.values()]
        cells += [str(_summary(records, arm, found, [pool])) for pool in pools]
        rows.append((arm, *cells))
    columns = [f"zero-shot, {GROUPS[group]}" for group in asked]
    return StudyTable(
        "Zero-shot accuracy, and recall at 10 from text to image",
        ("arm", *columns, *(f"R@10 {pool}" for pool in pools)),
        tuple(rows),
    )


def _energy(records: Sequence[Record], arms: Sequence[str], groups: Mapping[str, list[str]]) -> StudyTable:
    """Share of the image embeddings' energy outside the span of the training captions."""

    def outside(record: Record) -> dict[str, float]:
        return dict(record["outside"])

    rows = [(arm, *(str(_summary(records, arm, outside, names)) for names in groups.values())) for arm in arms]
    return StudyTable(
        "Energy of the image embeddings outside the span of the training captions, in percent",
        ("arm", *(GROUPS[group] for group in groups)),
        tuple(rows),
        ("the span holds 99 % of the captions' energy",),
    )
