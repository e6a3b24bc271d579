"""Intervals and tests of recalls whose queries are not independent: the captions of one picture stand or fall together.

Queries are resampled picture by picture (cluster bootstrap). Clusters with the same numbers are alike, so that a sample
is one multinomial draw over the kinds of clusters that there are, and nothing is drawn row by row. The kinds are all
that an interval or a test depends on, and short: results keep them as text beside the figures (`Kinds.as_text`).
"""

import re
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped

from recollect.core.seeding import numpy_generator

DRAWS = 4_000
LEVEL = 0.95


@dataclass(frozen=True)
class Kinds:
    """Clusters of queries, alike ones counted together.

    Attributes:
        total: sum over a cluster's queries.
        size: its queries.
        count: how many clusters have these two.
    """

    total: Float64[np.ndarray, " kinds"]
    size: Float64[np.ndarray, " kinds"]
    count: Int64[np.ndarray, " kinds"]

    @classmethod
    def of(cls, values: Shaped[np.ndarray, " queries"], clusters: Shaped[np.ndarray, " queries"]) -> "Kinds":
        """Sum the values of each cluster, and count equal ones."""
        _, numbers = np.unique(clusters, return_inverse=True)
        size = np.bincount(numbers)
        total = np.bincount(numbers, weights=np.asarray(values, dtype=np.float64))
        kinds, count = np.unique(np.stack([total, size]), axis=1, return_counts=True)
        return cls(kinds[0], kinds[1], count)

    @property
    def clusters(self) -> int:
        """How many there are."""
        return int(self.count.sum())

    def as_text(self) -> str:
        """How many clusters have which total and size, e.g. ``812 x 0/5, 60 x 1/5``."""
        parts = zip(self.count.tolist(), self.total.tolist(), self.size.tolist(), strict=True)
        return ", ".join(f"{count} x {total:.15g}/{size:g}" for count, total, size in parts)

    @classmethod
    def from_text(cls, text: str) -> "Kinds":
        """What `as_text` wrote."""
        found = [[float(number) for number in re.split(" x |/", part)] for part in text.split(", ")]
        count, total, size = np.array(found).T
        return cls(total, size, count.astype(np.int64))

    def mean(self) -> float:
        """Over queries."""
        return float(self.count @ self.total / (self.count @ self.size))

    def resampled(self, name: str = "") -> Float64[np.ndarray, " draws"]:
        """The mean over queries in `DRAWS` samples of as many clusters; other ones for another name."""
        generator = numpy_generator("cluster bootstrap", self.clusters, *([name] if name else []))
        drawn = generator.multinomial(self.clusters, self.count / self.clusters, DRAWS)
        return drawn @ self.total / (drawn @ self.size)

    def interval(self, least: float) -> tuple[float, float]:
        """Percentile interval of the mean over queries when clusters are resampled, within ``least`` and 1.

        Where all clusters have the same mean (0 of 125; one of the five captions of every picture), resampling says
        nothing: so many of them as could be otherwise unseen (`surprise`) are allowed to be.
        """
        means = self.total / self.size
        if (means == means[0]).all():
            bound = surprise(self.clusters)
            return max(least, float(means[0]) - bound), min(1.0, float(means[0]) + bound)
        return percentiles(self.resampled())

    def sign_test(self) -> float:
        """Two-sided p-value of no difference, of totals that are gains: each cluster's sign is drawn at random.

        The sum over c alike clusters of gain g is g · (2 · Binomial(c, ½) − c). Of at least 1/(draws + 1), as a
        permutation test has it.
        """
        ups = numpy_generator("sign flips", self.clusters).binomial(self.count, 0.5, (DRAWS, len(self.count)))
        sums = (2 * ups - self.count) @ self.total
        seen = abs(float(self.count @ self.total))
        return float((1 + (np.abs(sums) >= seen - 1e-9).sum()) / (1 + DRAWS))


def percentiles(draws: Float64[np.ndarray, " draws"]) -> tuple[float, float]:
    """Between which the share `LEVEL` of the draws lies."""
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def surprise(clusters: int) -> float:
    """The largest share of clusters that could be otherwise though none of those seen is (Clopper–Pearson)."""
    return 1 - float(((1 - LEVEL) / 2) ** (1 / clusters))


def gain_kinds(
    hit: Bool[np.ndarray, " queries"], before: Bool[np.ndarray, " queries"], clusters: Shaped[np.ndarray, " queries"]
) -> Kinds:
    """The clusters by what they gain: those of differences of the same queries, which are resampled together."""
    return Kinds.of(hit.astype(np.int64) - before.astype(np.int64), clusters)
