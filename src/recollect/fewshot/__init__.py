"""Few-shot classifiers on embeddings, as scikit-learn estimators."""

from recollect.fewshot.adapt import OnlineGaussians, adapt
from recollect.fewshot.ape import ApeClassifier
from recollect.fewshot.base import EmbeddingClassifier
from recollect.fewshot.heads import ClassAdaptiveProbe, LinearProbePlusPlus, ResidualMap
from recollect.fewshot.mixture import DualMemory, GaussianDiscriminant, ZeroShotMix
from recollect.fewshot.online import OnlineCache, vote_of_views
from recollect.fewshot.pool import stat_a, trans_clip
from recollect.fewshot.proker import ProKeR
from recollect.fewshot.prototype import PrototypeClassifier
from recollect.fewshot.timo import Timo
from recollect.fewshot.tip import CrossValidatedTipAdapter, TipAdapter, TipX, ZeroShotClassifier
from recollect.fewshot.trained import ApeTrained, ClipAdapter, LinearProbe, TipAdapterF
from recollect.fewshot.tuning import best_weight
from recollect.fewshot.voting import PluralityVoting, RankVoting, SoftmaxVoting

__all__ = [
    "ApeClassifier",
    "ApeTrained",
    "ClassAdaptiveProbe",
    "ClipAdapter",
    "CrossValidatedTipAdapter",
    "DualMemory",
    "EmbeddingClassifier",
    "GaussianDiscriminant",
    "LinearProbe",
    "LinearProbePlusPlus",
    "OnlineCache",
    "OnlineGaussians",
    "PluralityVoting",
    "ProKeR",
    "PrototypeClassifier",
    "RankVoting",
    "ResidualMap",
    "SoftmaxVoting",
    "Timo",
    "TipAdapter",
    "TipAdapterF",
    "TipX",
    "ZeroShotClassifier",
    "ZeroShotMix",
    "adapt",
    "best_weight",
    "stat_a",
    "trans_clip",
    "vote_of_views",
]
