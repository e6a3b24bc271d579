"""Protocols that need only a model and a source, so `recollect train` can run them during training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from recollect.core.types import Encoder, caption_prefix
from recollect.evaluation.few_shot import few_shot, with_enough_examples
from recollect.evaluation.few_shot_protocol import Protocol
from recollect.evaluation.probe import linear_probe
from recollect.evaluation.results import Result, ResultRow
from recollect.evaluation.retrieval import retrieval
from recollect.evaluation.tasks.classification import ClassificationTask
from recollect.evaluation.tasks.opening import open_tasks
from recollect.evaluation.tasks.retrieval import retrieval_task
from recollect.evaluation.zero_shot import zero_shot

_EXAMPLES = Protocol(methods=("prototype", "proker"), shots=(8,), seeds=(0, 1, 2))
"""Few-shot protocol during training: eight shots, two fast methods, three draws."""


@dataclass(frozen=True)
class Measurement:
    """A protocol on a named source.

    Attributes:
        open: function from the address of a source to tasks.
        evaluate: function from model and task to a result.
        figure: function from a row to the name of its figure, or None to hide the row.
    """

    open: Callable[[str], Sequence[Any]]
    evaluate: Callable[[Encoder, Any], Result]
    figure: Callable[[ResultRow], str | None]

    def figures(self, encoder: Encoder, task: Any) -> dict[str, float]:
        """Return each figure of a model on a task, averaged over draws."""
        values: dict[str, list[float]] = {}
        for row in self.evaluate(encoder, task).rows:
            if (name := self.figure(row)) is not None:
                values.setdefault(name, []).append(float(row["value"]))
        return {name: sum(each) / len(each) for name, each in values.items()}


def _with_examples(spec: str) -> list[ClassificationTask]:
    return [with_enough_examples(task, _EXAMPLES.shots[-1]) for task in open_tasks((spec,), "few-shot").tasks]


def _recall(row: ResultRow) -> str | None:
    return f"{row['direction']} R@{row['k']}" if row["domain"] == "all" else None


PROTOCOLS: Mapping[str, Measurement] = {
    "zero-shot": Measurement(
        lambda spec: open_tasks((spec,), "zero-shot").tasks,
        lambda encoder, task: zero_shot(encoder, task, model="", prefix=caption_prefix(encoder)),
        lambda row: row["metric"],
    ),
    "few-shot": Measurement(
        _with_examples,
        lambda encoder, task: few_shot(encoder, task, _EXAMPLES, model="", prefix=caption_prefix(encoder)),
        lambda row: f"{row['method']} {row['shots']} shots",
    ),
    "probe": Measurement(
        lambda spec: open_tasks((spec,), "few-shot").tasks, partial(linear_probe, model=""), lambda row: row["metric"]
    ),
    "retrieval": Measurement(
        lambda spec: [retrieval_task(spec)],
        lambda encoder, task: retrieval(encoder, task, model="", prefix=caption_prefix(encoder)),
        _recall,
    ),
}
"""Protocols by name. Add yours here."""
