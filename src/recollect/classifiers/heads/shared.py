"""Evaluates all methods that only read similarities from one matrix product, for all shots and draws."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from recollect.classifiers.heads.base import EmbeddingClassifier
from recollect.classifiers.heads.holdout import SupportSimilarity, cosines
from recollect.classifiers.heads.protocol import FewShotTask, Protocol
from recollect.classifiers.heads.scoring import SET_ALPHA, Key, Score
from recollect.classifiers.heads.voting import top_similar

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


def evaluate_shared(
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
