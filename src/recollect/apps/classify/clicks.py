"""A class by clicks: yes and no on some pictures, a score for every other, and which to look at next.

Kernel ridge regression on y = ±1 with a text as prior. It is a closed form, so a
click is answered at once, and what it would have said of each clicked picture without that click is closed too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from scipy.linalg import eigh
from scipy.special import expit, logit

SHARPNESS = (1.0, 3.0, 8.0)
RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0)
_SHARPNESS, _RIDGE, _PRIOR = 2.0, 0.3, 0.3  # until there are clicks to choose by

WEAK_WEIGHT = 0.05
"""Weight of a random picture taken for a No: few of them are Yes, and each may be."""

_FEW = 4
_NEAREST_TO_MEAN = 1e-2  # of a row's distance from the pool's mean: below, its direction from there is rounding
_SHORTLIST = 2_000


@dataclass(frozen=True)
class ClickSettings:
    """What the kernel ridge uses.

    Attributes:
        sharpness: β of the kernel ``exp(−β (1 − cos))``; the cosine is that of differences from the pool's mean.
        ridge: λ.
        prior: s, the weight of the standardised text score.
    """

    sharpness: float = _SHARPNESS
    ridge: float = _RIDGE
    prior: float = _PRIOR


@dataclass(frozen=True)
class CutOff:
    """Where Yes ends, and what that is worth.

    All but ``probability`` and ``above`` are about some rows of the pool, and the clicks on these (`cut_off`).

    Attributes:
        probability: of being Yes, for every row of the pool; 1 and 0 for clicked ones.
        above: which rows are Yes: at least as likely as not.
        found: how many these are.
        clicks: how many figures are told from.
        precision: share of Yes among clicked rows that, left out, lie above the cut; None without any.
        coverage: share of the clicked Yes that, left out, lie above the cut; None without any.
        expected: how many Yes there should be.
        reached: expected share of them that lies above the cut.
        stop: whether 95 % are found, as far as clicks can show it (`stop_rule`).
    """

    probability: Float[np.ndarray, " rows"]
    above: np.ndarray
    found: int
    clicks: int
    precision: float | None
    coverage: float | None
    expected: float
    reached: float
    stop: bool


@dataclass(frozen=True)
class ClickFit:
    """An answer to the clicks so far.

    Attributes:
        scores: of every row of the pool; larger is likelier.
        left_out: what would have been said of each clicked row without its click (clicks,).
        rows: clicked rows, in the order of ``left_out``.
        marks: +1 or −1 for each.
        settings: what the kernel used.
    """

    scores: Float32[np.ndarray, " rows"]
    left_out: Float[np.ndarray, " clicks"]
    rows: Int64[np.ndarray, " clicks"]
    marks: Int64[np.ndarray, " clicks"]
    settings: ClickSettings
    weak: Float[np.ndarray, " weak"]


@dataclass
class ClickModel:
    """Yes and No over a pool of embeddings.

    >>> pool = np.eye(4, dtype=np.float32)
    >>> fit = ClickModel(pool).fit({0: 1, 3: -1})
    >>> bool(fit.scores[0] > fit.scores[3])
    True

    Attributes:
        pool: unit-norm embeddings (rows, width).
        text: unit-norm embedding of what the class is called; None without.
        weak: random rows taken for weak No.
        seed: of their choice.
    """

    pool: Float32[np.ndarray, "rows width"]
    text: Float32[np.ndarray, " width"] | None = None
    weak: int = 100
    seed: int = 0
    _known: dict[int, int] = field(default_factory=dict, repr=False)
    _sharpness: float = field(default=0.0, repr=False)
    _chosen: tuple[int, ClickSettings] = field(default=(0, ClickSettings()), repr=False)

    def __post_init__(self) -> None:
        generator = np.random.default_rng([self.seed, 0xC11C])
        count = min(self.weak, len(self.pool) // 2)
        self._weak = np.sort(generator.choice(len(self.pool), count, replace=False))
        self._kernel = torch.empty(0, len(self.pool))
        # All embeddings of a model share a direction that tells no class apart; without it the same clicks find more
        self._mean = self.pool.mean(axis=0, dtype=np.float64)
        squares = 1 - 2 * (self.pool @ self._mean.astype(np.float32)) + np.float32(self._mean @ self._mean)
        self._apart = np.sqrt(np.maximum(squares, np.float32(_NEAREST_TO_MEAN**2)))
        self.prior = np.zeros(len(self.pool), dtype=np.float32)
        if self.text is not None:
            cosines = self.pool @ self.text
            self.prior = ((cosines - cosines.mean()) / (cosines.std() or 1.0)).astype(np.float32)

    @property
    def held(self) -> int:
        """Bytes that are kept between clicks, so that the next one is answered sooner."""
        return self._kernel.numel() * self._kernel.element_size()

    def forget(self) -> None:
        """Give them back; the next fit computes them anew and says the same."""
        self._kernel, self._known = torch.empty(0, len(self.pool)), {}

    def fit(self, marks: Mapping[int, int]) -> ClickFit:
        """Score the pool.

        ``f(x) = s z(x) + k(x) A⁻¹ (y − s z)`` with ``A = K + λ diag(1/w)``: clicked rows have weight 1, weak ones
        `WEAK_WEIGHT`; z is the standardised text score. Left out: ``y_i − (A⁻¹ r)_i / (A⁻¹)_ii``.

        Args:
            marks: +1 or −1 for each clicked row; none gives the text's own order.
        """
        rows = np.array(sorted(marks), dtype=np.int64)
        clicked = np.array([marks[row] for row in rows.tolist()], dtype=np.int64)
        if not len(rows):
            return ClickFit(self.prior.copy(), np.empty(0), rows, clicked, ClickSettings(), np.empty(0))
        weak = np.array([row for row in self._weak.tolist() if row not in marks], dtype=np.int64)
        every = np.concatenate([rows, weak])
        y = np.concatenate([clicked, -np.ones(len(weak))]).astype(np.float64)
        weights = np.concatenate([np.ones(len(rows)), np.full(len(weak), WEAK_WEIGHT)])
        centred = self.centred(every)
        system = _System(
            centred @ centred.T, y, self.prior[every].astype(np.float64), weights, len(rows), self.text is not None
        )
        settings = self._settings(system, clicked)
        alpha, left_out = system.solve(settings)
        scores = self._scored(every, alpha, settings)
        return ClickFit(scores, left_out[: len(rows)], rows, clicked, settings, left_out[len(rows) :])

    def centred(self, rows: Int64[np.ndarray, " some"]) -> Float[np.ndarray, "some width"]:
        """Rows of the pool without its mean, of length 1 unless they are the mean but for rounding."""
        return (self.pool[rows] - self._mean) / self._apart[rows, None]

    def _settings(self, system: "_System", clicked: np.ndarray) -> ClickSettings:
        """Chosen anew when half as many clicks more are there; with few of a kind, as given."""
        if min((clicked > 0).sum(), (clicked < 0).sum()) < _FEW:
            return ClickSettings(prior=_PRIOR if self.text is not None else 0.0)
        when, settings = self._chosen
        if not when <= len(clicked) < 1.5 * when:
            settings = system.best()
            self._chosen = (len(clicked), settings)
        return settings

    def _scored(self, every: np.ndarray, alpha: np.ndarray, settings: ClickSettings) -> np.ndarray:
        kernel = self._kernel_rows(every, settings.sharpness)
        scores = torch.from_numpy(alpha.astype(np.float32)) @ kernel
        return scores.numpy() + np.float32(settings.prior) * self.prior

    def _kernel_rows(self, every: np.ndarray, sharpness: float) -> torch.Tensor:
        """The kernel of these rows with the pool (n, rows); what was computed for earlier clicks is kept."""
        if self._sharpness != sharpness:
            self._known, self._sharpness = {}, sharpness
        new = [row for row in every.tolist() if row not in self._known]
        need = len(self._known) + len(new)
        if need > len(self._kernel):
            self._kernel = torch.cat([self._kernel, torch.empty(need + 64 - len(self._kernel), len(self.pool))])
        if new:
            start = len(self._known)
            pool = torch.from_numpy(self.pool)
            fresh = self._kernel[start : start + len(new)]
            asked = self.centred(np.array(new))
            shift = torch.from_numpy((asked @ self._mean).astype(np.float32))
            torch.addmm(shift[:, None], torch.from_numpy(asked.astype(np.float32)), pool.T, beta=-1, out=fresh)
            fresh.div_(torch.from_numpy(self._apart)).sub_(1).mul_(sharpness).exp_()
            self._known |= {row: start + place for place, row in enumerate(new)}
        return self._kernel[torch.tensor([self._known[row] for row in every.tolist()])]


@dataclass(frozen=True)
class _System:
    """The linear system of clicked rows (first) and weak ones."""

    inner: np.ndarray
    y: np.ndarray
    z: np.ndarray
    weights: np.ndarray
    clicked: int
    has_text: bool

    def _kernel(self, sharpness: float) -> np.ndarray:
        return np.exp(sharpness * (self.inner - 1))

    def solve(self, settings: ClickSettings) -> tuple[np.ndarray, np.ndarray]:
        """Dual weights, and left-out scores of the clicked rows."""
        matrix = self._kernel(settings.sharpness) + np.diag(settings.ridge / self.weights)
        inverse = np.linalg.inv(matrix)
        alpha = inverse @ (self.y - settings.prior * self.z)
        left_out = self.y - alpha / np.diag(inverse)
        return alpha, left_out

    def best(self) -> ClickSettings:
        """Least left-out squared error of the clicked rows, Yes and No counting the same.

        One eigendecomposition a sharpness gives every ridge; for each, the left-out error is linear in s, so its best
        value in [0, 1] is exact.
        """
        root = np.sqrt(self.weights)
        own = self.y[: self.clicked]
        share = np.where(own > 0, 0.5 / (own > 0).sum(), 0.5 / (own < 0).sum())
        found = (np.inf, ClickSettings())
        for sharpness in SHARPNESS:
            values, vectors = eigh(root[:, None] * self._kernel(sharpness) * root)
            for ridge in RIDGES:
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
                if loss < found[0]:
                    found = (loss, ClickSettings(sharpness, ridge, prior))
        return found[1]


def platt(scores: np.ndarray, marks: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Slope and offset of ``p = σ(a f + b)`` by maximum likelihood with Platt's targets (Lin et al., 2007).

    Targets are ``(n₊ + 1)/(n₊ + 2)`` and ``1/(n₋ + 2)``, so that perfect separation gives no infinite slope. The slope
    is at least 0: a score that misleads tells nothing.
    """
    yes, no = float(weights[marks > 0].sum()), float(weights[marks < 0].sum())
    targets = np.where(marks > 0, (yes + 1) / (yes + 2), 1 / (no + 2))
    a, b = 0.0, float(logit((yes + 1) / (yes + no + 2)))

    def loss(a: float, b: float) -> float:
        z = a * scores + b
        return float((weights * (np.logaddexp(0, z) - targets * z)).sum())

    now = loss(a, b)
    for _ in range(50):
        p = expit(a * scores + b)
        slope = weights * (p - targets)
        curve = weights * p * (1 - p)
        mixed = (curve * scores).sum()
        hessian = np.array([[(curve * scores**2).sum(), mixed], [mixed, curve.sum()]]) + 1e-9 * np.eye(2)
        step = np.linalg.solve(hessian, [(slope * scores).sum(), slope.sum()])
        size = 1.0
        while size > 1e-6 and loss(a - size * step[0], b - size * step[1]) > now:
            size /= 2
        a, b = a - size * step[0], b - size * step[1]
        now = loss(a, b)
        if np.abs(size * step).max() < 1e-8:
            break
    if a < 0:
        return 0.0, float(logit((yes + 1) / (yes + no + 2)))
    return float(a), float(b)


def cut_off(fit: ClickFit, among: Int64[np.ndarray, " some"] | None = None) -> CutOff | None:
    """Probability of Yes for every row and where it passes a half; None until both kinds were clicked twice.

    Platt's sigmoid on left-out scores of clicks and, at their small weight, of the weak No. Which pictures are clicked
    is decided by their scores (the top, and what lies near the cut), and what is Yes given a score does not change by
    that, so no correction to the pool's share of Yes is made.

    Args:
        among: rows that its figures are about; every one by default. All clicks make the cut, whichever these are.
    """
    yes, no = int((fit.marks > 0).sum()), int((fit.marks < 0).sum())
    if min(yes, no) < 2:
        return None
    a, b = platt(
        np.concatenate([fit.left_out, fit.weak]),
        np.concatenate([fit.marks, -np.ones(len(fit.weak))]),
        np.concatenate([np.ones(len(fit.marks)), np.full(len(fit.weak), WEAK_WEIGHT)]),
    )
    probability = expit(a * fit.scores.astype(np.float64) + b)
    left = expit(a * fit.left_out + b) >= 0.5
    probability[fit.rows] = fit.marks > 0
    some = probability if among is None else probability[among]
    here = np.ones(len(fit.rows), dtype=bool) if among is None else np.isin(fit.rows, among)
    marks, left = fit.marks[here], left[here]
    yes, no = int((marks > 0).sum()), int((marks < 0).sum())
    expected = float(some.sum())
    reached = float(some[some >= 0.5].sum()) / expected if expected else 0.0
    precision = float((marks[left] > 0).mean()) if left.any() else None
    coverage = float(left[marks > 0].mean()) if yes else None
    stop = stop_rule(yes, no, precision, coverage, reached)
    found = int((some >= 0.5).sum())
    return CutOff(probability, probability >= 0.5, found, len(marks), precision, coverage, expected, reached, stop)


def stop_rule(
    yes: int, no: int, precision: float | None, coverage: float | None, reached: float, share: float = 0.95
) -> bool:
    """Whether ``share`` of the class is found, as far as clicks can show it.

    With fewer than ``1/(1 − share) − 1`` (19) clicks of a kind a miss of one in twenty cannot show. Beyond, both the
    left-out coverage of clicked Yes and the expected share above the cut must reach it, and as many Yes be right.
    """
    least = round(1 / (1 - share)) - 1
    enough = yes >= least and no >= least
    if not enough or precision is None or coverage is None:
        return False
    return bool(min(precision, coverage, reached) >= share)


def next_to_label(
    model: ClickModel, fit: ClickFit, count: int, seed: int = 0, among: Int64[np.ndarray, " some"] | None = None
) -> Int64[np.ndarray, " count"]:
    """Rows whose clicks would teach most: spread out at first, then uncertain and unlike each other.

    With fewer than four of a kind: half the best rows by score, half spread over the pool farthest first (k-centre, a
    2-approximation). Later: of the rows nearest to the cut, again farthest first, each distance weighted by the row's
    uncertainty ``p (1 − p)``; and a fifth of the likeliest ones that are not sure, since clicks must not come from the
    cut alone.

    Args:
        count: how many, or fewer where fewer rows are left.
        among: rows that may be asked about; every one by default.
    """
    marked = np.zeros(len(fit.scores), dtype=bool)
    marked[fit.rows] = True
    free = np.flatnonzero(~marked) if among is None else among[~marked[among]]
    count = min(count, len(free))
    if not count:
        return np.empty(0, dtype=np.int64)
    generator = np.random.default_rng([seed, len(fit.rows)])
    cut = cut_off(fit)
    few = min((fit.marks > 0).sum(), (fit.marks < 0).sum()) < _FEW
    if few or cut is None:
        top = free[np.argsort(-fit.scores[free], kind="stable")[: (count + 1) // 2]]
        others = np.setdiff1d(free, top)
        some = generator.choice(others, min(_SHORTLIST, len(others)), replace=False) if len(others) else others
        spread = _spread(model, some, np.concatenate([fit.rows, top]), np.ones(len(some)), count - len(top))
        return np.concatenate([top, spread]).astype(np.int64)
    p = cut.probability
    sure = max(1, count // 5)
    likely = free[np.argsort(-p[free], kind="stable")[:sure]]
    rest = np.setdiff1d(free, likely)
    near = rest[np.argsort(np.abs(p[rest] - 0.5), kind="stable")[: min(_SHORTLIST, max(10 * count, 50))]]
    spread = _spread(model, near, np.concatenate([fit.rows, likely]), p[near] * (1 - p[near]), count - sure)
    return np.concatenate([spread, likely]).astype(np.int64)


def _spread(
    model: ClickModel, some: np.ndarray, known: np.ndarray, weights: np.ndarray, count: int
) -> Int64[np.ndarray, " count"]:
    """`farthest_first` as the kernel sees distances."""
    vectors = model.centred(np.concatenate([some, known]).astype(np.int64)).astype(np.float32)
    places = np.arange(len(vectors))
    return some[farthest_first(vectors, places[: len(some)], places[len(some) :], weights, count)].astype(np.int64)


def farthest_first(
    pool: np.ndarray, some: np.ndarray, known: np.ndarray, weights: np.ndarray, count: int
) -> Int64[np.ndarray, " count"]:
    """Greedy k-centre (Gonzalez, 1985): each time the row of ``some`` farthest from all known, times its weight."""
    count = min(count, len(some))
    if not count:
        return np.empty(0, dtype=np.int64)
    rows = pool[some]
    distance = np.full(len(some), 2.0, dtype=np.float32)
    if len(known):
        distance = 1 - (rows @ pool[known].T).max(axis=1)
    chosen = []
    weights = np.maximum(weights, 1e-6)
    for _ in range(count):
        best = int(np.argmax(np.maximum(distance, 0) * weights + 1e-9 * weights))
        chosen.append(best)
        distance = np.minimum(distance, 1 - rows @ rows[best])
        weights[best] = -1.0
    return some[chosen].astype(np.int64)
