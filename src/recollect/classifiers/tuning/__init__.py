"""Fine-tuning with a few labelled pictures: adapters and norms of any CLIP or SigLIP of transformers."""

from recollect.classifiers.tuning.classifier import TunedClassifier
from recollect.classifiers.tuning.shots import LabelledPictures
from recollect.classifiers.tuning.weights import ClipLora, TwoStageTuning

__all__ = ["ClipLora", "LabelledPictures", "TunedClassifier", "TwoStageTuning"]
