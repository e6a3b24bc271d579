"""Classification tasks from sources and suites."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from recollect.core.errors import UserError
from recollect.core.plugins import Table
from recollect.core.validation import check_choice
from recollect.data.prompts import GENERAL_TEMPLATES
from recollect.data.sources.address import distinct_names
from recollect.data.sources.columns import Columns
from recollect.data.sources.generated import is_generated
from recollect.evaluation.tasks.catalogue import parse_copies
from recollect.evaluation.tasks.catalogue import suite as suite_entries
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
class OpenedTasks:
    """Tasks, and reasons why other data sets of the suite were left out."""

    tasks: tuple[ClassificationTask, ...]
    left_out: tuple[str, ...] = ()


def open_tasks(
    data: Sequence[str],
    purpose: Purpose,
    suite: str | None = None,
    *,
    copies: Sequence[str] = (),
    division: Division | None = None,
    templates: tuple[str, ...] = GENERAL_TEMPLATES,
    columns: Columns | None = None,
    synonyms: bool = False,
) -> OpenedTasks:
    """Open sources and the data sets of a suite.

    Data sets of a suite that cannot be opened (no network, terms not accepted, multilabel) are left out and listed.

    Args:
        data: sources with labels and class names; a generated source selects the tasks of its world.
        suite: name of a suite in the catalogue, e.g. lixp-21.
        copies: ``NAME=SOURCE``: read a data set of the suite from a source other than the hub.
        division: division of each source into examples and tested images; for zero-shot no examples are read.
        templates: prompt templates with ``{}`` for the class name; CLIP's 80 by default.
        synonyms: replace each task by its classes with synonyms, once with names and once with synonyms.

    Raises:
        UserError: no data given, or nothing can be opened.
    """
    if not data and not suite:
        raise UserError("no data given. Use --data SOURCE ... or --suite lixp-21.")
    division = division or Division()
    if purpose == "zero-shot" and division.within is None:
        division = replace(division, support=None)
    tasks: list[ClassificationTask] = []
    loaded = {spec: classification_task(spec, division=division, templates=templates, columns=columns)
           for spec in data if not is_generated(spec)}  # fmt: skip
    names = dict(zip(loaded, distinct_names([*loaded], [task.name for task in loaded.values()]), strict=True))
    for spec in data:
        if spec in loaded:
            task = replace(loaded[spec], name=names[spec])
            tasks += _both_names(task) if synonyms else (task,)
        else:
            found = _generated_tasks(spec, purpose)
            tasks += [task for task in found if not synonyms or task.shift in RENAMED]
    if not tasks and synonyms:
        raise UserError(f"{data[0]}: no classes with synonyms. Use glyphs:labels, or name a column of synonyms.")
    from_suite, left_out = _open_suite(suite, copies, templates) if suite else ([], [])
    tasks += from_suite
    if not tasks:
        raise UserError(f"{suite}: no data set can be opened. The first error: {left_out[0]}")
    return OpenedTasks(tuple(tasks), tuple(left_out))


def _generated_tasks(spec: str, purpose: Purpose) -> Sequence[ClassificationTask]:
    world = spec.partition(":")[0]
    return WORLD_TASKS[check_choice(world, WORLD_TASKS, "--data: tasks of world")](spec, purpose)


def _both_names(task: ClassificationTask) -> tuple[ClassificationTask, ClassificationTask]:
    usual, shifted = class_name_shift(task)
    return replace(usual, name=f"{task.name}:names"), shifted


def _open_suite(
    name: str, copies: Sequence[str], templates: tuple[str, ...]
) -> tuple[list[ClassificationTask], list[str]]:
    entries = suite_entries(name)
    places = parse_copies(copies, [entry.name for entry in entries])
    tasks: list[ClassificationTask] = []
    left_out = []
    for entry in entries:
        try:
            tasks.append(entry.open(places.get(entry.name), templates))
        except UserError as error:
            left_out.append(f"{entry.name}: {error}")
    return tasks, left_out
