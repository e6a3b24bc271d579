"""Kernel ridge regression with closed-form leave-one-out predictions: exact, or through landmarks for many rows.

Predictions are linear in the targets, one-hot labels Y and text similarities ``Z = F W'``. Both are predicted
separately, so the weight of the texts can be chosen exactly afterwards.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from recollect.classifiers.heads.holdout import HoldOut
from recollect.core.ordering import stable_argsort

ROW_BLOCK = 2048
"""Block size for large supports."""


def gaussian(left: np.ndarray, right: np.ndarray, bandwidth: float) -> np.ndarray:
    """Compute ``exp(-bandwidth (1 - cos))`` of unit rows: (left, right)."""
    distance = left @ right.T - 1
    distance *= bandwidth
    return np.exp(distance, out=distance)


@dataclass(frozen=True)
class RidgeTargets:
    """Regression targets of a few-shot classifier, computed on demand: one-hot labels and text similarities.

    Attributes:
        support: unit rows (examples, width).
        labels: (examples,).
        texts: unit class texts (classes, width).
    """

    support: np.ndarray
    labels: np.ndarray
    texts: np.ndarray

    def one_hot(self, rows: np.ndarray) -> np.ndarray:
        """Return Y of the given rows (rows, classes)."""
        found = np.zeros((len(rows), len(self.texts)), dtype=self.support.dtype)
        found[np.arange(len(rows)), self.labels[rows]] = 1
        return found

    def similarity(self, rows: np.ndarray) -> np.ndarray:
        """Return Z of the given rows (rows, classes)."""
        return self.support[rows] @ self.texts.T

    def under(self, basis: np.ndarray, rows: np.ndarray | slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """Return ``basis' Y`` and ``basis' Z`` over the given rows, each (columns of basis, classes)."""
        inside = basis.T @ self.support[rows]
        return self.sums(basis, rows), inside @ self.texts.T.astype(basis.dtype, copy=False)

    def sums(self, basis: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return ``basis' Y`` (columns of basis, classes)."""
        sums, labels = np.zeros((len(self.texts), basis.shape[1]), dtype=basis.dtype), self.labels[rows]
        for start in range(0, len(labels), ROW_BLOCK):
            part = labels[start : start + ROW_BLOCK]
            order = stable_argsort(part)
            starts = np.flatnonzero(np.r_[True, np.diff(part[order]) != 0])
            sums[part[order][starts]] += np.add.reduceat(basis[start : start + ROW_BLOCK][order], starts, axis=0)
        return sums.T


Predictions = tuple[np.ndarray, np.ndarray]
"""Held-out predictions of Y and of Z, each (held, classes)."""


def ridge_path(
    targets: RidgeTargets, plan: HoldOut, bandwidth: float, ridges: np.ndarray, features: np.ndarray | None = None
) -> Iterator[Predictions]:
    """Yield held-out predictions at every ridge, from one eigendecomposition (one per fold at few shots).

    Args:
        features: rows Phi (examples, landmarks) with ``Phi Phi'`` close to K; None for the exact kernel.

    Yields:
        For each ridge the predictions of the rows ``plan.rows``.
    """
    if plan.leave_one_out:
        yield from _path(targets, np.arange(len(targets.labels)), plan.rows, bandwidth, ridges, features, alone=True)
        return
    parts: list[list[Predictions]] = []
    positions = []
    for learn, choose in plan.folds():
        parts.append(list(_path(targets, learn, choose, bandwidth, ridges, features)))
        positions.append(np.searchsorted(plan.rows, choose))
    order = stable_argsort(np.concatenate(positions))
    for predictions in zip(*parts, strict=True):
        yield tuple(np.concatenate(each)[order] for each in zip(*predictions, strict=True))


def _path(
    targets: RidgeTargets,
    learn: np.ndarray,
    choose: np.ndarray,
    bandwidth: float,
    ridges: np.ndarray,
    features: np.ndarray | None,
    alone: bool = False,
) -> Iterator[Predictions]:
    """Yield predictions of the rows ``choose`` from the rows ``learn``, at every ridge.

    With ``alone``, ``learn`` includes ``choose`` and each row is left out alone. Its prediction is
    ``y - (A^-1 y)_i / (A^-1)_ii`` with A = K + ridge I, or with features ``y - (y - prediction) / (1 - leverage)``.
    """
    if features is None:
        known = targets.support[learn]
        values, basis = scipy.linalg.eigh(gaussian(known, known, bandwidth), check_finite=False)
        projected = targets.under(basis, learn)
        scored = basis[choose] if alone else gaussian(targets.support[choose], known, bandwidth) @ basis
    else:
        known = features[learn]
        values, basis = scipy.linalg.eigh(known.T @ known, check_finite=False)
        sums = targets.under(known, learn)
        projected, scored = (basis.T @ sums[0], basis.T @ sums[1]), features[choose] @ basis
    truth = targets.one_hot(choose), targets.similarity(choose)
    squares = scored**2 if alone else None
    for ridge in ridges:
        shrunk = 1 / (np.maximum(values, 0) + ridge)
        predictions = [scored @ (shrunk[:, None] * each) for each in projected]
        for prediction, y in zip(predictions, truth if alone else (), strict=False):  # in place, since copies are large
            spread = squares @ shrunk
            if features is not None:
                prediction -= y
            prediction /= (-spread if features is None else np.maximum(1 - spread, 1e-6))[:, None]
            prediction += y
        yield predictions[0], predictions[1]


class Landmarks:
    """Features whose products approximate the Gaussian kernel: ``phi(x) = k(x, L) k(L, L)^-1/2`` (Nystroem).

    Args:
        centers: unit rows (landmarks, width).
    """

    def __init__(self, centers: np.ndarray, bandwidth: float) -> None:
        self.centers, self.bandwidth = centers, bandwidth
        values, vectors = scipy.linalg.eigh(gaussian(centers, centers, bandwidth).astype(np.float64))
        kept = values > 1e-6 * values[-1]  # weaker directions are lost in single precision
        self.whiten = (vectors[:, kept] / np.sqrt(values[kept])).astype(centers.dtype)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Return features (rows, at most landmarks)."""
        found = np.empty((len(rows), self.whiten.shape[1]), dtype=rows.dtype)
        for start in range(0, len(rows), ROW_BLOCK):
            block = slice(start, start + ROW_BLOCK)
            found[block] = gaussian(rows[block], self.centers, self.bandwidth) @ self.whiten
        return found

    def normal(self, targets: RidgeTargets) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return float64 ``Phi' Phi`` (landmarks, landmarks), ``Phi' Y`` and ``Phi' Z`` (landmarks, classes).

        Computed in blocks, since the features of 160,000 examples in double precision would take gigabytes.
        """
        width, classes = self.whiten.shape[1], len(targets.texts)
        gram, ones = np.zeros((width, width)), np.zeros((width, classes))
        means = np.zeros((width, targets.texts.shape[1]))
        for start in range(0, len(targets.labels), ROW_BLOCK):
            block = slice(start, start + ROW_BLOCK)
            part = RidgeTargets(targets.support[block], targets.labels[block], targets.texts)
            features = self(part.support).astype(np.float64)
            gram += features.T @ features
            ones += part.sums(features)
            means += features.T @ part.support
        return gram, ones, means @ targets.texts.T


class ExactRidge:
    """Inverse of ``A = K + ridge I``.

    Args:
        support: unit rows (examples, width).

    Attributes:
        inverse: float64 (examples, examples).
    """

    def __init__(self, support: np.ndarray, bandwidth: float, ridge: float) -> None:
        self.support, self.bandwidth, self.ridge = support, bandwidth, ridge
        kernel = gaussian(support.astype(np.float64), support.astype(np.float64), bandwidth)
        kernel[np.diag_indices(len(kernel))] += ridge
        factor, info = scipy.linalg.lapack.dpotrf(kernel, lower=1)
        if info:  # not positive definite within rounding
            self.inverse = np.linalg.inv(kernel)
        else:
            lower = np.tril(scipy.linalg.lapack.dpotri(factor, lower=1, overwrite_c=1)[0])
            self.inverse = lower + np.tril(lower, -1).T

    def kernel(self, queries: np.ndarray) -> np.ndarray:
        """Return the kernel matrix (queries, examples)."""
        return gaussian(queries, self.support, self.bandwidth)

    def held_out_errors(self, coefficients: np.ndarray, plan: HoldOut) -> np.ndarray:
        """Return ``residual - prediction`` of held-out examples (held, classes).

        ``(A^-1 R)_i / (A^-1)_ii`` one by one, ``((A^-1)_BB)^-1 (A^-1 R)_B`` for a group held out together.
        """
        if plan.leave_one_out:
            return coefficients[plan.rows] / np.diag(self.inverse)[plan.rows, None]

        def errors(learn: np.ndarray, choose: np.ndarray) -> np.ndarray:
            absent = np.setdiff1d(np.arange(len(self.inverse)), learn)
            found = np.linalg.solve(self.inverse[np.ix_(absent, absent)], coefficients[absent])
            return found[np.searchsorted(absent, choose)]

        return plan.scored(errors, (coefficients.shape[1],), np.float64)
