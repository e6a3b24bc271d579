"""ADAPT: class Gaussians of the most confident pictures, for a stream or a whole folder."""

from dataclasses import dataclass, field

import numpy as np

from recollect.classifiers.heads.base import softmax, unit_rows
from recollect.classifiers.heads.calibration import log_softmax
from recollect.classifiers.heads.mixture import NO_SPREAD
from recollect_papers.peers.transductive import Assignment

STREAM_BANK, POOL_BANK = 16, 6
"""Number of rows of least entropy kept for each predicted class, of a stream and of a folder."""

TEXT_SHARE = 0.1
"""Weight of the class text in a class's mean."""

SHARPNESS = 50.0
"""S, which divides the evidence; 10 to 100 in the public code, depending on the data set."""


@dataclass(frozen=True)
class _Bank:
    """Rows with their probabilities and classes."""

    keys: np.ndarray
    probabilities: np.ndarray
    labels: np.ndarray


def bank_gaussians(
    keys: np.ndarray, probabilities: np.ndarray, labels: np.ndarray, texts: np.ndarray, text_share: float = TEXT_SHARE
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights (classes, width), intercepts (classes,) and means (classes, width) of Gaussians with a shared covariance.

    ``mu_c = (1 - share) sum_i p_ic k_i / sum_i p_ic + share t_c`` over the rows of class c, or its text without rows;
    the covariance is shrunk as in `GaussianDiscriminant`.

    Args:
        keys: unit rows (rows, width).
        probabilities: (rows, classes); only that of the row's class is used.
        labels: classes of the rows (rows,).
        texts: unit class texts (classes, width).
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
    """``scale cos(f, t) exp(e / S)`` with the evidence ``e = log softmax(f·W_g + b) + S / 2M sum_i (f·k_i) p_i`` minus
    its maximum. Negative cosines, which a factor below one would raise, are lowered by the same amount instead."""
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
    """ADAPT on a whole folder (Zhang et al., 2025): Gaussians of the most confident rows of each predicted class.

    Args:
        pool: unlabelled unit rows (pool, width).
        texts: unit class texts (classes, width).
        scale: the model's inverse temperature.
        bank: rows of least entropy for each predicted class; 0 gives zero-shot classification.
        sharpness: S; larger values reduce the effect of the Gaussians.
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
    """ADAPT on a stream (Zhang et al., 2025): pictures are classified by the texts and by Gaussians of the most
    confident pictures so far, without gradients.

    As published, a row may enter the bank of its predicted class before it is scored; unlike in the public code the
    newest row is not counted twice.

    Args:
        texts: unit class texts (classes, width).
        scale: the model's inverse temperature.
        bank: unlabelled rows of least entropy kept for each predicted class.
        sharpness: S; larger values reduce the effect of the Gaussians.
    """

    texts: np.ndarray
    scale: float = 100.0
    bank: int = STREAM_BANK
    sharpness: float = SHARPNESS
    _kept: dict[int, list[tuple[float, np.ndarray, np.ndarray]]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.texts = unit_rows(np.asarray(self.texts, dtype=np.float64), "texts")

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """Scores of the next pictures of the stream (rows, classes), in order."""
        rows = unit_rows(np.asarray(rows, dtype=np.float64), "embeddings")
        return np.array([self._next(row) for row in rows]).reshape(len(rows), len(self.texts))

    def _next(self, row: np.ndarray) -> np.ndarray:
        probabilities = softmax(self.scale * (self.texts @ row)[None])[0]
        label = int(probabilities.argmax())
        item = float(_entropy(probabilities[None])[0]), row, probabilities
        self._kept[label] = sorted([*self._kept.get(label, []), item], key=lambda kept: kept[0])[: self.bank]
        items = [(label, *kept[1:]) for label, all_kept in self._kept.items() for kept in all_kept]
        classes, width = self.texts.shape
        bank = _Bank(
            np.array([key for _, key, _ in items]).reshape(-1, width),
            np.array([p for *_, p in items]).reshape(-1, classes),
            np.array([label for label, *_ in items], dtype=np.int64),
        )
        return _scores(row[None], bank, self.texts, self.scale, self.sharpness)[0]
