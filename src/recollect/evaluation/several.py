"""Mean average precision where a picture shows several classes: by names, and by a linear probe."""

import warnings
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from recollect.classifiers.texts import prompt_ensemble
from recollect.core.errors import UserError
from recollect.core.types import Encoder, Kind
from recollect.data.prompts import fill
from recollect.evaluation.features import FeatureCache, image_features
from recollect.evaluation.results import Result, ResultRow, content_of
from recollect.evaluation.tasks.several import SeveralLabelsTask

_STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Inverse regularisation strengths that the probe chooses from; the smallest of equals."""

_HELD_SHARE = 4  # one picture in so many is held out to choose by


def average_precision(scores: Float[np.ndarray, " n"], shows: Bool[np.ndarray, " n"]) -> float:
    """Mean over the true pictures of the precision at their rank, in 0 to 1; of equal scores the wrong come first.

    Raises:
        ValueError: none is true.
    """
    if not shows.any():
        raise ValueError("average precision needs a picture that shows the class")
    order = np.lexsort((shows, -scores))
    hits = shows[order]
    return float((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean())


def eleven_points(scores: Float[np.ndarray, " n"], shows: Bool[np.ndarray, " n"]) -> float:
    """VOC2007's average precision: mean over recalls 0, 0.1, ..., 1 of the best precision at that recall or more."""
    order = np.lexsort((shows, -scores))
    hits = np.cumsum(shows[order])
    precision, recall = hits / np.arange(1, len(hits) + 1), hits / hits[-1]
    return float(np.mean([precision[recall >= point - 1e-12].max() for point in np.linspace(0, 1, 11)]))


def several_labels(
    encoder: Encoder,
    task: SeveralLabelsTask,
    *,
    model: str,
    seed: int = 0,
    prefix: Kind | None = None,
    cache: FeatureCache | None = None,
) -> Result:
    """Mean over classes of the average precision, in percent, with class prompts as scores; and of one logistic
    regression for each class where the task has pictures to learn from, its strength chosen on a quarter of them.

    Returns:
        Rows with ``method`` (zero-shot, probe) and ``metric``: ``mean average precision``, and ``11 points``, as
        VOC2007 is reported.
    """
    prompts = tuple(tuple(fill(template, name) for template in task.templates) for name in task.class_names)
    query = image_features(encoder, task.query, cache)
    shows = task.query_shows[query.rows]
    if not shows.any(axis=0).all():
        raise UserError(f"{task.name}: pictures that can be read show too few of the classes")
    scored = {"zero-shot": query.images @ prompt_ensemble(encoder, prompts, prefix).T}
    settings: dict[str, Any] = {"classes": len(task.class_names), "queries": len(shows), "prefix": prefix}
    sources = [task.query]
    if task.support is not None and task.support_shows is not None:
        support = image_features(encoder, task.support, cache)
        learned = task.support_shows[support.rows]
        for place in np.flatnonzero(learned.all(axis=0) | ~learned.any(axis=0))[:1].tolist():
            share = "all" if learned[:, place].all() else "none"
            raise UserError(
                f"{task.name}: '{task.class_names[place]}' is on {share} of the pictures to learn from, so no "
                "probe can learn it. Add pictures, or leave the probe out: --no-probe."
            )
        strength = _choose(support.images, learned)
        scored["probe"] = _probe(support.images, learned, query.images, strength)
        settings |= {"pool": len(learned), "C": strength}
        sources.append(task.support)
    rows: list[ResultRow] = []
    for method, scores in scored.items():
        for metric, of_class in (("mean average precision", average_precision), ("11 points", eleven_points)):
            each = [of_class(column, wanted) for column, wanted in zip(scores.T, shows.T, strict=True)]
            rows.append({"method": method, "metric": metric, "value": 100 * float(np.mean(each))})
    settings |= content_of(encoder, *sources, asked=[prompts, shows.astype(int).tolist()])
    return Result("several-labels", model, task.name, seed, rows, settings)


def _choose(images: np.ndarray, shows: np.ndarray) -> float:
    held = np.arange(len(images)) % _HELD_SHARE == _HELD_SHARE - 1
    judged = shows[held].any(axis=0) & shows[~held].any(axis=0) & ~shows[~held].all(axis=0)
    if not judged.any():
        return 1.0
    found = []
    for strength in _STRENGTHS:
        scores = _probe(images[~held], shows[~held][:, judged], images[held], strength)
        columns = zip(scores.T, shows[held][:, judged].T, strict=True)
        found.append(np.mean([average_precision(column, wanted) for column, wanted in columns]))
    return _STRENGTHS[int(np.argmax(found))]


def _probe(images: np.ndarray, shows: np.ndarray, asked: np.ndarray, strength: float) -> np.ndarray:
    """Scores of one regression for each class (asked, classes)."""
    scores = np.empty((len(asked), shows.shape[1]))
    for place, wanted in enumerate(shows.T):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = LogisticRegression(C=strength, max_iter=1000).fit(images, wanted)
        scores[:, place] = model.decision_function(asked)
    return scores
