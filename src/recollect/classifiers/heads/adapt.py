"""ADAPT: class Gaussians of what was surest so far, for a stream or for a folder at once."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recollect.classifiers.heads.base import softmax, unit_rows
from recollect.classifiers.heads.calibration import log_softmax
from recollect.classifiers.heads.mixture import NO_SPREAD
from recollect.classifiers.heads.transductive import Assignment

STREAM_BANK, POOL_BANK = 16, 6
"""Rows of least entropy that are kept for each predicted class: of a stream, and of a folder read at once."""

TEXT_SHARE = 0.1
"""Share of the class text in a class's mean."""

SHARPNESS = 50.0
"""S, by which the evidence is divided; the public code has 10 to 100 by the name of the data set."""


@dataclass(frozen=True)
class _Bank:
    """Rows with their probabilities and the class each stands for."""

    keys: np.ndarray
    probabilities: np.ndarray
    labels: np.ndarray


def bank_gaussians(
    keys: np.ndarray, probabilities: np.ndarray, labels: np.ndarray, texts: np.ndarray, text_share: float = TEXT_SHARE
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, intercepts and means of the classes' Gaussians with one covariance, shrunk as in `GaussianDiscriminant`.

    ``mu_c = (1 - share) sum_i p_ic k_i / sum_i p_ic + share t_c`` over the rows of class c; a class without
    rows has its text.

    Args:
        keys: unit rows (rows, width).
        probabilities: of each row (rows, classes); only its own class's is read.
        labels: the class each row stands for (rows,).
        texts: unit class texts (classes, width).

    Returns:
        (classes, width), (classes,), (classes, width).
    """
    classes, width = texts.shape
    own = probabilities[np.arange(len(keys)), labels]
    sums = np.zeros((classes, width))
    np.add.at(sums, labels, own[:, None] * keys)
    total = np.bincount(labels, own, minlength=classes)[:, None]
    means = np.where(total > 0, (1 - text_share) * sums / np.maximum(total, 1e-30) + text_share * texts, texts)
    centred = keys - means[labels]
    scatter = centred.T @ centred
    trace = np.trace(scatter) / max(len(keys) - 1, 1)
    trace = 1.0 if trace < NO_SPREAD else trace
    weights = width * np.linalg.solve(scatter + trace * np.eye(width), means.T).T
    return weights, -np.log(classes) - 0.5 * np.einsum("cd,cd->c", means, weights), means


def _scores(rows: np.ndarray, bank: _Bank, texts: np.ndarray, scale: float, sharpness: float) -> np.ndarray:
    """``scale cos(f, t) exp(e / S)`` with the evidence ``e = log softmax(f·W_g + b) + S / 2M sum_i (f·k_i) p_i``, less
    its greatest. A negative cosine would rise by a factor below one: it falls by as much instead."""
    cosines = rows @ texts.T
    if not len(bank.keys):
        return scale * cosines
    weights, bias, _ = bank_gaussians(bank.keys, bank.probabilities, bank.labels, texts)
    values = np.zeros_like(bank.probabilities)
    places = np.arange(len(bank.labels))
    values[places, bank.labels] = bank.probabilities[places, bank.labels]
    evidence = log_softmax(rows @ weights.T + bias) + sharpness / (2 * len(values)) * (rows @ bank.keys.T) @ values
    evidence -= evidence.max(axis=1, keepdims=True)
    return scale * (cosines - np.abs(cosines) * -np.expm1(evidence / sharpness))


def _entropy(probabilities: np.ndarray) -> np.ndarray:
    return -(probabilities * np.log(np.maximum(probabilities, 1e-30))).sum(axis=-1)


def adapt(
    pool: np.ndarray, texts: np.ndarray, *, scale: float = 100.0, bank: int = POOL_BANK, sharpness: float = SHARPNESS
) -> Assignment:
    """ADAPT on a folder at once (Zhang et al., 2025): Gaussians of the surest rows of each predicted class.

    Args:
        pool: unit rows (pool, width), no labels.
        texts: unit class texts (classes, width).
        scale: the model's inverse temperature.
        bank: rows of least entropy for each predicted class; 0 leaves zero-shot classification.
        sharpness: S; the larger, the less the Gaussians say.
    """
    pool = unit_rows(np.asarray(pool, dtype=np.float64), "pool")
    texts = unit_rows(np.asarray(texts, dtype=np.float64), "texts")
    first = softmax(scale * pool @ texts.T)
    labels = first.argmax(axis=1)
    order = np.lexsort((_entropy(first), labels))
    starts = np.searchsorted(labels[order], np.arange(len(texts)))
    kept = order[np.arange(len(order)) - starts[labels[order]] < bank]
    found = _Bank(pool[kept], first[kept], labels[kept])
    _, _, means = bank_gaussians(found.keys, found.probabilities, found.labels, texts)
    variances = ((found.keys - means[found.labels]) ** 2).sum(axis=0) / max(len(kept) - 1, 1)
    return Assignment(softmax(_scores(pool, found, texts, scale, sharpness)), means, variances)


@dataclass
class OnlineGaussians:
    """ADAPT on a stream (Zhang et al., 2025): one picture after another, classified by the texts and by Gaussians of
    the surest pictures so far; nothing is learned by gradients.

    A row enters its predicted class's bank before it is scored, as published, if it is among the surest there; the
    public code counts the newest one twice, which is not done here. Labelled rows may be the first bank and stay in it.

    Args:
        texts: unit class texts (classes, width).
        scale: the model's inverse temperature.
        bank: rows of least entropy kept for each predicted class, beside labelled ones.
        sharpness: S; the larger, the less the Gaussians say.
        support, labels: labelled unit rows (examples, width) and their classes (examples,), or None.
    """

    texts: np.ndarray
    scale: float = 100.0
    bank: int = STREAM_BANK
    sharpness: float = SHARPNESS
    support: Any = None
    labels: Any = None
    _kept: dict[int, list[tuple[float, np.ndarray, np.ndarray]]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.texts = unit_rows(np.asarray(self.texts, dtype=np.float64), "texts")
        if (self.support is None) != (self.labels is None):
            raise ValueError("labelled rows need one label each")
        if self.support is None:
            self.support, self.labels = np.empty((0, self.texts.shape[1])), np.empty(0, dtype=np.int64)
        else:
            self.support = unit_rows(np.asarray(self.support, dtype=np.float64), "support")
            self.labels = np.asarray(self.labels, dtype=np.int64)

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """Scores of the next pictures of the stream (rows, classes), each after those before it."""
        rows = unit_rows(np.asarray(rows, dtype=np.float64), "embeddings")
        return np.array([self._next(row) for row in rows]).reshape(len(rows), len(self.texts))

    def _next(self, row: np.ndarray) -> np.ndarray:
        probabilities = softmax(self.scale * (self.texts @ row)[None])[0]
        label = int(probabilities.argmax())
        item = float(_entropy(probabilities[None])[0]), row, probabilities
        self._kept[label] = sorted([*self._kept.get(label, []), item], key=lambda kept: kept[0])[: self.bank]
        items = [(label, *kept[1:]) for label, all_kept in self._kept.items() for kept in all_kept]
        width, classes = self.support.shape[1], len(self.texts)
        bank = _Bank(
            np.concatenate([self.support, np.array([key for _, key, _ in items]).reshape(-1, width)]),
            np.concatenate([np.eye(classes)[self.labels], np.array([p for *_, p in items]).reshape(-1, classes)]),
            np.concatenate([self.labels, np.array([label for label, *_ in items], dtype=np.int64)]),
        )
        return _scores(row[None], bank, self.texts, self.scale, self.sharpness)[0]
