"""Accuracy, calibration and conformal sets of the few-shot protocol, accumulated over blocks in any order."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from recollect.classifiers.heads.base import EmbeddingClassifier
from recollect.classifiers.heads.calibration import BINS
from recollect.classifiers.heads.trust import enough_to_tell
from recollect.core.types import Metric

SET_ALPHA = 0.1
"""Error rate of the conformal sets that are measured."""

TRUST_COLUMNS = ("loo", "ece", "coverage", "set_size")
"""Columns of a row that show how far its accuracy can be trusted."""

_UNIT = 2**30
"""Confidences are summed as integers of this resolution, so that sums do not depend on the order of threads."""

Key = tuple[str, int, int]
"""Method, shots and seed."""


@dataclass
class Score:
    """Hits of each class, calibration gaps and set sizes, summed over blocks as integers."""

    labels: np.ndarray
    classes: int
    metric: Metric
    right: dict[Key, np.ndarray] = field(default_factory=dict)
    gaps: dict[Key, np.ndarray] = field(default_factory=dict)
    sets: dict[Key, np.ndarray] = field(default_factory=dict)
    fits: dict[Key, tuple[float, int]] = field(default_factory=dict)
    lock: Any = field(default_factory=Lock)

    def add(self, key: Key, rows: slice, scores: np.ndarray, probabilities: np.ndarray) -> None:
        """Count hits and calibration gaps."""
        labels, best = self.labels[rows], scores.argmax(axis=1)
        right = best == labels
        hits = np.bincount(labels[right], minlength=self.classes)
        sure = probabilities[np.arange(len(best)), best].astype(np.float64)
        place = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
        gaps = np.zeros(BINS, dtype=np.int64)
        np.add.at(gaps, place, np.rint((sure - right) * _UNIT).astype(np.int64))
        with self.lock:
            self.right[key] = self.right.get(key, 0) + hits
            self.gaps[key] = self.gaps.get(key, 0) + gaps

    def add_fit(self, key: Key, estimator: EmbeddingClassifier) -> None:
        """Record the accuracy on held-out examples and their number."""
        self.fits[key] = estimator.loo_accuracy_, len(estimator.loo_rows_)

    def add_sets(self, key: Key, rows: slice, kept: np.ndarray) -> None:
        """Count covered queries and set sizes."""
        labels = self.labels[rows]
        own = kept[np.arange(len(labels)), labels]
        found = np.array([np.count_nonzero(own), np.count_nonzero(kept), len(labels)])
        with self.lock:
            self.sets[key] = self.sets.get(key, 0) + found

    def _trust(self, key: Key) -> dict[str, float]:
        found = {}
        accuracy, examples = self.fits.get(key, (np.nan, 0))
        enough = enough_to_tell(examples)
        if enough and np.isfinite(accuracy):
            found["loo"] = 100.0 * accuracy
        if key in self.gaps:
            found["ece"] = 100.0 * float(np.abs(self.gaps[key]).sum()) / _UNIT / len(self.labels)
        if enough and key in self.sets:
            held, size, count = self.sets[key].tolist()
            found |= {"coverage": 100.0 * held / count, "set_size": size / count}
        return found

    def rows(self, methods: Sequence[str]) -> list[dict[str, Any]]:
        """Result rows, ordered by method, shots and seed."""
        order = {name: place for place, name in enumerate(methods)}
        counts = np.bincount(self.labels, minlength=self.classes)
        there = counts > 0
        rows = []
        for (method, shots, seed), right in sorted(self.right.items(), key=lambda item: (order[item[0][0]], item[0])):
            share = right.sum() / counts.sum() if self.metric == "top-1" else (right[there] / counts[there]).mean()
            rows.append({"method": method, "shots": shots, "seed": seed, "metric": self.metric})
            rows[-1] |= {"value": 100.0 * float(share), **self._trust((method, shots, seed))}
        return rows
