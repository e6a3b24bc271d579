"""Linear probe: logistic regression on frozen image embeddings of a whole training split."""

from typing import Any

import numpy as np

from recollect.classifiers import LinearProbe
from recollect.core.errors import UserError
from recollect.core.types import Encoder, Metric
from recollect.evaluation.features import FeatureCache, image_features, note_copies
from recollect.evaluation.few_shot_protocol import answers
from recollect.evaluation.results import Result, content_of
from recollect.evaluation.tasks.classification import ClassificationTask


def linear_probe(
    encoder: Encoder,
    task: ClassificationTask,
    metric: Metric = "top-1",
    *,
    model: str = "model",
    seed: int = 0,
    cache: FeatureCache | None = None,
) -> Result:
    """Train on all support images of ``task`` and test on its query images (prefix conditioning, section 4.3).

    The regularization is chosen by cross-validation on the support images.

    Returns:
        One row in percent, as in the few-shot protocol (`run_protocol`), with the chosen regularization ``C``.

    Raises:
        UserError: the task has no images to train on.
    """
    if len(task.support) == 0:
        raise UserError(f"{task.name}: no images to train a probe on; name their split with --support")
    support = image_features(encoder, task.support, cache)
    lost = np.setdiff1d(np.arange(len(task.class_names)), support.labels)
    if len(lost):
        raise UserError(f"{task.name}: no image of '{task.class_names[lost[0]]}' to train on can be read")
    query = image_features(encoder, task.query, cache)
    note_copies(support, query, task.name)
    probe = LinearProbe().fit(support.images, support.labels)
    figures = answers(probe, query.images, query.labels).figures(query.labels, metric)
    rows = [{**figures, "C": probe.C_}]
    settings: dict[str, Any] = {"classes": len(task.class_names), "queries": len(query.labels)}
    settings["pool"] = len(support.labels)
    if metric != "top-1":  # keeps the identity of earlier results
        settings["metric"] = metric
    return Result("probe", model, task.name, seed, rows, settings | content_of(encoder, task.support, task.query))
