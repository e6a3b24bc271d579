"""Few-shot methods by name, and the choice of one by held-out accuracy."""

from collections.abc import Callable, Sequence

import numpy as np

from recollect.classifiers.heads.base import EmbeddingClassifier
from recollect.classifiers.heads.mixture import ZeroShotMix
from recollect.classifiers.heads.proker import ProKeR
from recollect.classifiers.heads.prototype import PrototypeClassifier
from recollect.classifiers.heads.tip import CrossValidatedTipAdapter, TipAdapter, ZeroShotClassifier
from recollect.classifiers.heads.trained import LinearProbe
from recollect.classifiers.heads.voting import PluralityVoting, RankVoting, SoftmaxVoting
from recollect.core.plugins import Table

MakeEstimator = Callable[[np.ndarray | None, float], EmbeddingClassifier]
"""Function from class texts (or None) and the model's inverse temperature to an estimator."""

FEW_SHOT_METHODS: Table[MakeEstimator] = Table("few_shot_methods", {
    "zero-shot": lambda texts, scale: ZeroShotClassifier(texts),
    "prototype": lambda texts, scale: PrototypeClassifier(),
    "prototype-cosine": lambda texts, scale: PrototypeClassifier(cosine=True),
    "tip-adapter": lambda texts, scale: TipAdapter(texts),
    "tip-adapter-cv": lambda texts, scale: CrossValidatedTipAdapter(texts),
    "plurality": lambda texts, scale: PluralityVoting(),
    "rank": lambda texts, scale: RankVoting(),
    "softmax": lambda texts, scale: SoftmaxVoting(),
    "softmax+zero-shot": lambda texts, scale: ZeroShotMix(SoftmaxVoting(), texts, scale=scale),
    "proker": lambda texts, scale: ProKeR(texts),
    "linear-probe": lambda texts, scale: LinearProbe(),
})  # fmt: skip
"""Methods by their names in tables. Add yours here; packages add theirs (`recollect.core.plugins`)."""

PAPER_METHODS = ("prototype", "tip-adapter", "tip-adapter-cv", "plurality", "rank", "softmax")
"""The six training-free classifiers of LIxP's Table 1."""

BEST = "best"
"""Name that requests the choice on held-out examples."""

CANDIDATES = ("proker", "prototype-cosine", "zero-shot")
"""Candidates of `BEST`, whose held-out scores have a closed form; ties go to the first. From two examples per class on,
normalized class means beat the paper's (``lixp/methods``); with one they are equal."""


def choose_method(
    methods: Sequence[str],
    texts: np.ndarray,
    scale: float,
    support: np.ndarray,
    labels: np.ndarray,
) -> tuple[str, EmbeddingClassifier, dict[str, float]]:
    """Fit every method and choose the one with the best held-out accuracy.

    With one example per class none can be held out, so the first method is chosen.

    Args:
        texts: unit-norm class texts (classes, width).
        support: unit-norm examples (n, width) of every class.
        labels: class indices (n,).

    Returns:
        Name, estimator, and the held-out accuracy of every method. These accuracies are too high, since methods choose
        their settings on the same examples; report the accuracy of `held_out_check`.
    """
    taught = {name: FEW_SHOT_METHODS[name](texts, scale).fit_checked(support, labels) for name in methods}
    accuracies = {name: each.loo_accuracy_ for name, each in taught.items() if len(each.loo_rows_)}
    name = max(accuracies, key=accuracies.__getitem__) if accuracies else methods[0]
    return name, taught[name], accuracies


def text_classifier(texts: np.ndarray, scale: float) -> EmbeddingClassifier:
    """Return a classifier by the nearest class text, at the model's own temperature."""
    estimator = ZeroShotClassifier(texts).fit_checked(texts, np.arange(len(texts)))
    estimator.temperature_ = 1.0 / scale
    return estimator
