"""What the files of ``lixp/real`` are compared by: gains paired by seed, over groups of sets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from recollect.evaluation.results import Summary, summarise

Record = Mapping[str, Any]
Read = Callable[[Record], dict[str, float]]
"""From a run's record to one figure of each set."""

PAIRS = {"SigLIxP": "SigLIP", "CLIxP": "CLIP"}
"""Each model with context, and the one without."""

GROUPS = {"foreign": "foreign test sets", "scenes": "test sets that captions speak of", "choosing": "choosing sets"}


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


def by_group(records: Sequence[Record]) -> dict[str, list[str]]:
    """Names of the sets of each group, in the order of `GROUPS`."""
    groups: dict[str, list[str]] = {}
    for name, cells in records[0]["few-shot"].items():
        groups.setdefault(cells["group"], []).append(name)
    return {group: groups[group] for group in GROUPS if group in groups}
