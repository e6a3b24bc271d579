"""Learning from clicks: scores for all pictures from Yes or No on some.

Kernel ridge regression on y = ±1 with a text as prior, with closed-form scores and leave-one-out scores.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from scipy.linalg import eigh

from recollect.core.ordering import stable_argsort

_SHARPNESSES = (1.0, 3.0, 8.0)
_RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0)
_SHARPNESS, _RIDGE, _PRIOR = 2.0, 0.3, 0.3  # defaults with few clicks

WEAK_WEIGHT = 0.05
"""Weight of a random picture used as a weak No; few of these pictures are Yes."""

MIN_CLICKS_PER_CLASS = 4
"""Minimum number of Yes and of No for choosing settings."""

MAX_TUNING_CLICKS = 200
"""Maximum number of clicks for choosing settings; the time is cubic in their number."""

_MIN_DISTANCE = 1e-2  # a row closer to the pool's mean has no reliable direction from it


@dataclass(frozen=True)
class ClickSettings:
    """Settings of the kernel ridge.

    Attributes:
        sharpness: β of the kernel ``exp(−β (1 − cos))`` with cosines of rows centered at the pool's mean.
        ridge: λ.
        prior: s, the weight of the standardized text score.
    """

    sharpness: float = _SHARPNESS
    ridge: float = _RIDGE
    prior: float = _PRIOR


@dataclass(frozen=True)
class ClickFit:
    """Scores after some clicks.

    Attributes:
        scores: score of every row of the pool; larger is more probable.
        left_out: leave-one-out scores of clicked rows (clicks,).
        rows: clicked rows, in the order of ``left_out``.
        marks: +1 or −1 for each clicked row.
        order: position of each row in the sequence of clicks, from 0.
        weak: leave-one-out scores of the weak No.
    """

    scores: Float32[np.ndarray, " rows"]
    left_out: Float[np.ndarray, " clicks"]
    rows: Int64[np.ndarray, " clicks"]
    marks: Int64[np.ndarray, " clicks"]
    order: Int64[np.ndarray, " clicks"]
    settings: ClickSettings
    weak: Float[np.ndarray, " weak"]


@dataclass
class ClickModel:
    """Model that learns from Yes and No on a pool of embeddings.

    >>> pool = np.eye(4, dtype=np.float32)
    >>> fit = ClickModel(pool).fit({0: 1, 3: -1})
    >>> bool(fit.scores[0] > fit.scores[3])
    True

    Attributes:
        pool: unit-norm embeddings (rows, width).
        text: unit-norm embedding of the class name, if any.
        weak: number of random rows used as weak No.
    """

    pool: Float32[np.ndarray, "rows width"]
    text: Float32[np.ndarray, " width"] | None = None
    weak: int = 100
    seed: int = 0
    _positions: dict[int, int] = field(default_factory=dict, repr=False)
    _sharpness: float = field(default=0.0, repr=False)

    def __post_init__(self) -> None:
        generator = np.random.default_rng([self.seed, 0xC11C])
        count = min(self.weak, len(self.pool) // 2)
        self._weak = np.sort(generator.choice(len(self.pool), count, replace=False))
        self._kernel = torch.empty(0, len(self.pool), dtype=torch.float32)
        # All embeddings share a direction that separates no classes; centering improves results with the same clicks.
        self._mean = self.pool.mean(axis=0, dtype=np.float64)
        squares = 1 - 2 * (self.pool @ self._mean.astype(np.float32)) + np.float32(self._mean @ self._mean)
        self._distances = np.sqrt(np.maximum(squares, np.float32(_MIN_DISTANCE**2)))
        self.prior = np.zeros(len(self.pool), dtype=np.float32)
        if self.text is not None:
            cosines = self.pool @ self.text
            self.prior = ((cosines - cosines.mean()) / (cosines.std() or 1.0)).astype(np.float32)

    @property
    def held(self) -> int:
        """Bytes cached between clicks."""
        return self._kernel.numel() * self._kernel.element_size()

    def forget(self) -> None:
        """Free the cache; the next fit has the same result."""
        self._kernel, self._positions = torch.empty(0, len(self.pool), dtype=torch.float32), {}

    def fit(self, marks: Mapping[int, int]) -> ClickFit:
        """Score the pool, given some clicks.

        ``f(x) = s z(x) + k(x) A⁻¹ (y − s z)`` with ``A = K + λ diag(1/w)``: clicked rows have weight 1, weak ones
        `WEAK_WEIGHT`; z is the standardized text score. Leave-one-out scores are ``y_i − (A⁻¹ r)_i / (A⁻¹)_ii``.

        Args:
            marks: +1 or −1 for each clicked row, in the order of the clicks. Without any, the text alone scores.
        """
        clicks = np.array(list(marks), dtype=np.int64)
        order = stable_argsort(clicks)
        rows = clicks[order]
        clicked = np.array([marks[row] for row in rows.tolist()], dtype=np.int64)
        if not len(rows):
            return ClickFit(self.prior.copy(), np.empty(0), rows, clicked, order, ClickSettings(), np.empty(0))
        every, system = self._system(rows, clicked)
        settings = self._settings(rows, clicked, order)
        alpha, left_out = system.solve(settings)
        scores = self._score(every, alpha, settings)
        return ClickFit(scores, left_out[: len(rows)], rows, clicked, order, settings, left_out[len(rows) :])

    def _system(self, rows: np.ndarray, clicked: np.ndarray) -> tuple[np.ndarray, "_System"]:
        """Return clicked and weak rows, and their linear system."""
        weak = np.setdiff1d(self._weak, rows)
        every = np.concatenate([rows, weak])
        y = np.concatenate([clicked, -np.ones(len(weak))]).astype(np.float64)
        weights = np.concatenate([np.ones(len(rows)), np.full(len(weak), WEAK_WEIGHT)])
        centered, z = self.centered(every), self.prior[every].astype(np.float64)
        return every, _System(centered @ centered.T, y, z, weights, len(rows), self.text is not None)

    def centered(self, rows: Int64[np.ndarray, " some"]) -> Float[np.ndarray, "some width"]:
        """Return rows centered at the pool's mean, with length 1 unless they nearly equal it."""
        return (self.pool[rows] - self._mean) / self._distances[rows, None]

    def _settings(self, rows: np.ndarray, clicked: np.ndarray, order: np.ndarray) -> ClickSettings:
        """Choose settings by the first `MAX_TUNING_CLICKS` clicks; defaults below `MIN_CLICKS_PER_CLASS` Yes or No."""
        first = order < MAX_TUNING_CLICKS
        rows, clicked = rows[first], clicked[first]
        if min((clicked > 0).sum(), (clicked < 0).sum()) < MIN_CLICKS_PER_CLASS:
            return ClickSettings(prior=_PRIOR if self.text is not None else 0.0)
        return self._system(rows, clicked)[1].best()

    def _score(self, every: np.ndarray, alpha: np.ndarray, settings: ClickSettings) -> np.ndarray:
        positions = self._cache_rows(every, settings.sharpness)
        weights = torch.zeros(len(self._positions))  # faster than copying the needed rows
        weights[positions] = torch.from_numpy(alpha.astype(np.float32))
        scores = weights @ self._kernel[: len(self._positions)]
        return scores.numpy() + np.float32(settings.prior) * self.prior

    def _cache_rows(self, every: np.ndarray, sharpness: float) -> torch.Tensor:
        """Return the positions of these rows in the cached kernel (n, rows), adding missing rows."""
        if self._sharpness != sharpness:
            self._positions, self._sharpness = {}, sharpness
        new = [row for row in every.tolist() if row not in self._positions]
        need = len(self._positions) + len(new)
        if need > len(self._kernel):
            self._kernel = torch.cat(
                [self._kernel, self._kernel.new_empty(need + 64 - len(self._kernel), len(self.pool))]
            )
        if new:
            start = len(self._positions)
            pool = torch.from_numpy(self.pool)
            fresh = self._kernel[start : start + len(new)]
            centered = self.centered(np.array(new))
            shift = torch.from_numpy((centered @ self._mean).astype(np.float32))
            torch.addmm(shift[:, None], torch.from_numpy(centered.astype(np.float32)), pool.T, beta=-1, out=fresh)
            fresh.div_(torch.from_numpy(self._distances)).sub_(1).mul_(sharpness).exp_()
            self._positions |= {row: start + offset for offset, row in enumerate(new)}
        return torch.tensor([self._positions[row] for row in every.tolist()])


@dataclass(frozen=True)
class _System:
    """Linear system of clicked rows, followed by weak ones."""

    inner: np.ndarray
    y: np.ndarray
    z: np.ndarray
    weights: np.ndarray
    clicked: int
    has_text: bool

    def _kernel(self, sharpness: float) -> np.ndarray:
        return np.exp(sharpness * (self.inner - 1))

    def solve(self, settings: ClickSettings) -> tuple[np.ndarray, np.ndarray]:
        """Return dual weights and leave-one-out scores."""
        matrix = self._kernel(settings.sharpness) + np.diag(settings.ridge / self.weights)
        inverse = np.linalg.inv(matrix)
        alpha = inverse @ (self.y - settings.prior * self.z)
        left_out = self.y - alpha / np.diag(inverse)
        return alpha, left_out

    def best(self) -> ClickSettings:
        """Return the settings with the lowest leave-one-out squared error, balanced over Yes and No.

        One eigendecomposition per sharpness covers all ridges. Errors are linear in s, so the best s is exact.
        """
        root = np.sqrt(self.weights)
        marks = self.y[: self.clicked]
        share = np.where(marks > 0, 0.5 / (marks > 0).sum(), 0.5 / (marks < 0).sum())
        lowest, best = np.inf, ClickSettings()
        for sharpness in _SHARPNESSES:
            values, vectors = eigh(root[:, None] * self._kernel(sharpness) * root)
            for ridge in _RIDGES:
                scaled = vectors / (values + ridge)
                inverse_diagonal = (scaled * vectors).sum(1)[: self.clicked] * self.weights[: self.clicked]
                errors = [
                    (root * (scaled @ (vectors.T @ (root * side))))[: self.clicked] / inverse_diagonal
                    for side in (self.y, self.z)
                ]
                prior = 0.0
                if self.has_text:
                    prior = float(share @ (errors[0] * errors[1]) / max(share @ errors[1] ** 2, 1e-12))
                prior = min(max(prior, 0.0), 1.0)
                loss = float(share @ (errors[0] - prior * errors[1]) ** 2)
                if loss < lowest:
                    lowest, best = loss, ClickSettings(sharpness, ridge, prior)
        return best
