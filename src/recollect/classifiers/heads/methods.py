"""The few-shot methods by name."""

from collections.abc import Callable, Mapping

import numpy as np

from recollect.classifiers.heads.ape import ApeClassifier
from recollect.classifiers.heads.base import EmbeddingClassifier
from recollect.classifiers.heads.mixture import DualMemory, GaussianDiscriminant, ZeroShotMix
from recollect.classifiers.heads.probes import ClassAdaptiveProbe, LinearProbePlusPlus, ResidualMap
from recollect.classifiers.heads.proker import ProKeR
from recollect.classifiers.heads.prototype import PrototypeClassifier
from recollect.classifiers.heads.timo import Timo
from recollect.classifiers.heads.tip import CrossValidatedTipAdapter, TipAdapter, TipX, ZeroShotClassifier
from recollect.classifiers.heads.trained import ApeTrained, ClipAdapter, LinearProbe, TipAdapterF
from recollect.classifiers.heads.voting import PluralityVoting, RankVoting, SoftmaxVoting

MakeEstimator = Callable[[np.ndarray | None, float], EmbeddingClassifier]
"""From class texts (or None) and the model's inverse temperature to an estimator."""

FEW_SHOT_METHODS: Mapping[str, MakeEstimator] = {
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
    "tip-x": lambda texts, scale: TipX(texts, scale=scale),
    "tip-x-published": lambda texts, scale: TipX(texts, scale=scale, preset="published"),
    "ape": lambda texts, scale: ApeClassifier(texts, scale=scale),
    "ape-published": lambda texts, scale: ApeClassifier(texts, scale=scale, preset="published"),
    "gda": lambda texts, scale: GaussianDiscriminant(texts, scale=scale),
    "dmn-tf": lambda texts, scale: DualMemory(texts, scale=scale),
    "dmn-tf-published": lambda texts, scale: DualMemory(texts, scale=scale, preset="published"),
    "timo": lambda texts, scale: Timo(texts),
    "timo-published": lambda texts, scale: Timo(texts, preset="published"),
    "clap": lambda texts, scale: ClassAdaptiveProbe(texts, scale=scale),
    "lp++": lambda texts, scale: LinearProbePlusPlus(texts),
    "rla": lambda texts, scale: ResidualMap(texts, scale=scale),
    "rla-published": lambda texts, scale: ResidualMap(texts, scale=scale, preset="published"),
    "linear-probe": lambda texts, scale: LinearProbe(),
    "clip-adapter": lambda texts, scale: ClipAdapter(texts, scale=scale),
    "tip-adapter-f": lambda texts, scale: TipAdapterF(texts, scale=scale),
    "ape-t": lambda texts, scale: ApeTrained(texts, scale=scale),
}
"""Every method by its name in tables. Add yours here."""

PROMPT_METHODS = ("timo", "timo-published")
"""Methods that get all prompts of a class where the task has them, not only their mean."""

PAPER_METHODS = ("prototype", "tip-adapter", "tip-adapter-cv", "plurality", "rank", "softmax")
"""The six training-free classifiers of LIxP's Table 1."""
