"""Retrieval tasks: images and their matching texts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from recollect.core.errors import UserError
from recollect.core.types import Source
from recollect.data.sources import open_source, split_names
from recollect.data.sources.address import distinct_names
from recollect.data.sources.columns import Columns
from recollect.data.sources.subset import Joined, Subset


@dataclass(frozen=True)
class RetrievalTask:
    """Images and their matching texts.

    Attributes:
        matches: indices of the images that each text describes, ascending.
        ambiguous: whether each image also matches another text, so that a miss is not an error.
    """

    name: str
    images: Source
    texts: tuple[str, ...]
    matches: tuple[tuple[int, ...], ...]
    domains: tuple[str, ...]
    ambiguous: tuple[bool, ...]


def retrieval_task(
    specs: str | Sequence[str], *, name: str | None = None, split: str | None = "test", columns: Columns | None = None
) -> RetrievalTask:
    """Open captioned sources as one pool; several sources make a multi-domain pool (EFSA, Table 3).

    A caption of several images is a true match of all of them. The domain of an image defaults to its source's name.

    Args:
        split: split of each source whose address has no ``?split=``; without splits, ``test`` is the whole source.

    Raises:
        UserError: no such source or split, or no captions.
    """
    specs = [specs] if isinstance(specs, str) else list(specs)
    task = merged_tasks(with_distinct_names(specs, [_opened(spec, split, columns) for spec in specs]))
    if not task.texts:
        raise UserError(f"{task.name}: no captions. Name their column with --caption-column.")
    return replace(task, name=name or task.name)


def _opened(spec: str, split: str | None, columns: Columns | None) -> RetrievalTask:
    if "split=" in spec or (split == "test" and split_names(spec, columns) == ("train",)):
        split = None
    images = open_source(spec, split=split, kind="caption", columns=columns)
    if images.endless:
        raise UserError(f"{images.name}: infinite source. Limit it, e.g. {spec}?size=1000.")
    owners: dict[str, set[int]] = {}
    for index in range(len(images)):
        for text in images.texts(index):
            owners.setdefault(" ".join(text.split()), set()).add(index)
    return RetrievalTask(
        images.name,
        images,
        tuple(owners),
        tuple(tuple(sorted(images_of)) for images_of in owners.values()),
        tuple(_domain(domain, images.name) for domain in images.values("domain")),
        tuple(bool(value) for value in images.values("ambiguous")),
    )


def _domain(value: object, source: str) -> str:
    """Return the domain of an image; the names of summaries are reserved."""
    name = str(value or source)
    return f"domain {name}" if name in ("all", "mean of domains") else name


def with_distinct_names(specs: Sequence[str], tasks: Sequence[RetrievalTask]) -> list[RetrievalTask]:
    """Give the tasks distinct names, so their domains differ."""
    named = []
    for task, name in zip(tasks, distinct_names(specs, [task.name for task in tasks]), strict=True):
        task.images.name = name
        domains = tuple(name if domain == task.name else domain for domain in task.domains)
        named.append(replace(task, name=name, domains=domains))
    return named


def merged_tasks(tasks: Sequence[RetrievalTask]) -> RetrievalTask:
    """Merge pools; a text of several pools is one query that matches in all (EFSA, Table 3)."""
    if len(tasks) == 1:
        return tasks[0]
    images = Joined(tuple(task.images for task in tasks))
    offsets = np.cumsum([0, *(len(task.images) for task in tasks)]).tolist()
    matches: dict[str, tuple[int, ...]] = {}
    for task, offset in zip(tasks, offsets, strict=False):
        for text, found in zip(task.texts, task.matches, strict=True):
            matches[text] = matches.get(text, ()) + tuple(offset + row for row in found)
    return RetrievalTask(
        images.name,
        images,
        tuple(matches),
        tuple(matches.values()),
        tuple(domain for task in tasks for domain in task.domains),
        tuple(flag for task in tasks for flag in task.ambiguous),
    )


def keep_images(task: RetrievalTask, kept: np.ndarray) -> RetrievalTask:
    """Return the task with some of its images, and only texts that match one of them.

    Args:
        kept: ascending indices into ``task.images``.
    """
    if len(kept) == len(task.images):
        return task
    position = {int(row): number for number, row in enumerate(kept)}
    matches = [tuple(position[row] for row in images if row in position) for images in task.matches]
    matched = [number for number, images in enumerate(matches) if images]
    return replace(
        task,
        images=Subset(task.images, kept),
        texts=tuple(task.texts[number] for number in matched),
        matches=tuple(matches[number] for number in matched),
        domains=tuple(task.domains[int(row)] for row in kept),
        ambiguous=tuple(task.ambiguous[int(row)] for row in kept),
    )
