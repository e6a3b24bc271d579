"""The tables of ``lixp/real``: nothing but what the files of its runs say."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from recollect.evaluation.results import Summary, summarise
from recollect.studies.study import StudyTable

Record = Mapping[str, Any]
Read = Callable[[Record], dict[str, float]]
"""From a run's record to one figure of each set."""

SPAN = "+ projection onto the span of the texts"
PAIRS = {"SigLIxP": "SigLIP", "CLIxP": "CLIP"}
"""Each model with context, and the one without."""

_GROUPS = {"foreign": "foreign test sets", "scenes": "test sets that captions speak of", "choosing": "choosing sets"}


def few_shot(record: Record) -> dict[str, float]:
    """For each set the mean over classifiers and shots."""
    return _means(record["few-shot"])


def few_shot_on_the_span(record: Record) -> dict[str, float]:
    """The same of the image embeddings projected onto the span of the texts."""
    return _means(record["few-shot on the span"])


def _means(sets: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    return {
        name: float(np.mean([value for key, value in cells.items() if key != "group"])) for name, cells in sets.items()
    }


@dataclass(frozen=True)
class Paired:
    """The gain of one arm over another of the same seeds.

    Attributes:
        gains: of each set, one for each seed they share.
    """

    gains: Mapping[str, Sequence[float]]

    def over(self, names: Sequence[str]) -> Summary:
        """Mean over sets, then mean and deviation over seeds."""
        return summarise(np.mean([self.gains[name] for name in names], axis=0))

    def sets_up(self, names: Sequence[str]) -> int:
        """Sets whose mean gain over the seeds is positive."""
        return sum(float(np.mean(self.gains[name])) > 0 for name in names)

    def over_sets_p(self, names: Sequence[str]) -> float:
        """Wilcoxon's signed-rank test over sets, two-sided, on gains averaged over seeds."""
        return float(stats.wilcoxon([np.mean(self.gains[name]) for name in names]).pvalue)

    def over_seeds_p(self, names: Sequence[str]) -> float:
        """Student's test over seeds, two-sided, on gains averaged over sets; NaN for fewer than two seeds."""
        means = np.mean([self.gains[name] for name in names], axis=0)
        return float(stats.ttest_1samp(means, 0.0).pvalue) if len(means) > 1 else float("nan")


def paired(
    records: Sequence[Record], arm: str, against: str, read: Read = few_shot, base: Read | None = None
) -> Paired:
    """Gains of ``arm``, read by ``read``, over ``against``, read by ``base`` (as ``read`` if None), seed by seed.

    Raises:
        ValueError: they share no seed.
    """
    own, other = ({record["seed"]: record for record in records if record["arm"] == name} for name in (arm, against))
    seeds = sorted(own.keys() & other.keys())
    if not seeds:
        raise ValueError(f"{arm} and {against} share no seed")
    pairs = [(read(own[seed]), (base or read)(other[seed])) for seed in seeds]
    return Paired({name: [ours[name] - theirs[name] for ours, theirs in pairs] for name in pairs[0][0]})


def tables(records: Sequence[Record]) -> tuple[StudyTable, ...]:
    """Gains by group with their controls, gains by set, zero-shot and retrieval, where the energy lies."""
    arms = list(dict.fromkeys(record["arm"] for record in sorted(records, key=_order)))
    groups = _by_group(records)
    return (
        _gains(records, arms, groups),
        _by_set(records, groups),
        _names(records, arms, groups),
        _energy(records, arms, groups),
    )


def _order(record: Record) -> tuple[bool, bool, str]:
    return record["arm"].startswith("CL"), bool(record["against"]), record["arm"]


def _by_group(records: Sequence[Record]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, cells in records[0]["few-shot"].items():
        groups.setdefault(cells["group"], []).append(name)
    return {group: groups[group] for group in _GROUPS if group in groups}


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
        if not against or arm in PAIRS:
            span = paired(records, arm, arm, few_shot_on_the_span, few_shot)
            kept = [span.over(names).signed() for names in groups.values()]
            rows.append((f"{arm} {SPAN}", f"gain over {arm}", str(_seeds(records, arm)), *kept))
    columns = ("arm", "figures", "seeds", *(f"{len(names)} {_GROUPS[group]}" for group, names in groups.items()))
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
        notes += _over_other_baselines(records, arm, against, groups)
    return notes


def _over_other_baselines(
    records: Sequence[Record], arm: str, against: str, groups: Mapping[str, list[str]]
) -> list[str]:
    """The same gain over every other way of regularising the baseline, so that a weak one explains nothing."""
    others = {
        record["arm"]
        for record in records
        if record["against"] == against and record["recipe"]["objective"]["context"] is None
    }
    notes = []
    for other in sorted(others):
        gains = paired(records, arm, other)
        parts = (f"{gains.over(names).signed()} on {_GROUPS[group]}" for group, names in groups.items())
        notes.append(f"{arm} over '{other}': {', '.join(parts)}")
    return notes


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
            rows.append((name, _GROUPS[group], *cells))
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
    columns = [f"zero-shot, {_GROUPS[group]}" for group in asked]
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
        ("arm", *(_GROUPS[group] for group in groups)),
        tuple(rows),
        ("the span holds 99 % of the captions' energy",),
    )
