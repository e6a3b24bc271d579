"""The few-shot methods by name."""

from collections.abc import Callable

import numpy as np

from recollect.classifiers.heads.base import EmbeddingClassifier
from recollect.classifiers.heads.mixture import DualMemory, GaussianDiscriminant, ZeroShotMix
from recollect.classifiers.heads.proker import ProKeR
from recollect.classifiers.heads.prototype import PrototypeClassifier
from recollect.classifiers.heads.tip import CrossValidatedTipAdapter, TipAdapter, ZeroShotClassifier
from recollect.classifiers.heads.trained import LinearProbe
from recollect.classifiers.heads.voting import PluralityVoting, RankVoting, SoftmaxVoting
from recollect.core.plugins import Table

MakeEstimator = Callable[[np.ndarray | None, float], EmbeddingClassifier]
"""From class texts (or None) and the model's inverse temperature to an estimator."""

FEW_SHOT_METHODS: Table[MakeEstimator] = Table("few_shot_methods", {
    "zero-shot": lambda texts, scale: ZeroShotClassifier(texts),
    "prototype": lambda texts, scale: PrototypeClassifier(),
    "tip-adapter": lambda texts, scale: TipAdapter(texts),
    "tip-adapter-cv": lambda texts, scale: CrossValidatedTipAdapter(texts),
    "plurality": lambda texts, scale: PluralityVoting(),
    "rank": lambda texts, scale: RankVoting(),
    "softmax": lambda texts, scale: SoftmaxVoting(),
    "softmax+zero-shot": lambda texts, scale: ZeroShotMix(SoftmaxVoting(), texts, scale=scale),
    "proker": lambda texts, scale: ProKeR(texts),
    "proker-published": lambda texts, scale: ProKeR(texts, preset="published"),
    "gda": lambda texts, scale: GaussianDiscriminant(texts, scale=scale),
    "dmn-tf": lambda texts, scale: DualMemory(texts, scale=scale),
    "dmn-tf-published": lambda texts, scale: DualMemory(texts, scale=scale, preset="published"),
    "linear-probe": lambda texts, scale: LinearProbe(),
})  # fmt: skip
"""Every method by its name in tables. Add yours here; packages add theirs (`recollect.core.plugins`)."""

PAPER_METHODS = ("prototype", "tip-adapter", "tip-adapter-cv", "plurality", "rank", "softmax")
"""The six training-free classifiers of LIxP's Table 1."""
