"""ProKeR: kernel ridge regression on the residuals of class texts (Bendou et al., 2025)."""

from typing import Any

import numpy as np
import scipy.linalg

from recollect.classifiers.heads.base import EmbeddingClassifier, KernelForm, as_numpy
from recollect.classifiers.heads.calibration import conformal_groups
from recollect.classifiers.heads.holdout import MAX_TUNING_ROWS, HoldOut, turns
from recollect.classifiers.heads.kernel import ROW_BLOCK, ExactRidge, Landmarks, RidgeTargets, ridge_path
from recollect.classifiers.heads.mixing import best_weight
from recollect.core.ordering import stable_argsort

BANDWIDTHS = tuple(np.geomspace(0.5, 20.0, 8).tolist())
RIDGES = tuple(np.geomspace(1e-3, 10.0, 10).tolist())
TEXT_WEIGHTS = (0.0, 100.0)
"""Candidates of bandwidth and ridge, and the interval of the text weight, whose optimum is exact."""

ONE_SHOT_BANDWIDTH, ONE_SHOT_RIDGE = 1.0, 0.3
"""Settings at one shot: the best of nine pairs on three data sets; all were within 1.5 points."""

CHOICE_ROWS, CHOICE_LANDMARKS = 1200, 1024
"""Above this many examples, settings are chosen through this many landmarks; the solution stays exact."""

EXACT_ROWS, LANDMARKS = 4000, 2048
"""Above this many examples, the solution uses this many landmarks too, since the exact one costs O(N^3)."""


class ProKeR(EmbeddingClassifier):
    """``s z + k(x) A^-1 (Y - s Z)``, ``A = K + ridge I``, ``k = exp(-bandwidth (1 - cos))``.

    The examples correct a prior, the text similarities z weighted by s. Bandwidth, ridge and s are chosen by exact
    leave-one-out on the support set: highest accuracy, then lowest squared error, then largest ridge. At one shot
    bandwidth and ridge are fixed, and s follows from the agreement of texts and examples (`trusted_text_weight`).

    Held-out scores follow from one inverse. Conformal sets are exact (full conformal prediction) at the chosen
    bandwidth, ridge and s.

    Args:
        text_features: class texts W, in the order of ``classes_``; without them z = 0.
        bandwidth, ridge, text_weight: kernel width, ridge and s; chosen by default.

    Attributes:
        coef_: float64 (examples, classes), ``A^-1 (Y - s Z)``; (landmarks, classes) with landmarks.
    """

    def __init__(
        self,
        text_features: Any = None,
        bandwidth: float | None = None,
        ridge: float | None = None,
        text_weight: float | None = None,
    ) -> None:
        self.text_features = text_features
        self.bandwidth = bandwidth
        self.ridge = ridge
        self.text_weight = text_weight

    def _texts(self, support: np.ndarray, labels: np.ndarray) -> np.ndarray:
        if self.text_features is None:
            return np.zeros((len(self.classes_), support.shape[1]), dtype=support.dtype)
        return super()._texts(support, labels)

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        self.support_, self.labels_ = support, labels
        self.bandwidth_, self.ridge_, self.text_weight_ = self._settings(self._plan)
        if self.text_features is None:
            self.text_weight_ = 0.0
        self._solve()

    def _settings(self, plan: HoldOut) -> tuple[float, float, float]:
        """Return bandwidth, ridge and text weight."""
        if len(plan.rows):
            return self._choose(plan)
        weight = self.text_weight
        if weight is None:
            weight = trusted_text_weight(self.support_ @ self.texts_.T, self.labels_)
        bandwidth = ONE_SHOT_BANDWIDTH if self.bandwidth is None else self.bandwidth
        return bandwidth, ONE_SHOT_RIDGE if self.ridge is None else self.ridge, weight

    def _chosen(self) -> dict[str, Any]:
        texts = {} if self.text_features is None else {"text_weight": self.text_weight_}
        return {"bandwidth": self.bandwidth_, "ridge": self.ridge_, **texts}

    def _estimate_temperature(self, support: np.ndarray, labels: np.ndarray) -> float:
        """Estimate the temperature as in other methods, but keep the residuals of the real examples."""
        models = [self._refitted(rows, labels) for rows in self._synthetic_supports(support)]
        for model in models:
            if model._ridge is not None:
                model.coef_ = model._ridge.inverse @ self._residual(np.arange(len(labels)))
        return self._fitted_temperature(models, support, labels)

    def _choose(self, plan: HoldOut) -> tuple[float, float, float]:
        bandwidths = BANDWIDTHS if self.bandwidth is None else (self.bandwidth,)
        ridges = np.array(RIDGES if self.ridge is None else (self.ridge,))
        if None not in (self.bandwidth, self.ridge) and (self.text_weight is not None or self.text_features is None):
            return self.bandwidth, self.ridge, self.text_weight or 0.0  # type: ignore[return-value]
        plan = plan.first(MAX_TUNING_ROWS)
        targets = RidgeTargets(self.support_, self.labels_, self.texts_)
        own, similarity = plan.held_labels, targets.similarity(plan.rows)
        best: tuple[tuple[float, ...], tuple[float, float, float]] | None = None
        for bandwidth in bandwidths:
            features = None
            if len(self.labels_) > CHOICE_ROWS:
                features = Landmarks(self._draw_landmarks(CHOICE_LANDMARKS), bandwidth)(self.support_)
            path = ridge_path(targets, plan, bandwidth, ridges, features)
            for ridge, (labels, texts) in zip(ridges.tolist(), path, strict=True):
                extra = np.subtract(similarity, texts, out=texts)
                weight, right = self._best_weight(labels, extra, own)
                if best is not None and right < best[0][0]:
                    continue
                extra *= np.asarray(weight, labels.dtype)
                extra += labels
                extra[np.arange(len(own)), own] -= 1
                squares = np.einsum("ij,ij->i", extra, extra)
                rank = right, -float(squares.mean()) / len(self.classes_), ridge
                if best is None or rank > best[0]:
                    best = rank, (bandwidth, ridge, weight)
        assert best is not None
        return best[1]

    def _best_weight(self, base: np.ndarray, extra: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        if self.text_weight is None and self.text_features is not None:
            return best_weight(base, extra, labels, TEXT_WEIGHTS)
        weight = self.text_weight if self.text_weight is not None and self.text_features is not None else 0.0
        return weight, float(((base + weight * extra).argmax(axis=1) == labels).mean())

    def _draw_landmarks(self, count: int) -> np.ndarray:
        """Return landmarks: examples drawn evenly over the classes."""
        order = np.lexsort((self.labels_, turns(self.labels_)))
        return self.support_[np.sort(order[:count])]

    def _solve(self) -> None:
        self._ridge: ExactRidge | None
        self._landmarks: Landmarks | None
        if len(self.labels_) > EXACT_ROWS:
            self._ridge, self._landmarks = None, Landmarks(self._draw_landmarks(LANDMARKS), self.bandwidth_)
            gram, ones, similarity = self._landmarks.normal(RidgeTargets(self.support_, self.labels_, self.texts_))
            gram[np.diag_indices(len(gram))] += self.ridge_
            self._factor = scipy.linalg.cho_factor(gram, overwrite_a=True)
            self.coef_ = scipy.linalg.cho_solve(self._factor, ones - self.text_weight_ * similarity)
        else:
            self._landmarks, self._ridge = None, ExactRidge(self.support_, self.bandwidth_, self.ridge_)
            self.coef_ = self._ridge.inverse @ self._residual(np.arange(len(self.labels_)))

    def _residual(self, rows: np.ndarray) -> np.ndarray:
        """Return ``Y - s Z`` of the given examples."""
        targets = RidgeTargets(self.support_, self.labels_, self.texts_)
        return targets.one_hot(rows).astype(np.float64) - self.text_weight_ * targets.similarity(rows)

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        kernel = self._landmarks(queries) if self._landmarks else self._ridge.kernel(queries)  # type: ignore[union-attr]
        scores = kernel @ self.coef_.astype(queries.dtype)
        scores += self.text_weight_ * (queries @ self.texts_.T)
        return scores

    def kernel_form(self) -> KernelForm:
        if self._landmarks is not None:
            keys, values = self._landmarks.centers, self._landmarks.whiten @ self.coef_
        else:
            assert self._ridge is not None
            keys, values = self._ridge.support, self.coef_
        return KernelForm.of(self, self.text_weight_ * self.texts_, kernel=(keys, self.bandwidth_, values))

    def _held_out(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> np.ndarray:
        if self._ridge is not None:
            return self._held_out_scores(plan.rows, self._ridge.held_out_errors(self.coef_, plan)).astype(support.dtype)
        assert self._landmarks is not None
        scores = np.empty((len(plan.rows), len(self.classes_)), dtype=support.dtype)
        for start in range(0, len(scores), ROW_BLOCK):  # one by one, even at few shots
            rows = plan.rows[start : start + ROW_BLOCK]
            features = self._landmarks(support[rows])
            leverage = (features * scipy.linalg.cho_solve(self._factor, features.T.astype(np.float64)).T).sum(axis=1)
            errors = self._residual(rows) - features @ self.coef_
            errors /= np.maximum(1 - leverage, 1e-6)[:, None]
            scores[start : start + ROW_BLOCK] = self._held_out_scores(rows, errors)
        return scores

    def _held_out_scores(self, rows: np.ndarray, errors: np.ndarray) -> np.ndarray:
        """Return held-out scores from the held-out errors of the residuals (examples, classes)."""
        scores = self._residual(rows)
        scores -= errors
        scores += self.text_weight_ * (self.support_[rows] @ self.texts_.T)
        return scores

    def _possible(self, queries: np.ndarray, alpha: float) -> np.ndarray:
        return self._exact_p(queries) > alpha if self._exact(alpha) else super()._possible(queries, alpha)

    def _exact(self, alpha: float) -> bool:
        counts = np.bincount(self.labels_)
        return self._ridge is not None and len(np.unique(conformal_groups(counts, alpha))) == len(counts)

    def _exact_p(self, queries: np.ndarray) -> np.ndarray:
        """Return the p-value of each class (queries, classes) by full conformal prediction per class.

        A query is added to the support with each label in turn, and its leave-one-out error is compared with the errors
        of the class's examples. If the query is exchangeable with the examples of its class, that class is missing from
        the set with probability at most alpha, ignoring that settings were chosen on the same examples. Classes with
        fewer than ``1 / alpha - 1`` examples, and supports of more than 4,000, are calibrated as in other methods.
        """
        block = max(1, 2**24 // max(len(self.labels_), len(self.classes_)))
        parts = [self._full_conformal(queries[start : start + block]) for start in range(0, len(queries), block)]
        return np.concatenate(parts)

    def _full_conformal(self, queries: np.ndarray) -> np.ndarray:
        assert self._ridge is not None
        own, examples = self.labels_, np.arange(len(self.labels_))
        kernel = self._ridge.kernel(queries).astype(np.float64)
        reached = kernel @ self._ridge.inverse  # u of each query
        schur = 1 + self.ridge_ - (kernel * reached).sum(axis=1)  # k(x, x) = 1
        texts = self.text_weight_ * (queries @ self.texts_.T).astype(np.float64)
        errors = 1 - texts - kernel @ self.coef_  # error of the query as a member of each class
        target = errors / schur[:, None]
        solved = self.coef_[examples, own] - reached * target[:, own]
        inverse = np.diag(self._ridge.inverse) + reached**2 / schur[:, None]
        # A query that equals an example ties with it.
        worse = (solved / inverse >= errors[:, own] - 1e-9).astype(np.float64)
        order = stable_argsort(own)
        counts = np.bincount(own, minlength=len(self.classes_))
        sums = np.add.reduceat(worse[:, order], np.cumsum(counts) - counts, axis=1)
        return (1 + sums) / (counts + 1)

    def extend(self, X: Any, y: Any, text_features: Any = None) -> "ProKeR":
        """Add examples at the settings already chosen; `fit` would choose them again.

        Args:
            X: embeddings (examples, width).
            text_features: all class texts, needed if ``y`` has a new class and the classifier reads texts.

        Raises:
            ValueError: rows, labels or texts do not match the classifier, which is then unchanged.
        """
        rows, y = self._queries(X), np.asarray(as_numpy(y))
        if y.shape != (len(rows),):
            raise ValueError(f"{len(rows)} examples, but labels of shape {y.shape}")
        if (y.dtype.kind in "US") != (self.classes_.dtype.kind in "US"):
            raise ValueError(f"labels have dtype {y.dtype}, but the classifier has {self.classes_.dtype}")
        given = {} if text_features is None else {"text_features": text_features}
        grown = type(self)(**{**self.get_params(deep=False), **self._chosen(), **given})
        support = np.concatenate([self.support_, rows.astype(self.support_.dtype, copy=False)])
        grown.fit(support, np.concatenate([self.classes_[self.labels_], y]))
        self.__dict__.update({**vars(grown), **self.get_params(deep=False), **given})
        return self


def trusted_text_weight(similarity: np.ndarray, labels: np.ndarray) -> float:
    """Estimate the weight of class texts from their agreement with the examples, if no example can be held out.

    The weight is the slope of least squares of the one-hot labels on the text similarities, both centered per row,
    minus one standard error, and at least 0. The texts do not depend on the examples, so no example is used twice.

    Args:
        similarity: similarity of the examples to the class texts (examples, classes).
        labels: (examples,).
    """
    texts = (similarity - similarity.mean(axis=1, keepdims=True)).astype(np.float64)
    classes = texts.shape[1]
    wanted = np.eye(classes)[labels] - 1 / classes
    squares = float((texts**2).sum())
    if not squares:
        return 0.0
    slope = float((texts * wanted).sum()) / squares
    free = max(1, len(labels) * (classes - 1) - 1)
    error = float(np.sqrt(((wanted - slope * texts) ** 2).sum() / free / squares))
    return max(0.0, slope - error)
