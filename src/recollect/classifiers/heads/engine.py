"""Runs the few-shot protocol: every method at every number of shots for every draw, scored block by block.

Methods that only read similarities share one matrix product for all shots and draws.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from recollect.classifiers.heads.base import EmbeddingClassifier, softmax
from recollect.classifiers.heads.calibration import BINS
from recollect.classifiers.heads.holdout import SupportSimilarity, cosines
from recollect.classifiers.heads.protocol import NO_ROW, FewShotTask, Protocol, draw
from recollect.classifiers.heads.trust import enough_to_tell
from recollect.classifiers.heads.voting import top_similar
from recollect.core.types import Metric

SET_QUERIES = 2000
"""Maximum number of queries whose conformal sets are measured."""

SET_ALPHA = 0.1
"""Error rate of the conformal sets that are measured."""

TRUST_COLUMNS = ("loo", "ece", "coverage", "set_size")
"""Columns of a row that show how far its accuracy can be trusted."""

_UNIT = 2**30
"""Confidences are summed as integers of this resolution, so that sums do not depend on the order of threads."""

Key = tuple[str, int, int]
"""Method, shots and seed."""


@dataclass
class Score:
    """Hits of each class, calibration gaps and set sizes, summed over blocks as integers."""

    labels: np.ndarray
    classes: int
    metric: Metric
    right: dict[Key, np.ndarray] = field(default_factory=dict)
    gaps: dict[Key, np.ndarray] = field(default_factory=dict)
    sets: dict[Key, np.ndarray] = field(default_factory=dict)
    fits: dict[Key, tuple[float, int]] = field(default_factory=dict)
    lock: Any = field(default_factory=Lock)

    def add(self, key: Key, rows: slice, scores: np.ndarray, probabilities: np.ndarray) -> None:
        """Count hits and calibration gaps."""
        labels, best = self.labels[rows], scores.argmax(axis=1)
        right = best == labels
        hits = np.bincount(labels[right], minlength=self.classes)
        sure = probabilities[np.arange(len(best)), best].astype(np.float64)
        place = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
        gaps = np.zeros(BINS, dtype=np.int64)
        np.add.at(gaps, place, np.rint((sure - right) * _UNIT).astype(np.int64))
        with self.lock:
            self.right[key] = self.right.get(key, 0) + hits
            self.gaps[key] = self.gaps.get(key, 0) + gaps

    def add_fit(self, key: Key, estimator: EmbeddingClassifier) -> None:
        """Record the accuracy on held-out examples and their number."""
        self.fits[key] = estimator.loo_accuracy_, len(estimator.loo_rows_)

    def add_sets(self, key: Key, rows: slice, kept: np.ndarray) -> None:
        """Count covered queries and set sizes."""
        labels = self.labels[rows]
        own = kept[np.arange(len(labels)), labels]
        found = np.array([np.count_nonzero(own), np.count_nonzero(kept), len(labels)])
        with self.lock:
            self.sets[key] = self.sets.get(key, 0) + found

    def _trust(self, key: Key) -> dict[str, float]:
        found = {}
        accuracy, examples = self.fits.get(key, (np.nan, 0))
        enough = enough_to_tell(examples)
        if enough and np.isfinite(accuracy):
            found["loo"] = 100.0 * accuracy
        if key in self.gaps:
            found["ece"] = 100.0 * float(np.abs(self.gaps[key]).sum()) / _UNIT / len(self.labels)
        if enough and key in self.sets:
            held, size, count = self.sets[key].tolist()
            found |= {"coverage": 100.0 * held / count, "set_size": size / count}
        return found

    def rows(self, methods: Sequence[str]) -> list[dict[str, Any]]:
        """Result rows, ordered by method, shots and seed."""
        order = {name: place for place, name in enumerate(methods)}
        counts = np.bincount(self.labels, minlength=self.classes)
        there = counts > 0
        rows = []
        for (method, shots, seed), right in sorted(self.right.items(), key=lambda item: (order[item[0][0]], item[0])):
            share = right.sum() / counts.sum() if self.metric == "top-1" else (right[there] / counts[there]).mean()
            rows.append({"method": method, "shots": shots, "seed": seed, "metric": self.metric})
            rows[-1] |= {"value": 100.0 * float(share), **self._trust((method, shots, seed))}
        return rows


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
    tick = tick or (lambda queries: None)
    classes, block = task.classes, protocol.block(task)
    if task.texts is None and "zero-shot" in protocol.methods:
        raise ValueError("zero-shot needs class texts")
    orders = orders or draw(task.support_labels, classes, protocol)
    score = Score(task.query_labels, classes, protocol.metric)
    whole = all((order != NO_ROW).all() for order in orders.values())  # sharing needs as many shots of every class
    shared = [name for name in protocol.methods if name in SHARED] if whole else []
    if shared:
        _evaluate_shared(task, protocol, shared, orders, score, tick)
    for name in protocol.methods:
        if name in shared:
            continue
        if name == "zero-shot" and task.texts is not None:
            found = task.queries @ task.texts.T
            score.add((name, 0, 0), slice(None), found, softmax(task.scale * found))
            continue
        for shots in protocol.shots:
            for seed, order in orders.items():
                estimator = task.fitted(name, order, shots)
                score.add_fit((name, shots, seed), estimator)
                _classify(estimator, task, block, (name, shots, seed), score, tick)
    return score.rows(protocol.methods)


def _classify(
    estimator: EmbeddingClassifier,
    task: FewShotTask,
    block: int,
    key: Key,
    score: Score,
    tick: Callable[[int], None],
) -> None:
    """Score the queries block by block, and the conformal sets of up to `SET_QUERIES` of them."""
    every = -(-len(task.queries) // SET_QUERIES)
    own_sets = type(estimator)._possible is not EmbeddingClassifier._possible
    if own_sets:
        some = slice(None, None, every)
        score.add_sets(key, some, estimator._possible(task.queries[some], SET_ALPHA))
    least = estimator._least(SET_ALPHA)
    for start in range(0, len(task.queries), block):
        rows = slice(start, start + block)
        found = estimator._scores(task.queries[rows])
        probabilities = estimator._probabilities(found)
        score.add(key, rows, found, probabilities)
        if not own_sets:  # these sets follow from the probabilities
            first = -start % every
            kept = probabilities[first::every] >= least.astype(probabilities.dtype)
            score.add_sets(key, slice(start + first, start + block, every), kept)
        tick(len(found))


MOST_SIMILARITY = 2**25
"""Maximum number of similarities between the examples of a draw in memory: 128 MiB."""


class _Running:
    """Class sums and nearest neighbours of a block of queries, updated as the support grows.

    Args:
        similarity: (queries, shots · classes), shot by shot, the classes of a shot in order.
    """

    def __init__(self, similarity: Tensor, classes: int) -> None:
        self.similarity, self.classes, self.shots = similarity, classes, 0
        self._sums: dict[float | None, tuple[int, Tensor | float]] = {}
        self._near: tuple[np.ndarray, np.ndarray] | None = None
        self._near_shots = 0

    def grow(self, shots: int) -> None:
        """Extend the support to ``shots``."""
        self.shots = shots

    def _new(self, since: int) -> Tensor:
        return self.similarity[:, since * self.classes : self.shots * self.classes]

    def class_sums(self, beta: float | None = None) -> np.ndarray:
        """Sum over each class of the similarities, or of Tip-Adapter's kernel of them: (queries, classes)."""
        since, known = self._sums.get(beta, (0, 0.0))
        new = self._new(since)
        if beta is not None:
            new = new.sub(1).mul_(beta).exp_()
        sums = new.reshape(len(new), self.shots - since, self.classes).sum(dim=1) + known
        self._sums[beta] = self.shots, sums
        return sums.numpy()

    def nearest(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Indices and similarities of the nearest examples, nearest first; ``k`` must not change between calls."""
        if self._near is None or self._near_shots < self.shots:
            start = self._near_shots * self.classes
            places, values = top_similar(self._new(self._near_shots).numpy(), k)
            places += start
            if self._near is not None:  # the nearest of a union are among the nearest of each part
                places = np.concatenate([self._near[0], places], axis=1)
                chosen, values = top_similar(np.concatenate([self._near[1], values], axis=1), k)
                places = np.take_along_axis(places, chosen, axis=1)
            self._near, self._near_shots = (places, values), self.shots
        return self._near


_Reader = Callable[[EmbeddingClassifier, _Running, np.ndarray], np.ndarray]
"""Scores from a fitted estimator, the running sums, and similarities to the class texts."""


def _read_prototype(estimator: EmbeddingClassifier, running: _Running, texts: np.ndarray) -> np.ndarray:
    return running.class_sums() / running.shots


def _read_tip(estimator: Any, running: _Running, texts: np.ndarray) -> np.ndarray:
    return estimator.combine(texts, running.class_sums(estimator.beta_))


def _read_votes(estimator: Any, running: _Running, texts: np.ndarray) -> np.ndarray:
    places, similarity = running.nearest(estimator.k)
    return estimator.vote(places[:, : estimator.k_], similarity[:, : estimator.k_])


def _read_mix(estimator: Any, running: _Running, texts: np.ndarray) -> np.ndarray:
    votes = _read_votes(estimator.estimator_, running, texts)
    return estimator.combine(texts, votes / votes.sum(axis=1, keepdims=True))


SHARED: Mapping[str, _Reader] = {
    "prototype": _read_prototype,
    "tip-adapter": _read_tip,
    "tip-adapter-cv": _read_tip,
    "plurality": _read_votes,
    "rank": _read_votes,
    "softmax": _read_votes,
    "softmax+zero-shot": _read_mix,
}
"""Methods that only read similarities; they share the product of queries and pool."""


def _evaluate_shared(
    task: FewShotTask,
    protocol: Protocol,
    methods: Sequence[str],
    orders: Mapping[int, np.ndarray],
    score: Score,
    tick: Callable[[int], None],
) -> None:
    classes = task.classes
    used, places = np.unique(np.stack(list(orders.values())), return_inverse=True)
    columns = dict(zip(orders, torch.from_numpy(places.reshape(len(orders), -1)), strict=True))
    pool, block = task.support[used], protocol.block(task)
    least: dict[Key, np.ndarray] = {}

    def learn(seed: int) -> dict[Key, EmbeddingClassifier]:
        """Fit all methods of one draw from one similarity matrix, if that is not too large."""
        known, found = _similarity(task, protocol, orders[seed]), {}
        for shots in reversed(protocol.shots):
            nested = known.first(shots * classes) if known else None
            for name in methods:
                estimator = task.fitted(name, orders[seed], shots, nested)
                score.add_fit((name, shots, seed), estimator)
                least[name, shots, seed] = estimator._least(SET_ALPHA)
                found[name, shots, seed] = _without_support(estimator)
        return found

    def scores(start: int) -> Iterator[tuple[Key, slice, np.ndarray]]:
        rows = slice(start, start + block)
        queries = task.queries[rows]
        texts = None if task.texts is None else queries @ task.texts.T
        similarity = torch.from_numpy(cosines(queries, pool))
        for seed in orders:
            running = _Running(similarity.index_select(1, columns[seed]), classes)
            for shots in protocol.shots:
                running.grow(shots)
                for name in methods:
                    key = (name, shots, seed)
                    own = getattr(fitted[key], "texts_", queries[:0])  # class means differ between estimators
                    yield key, rows, SHARED[name](fitted[key], running, queries @ own.T if texts is None else texts)

    def count(start: int) -> None:
        for key, rows, found in scores(start):
            probabilities = fitted[key]._probabilities(found)
            score.add(key, rows, found, probabilities)
            score.add_sets(key, rows, probabilities >= least[key].astype(probabilities.dtype))
            tick(len(found))

    # NumPy and torch release the GIL.
    with _libraries().limit(limits=1), ThreadPoolExecutor(os.cpu_count()) as threads:
        fitted = {key: each for learned in threads.map(learn, orders) for key, each in learned.items()}
        list(threads.map(count, range(0, len(task.queries), block)))


@cache
def _libraries() -> ThreadpoolController:
    """Libraries with thread pools; cached because finding them takes longer than a small task."""
    return ThreadpoolController()


def _similarity(task: FewShotTask, protocol: Protocol, order: np.ndarray) -> SupportSimilarity | None:
    """Of the largest support of a draw; None if it exceeds `MOST_SIMILARITY`."""
    rows = order[: protocol.shots[-1]].ravel()
    return SupportSimilarity(task.support[rows]) if len(rows) ** 2 <= MOST_SIMILARITY else None


def _without_support(estimator: Any) -> EmbeddingClassifier:
    """Drop the estimator's copy of the examples, since there is one for each method, shots and seed."""
    for owner in (estimator, getattr(estimator, "estimator_", estimator)):
        for name in ("support_", "loo_scores_", "_familiar"):
            vars(owner).pop(name, None)
    return estimator
