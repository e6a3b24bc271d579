"""APE and APE-T: Tip-Adapter on the most discriminative channels (Zhu et al., 2023)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import log_softmax
from torch import Tensor, nn

from recollect.classifiers.heads.base import EmbeddingClassifier, KernelForm, class_means, unit_or_zero
from recollect.classifiers.heads.holdout import MAX_TUNING_ROWS, HoldOut
from recollect.classifiers.heads.kernel import gaussian
from recollect.classifiers.heads.tip import best_mixture, class_sums, held_out_blocks
from recollect.classifiers.heads.trained import Schedule, fit_by_gradient
from recollect.core.ordering import best_first
from recollect.core.types import TEXT_SCALE
from recollect_papers.peers.trained import make_generator, tensors

SHARE, SIMILARITY_WEIGHT = 500 / 1024, 0.7
"""The public code's fraction of channels and weight for ImageNet; it sets others per data set by hand."""

BETAS = tuple(np.linspace(0.1, 7.0, 12).tolist())
ALPHAS = (0.1, 7.0)
GAMMAS = (0.0, 0.1, 0.2, 0.3, 0.4)
"""Search ranges of the public code."""


def channel_scores(
    texts: np.ndarray,
    similarity_weight: float = 0.7,
    support: np.ndarray | None = None,
    labels: np.ndarray | None = None,
) -> np.ndarray:
    """Score how well each channel separates classes: (width,), larger is better.

    ``-w S_k + (1 - w) V_k`` with the inter-class similarity ``S_k``, the mean of ``x_ik x_jk`` over pairs of different
    classes among texts and examples, and the variance ``V_k`` of the texts over classes. The sum over pairs is
    ``(sum of all)^2 - sum of (class sum)^2``.

    Args:
        texts: (classes, width), at least two classes.
        support, labels: examples (examples, width), (examples,), of all classes; optional.
    """
    counts, sums = np.ones(len(texts)), texts
    if support is not None and labels is not None:
        examples = np.bincount(labels, minlength=len(texts))
        counts, sums = counts + examples, texts + class_means(support, labels, len(texts)) * examples[:, None]
    pairs = sums.sum(axis=0) ** 2 - (sums**2).sum(axis=0)
    number = counts.sum() ** 2 - (counts**2).sum()
    return -similarity_weight * pairs / number + (1 - similarity_weight) * texts.var(axis=0, ddof=1)


@dataclass(eq=False, repr=False)
class ApeClassifier(EmbeddingClassifier):
    """``scale f·W + alpha exp(-beta (1 - f'·F')) diag(exp(gamma KL(L | F'W'))) L`` on selected channels (APE, Eq. 7-9).

    As in the public code, the keys' zero-shot distributions ``softmax(F'W')`` have no temperature, the divergence from
    the label, ``-log2 p_label``, is in bits, and channels are selected by texts and examples.

    Args:
        text_features: class texts W, in the order of ``classes_``.
        alpha, beta, gamma: weight and sharpness of the cache, weight of the divergence; by default chosen on held-out
            examples in the public code's ranges, alpha exactly. Without held-out examples they are 2, 1 and 0.1.
        channels: fraction of channels to select.
        similarity_weight: w of the channel score.
        scale: the model's factor of the text scores.

    Attributes:
        channels_: indices of the selected channels.
        alpha_, beta_, gamma_: the values used.
    """

    text_features: Any = None
    alpha: float | None = None
    beta: float | None = None
    gamma: float | None = None
    channels: float = SHARE
    similarity_weight: float = SIMILARITY_WEIGHT
    scale: float = 100.0

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        self.support_, self.labels_ = support, labels
        scores = channel_scores(self.texts_, self.similarity_weight, support, labels)
        self.channels_ = best_channels(self.channels, scores)
        self.keys_ = unit_or_zero(support[:, self.channels_])
        given = self.alpha, self.beta, self.gamma
        plan = self._plan.first(MAX_TUNING_ROWS)
        defaults = self._search(support, labels, plan) if len(plan.rows) and None in given else (2.0, 1.0, 0.1)
        self.alpha_, self.beta_, self.gamma_ = (
            default if value is None else value for value, default in zip(given, defaults, strict=True)
        )
        self.weights_ = np.exp(self.gamma_ * self._divergence(labels)).astype(support.dtype)

    def _search(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> tuple[float, ...]:
        betas = BETAS if self.beta is None else (self.beta,)
        gammas = GAMMAS if self.gamma is None else (self.gamma,)
        weights = np.exp(np.outer(gammas, self._divergence(labels))).astype(support.dtype)
        texts = self.scale * self._text_similarity(support, labels, plan)
        sums = held_out_blocks(self.keys_, labels, plan, np.array(betas), weights)
        pairs = [(beta, gamma) for beta in betas for gamma in gammas]
        bounds = ALPHAS if self.alpha is None else _exactly(self.alpha)
        found = best_mixture(((rows, texts[None, rows], each) for rows, each in sums), plan.held_labels, pairs, bounds)
        return found.weight, *found.parameters

    def _divergence(self, labels: np.ndarray) -> np.ndarray:
        """Return ``KL(one-hot label | softmax(F'W'))`` in bits, ``-log2 p_label``: (examples,)."""
        cosines = self.keys_ @ unit_or_zero(self.texts_[:, self.channels_]).T
        logs = log_softmax(cosines.astype(np.float64), axis=1)
        return -logs[np.arange(len(labels)), labels] / np.log(2)

    def _chosen(self) -> dict[str, Any]:
        return {"alpha": self.alpha_, "beta": self.beta_, "gamma": self.gamma_}

    def _held_out(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> np.ndarray:
        if self.text_features is None:  # the class means depend on the held-out examples
            return super()._held_out(support, labels, plan)
        scores = self.scale * self._text_similarity(support, labels, plan)
        for rows, (cache,) in held_out_blocks(self.keys_, labels, plan, np.array([self.beta_]), self.weights_):
            scores[rows] += self.alpha_ * cache
        return scores

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        near = gaussian(self.keys_, unit_or_zero(queries[:, self.channels_]), self.beta_)
        near *= self.weights_[:, None]
        cache = class_sums(torch.from_numpy(near), self.labels_, len(self.classes_)).T.numpy()
        return self.scale * queries @ self.texts_.T + self.alpha_ * cache


def best_channels(share: float, scores: np.ndarray) -> np.ndarray:
    """Return the indices of the given share of channels with the best scores, ascending."""
    if not 0 < share <= 1:
        raise ValueError(f"channels must be above 0 and at most 1, got {share}")
    return np.sort(best_first(scores)[: max(1, round(share * len(scores)))])


def _exactly(value: float) -> tuple[float, float]:
    """Return bounds that contain a single weight."""
    return value, float(np.nextafter(value, np.inf))


@dataclass(eq=False, repr=False)
class ApeTrained(EmbeddingClassifier):
    """APE-T: a learned residual for each class on the most discriminative channels, added to its text and to its keys,
    and a learned weight for each example (Zhu et al., 2023, section 3.3, as in the public code).

    ``scale f·W' + alpha exp(-beta (1 - f·F')) diag(weights) L`` with all channels, neither renormalization nor
    divergence. Trained at alpha 2 and beta 1; both are then chosen on separately trained folds, alpha exactly.

    Args:
        text_features: class texts W, in the order of ``classes_``.
        alpha, beta: weight and sharpness of the cache; chosen by default.
        channels: fraction of channels with a residual.
        similarity_weight: w of the channel score.
        scale: the model's factor of the text scores.
        epochs, learning_rate: parameters of AdamW.
        random_state: seed of the shuffling.
    """

    text_features: Any = None
    alpha: float | None = None
    beta: float | None = None
    channels: float = 0.5
    similarity_weight: float = 0.2
    scale: float = TEXT_SCALE
    epochs: int = 20
    learning_rate: float = 1e-3
    random_state: Any = 0

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        self.trained_ = {"alpha": 2.0 if self.alpha is None else self.alpha,
                         "beta": 1.0 if self.beta is None else self.beta}  # fmt: skip
        self.alpha_, self.beta_ = self.trained_.values()
        plan = self._plan.first(MAX_TUNING_ROWS)
        if len(plan.rows) and None in (self.alpha, self.beta):
            folds = [(self._refitted(support[learn], labels[learn], self.trained_), at) for learn, at in plan.folds()]
            betas = BETAS if self.beta is None else (self.beta,)
            blocks = ((np.searchsorted(plan.rows, at), (self.scale * support[at] @ fold.refined_.T)[None],
                       (fold._cache(support[at], beta) for beta in betas)) for fold, at in folds)  # fmt: skip
            bounds = ALPHAS if self.alpha is None else _exactly(self.alpha)
            best = best_mixture(blocks, plan.held_labels, [(beta,) for beta in betas], bounds)
            self.alpha_ = best.weight if self.alpha is None else self.alpha
            self.beta_ = best.parameters[0]
        self._train(support, labels)

    def _train(self, support: np.ndarray, labels: np.ndarray) -> None:
        images, texts, own = tensors(support, self.texts_, labels)
        chosen = torch.from_numpy(best_channels(self.channels, channel_scores(self.texts_, self.similarity_weight)))
        values = nn.functional.one_hot(own, len(texts)).float()
        residual = nn.Parameter(torch.zeros(len(texts), len(chosen)))
        weights = nn.Parameter(torch.ones(len(own), 1))
        alpha, beta = self.trained_.values()

        def refined() -> tuple[Tensor, Tensor]:
            return texts.index_add(1, chosen, residual), images.index_add(1, chosen, residual[own])

        def loss(rows: Tensor) -> Tensor:
            new_texts, keys = refined()
            near = torch.exp(beta * (images[rows] @ keys.T - 1))
            logits = self.scale * (images[rows] @ new_texts.T) + alpha * near @ (weights * values)
            return nn.functional.cross_entropy(logits, own[rows])

        optimizer = torch.optim.AdamW([residual, weights], lr=self.learning_rate, eps=1e-3, weight_decay=0.1)
        fit_by_gradient(optimizer, loss, len(images), make_generator(self.random_state), Schedule(self.epochs))
        with torch.no_grad():
            self.refined_, self.keys_, self.values_ = (each.numpy() for each in (*refined(), weights * values))

    def _held_out(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> np.ndarray:
        # Folds are trained with the same alpha and beta, and scored with the chosen ones.
        def score(learn: np.ndarray, choose: np.ndarray) -> np.ndarray:
            fold = self._refitted(support[learn], labels[learn], self.trained_)
            fold.alpha_, fold.beta_ = self.alpha_, self.beta_
            return fold._scores(support[choose])

        return plan.scored(score, (len(self.classes_),), support.dtype)

    def _cache(self, queries: np.ndarray, beta: float) -> np.ndarray:
        return np.exp(beta * (queries @ self.keys_.T - 1)) @ self.values_

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        return self.scale * queries @ self.refined_.T + self.alpha_ * self._cache(queries, self.beta_)

    def kernel_form(self) -> KernelForm:
        kernel = self.keys_, self.beta_, self.alpha_ * self.values_
        return KernelForm.of(self, self.scale * self.refined_, kernel=kernel)
