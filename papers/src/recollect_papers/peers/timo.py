"""TIMO: prompts weighted by the shots, and discriminant analysis with prompts as samples (Li et al., 2025)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_array

from recollect.classifiers.heads.base import KernelForm, as_numpy, class_means, softmax, unit_or_zero, unit_rows
from recollect.classifiers.heads.holdout import MAX_TUNING_ROWS, HoldOut
from recollect.classifiers.heads.mixing import ScorePair, best_weight
from recollect.core.ordering import best_first
from recollect_papers.peers.mixtures import Mixture, discriminant

SHARPNESSES = (1.0, 5.0, 20.0, 50.0, 100.0)
PROMPT_SHARES = (0.5, 1.0, 2.0)
"""Candidates of gamma and of the fraction of prompts."""


@dataclass(eq=False, repr=False)
class Timo(Mixture):
    """``alpha f·W' + (f·W_g + b)``: prompts weighted by the examples, and examples extended by prompts.

    Image-guided text: ``W'_c = norm( sum_p softmax_p(gamma m_cp / |m_c|) T_cp )``, with ``m_cp`` the cosine of a prompt
    and the normalized class mean. Text-guided image: `GaussianDiscriminant` learns from the examples and, as additional
    samples, the prompts of each class, nearest first, times their m (repeated once if the share exceeds 1).

    Args:
        text_features: prompts (classes, prompts, width), or one text per class (classes, width).
        alpha: weight of the texts; by default the exactly best one in 1e-4…1e4 on held-out examples.
        gamma: sharpness of the prompts' weights; chosen on held-out folds by default.
        prompts: fraction of prompts used as samples; chosen by default.
    """

    reads_prompts = True
    weight_bounds = (1e-4, 1e4)
    default_weight = 100.0

    text_features: Any = None
    alpha: float | None = None
    gamma: float | None = None
    prompts: float | None = None

    def _texts(self, support: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the prompts (classes, prompts, width)."""
        if self.text_features is None or np.ndim(self.text_features) == 2:
            return super()._texts(support, labels)[:, None]
        given = as_numpy(self.text_features)
        given = check_array(given, dtype=[np.float32, np.float64], allow_nd=True, input_name="text_features")
        if given.shape[::2] != (len(self.classes_), support.shape[1]):
            raise ValueError(
                f"text_features has shape {given.shape}; the support set needs ({len(self.classes_)}, prompts, "
                f"{support.shape[1]}): the prompts of each of its classes, in the order of classes_"
            )
        rows = unit_rows(given.reshape(-1, given.shape[2]), "text_features")
        return rows.reshape(given.shape).astype(support.dtype, copy=False)

    def _fit(self, support: np.ndarray, labels: np.ndarray) -> None:
        plan = self._plan.first(MAX_TUNING_ROWS)
        self.gamma_, self.prompts_ = self._choose(support, labels, plan)
        super()._fit(support, labels)

    def _choose(self, support: np.ndarray, labels: np.ndarray, plan: HoldOut) -> tuple[float, float]:
        gammas = SHARPNESSES if self.gamma is None else (self.gamma,)
        shares = PROMPT_SHARES if self.prompts is None else (self.prompts,)
        if not len(plan.rows) or len(gammas) * len(shares) == 1:
            return (50.0 if self.gamma is None else self.gamma), (1.0 if self.prompts is None else self.prompts)
        held = np.empty((len(shares), len(plan.rows), len(self.classes_)), dtype=support.dtype)
        near = np.empty((len(gammas), *held.shape[1:]), dtype=support.dtype)
        for learn, choose in plan.folds():
            rows, queries = np.searchsorted(plan.rows, choose), support[choose]
            texts = self._fold_texts(support, labels, learn)
            for number, share in enumerate(shares):
                weights, bias = self._guided(texts, support[learn], labels[learn], share)
                held[number, rows] = queries @ weights.T + bias
            for number, gamma in enumerate(gammas):
                near[number, rows] = queries @ self._weighed(texts, support[learn], labels[learn], gamma).T
        own, best = plan.held_labels, (-1.0, gammas[0], shares[0])
        for gamma, extra in zip(gammas, near, strict=True):
            for share, base in zip(shares, held, strict=True):
                right = best_weight(base, extra, own, self.weight_bounds)[1]
                if right > best[0]:
                    best = right, gamma, share
        return best[1], best[2]

    def _fold_texts(self, support: np.ndarray, labels: np.ndarray, learn: np.ndarray) -> np.ndarray:
        return self.texts_ if self.text_features is not None else self._texts(support[learn], labels[learn])

    def _other_choices(self) -> dict[str, Any]:
        return {"gamma": self.gamma_, "prompts": self.prompts_}

    def _learn_extra(self, support: np.ndarray, labels: np.ndarray) -> None:
        self.weighed_ = self._weighed(self.texts_, support, labels, self.gamma_)
        self.coef_, self.intercept_ = self._guided(self.texts_, support, labels, self.prompts_)

    def _components(self, queries: np.ndarray) -> ScorePair:
        return queries @ self.coef_.T + self.intercept_, queries @ self.weighed_.T

    def _matches(self, texts: np.ndarray, support: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return m, the cosine of each prompt and the mean of its class (classes, prompts)."""
        means = unit_or_zero(class_means(support, labels, len(texts)))
        return np.einsum("cpd,cd->cp", texts, means)

    def _weighed(self, texts: np.ndarray, support: np.ndarray, labels: np.ndarray, gamma: float) -> np.ndarray:
        weights = softmax(gamma * unit_or_zero(self._matches(texts, support, labels)))
        return unit_or_zero(np.einsum("cp,cpd->cd", weights, texts))

    def _guided(
        self, texts: np.ndarray, support: np.ndarray, labels: np.ndarray, share: float
    ) -> tuple[np.ndarray, np.ndarray]:
        matches = self._matches(texts, support, labels)
        order = best_first(matches)
        count = round(share * texts.shape[1])
        order = np.concatenate([order, order], axis=1)[:, :count]
        classes = np.arange(len(texts))[:, None]
        added = (texts[classes, order] * matches[classes, order][..., None]).reshape(-1, texts.shape[2])
        own = np.repeat(np.arange(len(texts)), order.shape[1])
        rows = np.concatenate([support, added.astype(support.dtype)])
        return discriminant(rows, np.concatenate([labels, own]), len(texts))

    def kernel_form(self) -> KernelForm:
        return KernelForm.of(self, self.coef_ + self.alpha_ * self.weighed_, self.intercept_)
