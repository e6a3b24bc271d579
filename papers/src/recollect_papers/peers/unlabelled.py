"""Transductive classification of a whole folder of unlabelled pictures (TransCLIP, StatA).

Their figures are not comparable with those of classifiers that score pictures separately, so they are not few-shot
methods.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from recollect.classifiers.heads.base import softmax, unit_or_zero, unit_rows
from recollect.core.ordering import best_first
from recollect.evaluation.zero_shot import UnlabelledMethod

_NEIGHBOURS = 3
SUREST = 8
ROUNDS, STEPS = 10, 5
LIKELIHOOD_SCALE = 1 / 50
"""As published: neighbours in the graph, rows in a class's initial mean, rounds of means and variances, assignment
steps per round, and the factor of the log-likelihood (chosen for CLIP's 512 channels)."""


@dataclass(frozen=True)
class Assignment:
    """Class probabilities and Gaussians of a pool.

    Attributes:
        probabilities: (pool, classes).
        means: unit-norm (classes, width).
        variances: of each channel, shared (width,) or per class (classes, width).
    """

    probabilities: np.ndarray
    means: np.ndarray
    variances: np.ndarray

    @property
    def labels(self) -> np.ndarray:
        """The most probable class of each row (pool,)."""
        return self.probabilities.argmax(axis=1)


_Gaussians = tuple[np.ndarray, np.ndarray]
"""Means and variances."""


def trans_clip(pool: np.ndarray, texts: np.ndarray, *, scale: float = 100.0, rounds: int = ROUNDS) -> Assignment:
    """TransCLIP (Zanella et al., 2024): a Gaussian mixture with one variance, texts and neighbours as priors.

    ``z_i`` is proportional to ``y_i exp(l_i / 50 + sum_j (w_ij + w_ji) z_j / 6)`` with zero-shot probabilities
    y, log-likelihoods l and cosines w to the three nearest rows. It assumes that all classes occur; otherwise prefer
    `stat_a`.

    Args:
        pool: unlabelled unit rows (pool, width).
        texts: unit class texts (classes, width).
        scale: the model's inverse temperature.
    """
    pool, texts = _checked(pool, texts)
    first = softmax(scale * pool @ texts.T)

    def fitted(assigned: np.ndarray) -> _Gaussians:
        means = unit_or_zero(assigned.T @ pool)
        return means, np.maximum(_spread(pool, assigned, means).sum(axis=0) / assigned.sum(), 1e-8)

    start = _surest_means(pool, first), np.full(pool.shape[1], 1 / pool.shape[1])
    return _mixture(pool, first, start, fitted, rounds)


def stat_a(
    pool: np.ndarray, texts: np.ndarray, *, scale: float = 100.0, alpha: float = 1.0, rounds: int = ROUNDS
) -> Assignment:
    """StatA (Zanella et al., 2025): TransCLIP with classes anchored to their texts.

    The fewer rows a class has, the stronger the anchor. With ``beta_c = n_c / (n_c + alpha)`` for the n_c rows assigned
    to c, ``mu_c = norm(beta mean_c + (1 - beta) t_c)`` and ``s_c = beta S_c + (1 - beta)(S_0 + (t_c - mu_c)^2)``, where
    S_0 is the variance of the pool around the texts.

    Args:
        pool, texts, scale: see `trans_clip`.
        alpha: weight of the anchor in rows; infinity keeps the texts as means.
    """
    pool, texts = _checked(pool, texts)
    first = softmax(scale * pool @ texts.T)
    ground = np.maximum(_spread(pool, first, texts).sum(axis=0) / len(pool), 1e-8)

    def fitted(assigned: np.ndarray) -> _Gaussians:
        counts = np.bincount(assigned.argmax(axis=1), minlength=len(texts))
        beta = (counts / (counts + alpha))[:, None]
        sums = np.maximum(assigned.sum(axis=0)[:, None], 1e-12)
        means = unit_or_zero(beta * (assigned.T @ pool) / sums + (1 - beta) * texts)
        own = _spread(pool, assigned, means) / sums
        return means, np.maximum(beta * own + (1 - beta) * (ground + (texts - means) ** 2), 1e-8)

    return _mixture(pool, first, (texts, np.broadcast_to(ground, texts.shape)), fitted, rounds)


def _named(method: Callable[..., Assignment]) -> UnlabelledMethod:
    return lambda images, texts, scale: method(images, texts, scale=scale).probabilities


UNLABELLED_METHODS: Mapping[str, UnlabelledMethod] = {"trans-clip": _named(trans_clip), "stat-a": _named(stat_a)}


def _checked(pool: np.ndarray, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if pool.ndim != 2 or texts.ndim != 2 or pool.shape[1] != texts.shape[1]:
        raise ValueError(f"pool has shape {pool.shape}, texts {texts.shape}: both need rows of one width")
    if len(pool) <= _NEIGHBOURS:
        raise ValueError(f"the pool needs more than {_NEIGHBOURS} rows, got {len(pool)}")
    if not (np.isfinite(pool).all() and np.isfinite(texts).all()):
        raise ValueError("pool or texts: embeddings hold NaN or infinity")
    return unit_rows(pool.astype(np.float64), "pool"), unit_rows(texts.astype(np.float64), "texts")


def _surest_means(pool: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Mean of each class's most probable rows, weighted by probability."""
    rows = best_first(first, axis=0)[:SUREST]
    weights = np.take_along_axis(first, rows, axis=0)
    return unit_or_zero(np.einsum("kc,kcd->cd", weights, pool[rows]))


def _graph(pool: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nearest other rows of each row and their cosines, clipped at 0: (pool, neighbours) each."""
    rows = torch.from_numpy(pool)
    places, cosines = np.empty((2, len(pool), _NEIGHBOURS))
    for start in range(0, len(pool), 512):
        near = rows[start : start + 512] @ rows.T
        own = torch.arange(len(near))
        near[own, start + own] = -torch.inf  # only the row itself: duplicates are neighbours
        values, found = near.topk(_NEIGHBOURS, dim=1)
        places[start : start + 512], cosines[start : start + 512] = found.numpy(), values.numpy()
    return places.astype(np.int64), np.maximum(cosines, 0)


def _mixture(
    pool: np.ndarray, first: np.ndarray, start: _Gaussians, fitted: Callable[[np.ndarray], _Gaussians], rounds: int
) -> Assignment:
    """Alternate between assignments at fixed Gaussians and Gaussians at fixed assignments."""
    (means, variances), assigned = start, first
    places, cosines = _graph(pool)
    for _ in range(rounds):
        fixed = np.log(np.maximum(first, 1e-30)) + LIKELIHOOD_SCALE * _log_likelihood(pool, means, variances)
        for _ in range(STEPS):
            pulled = (cosines[:, :, None] * assigned[places]).sum(axis=1)
            for neighbour in range(_NEIGHBOURS):  # the reverse edges
                np.add.at(pulled, places[:, neighbour], cosines[:, neighbour, None] * assigned)
            assigned = softmax(fixed + pulled / (2 * _NEIGHBOURS))
        means, variances = fitted(assigned)
    return Assignment(assigned, means, variances)


def _log_likelihood(pool: np.ndarray, means: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Log-likelihood of each row under each class's Gaussian, up to a constant: (pool, classes)."""
    sharp = np.broadcast_to(1 / variances, means.shape)
    squares = pool**2 @ sharp.T - 2 * pool @ (means * sharp).T + (means**2 * sharp).sum(axis=1)
    widths = np.log(sharp).sum(axis=1) if variances.ndim == 2 else 0.0
    return 0.5 * (widths - squares)


def _spread(rows: np.ndarray, weights: np.ndarray, means: np.ndarray) -> np.ndarray:
    """``sum_i w_ic (x_i - mu_c)^2`` of each class and channel: (classes, width)."""
    found = weights.T @ rows**2 - 2 * means * (weights.T @ rows) + weights.sum(axis=0)[:, None] * means**2
    return np.maximum(found, 0)
