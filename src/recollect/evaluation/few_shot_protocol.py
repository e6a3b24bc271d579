"""The few-shot protocol: methods, shots and draws of the support, and the figures of every fit.

Draws are nested: for one seed, K shots are the first K of each class in one random order.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from recollect.classifiers.heads.base import EmbeddingClassifier, unit_rows
from recollect.classifiers.heads.calibration import calibration_error
from recollect.classifiers.heads.methods import FEW_SHOT_METHODS, PAPER_METHODS, text_classifier
from recollect.classifiers.heads.trust import can_report
from recollect.core.threads import one_thread
from recollect.core.types import TEXT_SCALE, Metric
from recollect.core.validation import check_choice, refuse

ShortClasses = Literal["refuse", "all"]

NO_ROW = -1
"""Placeholder in a draw for classes with too few examples."""

SET_ALPHA = 0.1
"""Error rate of the measured conformal sets."""

SET_QUERIES = 2000
"""Maximum number of queries with measured conformal sets, for methods that compute them separately (ProKeR)."""

MAX_BLOCK_SCORES = 2**23
"""Maximum number of scores and similarities in a block of queries: 32 MiB."""

TRUST_COLUMNS = ("loo", "ece", "coverage", "set_size")
"""Columns of a row that show how far its accuracy can be trusted."""


@dataclass(frozen=True)
class Protocol:
    """Methods, shots and draws to evaluate.

    Attributes:
        shots: examples per class, ascending.
        metric: accuracy, or its mean over classes (the convention of some data sets).
        short_classes: refuse classes with fewer examples than shots, or use all their examples.
    """

    methods: Sequence[str] = ("zero-shot", *PAPER_METHODS)
    shots: Sequence[int] = (1, 2, 4, 8, 16, 32)
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    metric: Metric = "top-1"
    short_classes: ShortClasses = "refuse"

    def __post_init__(self) -> None:
        for name in self.methods:
            check_choice(name, FEW_SHOT_METHODS, "--methods: method")
        ascending = list(self.shots) == sorted(set(self.shots)) and min(self.shots, default=0) >= 1
        refuse(
            (not ascending, f"--shots: must be ascending and at least 1, got {list(self.shots)}"),
            (not self.seeds, "no seeds: name at least one"),
        )

    def settings(self) -> dict[str, Any]:
        """Return the settings that affect the results."""
        settings = asdict(self)
        if self.short_classes == "refuse":  # keeps the identity of results from before this setting existed
            del settings["short_classes"]
        return settings


@dataclass(frozen=True)
class FewShotTask:
    """Embeddings of one task; labels are 0…C - 1 and index the rows of ``texts``.

    Attributes:
        support: unit-norm pool that examples are drawn from (pool, width).
        support_labels: (pool,).
        queries: unit-norm (queries, width).
        query_labels: (queries,).
        texts: unit-norm class texts (classes, width); None uses the class means of the shots.
        scale: the model's inverse temperature, for probabilities of text scores.
        prompts: unit-norm prompts (classes, prompts, width), for methods that read them instead of ``texts``.
    """

    support: np.ndarray
    support_labels: np.ndarray
    queries: np.ndarray
    query_labels: np.ndarray
    texts: np.ndarray | None
    scale: float = TEXT_SCALE
    prompts: np.ndarray | None = None

    def __post_init__(self) -> None:
        if not 0 < self.scale < float("inf"):
            raise ValueError(f"scale must be positive and finite, got {self.scale}")
        reference = "support" if self.texts is None else "texts"
        width = getattr(self, reference).shape[1]
        for name in ("support", "queries", "texts"):
            matrix = getattr(self, name)
            if matrix is None:
                continue
            if not np.isfinite(matrix).all():
                raise ValueError(f"{name}: embeddings contain NaN or infinity")
            if matrix.shape[1] != width:
                raise ValueError(f"{name}: width {matrix.shape[1]}, but {reference} has width {width}")
            object.__setattr__(self, name, unit_rows(matrix, name).astype(np.float32, copy=False))

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.support_labels.max()) + 1 if self.texts is None else len(self.texts)

    def fitted(self, name: str, order: np.ndarray, shots: int) -> EmbeddingClassifier:
        """Fit a method of `FEW_SHOT_METHODS` to the first shots of a draw."""
        estimator = FEW_SHOT_METHODS[name](self.texts, self.scale)
        if self.prompts is not None and estimator.reads_prompts:
            estimator.set_params(text_features=self.prompts)
        rows, labels = support_of(order, shots)
        return estimator.fit_checked(self.support[rows], labels)


def draw(labels: np.ndarray, classes: int, protocol: Protocol) -> dict[int, np.ndarray]:
    """Draw `nested_supports` for each seed."""
    most = protocol.shots[-1]
    return {seed: nested_supports(labels, classes, most, seed, protocol.short_classes) for seed in protocol.seeds}


def nested_supports(
    labels: np.ndarray, classes: int, shots: int, seed: int, short_classes: ShortClasses = "refuse"
) -> np.ndarray:
    """Draw rows of the pool in random order: (shots, classes), column c from class c.

    Args:
        short_classes: ``all`` pads classes that have fewer examples with `NO_ROW`.

    Raises:
        ValueError: a class has fewer than ``shots`` examples, or none.
    """
    counts = np.bincount(labels, minlength=classes)
    if counts.min() < (shots if short_classes == "refuse" else 1):
        raise ValueError(f"class {int(counts.argmin())} has {counts.min()} examples, fewer than {shots} shots")
    generator = np.random.default_rng([seed, 0x5EED])
    drawn = np.full((shots, classes), NO_ROW)
    for label in range(classes):
        rows = generator.permutation(np.flatnonzero(labels == label))[:shots]
        drawn[: len(rows), label] = rows
    return drawn


def support_of(order: np.ndarray, shots: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and labels of the first ``shots`` shots of a draw, shot by shot."""
    rows = order[:shots].ravel()
    labels = np.tile(np.arange(order.shape[1]), len(order[:shots]))
    return rows[rows != NO_ROW], labels[rows != NO_ROW]


def accuracy(predictions: np.ndarray, labels: np.ndarray, metric: Metric = "top-1") -> float:
    """Compute accuracy in percent, or its mean over classes (the convention of Pets, Caltech, Flowers)."""
    right = predictions == labels
    if metric == "top-1":
        return 100.0 * float(right.mean())
    return 100.0 * float(np.mean([right[labels == label].mean() for label in np.unique(labels)]))


@dataclass(frozen=True)
class Answers:
    """Predictions of a fitted method for the queries.

    Attributes:
        best: most probable class of each query (queries,).
        confidence: its probability (queries,).
        covered: whether each query's conformal set contains its class, for all queries or a sample; empty without sets.
        sizes: number of classes in these sets.
        held_out: accuracy on held-out examples, and their number.
    """

    best: np.ndarray
    confidence: np.ndarray
    covered: np.ndarray
    sizes: np.ndarray
    held_out: tuple[float, int]

    def figures(self, labels: np.ndarray, metric: Metric) -> dict[str, Any]:
        """Return the figures of a row (see `run_protocol`), given the labels of the queries."""
        error = calibration_error(self.confidence, self.best == labels)
        found = {"metric": metric, "value": accuracy(self.best, labels, metric), "ece": 100.0 * error}
        share, examples = self.held_out
        if not can_report(examples):
            return found
        if np.isfinite(share):
            found["loo"] = 100.0 * share
        if len(self.sizes):
            found |= {"coverage": 100.0 * float(self.covered.mean()), "set_size": float(self.sizes.mean())}
        return found


def answers(
    estimator: EmbeddingClassifier,
    queries: np.ndarray,
    labels: np.ndarray,
    block: int = 4096,
    tick: Callable[[int], None] = lambda queries: None,
) -> Answers:
    """Classify queries with a fitted estimator, in blocks on threads: NumPy and torch release the GIL.

    Args:
        queries, labels: unit-norm (queries, width), (queries,).
        tick: called with the number of queries of each block.
    """
    thresholds = estimator._set_thresholds(SET_ALPHA)

    def classify(start: int) -> tuple[np.ndarray, ...]:
        scores = estimator._scores(queries[start : start + block])
        probabilities, best = estimator._probabilities(scores), scores.argmax(axis=1)
        kept, rows = probabilities >= thresholds.astype(probabilities.dtype), np.arange(len(best))
        tick(len(best))
        return best, probabilities[rows, best], kept[rows, labels[start : start + block]], kept.sum(axis=1)

    with one_thread(), ThreadPoolExecutor(os.cpu_count()) as threads:
        parts = list(threads.map(classify, range(0, len(queries), block)))
    best, confidence, covered, sizes = (np.concatenate(each) for each in zip(*parts, strict=True))
    if type(estimator)._possible is not EmbeddingClassifier._possible:
        some = slice(None, None, -(-len(queries) // SET_QUERIES))
        kept = estimator._possible(queries[some], SET_ALPHA)
        covered, sizes = kept[np.arange(len(kept)), labels[some]], kept.sum(axis=1)
    held_out = estimator.loo_accuracy_, len(estimator.loo_scores_)
    return Answers(best, confidence.astype(np.float64), covered, sizes, held_out)


def run_protocol(
    task: FewShotTask,
    protocol: Protocol,
    tick: Callable[[int], None] = lambda queries: None,
    orders: Mapping[int, np.ndarray] | None = None,
) -> list[dict[str, Any]]:
    """Measure the accuracy in percent of every method at every number of shots for every draw.

    Args:
        tick: called with the number of queries classified since the last call, for progress.
        orders: results of `draw`, e.g. to embed only the examples they use.

    Returns:
        Rows ``{"method", "shots", "seed", "metric", "value"}``; ``zero-shot`` has one row with 0 shots and seed 0. Also
        in percent ``loo``, accuracy on held-out examples, ``ece``, expected calibration error on the queries, and
        ``coverage`` of conformal sets at error rate 0.1, with their mean ``set_size``. All but ``ece`` are absent with
        too few held-out examples (`can_report`), e.g. at one shot.

    Raises:
        ValueError: more shots than a class has examples.
    """
    if task.texts is None and "zero-shot" in protocol.methods:
        raise ValueError("zero-shot needs class texts")
    orders = orders or draw(task.support_labels, task.classes, protocol)
    # About five numbers for each pair of query and example.
    block = max(1, MAX_BLOCK_SCORES // (len(task.support) + 4 * protocol.shots[-1] * task.classes))
    rows = []
    for name, shots, seed, estimator in _fits(task, protocol, orders):
        found = answers(estimator, task.queries, task.query_labels, block, tick)
        figures = found.figures(task.query_labels, protocol.metric)
        rows.append({"method": name, "shots": shots, "seed": seed, **figures})
    return rows


def _fits(
    task: FewShotTask, protocol: Protocol, orders: Mapping[int, np.ndarray]
) -> Iterator[tuple[str, int, int, EmbeddingClassifier]]:
    for name in protocol.methods:
        if name == "zero-shot":
            assert task.texts is not None
            yield name, 0, 0, text_classifier(task.texts, task.scale)
            continue
        for shots in protocol.shots:
            for seed, order in orders.items():
                yield name, shots, seed, task.fitted(name, order, shots)
