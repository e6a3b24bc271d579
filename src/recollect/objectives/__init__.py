"""What training minimises: pure functions of embeddings, and small modules that own their temperatures."""

from recollect.objectives.base import OBJECTIVES, Base, ContrastiveObjective, Objective
from recollect.objectives.context import Attended, attend, contextualize
from recollect.objectives.contextual import ContextObjective
from recollect.objectives.options import ContextOptions
from recollect.objectives.sigmoid import sigmoid_contrastive
from recollect.objectives.softmax import label_contrastive, softmax_contrastive
from recollect.objectives.terms import BaseLoss, LossInputs, Targets
from recollect.objectives.tiles import Form

__all__ = [
    "OBJECTIVES",
    "Attended",
    "Base",
    "BaseLoss",
    "ContextObjective",
    "ContextOptions",
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
