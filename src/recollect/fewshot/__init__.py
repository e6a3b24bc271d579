"""Few-shot classifiers on embeddings, as scikit-learn estimators."""

from recollect.fewshot.ape import ApeClassifier
from recollect.fewshot.base import EmbeddingClassifier
from recollect.fewshot.mixture import DualMemory, GaussianDiscriminant, ZeroShotMix
from recollect.fewshot.proker import ProKeR
from recollect.fewshot.prototype import PrototypeClassifier
from recollect.fewshot.tip import CrossValidatedTipAdapter, TipAdapter, TipX, ZeroShotClassifier
from recollect.fewshot.trained import ApeTrained, ClipAdapter, LinearProbe, TipAdapterF
from recollect.fewshot.tuning import best_weight
from recollect.fewshot.voting import PluralityVoting, RankVoting, SoftmaxVoting

__all__ = [
    "ApeClassifier",
    "ApeTrained",
    "ClipAdapter",
    "CrossValidatedTipAdapter",
    "DualMemory",
    "EmbeddingClassifier",
    "GaussianDiscriminant",
    "LinearProbe",
    "PluralityVoting",
    "ProKeR",
    "PrototypeClassifier",
    "RankVoting",
    "SoftmaxVoting",
    "TipAdapter",
    "TipAdapterF",
    "TipX",
    "ZeroShotClassifier",
    "ZeroShotMix",
    "best_weight",
]
