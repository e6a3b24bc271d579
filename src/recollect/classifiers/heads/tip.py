"""Training-free Tip-Adapter: class texts plus a cache of examples."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from recollect.classifiers.heads.base import EmbeddingClassifier, KernelForm
from recollect.classifiers.heads.holdout import MAX_TUNING_ROWS, HoldOut
from recollect.classifiers.heads.kernel import gaussian
from recollect.classifiers.heads.mixing import best_weight_of_intervals, correct_interval
from recollect.core.threads import one_thread

TIP_PRESETS = {"paper": 1.0, "official": 100.0}
"""Factor of the text scores: 1 in LIxP, 100 in Tip-Adapter's code."""

BETA_GRID = np.geomspace(1.0, 50.0, 24)
"""Candidates of beta in cross-validation; the best alpha for each is exact."""

_HELD_BLOCK = 64  # rows whose products with all examples stay in the processor's cache


class ZeroShotClassifier(EmbeddingClassifier):
    """Nearest class text; the support set only defines the classes.

    Args:
        text_features: (classes, width), in the order of ``classes_``.
    """

    def __init__(self, text_features: Any = None) -> None:
        self.text_features = text_features

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        pass

    def _held_out(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> np.ndarray:
        return self._text_similarity(support, labels, plan)

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        return queries @ self.texts_.T

    def kernel_form(self) -> KernelForm:
        return KernelForm.of(self, self.texts_)


class TipAdapter(EmbeddingClassifier):
    """``s f·W + alpha exp(-beta (1 - f·F)) L`` (Zhang et al., 2022; LIxP, Eq. 4).

    Args:
        text_features: class texts W, in the order of ``classes_``.
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
        self.support_, self.labels_ = support, labels
        self.alpha_, self.beta_ = self._choose(support, labels)

    def _choose(self, support: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        return self.alpha, self.beta

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        near = torch.from_numpy(gaussian(self.support_, queries, self.beta_))
        return self._combined(queries @ self.texts_.T, class_sums(near, self.labels_, len(self.classes_)).T.numpy())

    def _held_out(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> np.ndarray:
        scores = self._text_similarity(support, labels, plan)
        for rows, (cache,) in held_out_blocks(support, labels, plan, np.array([self.beta_])):
            scores[rows] = self._combined(scores[rows], cache)
        return scores

    def _combined(self, texts: Any, cache: np.ndarray) -> np.ndarray:
        return TIP_PRESETS[self.preset] * texts + self.alpha_ * cache

    def kernel_form(self) -> KernelForm:
        values = self.alpha_ * np.eye(len(self.classes_))[self.labels_]
        weights = TIP_PRESETS[self.preset] * self.texts_
        return KernelForm.of(self, weights, kernel=(self.support_, self.beta_, values))


class CrossValidatedTipAdapter(TipAdapter):
    """Tip-Adapter with alpha and beta chosen by cross-validation on the support set (LIxP, section 3.1.2).

    The accuracy on held-out examples (`HoldOut`) decides; at one shot the given ``alpha`` and ``beta`` are used. For
    each beta of a log grid from 1 to 50 the best alpha is exact; ties go to the smallest beta. Sums over a class with
    held-out examples are scaled up to the whole class.
    """

    def _choose(self, support: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        plan = self._plan.first(MAX_TUNING_ROWS)
        if not len(plan.rows):
            return self.alpha, self.beta
        texts = TIP_PRESETS[self.preset] * self._text_similarity(support, labels, plan)
        sums = held_out_blocks(support, labels, plan, BETA_GRID)
        blocks = ((rows, texts[None, rows], caches) for rows, caches in sums)
        best = best_mixture(blocks, plan.held_labels, [(beta,) for beta in BETA_GRID.tolist()])
        return best.weight, best.parameters[0]


def class_sums(matrix: torch.Tensor, labels: np.ndarray, classes: int) -> torch.Tensor:
    """Sum the rows of ``matrix`` (examples, queries) per class: (classes, queries)."""
    sums = torch.zeros(classes, matrix.shape[1], dtype=matrix.dtype)
    return sums.index_add_(0, torch.from_numpy(labels), matrix)


def held_out_blocks(
    support: np.ndarray,
    labels: np.ndarray,
    plan: HoldOut,
    betas: np.ndarray,
    weights: np.ndarray | None = None,
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield Tip-Adapter's cache ``sum exp(-beta (1 - f·F))`` over each class for held-out rows, at every beta.

    Sums are scaled up to the whole class, so a weight chosen on them suits the whole support. Adding rows class by
    class is far cheaper than a product with one-hot labels, and a block of rows stays in the processor's cache.

    Args:
        support, labels: unit rows (examples, width), (examples,); every class has examples.
        weights: weights of the examples (examples,), or several sets of weights (sets, examples).

    Yields:
        Positions within ``plan.rows`` and their sums (betas x sets, rows, classes), beta by beta.
    """
    classes = int(labels.max()) + 1
    sets = [None] if weights is None else [torch.from_numpy(each)[:, None] for each in np.atleast_2d(weights)]
    for start in range(0, len(plan.rows), _HELD_BLOCK):
        rows = plan.rows[start : start + _HELD_BLOCK]
        with one_thread():
            distance = torch.from_numpy(support @ support[rows].T) - 1
            positions, absent = plan.absent(rows)
            distance[torch.from_numpy(absent), torch.from_numpy(positions)] = -torch.inf
            kernel, held = torch.empty_like(distance), []
            for beta in betas.tolist():
                torch.mul(distance, beta, out=kernel).exp_()
                held += [class_sums(kernel if each is None else kernel * each, labels, classes).T for each in sets]
        yield slice(start, start + _HELD_BLOCK), torch.stack(held).numpy() / plan.kept(rows).astype(support.dtype)


@dataclass(frozen=True)
class Choice:
    """Best mixture ``base + weight extra``: its accuracy, weight and parameters."""

    right: float
    weight: float
    parameters: tuple[float, ...]


def best_mixture(
    blocks: Iterable[tuple[slice | np.ndarray, np.ndarray, Iterable[np.ndarray]]],
    labels: np.ndarray,
    parameters: Sequence[tuple[float, ...]],
    bounds: tuple[float, float] = (0.0, np.inf),
) -> Choice:
    """Return the parameters and weight at which ``base + weight extra`` is most accurate; ties go to the first.

    Memory holds one interval per row and candidate, not all scores.

    Args:
        blocks: rows, their bases (candidates or 1, rows, classes), and the extra of each candidate in turn.
        labels: (rows,).
    """
    lower, upper = np.empty((2, len(parameters), len(labels)))
    for rows, bases, extras in blocks:
        for number, extra in enumerate(extras):
            base = bases[number % len(bases)]
            lower[number, rows], upper[number, rows] = correct_interval(base, extra, labels[rows])
    best = Choice(-1.0, 1.0, parameters[0])
    for low, high, values in zip(lower, upper, parameters, strict=True):
        weight, right = best_weight_of_intervals(low, high, bounds)
        if right > best.right:
            best = Choice(right, weight, values)
    return best
