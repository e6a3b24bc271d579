"""Intervals and tests of recalls whose queries are dependent, such as captions of the same picture.

Queries are resampled picture by picture (cluster bootstrap). Clusters with the same counts are interchangeable, so a
sample is one multinomial draw over the kinds of clusters.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64, Shaped

from recollect.core.seeding import numpy_generator

BOOTSTRAP_DRAWS = 4_000
CONFIDENCE_LEVEL = 0.95


@dataclass(frozen=True)
class ClusterGroups:
    """Clusters of queries, grouped by total and size.

    Attributes:
        total: sum over the cluster's queries.
        count: number of clusters with this total and size.
    """

    total: Float64[np.ndarray, " kinds"]
    size: Float64[np.ndarray, " kinds"]
    count: Int64[np.ndarray, " kinds"]

    @classmethod
    def of(cls, values: Shaped[np.ndarray, " queries"], clusters: Shaped[np.ndarray, " queries"]) -> "ClusterGroups":
        """Group clusters by the sum of their values and their size."""
        _, numbers = np.unique(clusters, return_inverse=True)
        size = np.bincount(numbers)
        total = np.bincount(numbers, weights=np.asarray(values, dtype=np.float64))
        kinds, count = np.unique(np.stack([total, size]), axis=1, return_counts=True)
        return cls(kinds[0], kinds[1], count)

    @property
    def clusters(self) -> int:
        """Number of clusters."""
        return int(self.count.sum())

    def interval(self, least: float) -> tuple[float, float]:
        """Return the percentile interval of the mean over queries under cluster resampling, between ``least`` and 1.

        If all clusters have the same mean, resampling has no variance, so the bound of `_unobserved_share` is used.
        """
        means = self.total / self.size
        if (means == means[0]).all():
            bound = _unobserved_share(self.clusters)
            return max(least, float(means[0]) - bound), min(1.0, float(means[0]) + bound)
        generator = numpy_generator("cluster bootstrap", self.clusters)
        drawn = generator.multinomial(self.clusters, self.count / self.clusters, BOOTSTRAP_DRAWS)
        low, high = np.quantile(
            drawn @ self.total / (drawn @ self.size), [(1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2]
        )
        return float(low), float(high)

    def sign_test(self) -> float:
        """Return the two-sided p-value of no difference, by random signs of the clusters' gains.

        The sum over c clusters of gain g is g · (2 · Binomial(c, ½) − c). The p-value is at least 1/(draws + 1), as in
        a permutation test.
        """
        ups = numpy_generator("sign flips", self.clusters).binomial(self.count, 0.5, (BOOTSTRAP_DRAWS, len(self.count)))
        sums = (2 * ups - self.count) @ self.total
        seen = abs(float(self.count @ self.total))
        return float((1 + (np.abs(sums) >= seen - 1e-9).sum()) / (1 + BOOTSTRAP_DRAWS))


def _unobserved_share(clusters: int) -> float:
    """Return the upper bound of the share of deviating clusters if none was observed (Clopper–Pearson)."""
    return 1 - float(((1 - CONFIDENCE_LEVEL) / 2) ** (1 / clusters))
