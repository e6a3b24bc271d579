"""Opens classification tasks from sources and suites."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from recollect.core.errors import UserError
from recollect.core.plugins import Table
from recollect.core.validation import check_choice
from recollect.data.prompts import GENERAL_TEMPLATES
from recollect.data.sources.columns import Columns
from recollect.data.sources.generated import is_generated
from recollect.evaluation.tasks.catalogue import own_copies, suite
from recollect.evaluation.tasks.classification import (
    RENAMED,
    ClassificationTask,
    Division,
    class_name_shift,
    classification_task,
)

Purpose = Literal["few-shot", "zero-shot"]

WORLD_TASKS: Table[Callable[[str, Purpose], Sequence[ClassificationTask]]] = Table("tasks")
"""For each generated world, a function from its address and a purpose to tasks."""


@dataclass(frozen=True)
class Selection:
    """Tasks to open.

    Attributes:
        data: sources with labels and class names; a generated source selects the tasks of its world.
        suite: data sets of the catalogue, e.g. lixp-21.
        copies: ``NAME=SOURCE``: read a data set of the suite from another source than the hub.
        templates: prompt templates with ``{}`` for the class name; CLIP's 80 by default.
        synonyms: replace each task by its classes with synonyms, once with names and once with synonyms.
    """

    data: Sequence[str] = ()
    suite: str | None = None
    copies: Sequence[str] = ()
    division: Division = field(default_factory=Division)
    templates: tuple[str, ...] = GENERAL_TEMPLATES
    columns: Columns | None = None
    synonyms: bool = False


@dataclass(frozen=True)
class OpenedTasks:
    """Tasks, and reasons why data sets of the suite were left out."""

    tasks: tuple[ClassificationTask, ...]
    left_out: tuple[str, ...] = ()


def open_tasks(selection: Selection, purpose: Purpose) -> OpenedTasks:
    """Open everything that is selected.

    Data sets of a suite that cannot be opened (no network, terms not accepted, multilabel) are left out and listed.

    Raises:
        UserError: nothing was named, or nothing can be opened.
    """
    if not selection.data and not selection.suite:
        raise UserError("no data was named. Name it with --data SOURCE ... or --suite lixp-21.")
    tasks: list[ClassificationTask] = []
    for spec in selection.data:
        if is_generated(spec):
            found = _generated_tasks(spec, purpose)
            tasks += [task for task in found if not selection.synonyms or task.shift in RENAMED]
            continue
        task = classification_task(
            spec, division=selection.division, templates=selection.templates, columns=selection.columns
        )
        tasks += _both_names(task) if selection.synonyms else (task,)
    if not tasks and selection.synonyms:
        raise UserError(f"{selection.data[0]}: no classes with synonyms; take glyphs:labels or name a column of them")
    from_suite, left_out = _open_suite(selection) if selection.suite else ([], [])
    tasks += from_suite
    if not tasks:
        raise UserError(f"{selection.suite}: no set can be opened. The first: {left_out[0]}")
    return OpenedTasks(tuple(tasks), tuple(left_out))


def _generated_tasks(spec: str, purpose: Purpose) -> Sequence[ClassificationTask]:
    world = spec.partition(":")[0]
    return WORLD_TASKS[check_choice(world, WORLD_TASKS, "--data: tasks of world")](spec, purpose)


def _both_names(task: ClassificationTask) -> tuple[ClassificationTask, ClassificationTask]:
    usual, shifted = class_name_shift(task)
    return replace(usual, name=f"{task.name}:names"), shifted


def _open_suite(selection: Selection) -> tuple[list[ClassificationTask], list[str]]:
    assert selection.suite is not None
    entries = suite(selection.suite)
    copies = own_copies(selection.copies, [entry.name for entry in entries])
    tasks: list[ClassificationTask] = []
    left_out = []
    for entry in entries:
        try:
            task = entry.open(copies.get(entry.name), selection.templates)
        except UserError as error:
            left_out.append(f"{entry.name}: {error}")
            continue
        tasks.append(replace(task, metric="mean per class" if entry.metric == "mean per class" else "top-1"))
    return tasks, left_out
