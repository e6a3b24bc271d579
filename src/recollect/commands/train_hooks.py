"""What `recollect train` measures while it trains."""

from collections.abc import Callable, Mapping
from typing import Any

from recollect.core.types import Encoder
from recollect.evaluation.retrieval import retrieval
from recollect.evaluation.zero_shot import zero_shot
from recollect.tasks.opening import Selection, open_tasks
from recollect.tasks.retrieval import retrieval_task
from recollect.training.adapted import AdaptedTowers
from recollect.training.locked import LockedTowers


def protocols(labelled: tuple[str, ...], captioned: tuple[str, ...]) -> Callable[[Any], Mapping[str, float]]:
    """A measurement of a model in training: zero-shot accuracy and recall, in percent, by task and measure.

    Sources are opened here, so that a misspelt one stops the run before its first step.

    Raises:
        UserError: a source cannot be opened.
    """
    classify = open_tasks(Selection(data=labelled), "zero-shot").tasks if labelled else ()
    search = [retrieval_task(spec) for spec in captioned]

    def measure(model: Any) -> dict[str, float]:
        encoder: Encoder = model.encoder if isinstance(model, LockedTowers | AdaptedTowers) else model
        figures: dict[str, float] = {}
        for task in classify:
            for row in zero_shot(encoder, task, model="").rows:
                figures[f"zero-shot/{task.name}/{row['metric']}"] = float(row["value"])
        for pool in search:
            for row in retrieval(encoder, pool, model="").rows:
                if row["domain"] == "all":
                    figures[f"retrieval/{pool.name}/{row['direction']} R@{row['k']}"] = float(row["value"])
        return figures

    return measure
