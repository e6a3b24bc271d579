"""Fine-tuning with a few labelled pictures: adapters, norms and prompts of any CLIP or SigLIP of transformers."""

from recollect.tuning.cascade import BoostingPrompts, CascadedPrompts
from recollect.tuning.classifier import TunedClassifier
from recollect.tuning.learners import CoOp, KgCoOp, MaPLe, PromptSRC
from recollect.tuning.prompts import Prompts, prompted
from recollect.tuning.shots import LabelledPictures
from recollect.tuning.weights import ClipLora, TwoStageTuning

__all__ = [
    "BoostingPrompts",
    "CascadedPrompts",
    "ClipLora",
    "CoOp",
    "KgCoOp",
    "LabelledPictures",
    "MaPLe",
    "PromptSRC",
    "Prompts",
    "TunedClassifier",
    "TwoStageTuning",
    "prompted",
]
