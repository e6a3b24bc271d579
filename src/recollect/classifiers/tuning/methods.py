"""Tuning methods by name."""

from collections.abc import Callable
from typing import Protocol

from recollect.classifiers.tuning.classifier import TunedClassifier
from recollect.classifiers.tuning.shots import LabelledPictures
from recollect.classifiers.tuning.weights import ClipLora, TwoStageTuning
from recollect.core.plugins import Table
from recollect.models.dual import DualEncoder


class TuningMethod(Protocol):
    """Settings of a method, with ``fit``."""

    def fit(self, encoder: DualEncoder, shots: LabelledPictures) -> TunedClassifier:
        """Tune a copy of ``encoder``."""
        ...


MakeTuning = Callable[[float, bool, int], TuningMethod]
"""From effort (share of the published steps), flip and seed to a method."""

TUNING_METHODS: Table[MakeTuning] = Table("tuning_methods", {
    "clip-lora": lambda effort, flip, seed: ClipLora(effort=effort, flip=flip, seed=seed),
    "2sfs": lambda effort, flip, seed: TwoStageTuning(effort=effort, flip=flip, seed=seed),
})  # fmt: skip
"""Methods with the constants of their public code; packages add theirs (`recollect.core.plugins`)."""
