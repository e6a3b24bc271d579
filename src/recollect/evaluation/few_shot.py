"""Classification with a few labelled images: the protocol of LIxP on a task and a model."""

from dataclasses import replace
from typing import Any

import numpy as np

from recollect.classifiers.heads.draws import NO_ROW
from recollect.classifiers.heads.engine import run_protocol
from recollect.classifiers.heads.methods import PROMPT_METHODS
from recollect.classifiers.heads.protocol import FewShotTask, Protocol, draw
from recollect.classifiers.texts import learned_scale, prompts_and_ensemble
from recollect.core.errors import UserError
from recollect.core.progress import progress
from recollect.core.types import Encoder, Kind
from recollect.data.sources.derived import Subset
from recollect.data.sources.images import note
from recollect.evaluation.features import (
    FeatureCache,
    class_prompts,
    class_text_features,
    image_features,
)
from recollect.evaluation.results import Result, content_of
from recollect.evaluation.tasks.classification import ClassificationTask, keep_classes
from recollect.evaluation.tuned import TuningRequest, tuned_rows


def few_shot(
    encoder: Encoder,
    task: ClassificationTask,
    protocol: Protocol = Protocol(),  # noqa: B008 - frozen
    *,
    model: str = "model",
    seed: int = 0,
    prefix: Kind | None = None,
    cache: FeatureCache | None = None,
    tuning: TuningRequest | None = None,
) -> Result:
    """Classify the query images of ``task`` from nested draws of its support, with every method of ``protocol``.

    Images are embedded once, and of the support only those that some draw uses.

    Args:
        model: what to call the model in the result.
        seed: of the model's training, for summaries over models; the draws have their own.
        prefix: which prefix token the class texts get, for models that have them.
        tuning: methods that tune the model itself on the pictures of each draw, to stand beside.

    Raises:
        UserError: a class has fewer examples than shots.
    """
    classes = len(task.class_names)
    labels = task.support.labels
    counts = np.bincount(labels, minlength=classes)
    if counts.min() < (protocol.shots[-1] if protocol.short_classes == "refuse" else 1):
        short = int(counts.argmin())
        raise UserError(
            f"{task.name}: class '{task.class_names[short]}' has {counts[short]} examples, fewer than "
            f"{protocol.shots[-1]} shots. Ask for fewer shots, leave out such classes (--small-classes drop), or take "
            "all that they have (--small-classes all)."
        )
    orders = draw(labels, classes, protocol)
    used, places = np.unique(np.stack(list(orders.values())), return_inverse=True)
    columns = places.reshape(len(orders), -1, classes)
    if used[0] == NO_ROW:
        used, columns = used[1:], columns - 1  # so that it stays what it is
    support = image_features(encoder, Subset(task.support, used), cache)
    if len(support.rows) < len(used):  # draw again among those that can be read
        kept = np.setdiff1d(np.arange(len(labels)), np.delete(used, support.rows))
        readable = replace(task, support=Subset(task.support, kept))
        options = {"model": model, "seed": seed, "prefix": prefix, "cache": cache, "tuning": tuning}
        return few_shot(encoder, readable, protocol, **options)  # type: ignore[arg-type]
    query = image_features(encoder, task.query, cache)
    each = None
    if set(PROMPT_METHODS) & set(protocol.methods):
        each, texts = prompts_and_ensemble(encoder, class_prompts(task), prefix)
    else:
        texts = class_text_features(encoder, task, prefix)
    scale = learned_scale(encoder)
    arrays = FewShotTask(support.images, support.labels, query.images, query.labels, texts, scale, each)
    fits = sum(name != "zero-shot" for name in protocol.methods) * len(protocol.shots) * len(protocol.seeds)
    with progress(f"classify {task.name}", fits * len(query.labels), "predictions") as counter:
        rows = run_protocol(arrays, protocol, counter.advance, dict(zip(orders, columns, strict=True)))
    if tuning is not None and tuning.methods:
        rows += map(dict, tuned_rows(encoder, task, protocol, tuning, orders, query.rows))
    settings: dict[str, Any] = {"classes": classes, "queries": len(query.labels), "pool": len(labels)}
    settings |= {"prefix": prefix, "scale": scale} | ({} if each is None else {"prompts": each.shape[1]})
    settings |= protocol.settings()
    settings |= tuning.settings() if tuning is not None and tuning.methods else {}
    settings |= content_of(encoder, task.support, task.query, asked=class_prompts(task))
    return Result("few-shot", model, task.name, seed, rows, settings)


def with_enough_examples(task: ClassificationTask, shots: int) -> ClassificationTask:
    """The task without classes that have fewer than ``shots`` examples to draw from, which is said.

    Raises:
        UserError: fewer than two classes are left.
    """
    counts = np.bincount(task.support.labels, minlength=len(task.class_names))
    kept, short = np.flatnonzero(counts >= shots), np.flatnonzero(counts < shots)
    if len(kept) < 2:
        least = task.class_names[short[0]]
        raise UserError(
            f"{task.name}: {len(kept)} of {len(counts)} classes have {shots} examples or more, and two are needed; "
            f"'{least}' has {counts[short[0]]}. Ask for fewer shots, or name data with more."
        )
    if not len(short):
        return task
    names = ", ".join(task.class_names[label] for label in short[:3]) + (" …" if len(short) > 3 else "")
    note(f"{task.name}: left out {len(short):,} of {len(counts):,} classes with fewer than {shots} examples: {names}")
    return keep_classes(task, kept)
