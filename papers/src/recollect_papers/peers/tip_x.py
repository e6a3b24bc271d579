"""TIP-X: Tip-Adapter plus a cache of zero-shot distributions (Udandarao et al., 2023)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import log_softmax

from recollect.classifiers.heads.base import EmbeddingClassifier
from recollect.classifiers.heads.holdout import MAX_TUNING_ROWS, HoldOut
from recollect.classifiers.heads.kernel import gaussian
from recollect.classifiers.heads.tip import best_mixture, class_sums, held_out_blocks

TIP_X_SCALE = 2.0
"""Inverse temperature of TIP-X's zero-shot distributions in the public code."""


@dataclass(eq=False, repr=False)
class TipX(EmbeddingClassifier):
    """Tip-Adapter plus a cache of similar zero-shot distributions (Udandarao et al., 2023, SuS-X).

    ``scale f·W + alpha exp(-beta (1 - f·F)) L - gamma psi(KL(P_f || P_F)) L`` with ``P = softmax(2 f·W)`` (temperature
    0.5 in the public code). The divergences are a matrix product, ``KL = -H(P_f) - P_f·log P_F``. psi maps them
    linearly onto the range of the cosines. Both ranges come from the support set (in the public code, from the test
    batch), so queries are scored independently.

    Args:
        text_features: class texts W, in the order of ``classes_``.
        alpha, beta, gamma: weight and sharpness of Tip-Adapter's cache, weight of the divergence cache; by default
            chosen on held-out examples in the public code's ranges (alpha 0.1-50, beta 1-50, gamma 0.1-30), alpha
            exactly.
        scale: the model's factor of the text scores.
    """

    text_features: Any = None
    alpha: float | None = None
    beta: float | None = None
    gamma: float | None = None
    scale: float = 100.0

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        self.support_, self.labels_ = support, labels
        self._logs = self._guesses(support)
        self._class_logs = class_sums(torch.from_numpy(self._logs), labels, len(self.classes_)).numpy()
        self._cosines, self._divergences = self._ranges(support)
        self.alpha_, self.beta_, self.gamma_ = self._choose(support, labels)

    def _guesses(self, rows: np.ndarray) -> np.ndarray:
        """Return the logarithms ``log P`` of zero-shot distributions: float64 (rows, classes)."""
        return log_softmax((TIP_X_SCALE * rows @ self.texts_.T).astype(np.float64), axis=1)

    def _ranges(self, support: np.ndarray, block: int = 128) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the ranges of cosines and divergences between examples, blockwise (all pairs of 32,000 take 12 GB)."""
        ends = np.tile([np.inf, -np.inf], (2, 1))
        for start in range(0, len(support), block):
            rows = support[start : start + block]
            own = np.arange(len(rows)), np.arange(start, start + len(rows))
            for number, matrix in enumerate((rows @ support.T, self._divergence(rows))):
                matrix[own] = matrix[own[0], own[1] - 1]  # replaces the pair of an example with itself
                ends[number] = min(ends[number, 0], matrix.min()), max(ends[number, 1], matrix.max())
        (nearest, farthest), (low, high) = ends.tolist()
        return (nearest, farthest), (low, high)

    def _choose(self, support: np.ndarray, labels: np.ndarray) -> tuple[float, float, float]:
        plan = self._plan.first(MAX_TUNING_ROWS)
        given = self.alpha, self.beta, self.gamma
        if not len(plan.rows) or None not in given:
            return tuple(1.0 if value is None else value for value in given)  # type: ignore[return-value]
        betas = np.geomspace(1.0, 50.0, 8) if self.beta is None else np.array([self.beta])
        gammas = np.geomspace(0.1, 30.0, 7) if self.gamma is None else np.array([self.gamma])
        bounds = (0.1, 50.0) if self.alpha is None else (self.alpha, float(np.nextafter(self.alpha, np.inf)))
        texts = self.scale * self._text_similarity(support, labels, plan)

        def blocks() -> Iterator[tuple[slice, np.ndarray, Iterable[np.ndarray]]]:
            for rows, caches in held_out_blocks(support, labels, plan, betas):
                far = self._held_out_likeness(support, labels, plan, rows)
                bases = np.stack([texts[rows] + gamma * far for gamma in gammas]).astype(support.dtype)
                yield rows, bases, (cache for cache in caches for _ in gammas)

        pairs = [(float(beta), float(gamma)) for beta in betas for gamma in gammas]
        best = best_mixture(blocks(), plan.held_labels, pairs, bounds)
        return best.weight if self.alpha is None else self.alpha, *best.parameters  # type: ignore[return-value]

    def _held_out_likeness(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut, rows: slice) -> np.ndarray:
        held = plan.rows[rows]
        if plan.leave_one_out:  # only the row itself is held out, whose divergence is 0
            sums = self._likeness_sums(support[held])
            sums[np.arange(len(held)), labels[held]] -= self._psi(0.0)
        else:
            likeness = self._psi(self._divergence(support[held])).astype(support.dtype)
            likeness[plan.absent(held)] = 0
            sums = class_sums(torch.from_numpy(likeness.T.copy()), labels, len(self.classes_)).T.numpy()
        return sums / plan.kept(held).astype(support.dtype)

    def _held_out(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> np.ndarray:
        if self.text_features is None:  # the class means depend on the held-out examples
            return super()._held_out(support, labels, plan)
        scores = self.scale * self._text_similarity(support, labels, plan)
        for rows, (cache,) in held_out_blocks(support, labels, plan, np.array([self.beta_])):
            far = self._held_out_likeness(support, labels, plan, rows)
            scores[rows] += self.alpha_ * cache + self.gamma_ * far
        return scores

    def _chosen(self) -> dict[str, Any]:
        return {"alpha": self.alpha_, "beta": self.beta_, "gamma": self.gamma_}

    def _likeness_sums(self, queries: np.ndarray) -> np.ndarray:
        """Return sums of ``-psi(KL)`` per class (queries, classes); KL is linear in ``log P_F``, and psi is linear."""
        counts = np.bincount(self.labels_)
        left = self._guesses(queries)
        weights = np.exp(left)
        divergence = (weights * left).sum(axis=1, keepdims=True) * counts - weights @ self._class_logs.T
        return self._psi(divergence, counts).astype(queries.dtype)

    def _psi(self, divergence: Any, count: Any = 1) -> Any:
        """Return ``-psi`` of a divergence, or of a sum of ``count`` divergences."""
        (low, high), (nearest, farthest) = self._divergences, self._cosines
        slope = (farthest - nearest) / ((high - low) or 1.0)
        return -(slope * (divergence - low * count) + nearest * count)

    def _divergence(self, queries: np.ndarray) -> np.ndarray:
        """Return ``KL(P_f || P_F)`` of queries and examples: float64 (queries, examples)."""
        left = self._guesses(queries)
        weights = np.exp(left)
        return (weights * left).sum(axis=1, keepdims=True) - weights @ self._logs.T

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        near = torch.from_numpy(gaussian(self.support_, queries, self.beta_))
        cache = class_sums(near, self.labels_, len(self.classes_)).T.numpy()
        likeness = self._likeness_sums(queries)
        return self.scale * queries @ self.texts_.T + self.alpha_ * cache + self.gamma_ * likeness
