"""Tuning methods by name."""

from collections.abc import Callable, Mapping
from typing import Protocol

from recollect.classifiers.tuning.classifier import TunedClassifier
from recollect.classifiers.tuning.learners import CoOp, KgCoOp, MaPLe, PromptSRC
from recollect.classifiers.tuning.shots import LabelledPictures
from recollect.classifiers.tuning.weights import ClipLora, TwoStageTuning
from recollect.models.dual import DualEncoder


class TuningMethod(Protocol):
    """Settings of a method, with ``fit``."""

    def fit(self, encoder: DualEncoder, shots: LabelledPictures) -> TunedClassifier:
        """Tune a copy of ``encoder``."""
        ...


MakeTuning = Callable[[float, bool, int], TuningMethod]
"""From effort (share of the published steps), flip and seed to a method."""

TUNING_METHODS: Mapping[str, MakeTuning] = {
    "clip-lora": lambda effort, flip, seed: ClipLora(effort=effort, flip=flip, seed=seed),
    "2sfs": lambda effort, flip, seed: TwoStageTuning(effort=effort, flip=flip, seed=seed),
    "coop": lambda effort, flip, seed: CoOp(effort=effort, flip=flip, seed=seed),
    "kgcoop": lambda effort, flip, seed: KgCoOp(effort=effort, flip=flip, seed=seed),
    "maple": lambda effort, flip, seed: MaPLe(effort=effort, flip=flip, seed=seed),
    "promptsrc": lambda effort, flip, seed: PromptSRC(effort=effort, flip=flip, seed=seed),
}
"""Methods with the constants of their public code; `CascadedPrompts` (``caspl``) also needs a larger model."""

CASCADE = "caspl"
