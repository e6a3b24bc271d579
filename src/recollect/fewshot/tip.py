"""Tip-Adapter and its relatives without training: class texts plus a cache of examples."""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch

from recollect.fewshot.base import EmbeddingClassifier, softmax
from recollect.fewshot.holdout import MOST_TUNING_ROWS, HoldOut
from recollect.fewshot.tuning import Pair, best_of_intervals, correct_interval, tuned_weight

TIP_PRESETS = {"paper": 1.0, "official": 100.0}
"""Factor of the text scores: 1 as LIxP prints it, 100 as Tip-Adapter's code has it."""

BETA_GRID = np.geomspace(1.0, 50.0, 24)
"""Sharpness values that cross-validation tries; the weight is exact for each."""


def one_hot(labels: np.ndarray, classes: int, dtype: Any) -> np.ndarray:
    """(n, classes) with a one at each row's label."""
    return np.eye(classes, dtype=dtype)[labels]


def affinity(similarity: np.ndarray, beta: float) -> np.ndarray:
    """``exp(-beta (1 - similarity))``, Tip-Adapter's kernel."""
    distance = similarity - 1
    distance *= beta
    return np.exp(distance, out=distance)


class ZeroShotClassifier(EmbeddingClassifier):
    """Nearest class text; the support set only names the classes.

    Args:
        text_features: (classes, width), in the order of ``classes_``.
    """

    confidence_scale = 100.0

    def __init__(self, text_features: Any = None) -> None:
        self.text_features = text_features

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        pass

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        return queries @ self.texts_.T


class TipAdapter(EmbeddingClassifier):
    """``s f·W + alpha exp(-beta (1 - f·F)) L`` (Zhang et al., 2022; LIxP, Eq. 4).

    Args:
        text_features: class texts W, in the order of ``classes_``.
        alpha: weight of the cache.
        beta: sharpness of the cache.
        preset: ``paper`` has s = 1, ``official`` s = 100.

    Raises:
        ValueError: in ``fit``: an unknown preset.
    """

    def __init__(
        self,
        text_features: Any = None,
        alpha: float = 1.0,
        beta: float = 5.5,
        preset: Literal["paper", "official"] = "paper",
    ) -> None:
        self.text_features = text_features
        self.alpha = alpha
        self.beta = beta
        self.preset = preset

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        if self.preset not in TIP_PRESETS:
            raise ValueError(f"preset must be one of {', '.join(TIP_PRESETS)}, got {self.preset!r}")
        self.support_ = support
        self.values_ = one_hot(labels, len(self.classes_), support.dtype)
        self.alpha_, self.beta_ = self._choose(support, labels)

    def _choose(self, support: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        return self.alpha, self.beta

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        cache = affinity(queries @ self.support_.T, self.beta_) @ self.values_
        return self.combine(queries @ self.texts_.T, cache)

    def _held_out(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> np.ndarray:
        (cache,) = held_out_sums(support, labels, plan, np.array([self.beta_]))
        return self.combine(self._text_similarity(support, labels, plan), cache)

    def combine(self, text_similarity: np.ndarray, cache: np.ndarray) -> np.ndarray:
        """Scores from the queries' similarities to the texts and what the cache holds for each class."""
        return TIP_PRESETS[self.preset] * text_similarity + self.alpha_ * cache

    @property
    def confidence_scale(self) -> float:  # type: ignore[override]
        """The text scores enter the softmax at CLIP's scale of 100, whatever the preset."""
        return 100.0 / TIP_PRESETS[self.preset]


class CrossValidatedTipAdapter(TipAdapter):
    """Tip-Adapter with alpha and beta chosen by cross-validation on the support set (LIxP, section 3.1.2).

    Each example is scored by the others (up to four shots without one example of each class; ``alpha`` and ``beta`` as
    given at one shot). For each beta of a log grid from 1 to 50 the best alpha is found exactly; the smallest beta wins
    ties. A class from which an example is absent sums over fewer, so its sum is scaled up to all.

    Attributes:
        alpha_, beta_: what was chosen.
    """

    def _choose(self, support: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        plan = HoldOut.of(labels).first(MOST_TUNING_ROWS)
        if not len(plan.rows):
            return self.alpha, self.beta
        texts = TIP_PRESETS[self.preset] * self._text_similarity(support, labels, plan)
        own, (lower, upper) = plan.held_labels, np.empty((2, len(BETA_GRID), len(plan.rows)))
        for rows, caches in held_out_blocks(support, labels, plan, BETA_GRID):
            for place, cache in enumerate(caches):
                lower[place, rows], upper[place, rows] = correct_interval(texts[rows], cache, own[rows])
        best = (-1.0, self.alpha, self.beta)
        for beta, low, high in zip(BETA_GRID.tolist(), lower, upper, strict=True):
            weight, accuracy = best_of_intervals(low, high)
            if accuracy > best[0]:
                best = (accuracy, weight, beta)
        return best[1], best[2]


def held_out_blocks(
    support: np.ndarray,
    labels: np.ndarray,
    plan: HoldOut,
    betas: np.ndarray,
    weights: np.ndarray | None = None,
    block: int = 64,
) -> Iterator[tuple[slice, np.ndarray]]:
    """What Tip-Adapter's cache holds for each class, ``sum exp(-beta (1 - f·F))``, at every beta, without the examples
    that are absent with a row; scaled to the whole class, so that a weight chosen on it fits the whole support.

    Adding rows class by class is far cheaper than a product with one-hot labels, and a block of queries stays in the
    processor's cache while all betas read it.

    Args:
        support, labels: unit rows (examples, width), (examples,); every class has examples.
        plan: which rows are asked for.
        weights: of the examples (examples,).
        block: rows at a time.

    Yields:
        Places within ``plan.rows``, and their sums (betas, rows, classes).
    """
    classes, members = int(labels.max()) + 1, torch.from_numpy(labels)
    factors = None if weights is None else torch.from_numpy(weights)[:, None]
    for start in range(0, len(plan.rows), block):
        rows = plan.rows[start : start + block]
        distance = torch.from_numpy(support @ support[rows].T) - 1
        places, absent = plan.absent(rows)
        distance[torch.from_numpy(absent), torch.from_numpy(places)] = -torch.inf
        kernel = torch.empty_like(distance)
        held = torch.empty(len(betas), classes, len(rows), dtype=distance.dtype)
        for place, beta in enumerate(betas.tolist()):
            torch.mul(distance, beta, out=kernel).exp_()
            if factors is not None:
                kernel.mul_(factors)
            held[place].zero_().index_add_(0, members, kernel)
        kept = plan.kept(rows).astype(support.dtype)
        yield slice(start, start + block), held.transpose(1, 2).numpy() / kept


def held_out_sums(
    support: np.ndarray, labels: np.ndarray, plan: HoldOut, betas: np.ndarray, weights: np.ndarray | None = None
) -> np.ndarray:
    """All blocks of `held_out_blocks` together: (betas, held, classes)."""
    return np.concatenate([sums for _, sums in held_out_blocks(support, labels, plan, betas, weights)], axis=1)


class TipX(EmbeddingClassifier):
    """Tip-Adapter plus a cache by how alike the zero-shot distributions are (Udandarao et al., 2023, SuS-X).

    ``f·W + alpha exp(-beta (1 - f·F)) L + gamma psi(-KL(P_f || P_F)) L`` with ``P = softmax(scale f·W)``. The
    divergences are one matrix product, ``KL = -H(P_f) - P_f·log P_F``. psi maps them linearly onto the range of
    Tip-Adapter's kernel; its ends are those of the support set, so that a query is scored by itself.

    Args:
        text_features: class texts W, in the order of ``classes_``.
        alpha, beta: of Tip-Adapter's cache.
        gamma: weight of the divergence cache; None chooses it by cross-validation, exactly.
        scale: inverse temperature of the zero-shot distributions.
    """

    confidence_scale = 100.0

    def __init__(
        self,
        text_features: Any = None,
        alpha: float = 1.0,
        beta: float = 5.5,
        gamma: float | None = None,
        scale: float = 100.0,
    ) -> None:
        self.text_features = text_features
        self.alpha = alpha
        self.beta = beta
        self.gamma = gamma
        self.scale = scale

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        self.support_, self.labels_ = support, labels
        self.gamma_ = tuned_weight(self.gamma, self._components, support, labels, sums=True)

    def _chosen(self) -> dict[str, Any]:
        return {"gamma": self.gamma_}

    def _components(self, support: np.ndarray, labels: np.ndarray, queries: np.ndarray) -> Pair:
        """Tip-Adapter's scores, and the divergence cache's."""
        values = one_hot(labels, len(self.classes_), support.dtype)
        own = affinity(support @ support.T, self.beta)
        between = self._divergence(support, support)
        near = affinity(queries @ support.T, self.beta)
        low, high = between.min(), between.max()
        span = (high - low) or 1.0
        # The nearest pair of distributions gets the kernel's largest value, the farthest its smallest.
        likeness = own.min() + (high - self._divergence(queries, support)) / span * (own.max() - own.min())
        return queries @ self.texts_.T + self.alpha * near @ values, likeness @ values

    def _divergence(self, queries: np.ndarray, support: np.ndarray) -> np.ndarray:
        left = softmax(self.scale * queries @ self.texts_.T)
        logits = self.scale * support @ self.texts_.T
        peak = logits.max(axis=1, keepdims=True)
        log_right = logits - peak - np.log(np.exp(logits - peak).sum(axis=1, keepdims=True))
        tiny = np.finfo(left.dtype).tiny
        return (left * np.log(np.maximum(left, tiny))).sum(axis=1, keepdims=True) - left @ log_right.T

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        tip, divergence = self._components(self.support_, self.labels_, queries)
        return tip + self.gamma_ * divergence
