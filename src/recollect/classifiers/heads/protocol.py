"""The few-shot protocol: methods, shots, draws of the support, and its evaluation block by block.

Draws are nested: for one seed, K shots are the first K of each class in one random order. Methods that read only
cosines to the examples (`EmbeddingClassifier.reads_similarity`) therefore share one matrix for all methods and shots.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, Literal

import numpy as np
from threadpoolctl import ThreadpoolController

from recollect.classifiers.heads.base import EmbeddingClassifier, softmax, unit_rows
from recollect.classifiers.heads.calibration import BINS
from recollect.classifiers.heads.holdout import HoldOut
from recollect.classifiers.heads.methods import FEW_SHOT_METHODS, PAPER_METHODS
from recollect.classifiers.heads.similarity import Similarities, cosines
from recollect.classifiers.heads.trust import enough_to_tell
from recollect.core.types import TEXT_SCALE, Metric
from recollect.core.validation import check_choice, refuse

ShortClasses = Literal["refuse", "all"]

NO_ROW = -1
"""Marks in a draw that the class has no further example."""

SET_ALPHA = 0.1
"""Error rate of the conformal sets that are measured."""

SET_QUERIES = 2000
"""Maximum number of queries whose conformal sets are measured where a method computes them separately (ProKeR)."""

TRUST_COLUMNS = ("loo", "ece", "coverage", "set_size")
"""Columns of a row that show how far its accuracy can be trusted."""


@dataclass(frozen=True)
class Protocol:
    """What to evaluate.

    Attributes:
        shots: examples per class, ascending.
        metric: accuracy, or its mean over classes (the convention of some data sets).
        short_classes: refuse classes with fewer examples than shots, or use all their examples.
        memory: bytes for a block of queries; does not change the result.
    """

    methods: Sequence[str] = ("zero-shot", *PAPER_METHODS)
    shots: Sequence[int] = (1, 2, 4, 8, 16, 32)
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    metric: Metric = "top-1"
    memory: int = 32 * 2**20
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
        """The settings that determine the figures."""
        settings = {key: value for key, value in asdict(self).items() if key != "memory"}
        if self.short_classes == "refuse":  # keeps the identity of results from before this setting existed
            del settings["short_classes"]
        return settings

    def block(self, task: "FewShotTask") -> int:
        """Queries in one block, which holds about five numbers for each pair of query and example."""
        widest = len(task.support) + 4 * self.shots[-1] * task.classes
        return max(1, self.memory // (4 * widest))


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
        what, width = (
            ("class texts", self.texts.shape[1]) if self.texts is not None else ("support", self.support.shape[1])
        )
        for name in ("support", "queries", "texts"):
            matrix = getattr(self, name)
            if matrix is None:
                continue
            if not np.isfinite(matrix).all():
                raise ValueError(f"{name}: embeddings hold NaN or infinity")
            if matrix.shape[1] != width:
                raise ValueError(f"{name} are {matrix.shape[1]} wide, the {what} {width}")
            object.__setattr__(self, name, unit_rows(matrix, name).astype(np.float32, copy=False))

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.support_labels.max()) + 1 if self.texts is None else len(self.texts)

    def unfitted(self, name: str) -> EmbeddingClassifier:
        """A method of `FEW_SHOT_METHODS` with the texts or prompts that it reads."""
        made = FEW_SHOT_METHODS[name](self.texts, self.scale)
        return made if self.prompts is None or not made.reads_prompts else made.set_params(text_features=self.prompts)

    def fitted(self, name: str, order: np.ndarray, shots: int) -> EmbeddingClassifier:
        """A method fitted to the first ``shots`` shots of a draw."""
        rows, labels = support_of(order, shots)
        return self.unfitted(name).fit_checked(self.support[rows], labels)


def draw(labels: np.ndarray, classes: int, protocol: Protocol) -> dict[int, np.ndarray]:
    """The `nested_supports` of each seed."""
    most = protocol.shots[-1]
    return {seed: nested_supports(labels, classes, most, seed, protocol.short_classes) for seed in protocol.seeds}


def nested_supports(
    labels: np.ndarray, classes: int, shots: int, seed: int, short_classes: ShortClasses = "refuse"
) -> np.ndarray:
    """Rows of the pool in the order in which they are drawn: (shots, classes), column c from class c.

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
        mine = generator.permutation(np.flatnonzero(labels == label))[:shots]
        drawn[: len(mine), label] = mine
    return drawn


def support_of(order: np.ndarray, shots: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels of the first ``shots`` shots of a draw, shot by shot."""
    rows = order[:shots].ravel()
    labels = np.tile(np.arange(order.shape[1]), len(order[:shots]))
    return rows[rows != NO_ROW], labels[rows != NO_ROW]


Key = tuple[str, int, int]
"""Method, shots and seed."""


@dataclass
class Score:
    """Hits of each class, calibration gaps and conformal sets of every key, summed over blocks of queries.

    Attributes:
        labels: of the queries.
        fits: accuracy on held-out examples, and their number.
    """

    labels: np.ndarray
    classes: int
    metric: Metric
    fits: dict[Key, tuple[float, int]] = field(default_factory=dict)
    _sums: dict[tuple[Key, str], np.ndarray] = field(default_factory=dict)

    def counts(
        self, rows: slice, scores: np.ndarray, probabilities: np.ndarray, kept: np.ndarray | None = None, every: int = 1
    ) -> dict[str, np.ndarray]:
        """What a block of queries adds to a key.

        Args:
            kept: conformal sets of every ``every``-th query (queries, classes).
        """
        labels, best = self.labels[rows], scores.argmax(axis=1)
        right = best == labels
        sure = probabilities[np.arange(len(best)), best].astype(np.float64)
        place = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
        found = {
            "hits": np.bincount(labels[right], minlength=self.classes),
            "gaps": np.bincount(place, sure - right, BINS),
        }
        if kept is not None:
            own = kept[np.arange(len(kept)), labels[::every]]
            found["sets"] = np.array([np.count_nonzero(own), np.count_nonzero(kept), len(kept)])
        return found

    def add(self, key: Key, counts: Mapping[str, np.ndarray]) -> None:
        """Add the counts of a block."""
        for name, each in counts.items():
            self._sums[key, name] = self._sums.get((key, name), 0) + each

    def _trust(self, key: Key) -> dict[str, float]:
        found = {"ece": 100.0 * float(np.abs(self._sums[key, "gaps"]).sum()) / len(self.labels)}
        accuracy, examples = self.fits.get(key, (np.nan, 0))
        if not enough_to_tell(examples):
            return found
        if np.isfinite(accuracy):
            found["loo"] = 100.0 * accuracy
        if (key, "sets") in self._sums:
            held, size, count = self._sums[key, "sets"].tolist()
            found |= {"coverage": 100.0 * held / count, "set_size": size / count}
        return found

    def rows(self, methods: Sequence[str]) -> list[dict[str, Any]]:
        """Result rows, ordered by method, shots and seed."""
        counts = np.bincount(self.labels, minlength=self.classes)
        there = counts > 0
        keys = sorted({key for key, _ in self._sums}, key=lambda key: (methods.index(key[0]), key))
        rows = []
        for method, shots, seed in keys:
            right = self._sums[(method, shots, seed), "hits"]
            share = right.sum() / counts.sum() if self.metric == "top-1" else (right[there] / counts[there]).mean()
            rows.append({"method": method, "shots": shots, "seed": seed, "metric": self.metric})
            rows[-1] |= {"value": 100.0 * float(share), **self._trust((method, shots, seed))}
        return rows


@dataclass
class _Run:
    """One evaluation of a protocol on a task."""

    task: FewShotTask
    protocol: Protocol
    tick: Callable[[int], None]
    score: Score

    def __post_init__(self) -> None:
        self.block = self.protocol.block(self.task)

    def zero_shot(self) -> None:
        assert self.task.texts is not None
        found = self.task.queries @ self.task.texts.T
        probabilities = softmax(self.task.scale * found)
        self.score.add(("zero-shot", 0, 0), self.score.counts(slice(None), found, probabilities))

    def separately(self, name: str, orders: Mapping[int, np.ndarray]) -> None:
        """Evaluate a method, fit by fit."""
        queries = self.task.queries
        for shots in self.protocol.shots:
            for seed, order in orders.items():
                estimator = self.task.fitted(name, order, shots)
                least = self._fitted((name, shots, seed), estimator)
                for rows in self._blocks():
                    found = self._counts(estimator, rows, estimator._scores(queries[rows]), least)
                    self.score.add((name, shots, seed), found)
                    self.tick(len(queries[rows]))

    def together(self, names: Sequence[str], seed: int, order: np.ndarray) -> None:
        """Evaluate methods that read cosines, computed once for all of them and all numbers of shots."""
        task, support = self.task, self.task.support[support_of(order, self.protocol.shots[-1])[0]]
        fits: list[tuple[Key, int, EmbeddingClassifier, np.ndarray]] = []
        for shots in self.protocol.shots:
            labels = support_of(order, shots)[1]
            examples, plan = support[: len(labels)], HoldOut.of(labels, shared=True)
            for name in names:
                estimator = task.unfitted(name).fit_checked(examples, labels, plan)
                least = self._fitted((name, shots, seed), estimator)
                fits.append(((name, shots, seed), len(labels), estimator, least))

        def counted(rows: slice) -> list[tuple[Key, dict[str, np.ndarray]]]:
            queries, found = task.queries[rows], []
            near = {len(support): Similarities(cosines(queries, support))}
            texts = None if task.texts is None else queries @ task.texts.T
            for key, count, estimator, least in fits:
                similarity = near.setdefault(count, near[len(support)].first(count))
                own = getattr(estimator, "texts_", queries[:0])  # class means differ between estimators
                scores = estimator._scores_of(similarity, queries @ own.T if texts is None else texts)
                found.append((key, self._counts(estimator, rows, scores, least)))
                self.tick(len(queries))
            return found

        # NumPy and torch release the GIL.
        with _libraries().limit(limits=1), ThreadPoolExecutor(os.cpu_count()) as threads:
            for found in threads.map(counted, self._blocks()):
                for key, counts in found:
                    self.score.add(key, counts)

    def _blocks(self) -> Iterator[slice]:
        for start in range(0, len(self.task.queries), self.block):
            yield slice(start, start + self.block)

    def _fitted(self, key: Key, estimator: EmbeddingClassifier) -> np.ndarray:
        """Record the accuracy on held-out examples; return the lowest probability that keeps a class in a set."""
        self.score.fits[key] = estimator.loo_accuracy_, len(estimator.loo_rows_)
        return estimator._least(SET_ALPHA)

    def _counts(
        self, estimator: EmbeddingClassifier, rows: slice, scores: np.ndarray, least: np.ndarray
    ) -> dict[str, np.ndarray]:
        probabilities = estimator._probabilities(scores)
        if type(estimator)._possible is EmbeddingClassifier._possible:
            kept = probabilities >= least.astype(probabilities.dtype)
            return self.score.counts(rows, scores, probabilities, kept)
        every = -(-len(self.task.queries) // SET_QUERIES)
        kept = estimator._possible(self.task.queries[rows][::every], SET_ALPHA)
        return self.score.counts(rows, scores, probabilities, kept, every)


def run_protocol(
    task: FewShotTask,
    protocol: Protocol,
    tick: Callable[[int], None] | None = None,
    orders: Mapping[int, np.ndarray] | None = None,
) -> list[dict[str, Any]]:
    """Accuracy in percent of every method at every number of shots for every draw.

    Figures equal those of fitting each estimator separately on ``support[rows]``.

    Args:
        tick: called with the number of queries classified since the last call, for progress.
        orders: draws made by `draw`, e.g. to embed only the examples they use.

    Returns:
        Rows ``{"method", "shots", "seed", "metric", "value"}``; ``zero-shot`` has one row with 0 shots and seed 0. Also
        in percent ``loo``, accuracy on held-out examples, ``ece``, expected calibration error on the queries, and
        ``coverage`` of conformal sets at error rate 0.1, with their mean ``set_size``. All but ``ece`` are absent where
        there are too few held-out examples (`enough_to_tell`), e.g. at one shot.

    Raises:
        ValueError: more shots than a class has examples.
    """
    if task.texts is None and "zero-shot" in protocol.methods:
        raise ValueError("zero-shot needs class texts")
    orders = orders or draw(task.support_labels, task.classes, protocol)
    run = _Run(task, protocol, tick or (lambda queries: None), Score(task.query_labels, task.classes, protocol.metric))
    others = [name for name in protocol.methods if name != "zero-shot"]
    shared = [name for name in others if task.unfitted(name).reads_similarity]
    if len(others) < len(protocol.methods):
        run.zero_shot()
    for seed, order in orders.items() if shared else ():
        run.together(shared, seed, order)
    for name in others:
        if name not in shared:
            run.separately(name, orders)
    return run.score.rows(protocol.methods)


@cache
def _libraries() -> ThreadpoolController:
    """Libraries with thread pools; cached because finding them takes longer than a small task."""
    return ThreadpoolController()
