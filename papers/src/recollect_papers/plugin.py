"""Sources and tasks that this package registers with recollect; see `recollect.core.plugins`."""

from typing import Literal

from recollect.core.types import Source
from recollect.evaluation.tasks.classification import ClassificationTask


def _source(spec: str, split: str | None) -> Source:
    from recollect_papers.worlds import open_world_source

    return open_world_source(spec, split)


def _tasks(spec: str, purpose: Literal["few-shot", "zero-shot"]) -> list[ClassificationTask]:
    from recollect_papers.worlds.tasks import world_tasks, world_zero_shot_tasks

    return world_tasks(spec) if purpose == "few-shot" else world_zero_shot_tasks(spec)


SOURCES = dict.fromkeys(("glyphs", "latents"), _source)
TASKS = dict.fromkeys(("glyphs", "latents"), _tasks)
