"""GDA and the static memory of DMN: a second score added to the class-text score."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from recollect.classifiers.heads.base import EmbeddingClassifier, KernelForm, class_means, softmax
from recollect.classifiers.heads.holdout import MAX_TUNING_ROWS, HoldOut
from recollect.classifiers.heads.mixing import ScorePair, best_weight
from recollect.core.ordering import stable_argsort
from recollect.core.types import TEXT_SCALE

_BLOCK = 1024

NO_SPREAD = 1e-12
"""Within-class variances below this are rounding errors, as with one distinct example per class. In single precision
unit rows leave about 1e-15, whose inverse would make the discriminant dominate the texts."""


class Mixture(EmbeddingClassifier):
    """Base class for ``base + weight extra``, with the exactly best weight on held-out examples.

    Subclasses define ``_learn_extra(support, labels)``, ``_components(queries)`` and, if there is a closed form,
    ``_held_out_pair(support, labels, plan)``; ``weight_name`` is the constructor argument of the weight.
    """

    weight_name = "alpha"
    weight_bounds = (0.0, np.inf)
    default_weight = 1.0

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        self._learn_extra(support, labels)
        weight = getattr(self, self.weight_name)
        plan = self._plan.first(MAX_TUNING_ROWS)
        if weight is None and len(plan.rows):
            base, extra = self._held_out_pair(support, labels, plan)
            weight = self._weigh(base, extra, plan.held_labels)
        setattr(self, self.weight_name + "_", self.default_weight if weight is None else weight)

    def _weigh(self, base: np.ndarray, extra: np.ndarray, labels: np.ndarray) -> float:
        return best_weight(base, extra, labels, self.weight_bounds)[0]

    def _chosen(self) -> dict[str, Any]:
        return {**self._other_choices(), self.weight_name: self._weight()}

    def _other_choices(self) -> dict[str, Any]:
        """Return chosen constructor arguments other than the weight."""
        return {}

    def _learn_extra(self, support: np.ndarray, labels: np.ndarray) -> None:
        raise NotImplementedError

    def _components(self, queries: np.ndarray) -> ScorePair:
        raise NotImplementedError

    def _held_out_pair(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> ScorePair:
        chosen = {**self._other_choices(), self.weight_name: 1.0}

        def score(learn: np.ndarray, choose: np.ndarray) -> ScorePair:
            return self._refitted(support[learn], labels[learn], chosen)._components(support[choose])

        base, extra = plan.scored(score, (2, len(self.classes_)), support.dtype)
        return base, extra

    def _held_out(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> np.ndarray:
        base, extra = self._held_out_pair(support, labels, plan)
        return base + np.asarray(self._weight(), base.dtype) * extra

    def _weight(self) -> float:
        return getattr(self, self.weight_name + "_")

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        base, extra = self._components(queries)
        return base + np.asarray(self._weight(), base.dtype) * extra


@dataclass(eq=False, repr=False)
class GaussianDiscriminant(Mixture):
    """Gaussian discriminant analysis added to the text scores (Wang et al., 2024, "hard-to-beat baseline").

    ``scale f·W + alpha (f·W_g + b)`` with ``W_g = mu S^-1``, ``b = log 1/C - 1/2 mu S^-1 mu`` and the shrunk precision
    ``S^-1 = d [(n - 1) Cov + tr(Cov) I]^-1`` of the pooled within-class covariance.

    Leaving one example out changes the scatter by rank one, so held-out scores need no new inverse.

    Args:
        text_features: class texts W, in the order of ``classes_``.
        alpha: weight of the discriminant; by default the exactly best one in 1e-4…1e2 on held-out examples.
        scale: factor of the text scores.
    """

    weight_bounds = (1e-4, 1e2)

    text_features: Any = None
    alpha: float | None = None
    scale: float = TEXT_SCALE

    def _learn_extra(self, support: np.ndarray, labels: np.ndarray) -> None:
        self.coef_, self.intercept_ = discriminant(support, labels, len(self.classes_))

    def _components(self, queries: np.ndarray) -> ScorePair:
        return self.scale * queries @ self.texts_.T, queries @ self.coef_.T + self.intercept_

    def _held_out_pair(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> ScorePair:
        if not plan.leave_one_out:
            return super()._held_out_pair(support, labels, plan)
        base = self.scale * self._text_similarity(support, labels, plan)
        return base, _discriminant_left_out(support, labels, plan).astype(support.dtype)

    def kernel_form(self) -> KernelForm:
        weight = self._weight()
        return KernelForm.of(self, self.scale * self.texts_ + weight * self.coef_, weight * self.intercept_)


def discriminant(support: np.ndarray, labels: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute ``W_g`` (classes, width) and ``b`` (classes,) of `GaussianDiscriminant`."""
    count, width = support.shape
    means = class_means(support, labels, classes).astype(np.float64)
    centered = support - means[labels]
    scatter = centered.T @ centered  # (n - 1) Cov
    trace = np.trace(scatter) / max(count - 1, 1)
    if trace < NO_SPREAD:  # no variance to measure: weight all directions equally
        trace = 1.0
    weights = width * np.linalg.solve(scatter + trace * np.eye(width), means.T).T
    bias = -np.log(classes) - 0.5 * np.einsum("cd,cd->c", means, weights)
    return weights.astype(support.dtype), bias.astype(support.dtype)


def _discriminant_left_out(support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> np.ndarray:
    """Compute leave-one-out scores ``x·W_g + b``: float64 (held, classes).

    In the scatter's eigenbasis the precision is diagonal for any ridge. Without an example x of class c, with
    ``delta = x - mu_c`` and ``g = n / (n - 1)``, the scatter is ``S - g delta delta'`` (Sherman and Morrison) and the
    mean ``(n mu_c - x) / (n - 1)``.
    """
    count, width = support.shape
    counts = np.bincount(labels)
    means = class_means(support, labels, len(counts)).astype(np.float64)
    centered = support - means[labels]
    values, vectors = np.linalg.eigh(centered.T @ centered)
    values, total = np.maximum(values, 0), float((centered**2).sum())
    rotated, turned = means @ vectors, support @ vectors
    found = np.empty((len(plan.rows), len(counts)))
    for start in range(0, len(plan.rows), _BLOCK):
        rows = plan.rows[start : start + _BLOCK]
        own, every = labels[rows], np.arange(len(rows))
        n, x = counts[own], turned[rows].astype(np.float64)
        delta, factor = x - rotated[own], n / (n - 1)
        trace = (total - factor * (delta**2).sum(axis=1)) / max(count - 2, 1)
        spread = 1 / (values[None, :] + np.where(trace < NO_SPREAD, 1.0, trace)[:, None])
        mine = (n[:, None] * rotated[own] - x) / (n - 1)[:, None]
        left = 1 / factor - (delta**2 * spread).sum(axis=1)
        left = np.where(left > 1e-12, left, 1e-12)
        across = (delta * x * spread).sum(axis=1)

        def quadratic(mean: np.ndarray, other: np.ndarray, spread: np.ndarray = spread) -> np.ndarray:
            return (other * spread) @ mean.T

        reach = quadratic(rotated, delta)  # only the mean of the example's own class changes
        reach[every, own] = (mine * delta * spread).sum(axis=1)
        linear = quadratic(rotated, x)
        linear[every, own] = (mine * x * spread).sum(axis=1)
        square = spread @ (rotated**2).T
        square[every, own] = (mine**2 * spread).sum(axis=1)
        linear += reach * (across / left)[:, None]
        square += reach**2 / left[:, None]
        found[start : start + _BLOCK] = width * (linear - 0.5 * square) - np.log(len(counts))
    return found


PUBLISHED_WEIGHTS = tuple(np.geomspace(1e-3, 1e3, 13).tolist())
"""Candidates of the preset ``published``; ties choose the first."""


@dataclass(eq=False, repr=False)
class DualMemory(Mixture):
    """The training-free static memory of DMN added to the text scores (Zhang et al., 2024).

    A class's memory contains its text and its examples. The query reads ``norm( sum exp(-beta (1 - f·m)) m )`` from it
    and is compared with the result: ``softmax(scale f·W) + alpha softmax(scale f·read)``. The published method also has
    a memory of earlier test images and chooses alpha on test labels; here queries are scored independently.

    Args:
        text_features: class texts W, in the order of ``classes_``.
        alpha: weight of the memory; by default the exactly best one on held-out examples.
        beta: sharpness of the read.
        scale: the model's inverse temperature, for both distributions.
        preset: ``published`` chooses among the public code's 13 values of alpha, 1e-3 to 1e3.
    """

    text_features: Any = None
    alpha: float | None = None
    beta: float = 5.5
    scale: float = TEXT_SCALE
    preset: Literal["default", "published"] = "default"

    def _learn_extra(self, support: np.ndarray, labels: np.ndarray) -> None:
        if self.preset not in ("default", "published"):
            raise ValueError(f"preset must be default or published, got {self.preset!r}")
        self.support_, self.labels_ = support, labels

    def _weigh(self, base: np.ndarray, extra: np.ndarray, labels: np.ndarray) -> float:
        if self.preset == "default":
            return super()._weigh(base, extra, labels)
        right = [((base + weight * extra).argmax(axis=1) == labels).mean() for weight in PUBLISHED_WEIGHTS]
        return PUBLISHED_WEIGHTS[int(np.argmax(right))]

    def _components(self, queries: np.ndarray) -> ScorePair:
        return softmax(self.scale * queries @ self.texts_.T), softmax(self.scale * self._read(queries))

    def _held_out_pair(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> ScorePair:
        if self.text_features is None:  # the memory contains class means of the examples
            return super()._held_out_pair(support, labels, plan)
        held = support[plan.rows]
        return softmax(self.scale * held @ self.texts_.T), softmax(self.scale * self._read(held, plan))

    def _read(self, queries: np.ndarray, plan: HoldOut | None = None) -> np.ndarray:
        """Return the similarity of each query to its readout of each class; ``plan`` masks held-out examples."""
        block = min(_BLOCK, max(1, 2**25 // len(self.labels_)))  # at most 128 MiB
        read = np.empty((len(queries), len(self.classes_)), dtype=queries.dtype)
        order = stable_argsort(self.labels_)
        examples = np.split(order, np.cumsum(np.bincount(self.labels_))[:-1])
        memories = [
            _as_short(np.concatenate([self.support_[mine], text[None]]))
            for mine, text in zip(examples, self.texts_, strict=True)
        ]
        for start in range(0, len(queries), block):
            rows = slice(start, start + block)
            similarity = queries[rows] @ self.support_.T
            weights = np.exp(self.beta * (similarity - 1))
            if plan is not None:
                weights[plan.absent(plan.rows[rows])] = 0
            of_text = queries[rows] @ self.texts_.T
            text_weights = np.exp(self.beta * (of_text - 1))
            for label, (mine, memory) in enumerate(zip(examples, memories, strict=True)):
                weighed, by_text = weights[:, mine], text_weights[:, label]
                length = np.linalg.norm(weighed @ memory[:-1] + by_text[:, None] * memory[-1], axis=1)
                along = (weighed * similarity[:, mine]).sum(axis=1) + by_text * of_text[:, label]
                read[rows, label] = along / np.maximum(length, 1e-12)
        return read

    def _logits(self, scores: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(scores, np.finfo(np.float32).tiny))


def _as_short(rows: np.ndarray) -> np.ndarray:
    """Express rows in a basis of their span if there are fewer than columns; norms of their sums do not change."""
    if len(rows) >= rows.shape[1]:
        return rows
    return np.asarray(np.linalg.qr(rows.T.astype(np.float64), mode="r")).T.astype(rows.dtype)
