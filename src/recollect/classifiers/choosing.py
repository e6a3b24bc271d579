"""Which method: the one that is right most often about examples that it was not shown."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from recollect.classifiers import EmbeddingClassifier, ZeroShotClassifier
from recollect.classifiers.heads.methods import FEW_SHOT_METHODS, PROMPT_METHODS

BEST = "best"
"""Name of the choice on held-out examples."""

CANDIDATES = ("proker", "prototype", "zero-shot")
"""Methods among which `BEST` chooses: each has its held-out scores in closed form. The first of equals is taken.

Where every class has a single example and none can be held out, it is ProKeR if the class names agree with the
examples (`trusted_text_weight`), and else class means."""


def choose_method(
    methods: Sequence[str],
    texts: np.ndarray,
    scale: float,
    support: np.ndarray,
    labels: np.ndarray,
    prompts: np.ndarray | None = None,
) -> tuple[str, EmbeddingClassifier, dict[str, float]]:
    """Fit every method and choose the one that is right most often about held-out examples.

    Where none can be held out: ProKeR if the class texts agree with the examples, else class means.

    Args:
        methods: names in `FEW_SHOT_METHODS`.
        texts: unit-norm class texts (classes, width).
        scale: the model's inverse temperature.
        support: unit-norm examples (n, width), some of every class.
        labels: (n,), indices of classes.
        prompts: what the texts are means of (classes, prompts, width), for methods that weigh them.

    Returns:
        Its name, the estimator, and the accuracy that every method was chosen by: held out, but too high, since each
        method chose its settings on the same examples (`held_out_check` measures the accuracy to report).
    """
    given = {name: texts if prompts is None or name not in PROMPT_METHODS else prompts for name in methods}
    taught = {name: FEW_SHOT_METHODS[name](each, scale).fit_checked(support, labels) for name, each in given.items()}
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
    """What the method chose for itself, as numbers."""
    plain = (bool, int, float, str, np.integer, np.floating)
    return {
        name.rstrip("_"): value.item() if isinstance(value, np.generic) else value
        for name, value in sorted(vars(estimator).items())
        if name.endswith("_") and isinstance(value, plain) and not name.startswith(("n_", "loo_", "temperature"))
    }
