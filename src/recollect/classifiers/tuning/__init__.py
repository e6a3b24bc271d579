"""Fine-tuning with a few labelled pictures: adapters, norms and prompts of any CLIP or SigLIP of transformers."""

from recollect.classifiers.tuning.cascade import BoostingPrompts, CascadedPrompts
from recollect.classifiers.tuning.classifier import TunedClassifier
from recollect.classifiers.tuning.learners import CoOp, KgCoOp, MaPLe, PromptSRC
from recollect.classifiers.tuning.prompts import Prompts, prompted
from recollect.classifiers.tuning.shots import LabelledPictures
from recollect.classifiers.tuning.weights import ClipLora, TwoStageTuning

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
