"""Public names, which `__init__.py` imports on first use."""

from .heads.base import EmbeddingClassifier as EmbeddingClassifier
from .heads.mixing import best_weight as best_weight
from .heads.mixture import ZeroShotMix as ZeroShotMix
from .heads.proker import ProKeR as ProKeR
from .heads.prototype import PrototypeClassifier as PrototypeClassifier
from .heads.tip import CrossValidatedTipAdapter as CrossValidatedTipAdapter
from .heads.tip import TipAdapter as TipAdapter
from .heads.tip import ZeroShotClassifier as ZeroShotClassifier
from .heads.trained import LinearProbe as LinearProbe
from .heads.voting import PluralityVoting as PluralityVoting
from .heads.voting import RankVoting as RankVoting
from .heads.voting import SoftmaxVoting as SoftmaxVoting
