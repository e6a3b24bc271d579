"""APE: Tip-Adapter on the channels that tell classes apart (Zhu et al., 2023)."""

from typing import Any

import numpy as np

from recollect.fewshot.base import EmbeddingClassifier, softmax
from recollect.fewshot.tip import affinity, one_hot
from recollect.fewshot.tuning import Pair, tuned_weight


def channel_scores(texts: np.ndarray, similarity_weight: float = 0.7) -> np.ndarray:
    """How well each channel of the class texts tells classes apart; larger is better.

    ``-w S_k + (1 - w) V_k`` with the inter-class similarity ``S_k``, the mean of ``t_ik t_jk`` over pairs of different
    classes, and the variance ``V_k`` over classes. The sum over pairs is ``(sum t)^2 - sum t^2``: no pair is visited.

    Args:
        texts: (classes, width), at least two classes.

    Returns:
        (width,).
    """
    count = len(texts)
    pairs = texts.sum(axis=0) ** 2 - (texts**2).sum(axis=0)
    return -similarity_weight * pairs / (count * (count - 1)) + (1 - similarity_weight) * texts.var(axis=0, ddof=1)


def unit_or_zero(matrix: np.ndarray) -> np.ndarray:
    """Rows normalised; a row whose chosen channels are all zero stays zero."""
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    return matrix / np.where(norms > 0, norms, 1)


class ApeClassifier(EmbeddingClassifier):
    """``f·W + alpha exp(-beta (1 - f'·F')) diag(exp(gamma KL(F'W' | L))) L`` on selected channels (APE, Eq. 7–9).

    The divergence of an example's zero-shot distribution from its label, ``-log p_label``, raises the weight of
    examples that the texts get wrong.

    Args:
        text_features: class texts W, in the order of ``classes_``.
        alpha: weight of the cache; None chooses it by cross-validation, exactly.
        beta: sharpness of the cache.
        gamma: weight of the divergence.
        channels: share of the channels kept.
        scale: inverse temperature of the zero-shot distributions of the examples.

    Attributes:
        channels_: indices of the channels kept.
    """

    confidence_scale = 100.0

    def __init__(
        self,
        text_features: Any = None,
        alpha: float | None = None,
        beta: float = 5.5,
        gamma: float = 0.2,
        channels: float = 0.75,
        scale: float = 100.0,
    ) -> None:
        self.text_features = text_features
        self.alpha = alpha
        self.beta = beta
        self.gamma = gamma
        self.channels = channels
        self.scale = scale

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        self._select()
        self.support_, self.labels_ = support, labels
        self.alpha_ = tuned_weight(self.alpha, self._components, support, labels, sums=True)

    def _chosen(self) -> dict[str, Any]:
        return {"alpha": self.alpha_}

    def _select(self) -> None:
        if not 0 < self.channels <= 1:
            raise ValueError(f"channels is a share between 0 and 1, got {self.channels}")
        kept = max(1, round(self.channels * self.texts_.shape[1]))
        order = np.argsort(-channel_scores(self.texts_), kind="stable")
        self.channels_ = np.sort(order[:kept])

    def _cache(self, support: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Keys on the selected channels, and one-hot values weighted by the divergence."""
        keys = unit_or_zero(support[:, self.channels_])
        guess = softmax(self.scale * keys @ unit_or_zero(self.texts_[:, self.channels_]).T)
        at_label = np.maximum(guess[np.arange(len(labels)), labels], np.finfo(np.float32).tiny)
        values = one_hot(labels, len(self.classes_), support.dtype)
        return keys, values * np.exp(self.gamma * -np.log(at_label))[:, None]

    def _components(self, support: np.ndarray, labels: np.ndarray, queries: np.ndarray) -> Pair:
        keys, values = self._cache(support, labels)
        near = affinity(unit_or_zero(queries[:, self.channels_]) @ keys.T, self.beta)
        return queries @ self.texts_.T, near @ values

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        texts, cache = self._components(self.support_, self.labels_, queries)
        return texts + self.alpha_ * cache
