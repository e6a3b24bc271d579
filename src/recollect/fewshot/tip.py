"""Tip-Adapter and its relatives without training: class texts plus a cache of examples."""

from typing import Any, Literal

import numpy as np
import torch

from recollect.fewshot.base import EmbeddingClassifier, softmax
from recollect.fewshot.tuning import Pair, best_weight, held_in_share, support_folds, tuned_weight

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

    def combine(self, text_similarity: np.ndarray, cache: np.ndarray) -> np.ndarray:
        """Scores from the queries' similarities to the texts and what the cache holds for each class."""
        return TIP_PRESETS[self.preset] * text_similarity + self.alpha_ * cache

    @property
    def confidence_scale(self) -> float:  # type: ignore[override]
        """The text scores enter the softmax at CLIP's scale of 100, whatever the preset."""
        return 100.0 / TIP_PRESETS[self.preset]


class CrossValidatedTipAdapter(TipAdapter):
    """Tip-Adapter with alpha and beta chosen by cross-validation on the support set (LIxP, section 3.1.2).

    Stratified three-fold (two-fold at two shots, ``alpha`` and ``beta`` as given at one). For each beta of a log grid
    from 1 to 50 the best alpha is found exactly; the smallest beta wins ties. A fold has fewer examples to sum over
    than the whole support has, so alpha is rescaled by that ratio.

    Attributes:
        alpha_, beta_: what was chosen.
    """

    def _choose(self, support: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        folds = list(support_folds(labels))
        if not folds:
            return self.alpha, self.beta
        held_out = np.concatenate([choose for _, choose in folds])
        texts = TIP_PRESETS[self.preset] * support[held_out] @ self.texts_.T
        caches = [cache_sums(support[choose], support[learn], labels[learn], BETA_GRID) for learn, choose in folds]
        best = (-1.0, self.alpha, self.beta)
        for beta, cache in zip(BETA_GRID, np.concatenate(caches, axis=1), strict=True):
            weight, accuracy = best_weight(texts, cache, labels[held_out])
            if accuracy > best[0]:
                best = (accuracy, weight * held_in_share(labels), float(beta))
        return best[1], best[2]


def cache_sums(
    queries: np.ndarray, support: np.ndarray, labels: np.ndarray, betas: np.ndarray, block: int = 64
) -> np.ndarray:
    """What Tip-Adapter's cache holds for each class, ``sum exp(-beta (1 - f·F))``, at every beta.

    Adding rows class by class is far cheaper than a product with one-hot labels, and a block of queries stays in the
    processor's cache while all betas read it.

    Args:
        queries: (queries, width).
        support, labels: (examples, width), (examples,); every class has examples.

    Returns:
        (betas, queries, classes).
    """
    classes, members = int(labels.max()) + 1, torch.from_numpy(labels)
    sums = torch.zeros(len(betas), len(queries), classes, dtype=torch.from_numpy(support[:0]).dtype)
    for start in range(0, len(queries), block):
        distance = torch.from_numpy(support @ queries[start : start + block].T) - 1
        kernel, held = torch.empty_like(distance), torch.empty(classes, distance.shape[1], dtype=distance.dtype)
        for place, beta in enumerate(betas.tolist()):
            torch.mul(distance, beta, out=kernel).exp_()
            held.zero_().index_add_(0, members, kernel)
            sums[place, start : start + block] = held.T
    return sums.numpy()


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
