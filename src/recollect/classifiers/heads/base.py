"""Base class of all classifiers on embeddings: validation, normalization and scikit-learn's conventions."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from recollect.classifiers.heads.calibration import (
    SCORES_PER_BLOCK,
    expected_calibration_error,
    fit_temperature,
    set_thresholds,
)
from recollect.classifiers.heads.holdout import MAX_TUNING_ROWS, HoldOut
from recollect.core.ordering import stable_argsort

UNIT_TOLERANCE = 1e-2
"""Largest deviation from norm 1 that counts as rounding (half precision loses about 1e-3)."""


def unit_rows(matrix: np.ndarray, what: str) -> np.ndarray:
    """Normalize the rows of ``matrix``, with one warning if they were not unit-norm.

    Rows of norm 1 up to rounding are unchanged, so examples that are already normalized give the same classifier.

    Raises:
        ValueError: a row is zero and has no direction.
    """
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    if not norms.all():
        raise ValueError(f"{what}: row {int(np.argmin(norms))} is zero, so it has no direction to compare")
    if np.abs(norms - 1).max(initial=0) > UNIT_TOLERANCE:
        warnings.warn(f"{what} are not unit-norm; they are normalized first", UserWarning, stacklevel=4)
    return matrix / np.where(np.abs(norms - 1) <= 8 * np.finfo(norms.dtype).eps, norms.dtype.type(1), norms)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Compute a numerically stable row-wise softmax."""
    weights = logits - logits.max(axis=1, keepdims=True)
    np.exp(weights, out=weights)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def class_means(features: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Compute the mean of each class's rows (LIxP, Eq. 3), not normalized: (classes, width)."""
    order = stable_argsort(labels)
    counts = np.bincount(labels, minlength=classes)
    starts = np.cumsum(counts) - counts
    return np.add.reduceat(features[order], starts, axis=0) / counts[:, None]


@dataclass(frozen=True)
class KernelForm:
    """Scores ``x·W + b + exp(beta (x·F - 1)) V`` of unit rows x, up to a constant per row.

    Attributes:
        weights: W.
        bias: b.
        keys: rows F; empty for a linear classifier.
        sharpness: beta.
        values: V.
        temperature: probabilities are ``softmax(scores / temperature)``.
    """

    weights: Float[np.ndarray, "classes width"]
    bias: Float[np.ndarray, " classes"]
    keys: Float[np.ndarray, "keys width"]
    sharpness: float
    values: Float[np.ndarray, "keys classes"]
    temperature: float

    @classmethod
    def of(
        cls,
        estimator: Any,
        weights: np.ndarray,
        bias: np.ndarray | None = None,
        *,
        kernel: tuple[np.ndarray, float, np.ndarray] | None = None,
    ) -> "KernelForm":
        """Create the form of a fitted classifier, in single precision.

        Args:
            kernel: keys, sharpness and values.
        """
        classes, width = weights.shape
        keys, sharpness, values = kernel or (np.empty((0, width)), 0.0, np.empty((0, classes)))
        bias = np.zeros(classes) if bias is None else bias
        single = [np.asarray(each, dtype=np.float32) for each in (weights, bias, keys, values)]
        return cls(single[0], single[1], single[2], float(sharpness), single[3], float(estimator.temperature_))

    def scores(self, rows: Float[np.ndarray, "n width"]) -> Float[np.ndarray, "n classes"]:
        """Return the scores of unit rows."""
        return rows @ self.weights.T + self.bias + np.exp(self.sharpness * (rows @ self.keys.T - 1)) @ self.values


class EmbeddingClassifier(ClassifierMixin, BaseEstimator):
    """Base of the classifiers: a subclass defines ``_fit(support, labels)`` and ``_scores(queries)``.

    ``support`` and ``queries`` arrive validated and unit-norm, ``labels`` as indices into ``classes_``; ``_fit`` may
    choose settings on the hold-out plan ``self._plan``. Class texts are the constructor argument ``text_features``, one
    row for each entry of ``classes_``; by default the normalized class means are used instead. With ``reads_prompts``
    they may be all prompts of each class (classes, prompts, width).

    ``fit`` also scores the support examples while they are held out (`HoldOut`): by refitting on folds, or by the
    closed form ``_held_out(support, labels, plan)`` of a subclass. Methods choose settings on the same examples, so
    ``loo_accuracy_`` is too high (by up to eight points, results/few-shot/trust.json); report the accuracy of
    `held_out_check` instead.

    Attributes:
        classes_: sorted class labels.
        n_features_in_: width of the embeddings.
        texts_: unit-norm class texts (classes, width), if the method uses them.
        loo_rows_: rows of ``X`` that were held out (held,); empty if every class has a single example.
        loo_scores_: their scores while held out (held, classes).
        loo_accuracy_: accuracy on held-out examples (0 to 1), NaN without any.
        loo_ece_: expected calibration error on held-out examples, NaN without any.
        temperature_: minimizes their negative log-likelihood; without any, estimated on `synthetic_examples`.
    """

    reads_prompts = False

    def fit(self, X: Any, y: Any) -> "EmbeddingClassifier":
        """Learn from a support set.

        Args:
            X: unit-norm embeddings (examples, width), NumPy or torch; others are normalized with a warning.

        Raises:
            ValueError: NaN, a zero row, fewer than two classes, or class texts of the wrong shape.
        """
        X, y = validate_data(self, as_numpy(X), as_numpy(y), dtype=[np.float32, np.float64], ensure_min_samples=2)
        with warnings.catch_warnings():  # scikit-learn mistakes one shot per class for regression
            warnings.filterwarnings("ignore", message="The number of unique classes is greater than 50%")
            check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"a classifier needs examples of two classes, got one class: {self.classes_[0]!r}")
        return self._learn(unit_rows(X, "support embeddings"), labels)

    def _learn(self, support: np.ndarray, labels: np.ndarray) -> "EmbeddingClassifier":
        self._fit_alone(support, labels)
        self._measure(support, labels, self._plan)
        del self._plan
        return self

    def _fit_alone(self, support: np.ndarray, labels: np.ndarray) -> None:
        self._plan = HoldOut.of(labels)
        if hasattr(self, "text_features"):
            self.texts_ = self._texts(support, labels)
        self._fit(support, labels)

    def _measure(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> None:
        """Set the attributes that are measured on held-out examples."""
        self.loo_rows_ = plan.rows
        if len(plan.rows):
            self._calibrate(self._held_out(support, labels, plan), plan.held_labels)
        else:
            self._calibrate(np.empty((0, len(self.classes_))), plan.held_labels)
            self.temperature_ = self._estimate_temperature(support, labels)

    def _calibrate(self, scores: np.ndarray, labels: np.ndarray) -> None:
        """Calibrate on scores of held-out examples (held, classes); without any the temperature is unchanged."""
        self.loo_scores_, self._true_labels = scores, labels
        self.loo_accuracy_, self.loo_ece_, self._true_probabilities = float("nan"), float("nan"), np.empty(0)
        if not len(labels):
            return
        self.temperature_ = fit_temperature(self._logits(scores), labels)
        probabilities, block = np.empty_like(scores), max(1, SCORES_PER_BLOCK // len(self.classes_))
        for start in range(0, len(labels), block):
            rows = slice(start, start + block)
            probabilities[rows] = self._probabilities(scores[rows])
        self.loo_accuracy_ = float((scores.argmax(axis=1) == labels).mean())
        self.loo_ece_ = expected_calibration_error(probabilities, labels)
        self._true_probabilities = probabilities[np.arange(len(labels)), labels]

    def _estimate_temperature(self, support: np.ndarray, labels: np.ndarray) -> float:
        """Estimate the temperature on the examples, with classifiers fitted to `synthetic_examples`."""
        models = [self._refitted(rows, labels) for rows in self._synthetic_supports(support)]
        return self._fitted_temperature(models, support, labels)

    def _synthetic_supports(self, support: np.ndarray) -> list[np.ndarray]:
        generator = np.random.default_rng(0)
        draws = min(MAX_SYNTHETIC_SUPPORTS, -(-MIN_SCORED_EXAMPLES // len(support)))
        return [synthetic_examples(support, generator) for _ in range(draws)]

    def _fitted_temperature(self, models: Sequence[Any], support: np.ndarray, labels: np.ndarray) -> float:
        support, labels = support[:MAX_TUNING_ROWS], labels[:MAX_TUNING_ROWS]
        scores = np.concatenate([model._scores(support) for model in models])
        return fit_temperature(self._logits(scores), np.tile(labels, len(models)))

    def _held_out(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> np.ndarray:
        """Score the examples ``plan.rows`` while they are held out, at the chosen settings (held, classes)."""

        def score(learn: np.ndarray, choose: np.ndarray) -> np.ndarray:
            return self._refitted(support[learn], labels[learn])._scores(support[choose])

        return plan.scored(score, (len(self.classes_),), support.dtype)

    def _refitted(self, support: np.ndarray, labels: np.ndarray, chosen: dict[str, Any] | None = None) -> Any:
        """Return a copy fitted on other examples of the same classes, with this one's settings or ``chosen``."""
        copy = type(self)(**{**self.get_params(deep=False), **(self._chosen() if chosen is None else chosen)})
        copy.classes_, copy.n_features_in_ = self.classes_, self.n_features_in_
        copy._fit_alone(support, labels)
        return copy

    def _chosen(self) -> dict[str, Any]:
        """Return the constructor arguments that ``fit`` chose."""
        return {}

    def _text_similarity(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> np.ndarray:
        """Compare held-out examples with the class texts, or without texts with the class means (held, classes)."""
        if self.text_features is not None:
            return support[plan.rows] @ self.texts_.T
        return left_out_means(support, labels, plan, cosine=True)

    def fit_checked(self, support: np.ndarray, labels: np.ndarray) -> "EmbeddingClassifier":
        """Fit without checking the input.

        Args:
            support: unit-norm float (examples, width).
            labels: 0…C - 1, each at least once (examples,).
        """
        self.classes_, self.n_features_in_ = np.arange(int(labels.max()) + 1), support.shape[1]
        return self._learn(support, labels)

    def _texts(self, support: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the checked class texts (default: the normalized class means)."""
        given = self.text_features
        if given is None:
            return unit_or_zero(class_means(support, labels, len(self.classes_)))
        texts = check_array(as_numpy(given), dtype=[np.float32, np.float64], input_name="text_features")
        expected = (len(self.classes_), support.shape[1])
        if texts.shape != expected:
            raise ValueError(
                f"text_features has shape {texts.shape}; the support set needs {expected}: one row for each of the "
                f"{expected[0]} classes in the order of classes_, as wide as the embeddings"
            )
        return unit_rows(texts, "text_features").astype(support.dtype, copy=False)

    def scores(self, X: Any) -> np.ndarray:
        """Return scores (queries, classes) in the order of ``classes_``; larger is more likely.

        Unlike ``decision_function``, two classes also have two columns.
        """
        return self._scores(self._queries(X))

    def _queries(self, X: Any) -> np.ndarray:
        """Return checked, unit-norm queries."""
        check_is_fitted(self)
        X = validate_data(self, as_numpy(X), dtype=[np.float32, np.float64], reset=False)
        return unit_rows(X, "query embeddings")

    def decision_function(self, X: Any) -> np.ndarray:
        """Return `scores`, or for two classes their difference, as in scikit-learn."""
        scores = self.scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """Return the class with the highest score; ties go to the first class."""
        best = np.argmax(self.scores(X), axis=1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return calibrated probabilities ``softmax(scores / temperature_)`` (queries, classes), ranked as scores."""
        return self._probabilities(self.scores(X))

    def _probabilities(self, scores: np.ndarray) -> np.ndarray:
        scores = scores.astype(np.result_type(scores, np.float32), copy=False)  # scores may be integers
        logits = self._logits(scores) / self.temperature_
        return softmax(logits).astype(scores.dtype, copy=False)

    def _logits(self, scores: np.ndarray) -> np.ndarray:
        """Convert scores to logits, which the temperature divides; shares become logarithms."""
        return scores

    def shares_of(self, scores: np.ndarray) -> np.ndarray:
        """Return the summand of `ZeroShotMix` (queries, classes): probabilities, or shares of votes."""
        return self._probabilities(scores)

    def predict_set(self, X: Any, alpha: float = 0.1) -> np.ndarray:
        """Return the classes that conformal prediction cannot rule out at error rate ``alpha`` (queries, classes).

        A class with ``n >= 1 / alpha - 1`` held-out examples (9 for 0.1) is calibrated separately, the others together
        (`conformal_groups`); with fewer in total no class is ruled out. Queries are scored by the classifier fitted to
        all examples (jackknife): no theorem covers this, but the measured coverage is near 1 - alpha. `ProKeR` computes
        exact sets. An empty set means none of the classes.

        Args:
            alpha: share of queries whose class may be missing from their set, 0 < alpha < 1.
        """
        if not 0 < alpha < 1:
            raise ValueError(f"alpha must be between 0 and 1, got {alpha}")
        return self._possible(self._queries(X), alpha)

    def _possible(self, queries: np.ndarray, alpha: float) -> np.ndarray:
        probabilities = self._probabilities(self._scores(queries))
        return probabilities >= self._set_thresholds(alpha).astype(probabilities.dtype)

    def _set_thresholds(self, alpha: float) -> np.ndarray:
        """Return the lowest probability at which each class is in a set (classes,)."""
        return set_thresholds(self._true_probabilities, self._true_labels, len(self.classes_), alpha)

    def known_p(self, X: Any) -> np.ndarray:
        """Return the p-value that each query belongs to any of the classes (queries,); small for unfamiliar ones.

        Familiarity is the highest score. Rejecting queries below alpha rejects about that share of queries that do
        belong. This needs ``1 / alpha - 1`` held-out examples in total, far fewer than the class-wise `predict_set`.
        """
        known = np.sort(self.loo_scores_.max(axis=1))
        return (1 + np.searchsorted(known, self.scores(X).max(axis=1), side="right")) / (len(known) + 1)

    def kernel_form(self) -> KernelForm | None:
        """Return the form that `export_all` writes, or None for scores of another form (votes, adapters)."""
        return None

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        raise NotImplementedError

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        raise NotImplementedError


CLASS_CORRELATION = 0.5
"""Assumed correlation of two pictures of a class, which cannot be measured with one example per class.

The calibration error of the starter on EuroSAT and textures, mean of three methods, is lowest at 0.6 and half a point
higher at 0.5 (`benchmarks/one_shot.py`); classifiers on weaker embeddings are overconfident with either.
"""

MIN_SCORED_EXAMPLES, MAX_SYNTHETIC_SUPPORTS = 100, 4
"""Number of scored examples to estimate a temperature, and maximum number of generated supports."""


def synthetic_examples(support: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Draw another example of each class from a Gaussian model: unit rows (examples, width).

    Between-class and within-class covariances are assumed to be proportional. Another example of the class of x then
    has mean ``m + rho (x - m)`` and covariance ``(1 - rho^2) S``, where m and S are mean and covariance of the examples
    and rho is `CLASS_CORRELATION`.

    Args:
        support: unit rows (examples, width), one of each class.
    """
    middle = support.mean(axis=0)
    apart = support - middle
    rows = apart
    if len(apart) > apart.shape[1]:  # fewer rows with the same covariance
        rows = np.linalg.qr(apart, mode="r")
        (generator,) = generator.spawn(1)  # differs from synthetic data drawn with the same seed
    drawn = generator.standard_normal((len(apart), len(rows))).astype(support.dtype) @ rows
    drawn *= ((1 - CLASS_CORRELATION**2) / max(len(apart) - 1, 1)) ** 0.5
    return unit_or_zero(middle + CLASS_CORRELATION * apart + drawn).astype(support.dtype, copy=False)


def left_out_means(support: np.ndarray, labels: np.ndarray, plan: HoldOut, cosine: bool = False) -> np.ndarray:
    """Compare held-out examples with the class means of the other examples (held, classes)."""
    counts = np.bincount(labels).astype(support.dtype)
    sums = class_means(support, labels, len(counts)) * counts[:, None]
    held, own = support[plan.rows], plan.held_labels
    if not plan.leave_one_out:

        def score(learn: np.ndarray, choose: np.ndarray) -> np.ndarray:
            means = class_means(support[learn], labels[learn], len(counts))
            return support[choose] @ (unit_or_zero(means) if cosine else means).T

        return plan.scored(score, (len(counts),), support.dtype)
    scores = held @ sums.T
    remaining = sums[own] - held
    scores[np.arange(len(own)), own] = (held * remaining).sum(axis=1)
    if not cosine:
        scores /= counts - (own[:, None] == np.arange(len(counts)))
        return scores
    norms = np.broadcast_to(np.linalg.norm(sums, axis=1), scores.shape).copy()
    norms[np.arange(len(own)), own] = np.linalg.norm(remaining, axis=1)
    return scores / np.where(norms > 0, norms, 1)


def unit_or_zero(matrix: np.ndarray) -> np.ndarray:
    """Normalize rows; a zero row stays zero."""
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    return matrix / np.where(norms > 0, norms, 1)


def as_numpy(array: Any) -> Any:
    """Convert a torch tensor to an array, detached and on the CPU; return anything else unchanged."""
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        return (array.float() if array.dtype.itemsize < 4 and array.is_floating_point() else array).numpy()
    return array
