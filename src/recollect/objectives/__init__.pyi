from .base import OBJECTIVES, Base, ContrastiveObjective, Objective
from .context import Attended, attend, contextualize
from .contextual import ContextObjective
from .sigmoid import sigmoid_contrastive
from .softmax import label_contrastive, softmax_contrastive
from .terms import BaseLoss, LossInputs, Targets
from .tiles import Form

__all__ = [
    "OBJECTIVES",
    "Attended",
    "Base",
    "BaseLoss",
    "ContextObjective",
    "ContrastiveObjective",
    "Form",
    "LossInputs",
    "Objective",
    "Targets",
    "attend",
    "contextualize",
    "label_contrastive",
    "sigmoid_contrastive",
    "softmax_contrastive",
]
