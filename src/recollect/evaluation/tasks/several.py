"""Pictures that show several classes at once: which ones, for each (VOC2007)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool

from recollect.core.errors import UserError
from recollect.core.types import Source
from recollect.data.prompts import GENERAL_TEMPLATES, readable
from recollect.data.sources import open_source
from recollect.data.sources.columns import Columns
from recollect.evaluation.tasks.classification import shared_images


@dataclass(frozen=True)
class SeveralLabelsTask:
    """Pictures, and for each class whether it is to be seen.

    Attributes:
        name: appears in reports and file names.
        support, query: pictures to learn from (None: by names alone), and tested ones.
        support_shows, query_shows: of each picture and class (n, classes), (examples, classes).
        class_names: readable names.
        templates: prompt templates with ``{}`` for the class name.
    """

    name: str
    query: Source
    query_shows: Bool[np.ndarray, "n classes"]
    class_names: tuple[str, ...]
    templates: tuple[str, ...]
    support: Source | None = None
    support_shows: Bool[np.ndarray, "examples classes"] | None = None


def several_labels_task(
    spec: str,
    *,
    support: str | None = None,
    query: str = "test",
    templates: tuple[str, ...] = GENERAL_TEMPLATES,
    columns: Columns | None = None,
    names: tuple[str, ...] = (),
) -> SeveralLabelsTask:
    """Open a source whose label column holds a list for each picture: class numbers, names, or one 0 or 1 a class.

    Args:
        spec: the source (see `open_source`).
        support: split to learn from; None for a task without.
        query: tested split.
        names: of the classes, where the source has none.

    Raises:
        UserError: no such split, a tested picture that is learned from too, no lists, numbers without names, or a class
            that no tested picture shows.
    """
    asked = open_source(spec, split=query, kind="label", columns=columns)
    known = open_source(spec, split=support, kind="label", columns=columns) if support else None
    if known is not None and (shared := shared_images(known, asked)):
        raise UserError(
            f"{spec}: {shared} of {len(asked)} tested images are learned from too (split '{support}', tested "
            f"'{query}'). Name other splits with --support and --query, or leave the probe out: --no-probe."
        )
    lists = [_lists(spec, source) for source in (asked, known) if source is not None]
    class_names = names or asked.class_names
    if not class_names and all(isinstance(label, str) for part in lists for row in part for label in row):
        class_names = tuple(sorted({label for part in lists for row in part for label in row}))
    if len(class_names) < 2:
        raise UserError(f"{spec}: labels are numbers and nothing names them. Name the classes with --class-names FILE.")
    shows = [_shows(spec, part, class_names) for part in lists]
    if (empty := ~shows[0].any(axis=0)).any():
        raise UserError(f"{spec}: no tested picture shows '{class_names[int(empty.argmax())]}'; precision needs some")
    readable_names = tuple(map(readable, class_names))
    name = asked.name.replace(":test", "")
    return SeveralLabelsTask(
        name, asked, shows[0], readable_names, templates, known, shows[1] if known is not None else None
    )


def _lists(spec: str, source: Source) -> list[list[Any]]:
    found = source.values("labels")
    if not found or any(not isinstance(row, list) for row in found):
        raise UserError(
            f"{spec}: its labels are no lists, one for each picture. `recollect evaluate zero-shot` tests it."
        )
    return found


def _shows(spec: str, rows: list[list[Any]], names: tuple[str, ...]) -> np.ndarray:
    """One row of flags for each picture."""
    count = len(names)
    flags = [row for row in rows if len(row) == count and set(row) <= {0, 1}]
    if len(flags) == len(rows):
        return np.array(rows, dtype=bool)
    shows = np.zeros((len(rows), count), dtype=bool)
    places = {name: place for place, name in enumerate(names)}
    for picture, row in enumerate(rows):
        for label in row:
            place = places.get(label, -1) if isinstance(label, str) else int(label)
            if not 0 <= place < count:
                raise UserError(f"{spec}: picture {picture} has label {label!r}, which is none of {count} classes")
            shows[picture, place] = True
    return shows
