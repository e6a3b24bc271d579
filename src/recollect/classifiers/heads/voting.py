"""Voting of the nearest examples for their class (LIxP, appendix B)."""

import numpy as np

from recollect.classifiers.heads.base import EmbeddingClassifier
from recollect.classifiers.heads.holdout import HoldOut
from recollect.classifiers.heads.similarity import cosines, nearest

_HELD_BLOCK = 256
"""Number of held-out examples compared with all others at once."""


def class_votes(weights: np.ndarray, voters: np.ndarray, classes: int) -> np.ndarray:
    """Sum the weights of each class: (queries, classes).

    Args:
        weights: (queries, k), or (k,) for all queries.
        voters: class index of each neighbor (queries, k), nearest first.
    """
    weights = np.broadcast_to(weights, voters.shape)
    cell = voters + classes * np.arange(len(voters))[:, None]
    votes = np.bincount(cell.ravel(), weights.ravel(), minlength=classes * len(voters))
    return votes.reshape(len(voters), classes)


class _Voting(EmbeddingClassifier):
    """Base of voting classifiers: scores are shares of votes; ties go to the class of the nearest example."""

    k: int

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        if self.k < 1:
            raise ValueError(f"k must be at least 1, got {self.k}")
        self.support_ = support
        self.labels_ = labels
        self.k_ = self._neighbors(labels)

    def _neighbors(self, labels: np.ndarray) -> int:
        return min(self.k, len(labels))

    def _weights(self, similarity: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        return self._vote(*nearest(cosines(queries, self.support_), self.k_))

    def _vote(self, neighbors: np.ndarray, similarity: np.ndarray) -> np.ndarray:
        """Return shares of votes from the ``k_`` nearest examples of each query, nearest first."""
        voters = self.labels_[neighbors]
        weights = self._weights(similarity)
        votes = class_votes(weights, voters, len(self.classes_))
        votes *= 1e9 / weights.sum(axis=-1, keepdims=True)
        # Shares equal to nine digits are ties, which the nearest example decides.
        np.rint(votes, out=votes)
        # The last of several assignments to an entry wins, so assign from far to near.
        k, rows = voters.shape[1], np.arange(len(voters))[:, None]
        votes[rows, voters[:, ::-1]] += (1 - np.arange(k) / k)[::-1] / 10
        votes *= 1e-9
        return votes

    def _held_out(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> np.ndarray:
        if not plan.leave_one_out:
            return super()._held_out(support, labels, plan)
        scores = np.empty((len(plan.rows), len(self.classes_)))
        for start in range(0, len(scores), _HELD_BLOCK):
            rows = plan.rows[start : start + _HELD_BLOCK]
            similarity = cosines(support[rows], support)
            similarity[np.arange(len(rows)), rows] = -np.inf
            scores[start : start + _HELD_BLOCK] = self._vote(*nearest(similarity, min(self.k_, len(support) - 1)))
        return scores

    def shares_of(self, scores: np.ndarray) -> np.ndarray:
        """Return votes divided by their sum (queries, classes)."""
        return scores / scores.sum(axis=1, keepdims=True)

    def _logits(self, scores: np.ndarray) -> np.ndarray:
        # Spread a tenth of the votes over all classes, so a class without votes is unlikely, not impossible.
        return np.log(scores + 0.1 / scores.shape[1])


class PluralityVoting(_Voting):
    """One vote per neighbor; k is at most the number of shots (Nakata et al., 2022)."""

    def __init__(self, k: int = 32) -> None:
        self.k = k

    def _neighbors(self, labels: np.ndarray) -> int:
        return min(self.k, int(np.bincount(labels).max()))

    def _weights(self, similarity: np.ndarray) -> np.ndarray:
        return np.ones(similarity.shape[1])


class SoftmaxVoting(_Voting):
    """Votes weighted by ``softmax(f·F / temperature)`` over the k nearest (LIxP, Eq. 10).

    Args:
        temperature: 0.07 in the literature.
    """

    def __init__(self, k: int = 32, temperature: float = 0.07) -> None:
        self.k = k
        self.temperature = temperature

    def _weights(self, similarity: np.ndarray) -> np.ndarray:
        return np.exp((similarity - similarity[:, :1]) / self.temperature)


class RankVoting(_Voting):
    """Votes weighted by ``1 / (offset + rank)``, rank from 0 (Geirhos et al., 2024).

    Args:
        offset: 2 in the literature.
    """

    def __init__(self, k: int = 32, offset: float = 2.0) -> None:
        self.k = k
        self.offset = offset

    def _weights(self, similarity: np.ndarray) -> np.ndarray:
        return 1.0 / (self.offset + np.arange(similarity.shape[1]))
