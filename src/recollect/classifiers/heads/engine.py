"""Runs the few-shot protocol: every method at every number of shots for every draw."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from recollect.classifiers.heads.base import EmbeddingClassifier, softmax
from recollect.classifiers.heads.protocol import NO_ROW, FewShotTask, Protocol, draw
from recollect.classifiers.heads.scoring import SET_ALPHA, Key, Score
from recollect.classifiers.heads.shared import SHARED, evaluate_shared

SET_QUERIES = 2000
"""Maximum number of queries whose conformal sets are measured."""


def run_protocol(
    task: FewShotTask,
    protocol: Protocol,
    tick: Callable[[int], None] | None = None,
    orders: Mapping[int, np.ndarray] | None = None,
) -> list[dict[str, Any]]:
    """Accuracy in percent of every method at every number of shots for every draw.

    Figures equal those of fitting each estimator separately on ``support[rows]``.

    Args:
        tick: called with the number of queries classified since the last call, for progress.
        orders: draws made by `draw`, e.g. to embed only the examples they use.

    Returns:
        Rows ``{"method", "shots", "seed", "metric", "value"}``; ``zero-shot`` has one row with 0 shots and seed 0. Also
        in percent ``loo``, accuracy on held-out examples, ``ece``, expected calibration error on the queries, and
        ``coverage`` of conformal sets at error rate 0.1, with their mean ``set_size``. All but ``ece`` are absent where
        there are too few held-out examples (`enough_to_tell`), e.g. at one shot.

    Raises:
        ValueError: more shots than a class has examples.
    """
    tick = tick or (lambda queries: None)
    classes, block = task.classes, protocol.block(task)
    if task.texts is None and "zero-shot" in protocol.methods:
        raise ValueError("zero-shot needs class texts")
    orders = orders or draw(task.support_labels, classes, protocol)
    score = Score(task.query_labels, classes, protocol.metric)
    whole = all((order != NO_ROW).all() for order in orders.values())  # sharing needs as many shots of every class
    shared = [name for name in protocol.methods if name in SHARED] if whole else []
    if shared:
        evaluate_shared(task, protocol, shared, orders, score, tick)
    for name in protocol.methods:
        if name in shared:
            continue
        if name == "zero-shot" and task.texts is not None:
            found = task.queries @ task.texts.T
            score.add((name, 0, 0), slice(None), found, softmax(task.scale * found))
            continue
        for shots in protocol.shots:
            fitted = task.fitted_together(name, list(orders.values()), shots)
            for seed, estimator in zip(orders, fitted, strict=True):
                score.add_fit((name, shots, seed), estimator)
                _classify(estimator, task, block, (name, shots, seed), score, tick)
    return score.rows(protocol.methods)


def _classify(
    estimator: EmbeddingClassifier,
    task: FewShotTask,
    block: int,
    key: Key,
    score: Score,
    tick: Callable[[int], None],
) -> None:
    """Score the queries block by block, and the conformal sets of up to `SET_QUERIES` of them."""
    every = -(-len(task.queries) // SET_QUERIES)
    own_sets = type(estimator)._possible is not EmbeddingClassifier._possible
    if own_sets:
        some = slice(None, None, every)
        score.add_sets(key, some, estimator._possible(task.queries[some], SET_ALPHA))
    least = estimator._least(SET_ALPHA)
    for start in range(0, len(task.queries), block):
        rows = slice(start, start + block)
        found = estimator._scores(task.queries[rows])
        probabilities = estimator._probabilities(found)
        score.add(key, rows, found, probabilities)
        if not own_sets:  # these sets follow from the probabilities
            first = -start % every
            kept = probabilities[first::every] >= least.astype(probabilities.dtype)
            score.add_sets(key, slice(start + first, start + block, every), kept)
        tick(len(found))
