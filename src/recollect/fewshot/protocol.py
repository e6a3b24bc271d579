"""The few-shot protocol: every method, number of shots and draw of the support, from one product of similarities.

Supports are nested: for one seed, K shots are the first K of each class in one random order. So all that a method
reads from similarities to 2K shots (class sums, cache sums, nearest examples) is what it read from K shots and the
increment.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from threading import Lock
from typing import Any, Literal

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from recollect.core.types import TEXT_SCALE, Metric
from recollect.fewshot.ape import ApeClassifier
from recollect.fewshot.base import EmbeddingClassifier, softmax, unit_rows
from recollect.fewshot.calibration import BINS
from recollect.fewshot.heads import ClassAdaptiveProbe, LinearProbePlusPlus, ResidualMap
from recollect.fewshot.holdout import SupportSimilarity
from recollect.fewshot.mixture import DualMemory, GaussianDiscriminant, ZeroShotMix
from recollect.fewshot.proker import ProKeR
from recollect.fewshot.prototype import PrototypeClassifier
from recollect.fewshot.timo import Timo
from recollect.fewshot.tip import CrossValidatedTipAdapter, TipAdapter, TipX, ZeroShotClassifier
from recollect.fewshot.trained import ApeTrained, ClipAdapter, LinearProbe, TipAdapterF
from recollect.fewshot.voting import PluralityVoting, RankVoting, SoftmaxVoting, top_similar

MakeEstimator = Callable[[np.ndarray | None, float], EmbeddingClassifier]
"""From class texts (or None) and the model's scale, the inverse temperature it was trained with, to an estimator."""

FEW_SHOT_METHODS: Mapping[str, MakeEstimator] = {
    "zero-shot": lambda texts, scale: ZeroShotClassifier(texts, scale),
    "prototype": lambda texts, scale: PrototypeClassifier(),
    "tip-adapter": lambda texts, scale: TipAdapter(texts, scale=scale),
    "tip-adapter-cv": lambda texts, scale: CrossValidatedTipAdapter(texts, scale=scale),
    "plurality": lambda texts, scale: PluralityVoting(),
    "rank": lambda texts, scale: RankVoting(),
    "softmax": lambda texts, scale: SoftmaxVoting(),
    "softmax+zero-shot": lambda texts, scale: ZeroShotMix(SoftmaxVoting(), texts, scale=scale),
    "proker": lambda texts, scale: ProKeR(texts, scale),
    "proker-published": lambda texts, scale: ProKeR(texts, scale, preset="published"),
    "tip-x": lambda texts, scale: TipX(texts, scale=scale),
    "tip-x-published": lambda texts, scale: TipX(texts, scale=scale, preset="published"),
    "ape": lambda texts, scale: ApeClassifier(texts, scale=scale),
    "ape-published": lambda texts, scale: ApeClassifier(texts, scale=scale, preset="published"),
    "gda": lambda texts, scale: GaussianDiscriminant(texts, scale=scale),
    "dmn-tf": lambda texts, scale: DualMemory(texts, scale=scale),
    "dmn-tf-published": lambda texts, scale: DualMemory(texts, scale=scale, preset="published"),
    "timo": lambda texts, scale: Timo(texts),
    "clap": lambda texts, scale: ClassAdaptiveProbe(texts, scale=scale),
    "lp++": lambda texts, scale: LinearProbePlusPlus(texts),
    "rla": lambda texts, scale: ResidualMap(texts, scale=scale),
    "linear-probe": lambda texts, scale: LinearProbe(),
    "clip-adapter": lambda texts, scale: ClipAdapter(texts, scale=scale),
    "tip-adapter-f": lambda texts, scale: TipAdapterF(texts, scale=scale),
    "ape-t": lambda texts, scale: ApeTrained(texts, scale=scale),
}
"""Every method by its name in tables. ``zero-shot`` reads no support."""

PROMPT_METHODS = ("timo",)
"""Methods that weigh the prompts of a class, and are given each by itself where the task has them."""

PAPER_METHODS = ("prototype", "tip-adapter", "tip-adapter-cv", "plurality", "rank", "softmax")
"""The six training-free classifiers of LIxP's Table 1."""

SET_ALPHA = 0.1
"""Error rate of the conformal sets whose coverage is measured."""

TRUST_COLUMNS = ("loo", "ece", "coverage", "set_size")
"""What a row says about trust beside its accuracy."""

SET_QUERIES = 2000
"""Most queries whose sets are measured where a set costs more than a comparison."""


MOST_SIMILARITY = 2**25
"""Most similarities among the examples of a draw that are kept while its classifiers are fitted: 128 MiB."""

ShortClasses = Literal["refuse", "all"]

NO_ROW = -1
"""In a draw: the class has no further example."""

_UNIT = 2**30
"""Confidences are summed as integers of this resolution, so that the order of blocks and threads cannot matter."""


@dataclass(frozen=True)
class Protocol:
    """What to evaluate.

    Attributes:
        methods: names in `FEW_SHOT_METHODS`.
        shots: examples of each class, ascending.
        seeds: draws of the support.
        metric: share of right predictions, or its mean over classes (the convention of some sets).
        short_classes: what to do where a class has fewer examples than shots: refuse, or take all that it has.
        memory: bytes that a block of queries may take; decides the block's size, not the result.
    """

    methods: Sequence[str] = ("zero-shot", *PAPER_METHODS)
    shots: Sequence[int] = (1, 2, 4, 8, 16, 32)
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    metric: Metric = "top-1"
    memory: int = 32 * 2**20
    short_classes: ShortClasses = "refuse"

    def __post_init__(self) -> None:
        if unknown := [name for name in self.methods if name not in FEW_SHOT_METHODS]:
            raise ValueError(f"unknown method {unknown[0]!r}; choose from {', '.join(FEW_SHOT_METHODS)}")
        if not self.shots or list(self.shots) != sorted(set(self.shots)) or self.shots[0] < 1:
            raise ValueError(f"shots must be ascending and at least 1, got {list(self.shots)}")
        if not self.seeds:
            raise ValueError("no seeds, so no draw of the support: name at least one")

    def settings(self) -> dict[str, Any]:
        """What decides the figures."""
        told = {key: value for key, value in asdict(self).items() if key != "memory"}
        if self.short_classes == "refuse":  # results from before there was a choice keep their names
            del told["short_classes"]
        return told


@dataclass(frozen=True)
class FewShotTask:
    """Embeddings of one task; labels are 0…C - 1 and index the rows of ``texts``.

    Attributes:
        support: unit-norm pool to draw examples from (pool, width).
        support_labels: (pool,).
        queries: unit-norm (queries, width).
        query_labels: (queries,).
        texts: unit-norm class texts (classes, width); None where there are none: class means of the shots stand in.
        scale: inverse temperature that the model learned; methods that turn text scores into probabilities need it.
        prompts: unit-norm prompts that the class texts are means of (classes, prompts, width), for `PROMPT_METHODS`;
            None gives them the means.
    """

    support: np.ndarray
    support_labels: np.ndarray
    queries: np.ndarray
    query_labels: np.ndarray
    texts: np.ndarray | None
    scale: float = TEXT_SCALE
    prompts: np.ndarray | None = None

    def __post_init__(self) -> None:
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
        """How many."""
        return int(self.support_labels.max()) + 1 if self.texts is None else len(self.texts)


def nested_supports(
    labels: np.ndarray, classes: int, shots: int, seed: int, short_classes: ShortClasses = "refuse"
) -> np.ndarray:
    """Rows of the pool in the order in which they are drawn: (shots, classes), column c from class c.

    The first K rows are the support of K shots, so supports of one seed are nested.

    Args:
        short_classes: ``all`` takes all of a class that has fewer, and `NO_ROW` stands for those that it lacks.

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


def draw(labels: np.ndarray, classes: int, protocol: Protocol) -> dict[int, np.ndarray]:
    """For each seed of the protocol its `nested_supports`."""
    most = protocol.shots[-1]
    return {seed: nested_supports(labels, classes, most, seed, protocol.short_classes) for seed in protocol.seeds}


def run_protocol(
    task: FewShotTask,
    protocol: Protocol,
    tick: Callable[[int], None] | None = None,
    orders: Mapping[int, np.ndarray] | None = None,
) -> list[dict[str, Any]]:
    """Accuracy in percent of every method at every number of shots for every draw.

    Figures equal those of fitting each estimator by itself on ``support[rows]``.

    Args:
        tick: called with the number of queries that a method has classified, for progress.
        orders: the draws, if they were made before (`draw`), e.g. to embed only the examples that they use.

    Returns:
        Rows ``{"method", "shots", "seed", "metric", "value"}``; ``zero-shot`` has one row, of 0 shots and seed 0. And
        in percent: ``loo``, accuracy on held-out examples (absent at one shot); ``ece``, the expected calibration error
        of the probabilities of the queries; ``coverage``, how often a set at an error rate of 0.1 holds the class; and
        ``set_size``, the mean number of classes in a set.

    Raises:
        ValueError: more shots than a class has examples.
    """
    tick = tick if tick is not None else _silent
    classes = task.classes
    if task.texts is None and "zero-shot" in protocol.methods:
        raise ValueError("zero-shot reads class texts, and there are none")
    orders = orders or draw(task.support_labels, classes, protocol)
    score = _Score(task.query_labels, classes, protocol.metric)
    whole = all((order != NO_ROW).all() for order in orders.values())  # else sums over shots are of another shape
    shared = [name for name in protocol.methods if name in _SHARED] if whole else []
    if shared:
        _evaluate_shared(task, protocol, shared, orders, score, tick)
    for name in protocol.methods:
        if name in shared:
            continue
        if name == "zero-shot" and task.texts is not None:
            found = task.queries @ task.texts.T
            score.add((name, 0, 0), slice(None), found, softmax(task.scale * found))
            continue
        for seed, order in orders.items():
            for shots in protocol.shots:
                estimator = _fitted(name, task, order, shots)
                score.add_fit((name, shots, seed), estimator)
                some = slice(None, None, -(-len(task.queries) // SET_QUERIES))
                score.add_sets((name, shots, seed), some, estimator._possible(task.queries[some], SET_ALPHA))
                for start in range(0, len(task.queries), _block(task, protocol)):
                    rows = slice(start, start + _block(task, protocol))
                    found = estimator._scores(task.queries[rows])
                    score.add((name, shots, seed), rows, found, estimator._probabilities(found))
                    tick(len(task.queries[rows]))
    return score.rows(protocol)


def _silent(queries: int) -> None:
    pass


def _block(task: FewShotTask, protocol: Protocol) -> int:
    """Queries at a time: a block holds about five numbers for each query and each of the most examples in use."""
    widest = len(task.support) + 4 * protocol.shots[-1] * task.classes
    return max(1, protocol.memory // (4 * widest))


def _fitted(
    name: str, task: FewShotTask, order: np.ndarray, shots: int, similarity: SupportSimilarity | None = None
) -> EmbeddingClassifier:
    rows, labels = support_of(order, shots)
    texts = task.prompts if name in PROMPT_METHODS and task.prompts is not None else task.texts
    return FEW_SHOT_METHODS[name](texts, task.scale).fit_checked(task.support[rows], labels, similarity)


def support_of(order: np.ndarray, shots: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the first so many shots of a draw, shot by shot, and their classes."""
    rows = order[:shots].ravel()
    labels = np.tile(np.arange(order.shape[1]), len(order[:shots]))
    return rows[rows != NO_ROW], labels[rows != NO_ROW]


_Key = tuple[str, int, int]


@dataclass
class _Score:
    """Right predictions of each class, calibration and sets, summed over blocks as integers, in any order."""

    labels: np.ndarray
    classes: int
    metric: Metric
    right: dict[_Key, np.ndarray] = field(default_factory=dict)
    gaps: dict[_Key, np.ndarray] = field(default_factory=dict)
    sets: dict[_Key, np.ndarray] = field(default_factory=dict)
    fits: dict[_Key, float] = field(default_factory=dict)
    lock: Any = field(default_factory=Lock)

    def add(self, key: _Key, rows: slice, scores: np.ndarray, probabilities: np.ndarray) -> None:
        """What is right, and how sure of it."""
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

    def add_fit(self, key: _Key, estimator: EmbeddingClassifier) -> None:
        self.fits[key] = estimator.loo_accuracy_

    def add_sets(self, key: _Key, rows: slice, kept: np.ndarray) -> None:
        labels = self.labels[rows]
        own = kept[np.arange(len(labels)), labels]
        found = np.array([np.count_nonzero(own), np.count_nonzero(kept), len(labels)])
        with self.lock:
            self.sets[key] = self.sets.get(key, 0) + found

    def _trust(self, key: _Key) -> dict[str, float]:
        found = {}
        if np.isfinite(self.fits.get(key, np.nan)):
            found["loo"] = 100.0 * self.fits[key]
        if key in self.gaps:
            found["ece"] = 100.0 * float(np.abs(self.gaps[key]).sum()) / _UNIT / len(self.labels)
        if key in self.sets:
            held, size, count = self.sets[key].tolist()
            found |= {"coverage": 100.0 * held / count, "set_size": size / count}
        return found

    def rows(self, protocol: Protocol) -> list[dict[str, Any]]:
        order = {name: place for place, name in enumerate(protocol.methods)}
        counts = np.bincount(self.labels, minlength=self.classes)
        there = counts > 0
        rows = []
        for (method, shots, seed), right in sorted(self.right.items(), key=lambda item: (order[item[0][0]], item[0])):
            share = right.sum() / counts.sum() if self.metric == "top-1" else (right[there] / counts[there]).mean()
            rows.append({"method": method, "shots": shots, "seed": seed, "metric": self.metric})
            rows[-1] |= {"value": 100.0 * float(share), **self._trust((method, shots, seed))}
        return rows


class _Running:
    """What similarities to a growing support have given so far, for one block of queries.

    Args:
        similarity: (queries, shots · classes), shot by shot, the classes of a shot in order.
    """

    def __init__(self, similarity: Tensor, classes: int) -> None:
        self.similarity, self.classes, self.shots = similarity, classes, 0
        self._sums: dict[float | None, tuple[int, Tensor | float]] = {}
        self._near: tuple[np.ndarray, np.ndarray] | None = None
        self._near_shots = 0

    def grow(self, shots: int) -> None:
        """Go on to the support of ``shots``."""
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
        """Places and similarities of the nearest examples, nearest first; always the same ``k``."""
        if self._near is None or self._near_shots < self.shots:
            start = self._near_shots * self.classes
            places, values = top_similar(self._new(self._near_shots).numpy(), k)
            places += start
            if self._near is not None:  # the nearest of a union are among the nearest of its parts
                places = np.concatenate([self._near[0], places], axis=1)
                chosen, values = top_similar(np.concatenate([self._near[1], values], axis=1), k)
                places = np.take_along_axis(places, chosen, axis=1)
            self._near, self._near_shots = (places, values), self.shots
        return self._near


_Reader = Callable[[EmbeddingClassifier, _Running, np.ndarray], np.ndarray]
"""Scores from a fitted estimator, what was read so far, and the similarities to the class texts."""


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


_SHARED: Mapping[str, _Reader] = {
    "prototype": _read_prototype,
    "tip-adapter": _read_tip,
    "tip-adapter-cv": _read_tip,
    "plurality": _read_votes,
    "rank": _read_votes,
    "softmax": _read_votes,
    "softmax+zero-shot": _read_mix,
}
"""Methods that read nothing but similarities; they share the product of the queries with the pool."""


def _evaluate_shared(
    task: FewShotTask,
    protocol: Protocol,
    methods: Sequence[str],
    orders: Mapping[int, np.ndarray],
    score: _Score,
    tick: Callable[[int], None],
) -> None:
    classes = task.classes
    used, places = np.unique(np.stack(list(orders.values())), return_inverse=True)
    columns = dict(zip(orders, torch.from_numpy(places.reshape(len(orders), -1)), strict=True))
    pool, block = task.support[used], _block(task, protocol)
    least: dict[_Key, np.ndarray] = {}

    def learn(seed: int) -> dict[_Key, EmbeddingClassifier]:
        """All of one draw, from one product of its examples among themselves where that is not too large."""
        known, found = _similarity(task, protocol, orders[seed]), {}
        for shots in reversed(protocol.shots):
            nested = known.first(shots * classes) if known else None
            for name in methods:
                estimator = _fitted(name, task, orders[seed], shots, nested)
                score.add_fit((name, shots, seed), estimator)
                least[name, shots, seed] = estimator._least(SET_ALPHA)
                found[name, shots, seed] = _without_support(estimator)
        return found

    def scores(start: int) -> Iterator[tuple[_Key, slice, np.ndarray]]:
        rows = slice(start, start + block)
        queries = task.queries[rows]
        texts = None if task.texts is None else queries @ task.texts.T
        similarity = torch.from_numpy(queries @ pool.T)
        for seed in orders:
            running = _Running(similarity.index_select(1, columns[seed]), classes)
            for shots in protocol.shots:
                running.grow(shots)
                for name in methods:
                    key = (name, shots, seed)
                    own = getattr(fitted[key], "texts_", queries[:0])  # what stands in is each estimator's own
                    yield key, rows, _SHARED[name](fitted[key], running, queries @ own.T if texts is None else texts)

    def count(start: int) -> None:
        for key, rows, found in scores(start):
            probabilities = fitted[key]._probabilities(found)
            score.add(key, rows, found, probabilities)
            score.add_sets(key, rows, probabilities >= least[key].astype(probabilities.dtype))
            tick(len(found))

    with threadpool_limits(1), ThreadPoolExecutor(os.cpu_count()) as threads:  # NumPy and torch let go of the lock
        fitted = {key: each for learned in threads.map(learn, orders) for key, each in learned.items()}
        list(threads.map(count, range(0, len(task.queries), block)))


def _similarity(task: FewShotTask, protocol: Protocol, order: np.ndarray) -> SupportSimilarity | None:
    """Of the largest support of a draw; None if it would take more than `MOST_SIMILARITY` numbers."""
    rows = order[: protocol.shots[-1]].ravel()
    return SupportSimilarity(task.support[rows]) if len(rows) ** 2 <= MOST_SIMILARITY else None


def _without_support(estimator: Any) -> EmbeddingClassifier:
    """The estimator without its copy of the examples: there is one for each method, shots and seed."""
    for owner in (estimator, getattr(estimator, "estimator_", estimator)):
        for name in ("support_", "loo_scores_", "_familiar"):
            vars(owner).pop(name, None)
    return estimator
