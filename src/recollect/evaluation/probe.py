"""Linear probe: logistic regression on frozen image embeddings of a whole training split."""

import numpy as np

from recollect.classifiers import LinearProbe
from recollect.classifiers.heads.calibration import expected_calibration_error
from recollect.classifiers.heads.protocol import SET_ALPHA
from recollect.core.errors import UserError
from recollect.core.types import Encoder, Metric
from recollect.evaluation.features import FeatureCache, image_features
from recollect.evaluation.results import Result, content_of
from recollect.evaluation.tasks.classification import ClassificationTask
from recollect.evaluation.zero_shot import mean_per_class, top_1


def linear_probe(
    encoder: Encoder,
    task: ClassificationTask,
    metric: Metric = "top-1",
    *,
    model: str = "model",
    seed: int = 0,
    cache: FeatureCache | None = None,
) -> Result:
    """Train on all support images of ``task``, test on its query images (prefix conditioning, section 4.3).

    The regularization is chosen by cross-validation on the support images.

    Returns:
        One row in percent: accuracy, expected calibration error ``ece``, accuracy on held-out support images ``loo``,
        ``coverage`` of conformal sets at error rate 0.1, and their mean ``set_size``.

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
    probe = LinearProbe().fit(support.images, support.labels)
    predictions = probe.predict(query.images)
    score = top_1 if metric == "top-1" else mean_per_class
    ece = 100 * expected_calibration_error(probe.predict_proba(query.images), query.labels)
    sets = probe.predict_set(query.images, SET_ALPHA)
    coverage = 100 * float(sets[np.arange(len(sets)), query.labels].mean())
    rows = [
        {"metric": metric, "value": score(predictions, query.labels), "ece": ece, "loo": 100 * probe.loo_accuracy_,
         "coverage": coverage, "set_size": float(sets.sum(axis=1).mean()), "C": probe.C_}
    ]  # fmt: skip
    settings = {"classes": len(task.class_names), "queries": len(query.labels), "pool": len(support.labels)}
    return Result("probe", model, task.name, seed, rows, settings | content_of(encoder, task.support, task.query))
