"""What the files of ``lixp/real`` hold, one for each run: their figures by address, and what was run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recollect_papers.measurements import FigureAddress, Measurements

RunRecord = Mapping[str, Any]

PAIRS = {"SigLIxP": "SigLIP", "CLIxP": "CLIP"}
"""Each model with context, and the one without."""

GROUPS = {"foreign": "foreign test sets", "scenes": "test sets that captions speak of", "choosing": "choosing sets"}

FEW_SHOT, ON_THE_SPAN, RECALL = "few-shot", "few-shot on the span", "recall"
"""Measures: accuracy, a mean over classifiers and shots; that of embeddings projected onto the span of the texts; and
of each class its recall by prototypes of all examples."""

ENERGY = {
    "between_inside": "between classes, inside",
    "between_outside": "between classes, outside",
    "within_inside": "within classes, inside",
    "within_outside": "within classes, outside",
}
"""Parts of the embeddings' energy, by class and by the texts' span."""


@dataclass(frozen=True)
class RealRuns:
    """All runs.

    Attributes:
        found: their figures, by arm, measure and set; `RECALL` by class too.
        arms: one record of each arm, for what it is.
        groups: names of the sets of each group, in the order of `GROUPS`.
    """

    found: Measurements
    arms: Mapping[str, RunRecord]
    groups: Mapping[str, tuple[str, ...]]

    def seeds(self, arm: str) -> int:
        """How many runs the arm has."""
        return len(self.found.at(few_shot_accuracy(arm, self.groups)))

    def tested(self) -> tuple[str, ...]:
        """Every set that no choice was made on."""
        return tuple(name for group, names in self.groups.items() if group != "choosing" for name in names)

    def comparable(self, arm: str, against: str = "") -> bool:
        """Whether some seed of the arm can be compared with the same seed of its baseline, or of another arm."""
        own, other = (few_shot_accuracy(name, self.groups) for name in (arm, against or self.arms[arm]["against"]))
        return bool(self.found.differences(own, other))


def few_shot_accuracy(arm: str, groups: Mapping[str, Sequence[str]]) -> FigureAddress:
    """The address of an arm's mean over all sets."""
    return {"arm": arm, "measure": FEW_SHOT, "set": tuple(name for names in groups.values() for name in names)}


def runs_of(records: Sequence[RunRecord]) -> RealRuns:
    """What the files say."""
    found = Measurements()
    for record in records:
        for address, value in _figures(record):
            found.add({"arm": record["arm"], **address}, record["seed"], value)
    groups: dict[str, tuple[str, ...]] = {}
    for name, cells in records[0]["few-shot"].items():
        groups[cells["group"]] = (*groups.get(cells["group"], ()), name)
    arms = {record["arm"]: record for record in records}
    return RealRuns(found, arms, {group: groups[group] for group in GROUPS if group in groups})


def _figures(record: RunRecord) -> Iterator[tuple[dict[str, str], float]]:
    for measure in (FEW_SHOT, ON_THE_SPAN):
        for name, cells in record[measure].items():
            mean = float(np.mean([value for key, value in cells.items() if key != "group"]))
            yield {"measure": measure, "set": name}, mean
    for name, cells in record["zero-shot"].items():
        yield {"measure": "zero-shot", "set": name}, cells["top-1"]
    for measure in ("retrieval", "outside"):
        for name, value in record[measure].items():
            yield {"measure": measure, "set": name}, value
    for name, parts in record.get("energy", {}).items():
        for part in ENERGY:
            yield {"measure": part, "set": name}, parts[part]
    for name, classes in record.get("classes", {}).items():
        for each, value in classes.items():
            yield {"measure": RECALL, "set": name, "class": each}, value
