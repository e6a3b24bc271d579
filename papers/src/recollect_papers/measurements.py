"""Measured values by address and seed: the input of every table and figure of a study."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from recollect.evaluation.results import Summary, summarize

FigureAddress = Mapping[str, str | tuple[str, ...]]
"""Identifies a value, e.g. ``{"arm": "no mask", "measure": "16-shot"}``; a tuple means the mean over its entries."""


@dataclass(frozen=True)
class Paired:
    """Gains of one arm over another by place (usually a data set), one per common seed."""

    gains: Mapping[str, Sequence[float]]

    def summary(self) -> Summary:
        """Return mean and standard deviation over seeds of the mean over places."""
        return summarize(self._by_seed())

    def up(self) -> int:
        """Return the number of places whose gain, averaged over seeds, is positive."""
        return sum(mean > 0 for mean in self._by_place())

    def over_places_p(self) -> float:
        """Return the two-sided p-value of Wilcoxon's signed-rank test over places, on gains averaged over seeds."""
        return float(stats.wilcoxon(self._by_place()).pvalue)

    def over_seeds_p(self) -> float:
        """Return the two-sided p-value of a t-test over seeds, on gains averaged over places; NaN if all are equal."""
        means = self._by_seed()
        varies = len(means) > 1 and np.ptp(means) > 1e-9
        return float(stats.ttest_1samp(means, 0.0).pvalue) if varies else float("nan")

    def tests(self) -> str:
        """Describe both tests."""
        return f"over sets, Wilcoxon p = {self.over_places_p():.2g}{self.over_seeds()}"

    def over_seeds(self) -> str:
        """Describe the test over seeds, in words to append; "" if it does not apply."""
        return "" if np.isnan(p := self.over_seeds_p()) else f"; over seeds, t-test p = {p:.2g}"

    def _by_seed(self) -> np.ndarray:
        return np.mean(list(self.gains.values()), axis=0)

    def _by_place(self) -> list[float]:
        return [float(np.mean(gains)) for gains in self.gains.values()]


def corrected(gains: Sequence[Paired]) -> str:
    """Describe how many tests of some gains stay significant after Holm's correction (Holm, 1979)."""
    tests = [test for gain in gains for test in (gain.over_places_p(), gain.over_seeds_p())]
    p_values = holm([p for p in tests if not np.isnan(p)])
    if not p_values:
        return "no test applies: all gains are zero"
    below = sum(p < 0.05 for p in p_values)
    text = f"Holm-corrected, {below} of these {len(p_values)} tests are below 0.05"
    return f"{text}; smallest p {min(p_values):.2g}, largest {max(p_values):.2g}"


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for the number of tests, controlling the family-wise error rate (Holm, 1979)."""
    order = np.argsort(p_values)
    steps = np.maximum.accumulate(np.asarray(p_values)[order] * (len(p_values) - np.arange(len(p_values))))
    return np.minimum(1.0, steps)[np.argsort(order)].tolist()


class Measurements:
    """Measured values by address and seed.

    Attributes:
        context: other JSON data that tables need (names of sets, notes).
    """

    def __init__(self, context: Mapping[str, Any] | None = None) -> None:
        self.context = dict(context or {})
        self._figures: dict[frozenset[tuple[str, str]], dict[int, float]] = {}
        self._requested: set[frozenset[tuple[str, str]]] = set()

    def add(self, address: Mapping[str, str], seed: int, value: float) -> None:
        """Add one value; ValueError if the address and seed already have a different one."""
        values = self._figures.setdefault(frozenset(address.items()), {})
        if values.setdefault(int(seed), float(value)) != float(value):
            raise ValueError(f"{dict(address)}, seed {seed}: measured twice, {values[int(seed)]} and {value}")

    def add_all(self, figures: Iterable[tuple[Mapping[str, str], float]], seed: int, **more: str) -> None:
        """Add values of one seed, with ``more`` added to each address."""
        for address, value in figures:
            self.add({**address, **more}, seed, value)

    def take(self, other: "Measurements", **more: str) -> None:
        """Add all values of ``other``, with ``more`` added to each address."""
        for address, seed, value in other.rows():
            self.add({**address, **more}, seed, value)

    def names(self, key: str, **at: str) -> list[str]:
        """Return the distinct values of ``key`` in addresses that contain ``at``, in insertion order."""
        addresses = map(dict, self._figures)
        return [*dict.fromkeys(each[key] for each in addresses if key in each and at.items() <= each.items())]

    def at(self, address: FigureAddress) -> dict[int, float]:
        """Return the value of each seed, empty if not measured.

        Tuples in the address are averaged over; seeds that lack an entry are left out.
        """
        places = [[(key, each) for each in ([value] if isinstance(value, str) else value)]
                  for key, value in address.items()]  # fmt: skip
        addresses = [frozenset(each) for each in itertools.product(*places)]
        self._requested.update(addresses)
        found = [self._figures.get(each, {}) for each in addresses]
        seeds = sorted(set.intersection(*map(set, found))) if found else []
        return {seed: float(np.mean([each[seed] for each in found])) for seed in seeds}

    def rows(self) -> Iterator[tuple[dict[str, str], int, float]]:
        """Yield address, seed and value of every measurement."""
        self._requested.update(self._figures)
        for address, values in self._figures.items():
            yield from ((dict(address), seed, value) for seed, value in values.items())

    def summary(self, address: FigureAddress) -> Summary:
        """Return mean ± std over seeds; ValueError if the address was not measured."""
        values = self.at(address)
        if not values:
            raise ValueError(f"{dict(address)}: not measured")
        return summarize(values.values())

    def differences(self, address: FigureAddress, over: FigureAddress) -> dict[int, float]:
        """Return the difference of two addresses for each common seed."""
        own, base = self.at(address), self.at(over)
        return {seed: own[seed] - base[seed] for seed in own if seed in base}

    def paired(self, address: FigureAddress, over: FigureAddress, places: Sequence[str], along: str = "set") -> Paired:
        """Return the gains of one address over another at every value of ``along`` in ``places``.

        Args:
            over: address entries of the baseline that differ from ``address``.

        Raises:
            ValueError: no seed is common to all places.
        """
        pairs = [({**address, along: place}, {**address, **over, along: place}) for place in places]
        found = [self.differences(own, other) for own, other in pairs]
        seeds = sorted(set.intersection(*map(set, found))) if found else []
        if not seeds:
            raise ValueError(f"{dict(address)} and {dict(over)} share no seed")
        return Paired({place: [each[seed] for seed in seeds] for place, each in zip(places, found, strict=True)})

    def as_json(self) -> dict[str, Any]:
        """Return the values that tables requested, as JSON for a report; `from_json` reads it."""
        figures = [{**dict(sorted(address)), "seeds": {str(seed): value for seed, value in values.items()}}
                   for address, values in self._figures.items() if address in self._requested]  # fmt: skip
        return {"context": self.context, "figures": figures}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Measurements":
        """Load the output of `as_json`."""
        measurements = cls(value["context"])
        for figure in value["figures"]:
            address = {key: part for key, part in figure.items() if key != "seeds"}
            for seed, number in figure["seeds"].items():
                measurements.add(address, int(seed), number)
        return measurements
