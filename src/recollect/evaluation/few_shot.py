"""The few-shot protocol (LIxP) on a task and a model."""

from dataclasses import replace
from typing import Any

import numpy as np

from recollect.classifiers.heads.methods import FEW_SHOT_METHODS
from recollect.classifiers.texts import learned_scale, prompts_and_ensemble
from recollect.core.errors import UserError
from recollect.core.progress import progress
from recollect.core.types import Encoder, Kind
from recollect.data.sources.images import note
from recollect.data.sources.subset import Subset
from recollect.evaluation.features import FeatureCache, class_prompts, class_text_features, image_features, note_copies
from recollect.evaluation.few_shot_protocol import NO_ROW, FewShotTask, Protocol, draw, run_protocol
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

    Images are embedded once, and support images only if a draw uses them.

    Args:
        seed: seed of the model's training, for summaries over models; draws have their own seeds.
        prefix: prefix token of class texts, for models that have them.
        tuning: methods that tune the model on the pictures of each draw.

    Raises:
        UserError: a class has fewer examples than shots.
    """
    classes = len(task.class_names)
    labels = task.support.labels
    _check_shots(task, protocol)
    orders = draw(labels, classes, protocol)
    used, positions = np.unique(np.stack(list(orders.values())), return_inverse=True)
    columns = positions.reshape(len(orders), -1, classes)
    if used[0] == NO_ROW:
        used, columns = used[1:], columns - 1  # NO_ROW remains -1
    support = image_features(encoder, Subset(task.support, used), cache)
    if len(support.rows) < len(used):  # draw again among readable pictures
        kept = np.setdiff1d(np.arange(len(labels)), np.delete(used, support.rows))
        readable = replace(task, support=Subset(task.support, kept))
        options = {"model": model, "seed": seed, "prefix": prefix, "cache": cache, "tuning": tuning}
        return few_shot(encoder, readable, protocol, **options)  # type: ignore[arg-type]
    query = image_features(encoder, task.query, cache)
    note_copies(support, query, task.name)
    prompts = texts = None
    if task.class_texts != () and any(FEW_SHOT_METHODS[name](None, 1.0).reads_prompts for name in protocol.methods):
        prompts, texts = prompts_and_ensemble(encoder, class_prompts(task), prefix)
    elif task.class_texts != ():
        texts = class_text_features(encoder, task, prefix)
    scale = learned_scale(encoder)
    arrays = FewShotTask(support.images, support.labels, query.images, query.labels, texts, scale, prompts)
    draws = len(protocol.shots) * len(protocol.seeds)
    fits = sum(1 if method == "zero-shot" else draws for method in protocol.methods)
    with progress(f"classify {task.name}", fits * len(query.labels), "predictions") as counter:
        rows = run_protocol(arrays, protocol, counter.advance, dict(zip(orders, columns, strict=True)))
    if tuning is not None and tuning.methods:
        rows += tuned_rows(encoder, task, protocol, tuning, orders, query.rows)
    settings: dict[str, Any] = {"classes": classes, "queries": len(query.labels), "pool": len(labels)}
    settings |= {"prefix": prefix, "scale": scale} | ({} if prompts is None else {"prompts": prompts.shape[1]})
    settings |= protocol.settings()
    settings |= tuning.settings() if tuning is not None and tuning.methods else {}
    settings |= content_of(encoder, task.support, task.query, inputs=class_prompts(task))
    return Result("few-shot", model, task.name, seed, rows, settings)


def _check_shots(task: ClassificationTask, protocol: Protocol) -> None:
    """Raise UserError if a class has fewer examples than the protocol needs."""
    counts = np.bincount(task.support.labels, minlength=len(task.class_names))
    least = int(counts.argmin())
    if counts[least] < (protocol.shots[-1] if protocol.short_classes == "refuse" else 1):
        other = "use fewer shots, or use all their examples (--small-classes all)" if counts[least] else "add examples"
        raise UserError(
            f"{task.name}: class '{task.class_names[least]}' has {counts[least]} examples, fewer than "
            f"{protocol.shots[-1]} shots. Drop such classes (--small-classes drop), {other}."
        )


def with_enough_examples(task: ClassificationTask, shots: int) -> ClassificationTask:
    """Drop classes with fewer than ``shots`` examples, and print a note about them.

    Raises:
        UserError: fewer than two classes are left.
    """
    counts = np.bincount(task.support.labels, minlength=len(task.class_names))
    short = np.flatnonzero(counts < shots)
    if not len(short):
        return task
    if len(counts) - len(short) < 2:
        raise UserError(f"{task.name}: fewer than two classes have {shots} examples. Use fewer shots.")
    names = ", ".join(task.class_names[label] for label in short[:3]) + (" …" if len(short) > 3 else "")
    note(f"{task.name}: left out {len(short):,} of {len(counts):,} classes with fewer than {shots} examples: {names}")
    return keep_classes(task, np.flatnonzero(counts >= shots))
