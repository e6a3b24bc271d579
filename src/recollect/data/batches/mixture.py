"""Mixing caption and label sources in one training run."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from recollect.core.options import Sampling
from recollect.core.types import NO_LABEL, Source
from recollect.core.validation import refuse


@dataclass(frozen=True)
class DataMix:
    """Training sources, and how batches are sampled from them (prefix conditioning, section 3.2).

    Attributes:
        sources: at least one, with distinct names.
        weights: weight of each source; by default its number of samples.
        sampling: "proportional" divides each batch by the weights; "equal" fills half of each batch with captions and
            half with labels; "debiased" takes each whole batch from one source, captions and labels equally often. In
            the last two, the weights apply among sources of the same kind.
        merge_classes: treat classes with the same name in several sources as one, so that a loss on labels (UniCL) does
            not push their images apart; by default classes are separate per source.
    """

    sources: tuple[Source, ...]
    weights: tuple[float, ...] | None = None
    sampling: Sampling = "proportional"
    merge_classes: bool = False

    def __post_init__(self) -> None:
        names = [source.name for source in self.sources]
        weights = self.weights or (1.0,) * len(names)
        valid = len(weights) == len(names) and all(0 < weight < float("inf") for weight in weights)
        refuse(
            (not names, "no data source was named"),
            (not valid, f"weights must be {len(names)} positive numbers, one per source; got {self.weights}"),
        )
        for source in self.sources:
            unnamed = source.kind == "label" and not source.class_names and not source.makes_batches
            refuse(
                (names.count(source.name) > 1, f"{source.name}: given twice. Give it once, with a weight."),
                (len(source) == 0, f"{source.name}: empty source"),
                (unnamed, f"{source.name}: classes have no names. Name their column with --class-name-column."),
            )

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """Expected fraction of samples from each source; sums to one."""
        weights = self.weights or tuple(float(len(source)) for source in self.sources)
        kinds = [source.kind for source in self.sources]
        pairs = list(zip(weights, kinds, strict=True))
        by_kind = {kind: sum(weight for weight, own in pairs if own == kind) for kind in kinds}
        if self.sampling == "proportional":
            return tuple(weight / sum(weights) for weight in weights)
        return tuple(weight / by_kind[kind] / len(by_kind) for weight, kind in pairs)

    @cached_property
    def _class_numbers(self) -> tuple[np.ndarray, ...]:
        """Class numbers of the run, by source and label."""
        known: dict[tuple[str, int | str], int] = {}
        tables = []
        for number, source in enumerate(self.sources):
            names = [name.strip().casefold() for name in source.class_names]
            keys: list[tuple[str, int | str]]
            if self.merge_classes and names:
                keys = [("class", name) for name in names]
            else:
                keys = [(str(number), label) for label in range(len(names) or _highest_label(source) + 1)]
            tables.append(np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64))
        return tuple(tables)

    def class_numbers(self, source: int, labels: np.ndarray) -> np.ndarray:
        """Map labels of one source to class numbers of the run; sources share only merged classes."""
        known = labels != NO_LABEL
        numbers = np.full(len(labels), NO_LABEL, dtype=np.int64)
        numbers[known] = self._class_numbers[source][labels[known]]
        return numbers


def _highest_label(source: Source) -> int:
    return NO_LABEL if source.kind == "caption" else int(source.labels.max())
