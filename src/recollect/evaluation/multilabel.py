"""Multilabel classification: mean average precision by class names and by a linear probe (VOC2007)."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from recollect.classifiers.texts import prompt_ensemble
from recollect.core.errors import UserError
from recollect.core.types import Encoder, Kind, Source
from recollect.data.prompts import GENERAL_TEMPLATES, fill, readable
from recollect.data.sources import open_source
from recollect.data.sources.columns import Columns
from recollect.evaluation.features import FeatureCache, image_features, note_copies
from recollect.evaluation.results import Result, ResultRow, content_of
from recollect.evaluation.tasks.classification import shared_images

_STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Candidate inverse regularization strengths of the probe."""

_HELD_OUT_EVERY = 4  # every fourth picture is held out to choose the strength


@dataclass(frozen=True)
class MultilabelTask:
    """Pictures and the classes that each picture shows.

    Attributes:
        support, query: pictures to learn from, if any, and pictures to test on.
        support_shows, query_shows: whether each picture shows each class (examples, classes), (n, classes).
        templates: prompt templates with ``{}`` for the class name.
    """

    name: str
    query: Source
    query_shows: Bool[np.ndarray, "n classes"]
    class_names: tuple[str, ...]
    templates: tuple[str, ...]
    support: Source | None = None
    support_shows: Bool[np.ndarray, "examples classes"] | None = None


def multilabel_task(
    spec: str,
    *,
    support: str | None = None,
    query: str = "test",
    templates: tuple[str, ...] = GENERAL_TEMPLATES,
    columns: Columns | None = None,
    names: tuple[str, ...] = (),
) -> MultilabelTask:
    """Open a source whose label column has a list per picture: class numbers, class names, or a 0 or 1 for each class.

    Args:
        spec: the source (see `open_source`).
        support: split to learn from, if any.
        names: class names, if the source has none.

    Raises:
        UserError: no such split, overlapping splits, labels that are not lists, numbers without names, or a class that
            no tested picture shows.
    """
    tested = open_source(spec, split=query, kind="label", columns=columns)
    known = open_source(spec, split=support, kind="label", columns=columns) if support else None
    if known is not None and (shared := shared_images(known, tested)):
        raise UserError(
            f"{spec}: {shared} of {len(tested)} tested images are also in split '{support}'. Name other splits with "
            "--support and --query, or use --no-probe."
        )
    lists = [_lists(spec, source) for source in (tested, known) if source is not None]
    class_names = names or tested.class_names
    if not class_names and all(isinstance(label, str) for part in lists for row in part for label in row):
        class_names = tuple(sorted({label for part in lists for row in part for label in row}))
    if len(class_names) < 2:
        raise UserError(f"{spec}: labels are numbers without names. Name the classes with --class-names FILE.")
    shows = [_shows(spec, part, class_names) for part in lists]
    if (empty := ~shows[0].any(axis=0)).any():
        raise UserError(f"{spec}: no tested picture shows '{class_names[int(empty.argmax())]}'. Name another split.")
    readable_names = tuple(map(readable, class_names))
    name = tested.name.replace(":test", "")
    return MultilabelTask(
        name, tested, shows[0], readable_names, templates, known, shows[1] if known is not None else None
    )


def _lists(spec: str, source: Source) -> list[list[Any]]:
    found = source.values("labels")
    if not found or any(not isinstance(row, list) for row in found):
        raise UserError(f"{spec}: labels are not lists. Use `recollect evaluate zero-shot` instead.")
    return found


def _shows(spec: str, rows: list[list[Any]], names: tuple[str, ...]) -> np.ndarray:
    """Return whether each picture shows each class (pictures, classes)."""
    count = len(names)
    flags = [row for row in rows if len(row) == count and set(row) <= {0, 1}]
    if len(flags) == len(rows):
        return np.array(rows, dtype=bool)
    shows = np.zeros((len(rows), count), dtype=bool)
    indices = {name: index for index, name in enumerate(names)}
    for picture, row in enumerate(rows):
        for label in row:
            index = indices.get(label, -1) if isinstance(label, str) else int(label)
            if not 0 <= index < count:
                raise UserError(f"{spec}: picture {picture} has label {label!r}, which is not one of {count} classes")
            shows[picture, index] = True
    return shows


def average_precision(scores: Float[np.ndarray, " n"], shows: Bool[np.ndarray, " n"]) -> float:
    """Compute the mean precision at the ranks of the true pictures (0 to 1); ties count against them.

    Raises:
        ValueError: no picture is true.
    """
    if not shows.any():
        raise ValueError("average precision needs at least one true picture")
    order = np.lexsort((shows, -scores))
    hits = shows[order]
    return float((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean())


def eleven_points(scores: Float[np.ndarray, " n"], shows: Bool[np.ndarray, " n"]) -> float:
    """Compute VOC2007's average precision: mean of the best precision at recalls of at least 0, 0.1, ..., 1."""
    order = np.lexsort((shows, -scores))
    hits = np.cumsum(shows[order])
    precision, recall = hits / np.arange(1, len(hits) + 1), hits / hits[-1]
    return float(np.mean([precision[recall >= point - 1e-12].max() for point in np.linspace(0, 1, 11)]))


def multilabel(
    encoder: Encoder,
    task: MultilabelTask,
    *,
    model: str,
    seed: int = 0,
    prefix: Kind | None = None,
    cache: FeatureCache | None = None,
) -> Result:
    """Measure the mean average precision in percent of zero-shot scores and, with a support, of a linear probe.

    The probe is a logistic regression per class, with its strength chosen on a quarter of the support.

    Returns:
        Rows with ``method`` (zero-shot, probe) and ``metric``: ``mean average precision``, and VOC2007's ``11 points``.
    """
    prompts = tuple(tuple(fill(template, name) for template in task.templates) for name in task.class_names)
    query = image_features(encoder, task.query, cache)
    shows = task.query_shows[query.rows]
    if not shows.any(axis=0).all():
        raise UserError(f"{task.name}: the readable pictures do not show all classes")
    scored = {"zero-shot": query.images @ prompt_ensemble(encoder, prompts, prefix).T}
    settings: dict[str, Any] = {"classes": len(task.class_names), "queries": len(shows), "prefix": prefix}
    sources = [task.query]
    if task.support is not None and task.support_shows is not None:
        support = image_features(encoder, task.support, cache)
        note_copies(support, query, task.name)
        learned = task.support_shows[support.rows]
        if (constant := learned.all(axis=0) | ~learned.any(axis=0)).any():
            c = int(constant.argmax())
            share = "all" if learned[:, c].all() else "none"
            raise UserError(
                f"{task.name}: {share} of the pictures to learn from show '{task.class_names[c]}'. "
                "Add pictures, or use --no-probe."
            )
        strength = _choose_strength(support.images, learned)
        scored["probe"] = _probe(support.images, learned, query.images, strength)
        settings |= {"pool": len(learned), "C": strength}
        sources.append(task.support)
    rows: list[ResultRow] = []
    for method, scores in scored.items():
        for metric, of_class in (("mean average precision", average_precision), ("11 points", eleven_points)):
            each = [of_class(column, wanted) for column, wanted in zip(scores.T, shows.T, strict=True)]
            rows.append({"method": method, "metric": metric, "value": 100 * float(np.mean(each))})
    settings |= content_of(encoder, *sources, inputs=[prompts, shows.astype(int).tolist()])
    return Result("multilabel", model, task.name, seed, rows, settings)


def _choose_strength(images: np.ndarray, shows: np.ndarray) -> float:
    held = np.arange(len(images)) % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1
    judged = shows[held].any(axis=0) & shows[~held].any(axis=0) & ~shows[~held].all(axis=0)
    if not judged.any():
        return 1.0
    found = []
    for strength in _STRENGTHS:
        scores = _probe(images[~held], shows[~held][:, judged], images[held], strength)
        columns = zip(scores.T, shows[held][:, judged].T, strict=True)
        found.append(np.mean([average_precision(column, wanted) for column, wanted in columns]))
    return _STRENGTHS[int(np.argmax(found))]


def _probe(images: np.ndarray, shows: np.ndarray, queries: np.ndarray, strength: float) -> np.ndarray:
    """Return the scores of one regression per class (queries, classes)."""
    scores = np.empty((len(queries), shows.shape[1]))
    for c, wanted in enumerate(shows.T):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = LogisticRegression(C=strength, max_iter=1000).fit(images, wanted)
        scores[:, c] = model.decision_function(queries)
    return scores
