"""Chooses the method with the best held-out accuracy."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from recollect.classifiers import EmbeddingClassifier, ZeroShotClassifier
from recollect.classifiers.heads.methods import FEW_SHOT_METHODS

BEST = "best"
"""Requests the choice on held-out examples."""

CANDIDATES = ("proker", "prototype", "zero-shot")
"""Candidates of `BEST`, whose held-out scores have a closed form; the first of equally accurate ones is chosen."""


def choose_method(
    methods: Sequence[str],
    texts: np.ndarray,
    scale: float,
    support: np.ndarray,
    labels: np.ndarray,
) -> tuple[str, EmbeddingClassifier, dict[str, float]]:
    """Fit every method and choose the one with the best held-out accuracy.

    At one shot, where no example can be held out, it is ProKeR if the class texts agree with the examples
    (`trusted_text_weight`), else class means.

    Args:
        methods: names in `FEW_SHOT_METHODS`.
        texts: unit-norm class texts (classes, width).
        scale: the model's inverse temperature.
        support: unit-norm examples (n, width) of every class.
        labels: (n,), indices of classes.

    Returns:
        Name, estimator, and the held-out accuracy of every method. The latter is too high, since methods chose their
        settings on the same examples; report the accuracy of `held_out_check`.
    """
    taught = {name: FEW_SHOT_METHODS[name](texts, scale).fit_checked(support, labels) for name in methods}
    accuracies = {name: each.loo_accuracy_ for name, each in taught.items() if len(each.loo_rows_)}
    if accuracies:
        name = max(accuracies, key=accuracies.__getitem__)
    else:
        weight = getattr(taught.get("proker"), "text_weight_", 0.0)
        name = "prototype" if "prototype" in taught and not weight else methods[0]
    return name, taught[name], accuracies


def by_names(texts: np.ndarray, scale: float) -> EmbeddingClassifier:
    """The nearest class text, at the model's own temperature."""
    estimator = ZeroShotClassifier(texts).fit_checked(texts, np.arange(len(texts)))
    estimator.temperature_ = 1.0 / scale
    return estimator


def settings_of(estimator: EmbeddingClassifier) -> dict[str, Any]:
    """The scalar settings that the method chose."""
    plain = (bool, int, float, str, np.integer, np.floating)
    return {
        name.rstrip("_"): value.item() if isinstance(value, np.generic) else value
        for name, value in sorted(vars(estimator).items())
        if name.endswith("_") and isinstance(value, plain) and not name.startswith(("n_", "loo_", "temperature"))
    }
