"""Figures by address, one for each seed: what every table and figure of a study is a function of."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from recollect.evaluation.results import Summary, summarize

FigureAddress = Mapping[str, str | tuple[str, ...]]
"""What a figure is of, e.g. ``{"arm": "no mask", "measure": "16-shot"}``; of several values in one place, the mean."""


@dataclass(frozen=True)
class Paired:
    """Gains of one arm over another at several places (sets, mostly), one for each seed that both have."""

    gains: Mapping[str, Sequence[float]]

    def summary(self) -> Summary:
        """Mean over places, then mean and deviation over seeds."""
        return summarize(self._by_seed())

    def up(self) -> int:
        """Number of places whose mean gain over the seeds is positive."""
        return sum(mean > 0 for mean in self._by_place())

    def over_places_p(self) -> float:
        """Wilcoxon's signed-rank test over places, two-sided, on gains averaged over seeds."""
        return float(stats.wilcoxon(self._by_place()).pvalue)

    def over_seeds_p(self) -> float:
        """Student's test over seeds, two-sided, on gains averaged over places; NaN where no seed changes a gain."""
        means = self._by_seed()
        varies = len(means) > 1 and np.ptp(means) > 1e-9
        return float(stats.ttest_1samp(means, 0.0).pvalue) if varies else float("nan")

    def tests(self) -> str:
        """Both tests in words; that over seeds where there are several."""
        words = f"over sets, Wilcoxon p = {self.over_places_p():.2g}"
        return words if np.isnan(p := self.over_seeds_p()) else f"{words}; over seeds, t-test p = {p:.2g}"

    def _by_seed(self) -> np.ndarray:
        return np.mean(list(self.gains.values()), axis=0)

    def _by_place(self) -> list[float]:
        return [float(np.mean(gains)) for gains in self.gains.values()]


def corrected(gains: Sequence[Paired]) -> str:
    """How many of both tests of some gains hold once corrected for their number (Holm, 1979), in words."""
    found = [test for gain in gains for test in (gain.over_places_p(), gain.over_seeds_p())]
    p_values = holm([p for p in found if not np.isnan(p)])
    if not p_values:  # nothing differs anywhere
        return "no test of these says anything"
    below = sum(p < 0.05 for p in p_values)
    told = f"corrected for their number (Holm) {below} of these {len(p_values)} tests are below 0.05"
    return f"{told}; the smallest p is {min(p_values):.2g}, the largest {max(p_values):.2g}"


def holm(p_values: Sequence[float]) -> list[float]:
    """Each p-value corrected for the number of tests: the chance of any false finding among all (Holm, 1979)."""
    order = np.argsort(p_values)
    steps = np.maximum.accumulate(np.asarray(p_values)[order] * (len(p_values) - np.arange(len(p_values))))
    return np.minimum(1.0, steps)[np.argsort(order)].tolist()


class Measurements:
    """Figures by address, one for each seed.

    Attributes:
        context: what tables need besides figures (names of sets, notes), as JSON.
    """

    def __init__(self, context: Mapping[str, Any] | None = None) -> None:
        self.context = dict(context or {})
        self._figures: dict[frozenset[tuple[str, str]], dict[int, float]] = {}
        self._asked: set[frozenset[tuple[str, str]]] = set()

    def add(self, address: Mapping[str, str], seed: int, value: float) -> None:
        """Keep one figure; ValueError if there is another of that address and seed."""
        kept = self._figures.setdefault(frozenset(address.items()), {})
        if kept.setdefault(int(seed), float(value)) != float(value):
            raise ValueError(f"{dict(address)}, seed {seed}: measured twice, {kept[int(seed)]} and {value}")

    def add_all(self, figures: Iterable[tuple[Mapping[str, str], float]], seed: int, **more: str) -> None:
        """Keep figures with their addresses, with more in each address."""
        for address, value in figures:
            self.add({**address, **more}, seed, value)

    def take(self, other: "Measurements", **more: str) -> None:
        """Keep the figures of another, with more in their addresses."""
        for address, seed, value in other.rows():
            self.add({**address, **more}, seed, value)

    def names(self, key: str, **at: str) -> list[str]:
        """The values of ``key`` among the addresses that hold ``at``, in the order in which they were added."""
        addresses = map(dict, self._figures)
        return [*dict.fromkeys(each[key] for each in addresses if key in each and at.items() <= each.items())]

    def at(self, address: FigureAddress) -> dict[int, float]:
        """The figure of each seed, empty if not measured; with several values in a place of the address, their mean
        for seeds with all."""
        places = [[(key, each) for each in ([value] if isinstance(value, str) else value)]
                  for key, value in address.items()]  # fmt: skip
        addresses = [frozenset(each) for each in itertools.product(*places)]
        self._asked.update(addresses)
        found = [self._figures.get(each, {}) for each in addresses]
        seeds = sorted(set.intersection(*map(set, found))) if found else []
        return {seed: float(np.mean([each[seed] for each in found])) for seed in seeds}

    def rows(self) -> Iterator[tuple[dict[str, str], int, float]]:
        """Every figure: its address, its seed and its value."""
        self._asked.update(self._figures)
        for address, values in self._figures.items():
            yield from ((dict(address), seed, value) for seed, value in values.items())

    def summary(self, address: FigureAddress) -> Summary:
        """Mean ± std over seeds; ValueError if nothing of that address was measured."""
        values = self.at(address)
        if not values:
            raise ValueError(f"{dict(address)}: not measured")
        return summarize(values.values())

    def differences(self, address: FigureAddress, over: FigureAddress) -> dict[int, float]:
        """By seed, for the seeds that both have."""
        own, base = self.at(address), self.at(over)
        return {seed: own[seed] - base[seed] for seed in own if seed in base}

    def paired(self, address: FigureAddress, over: FigureAddress, places: Sequence[str], along: str = "set") -> Paired:
        """Gains of one address over another at every value of ``along`` in ``places``.

        Args:
            over: the part of the address in which what a gain is over differs.

        Raises:
            ValueError: they share no seed.
        """
        pairs = [({**address, along: place}, {**address, **over, along: place}) for place in places]
        found = [self.differences(own, other) for own, other in pairs]
        seeds = sorted(set.intersection(*map(set, found))) if found else []
        if not seeds:
            raise ValueError(f"{dict(address)} and {dict(over)} share no seed")
        return Paired({place: [each[seed] for seed in seeds] for place, each in zip(places, found, strict=True)})

    def as_json(self) -> dict[str, Any]:
        """The requested figures, as a report's file stores them; `from_json` reads it."""
        figures = [{**dict(sorted(address)), "seeds": {str(seed): value for seed, value in values.items()}}
                   for address, values in self._figures.items() if address in self._asked]  # fmt: skip
        return {"context": self.context, "figures": figures}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Measurements":
        """What `as_json` wrote."""
        made = cls(value["context"])
        for figure in value["figures"]:
            address = {key: part for key, part in figure.items() if key != "seeds"}
            for seed, number in figure["seeds"].items():
                made.add(address, int(seed), number)
        return made
