"""Retrieval tasks: images and their matching texts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from recollect.core.errors import UserError
from recollect.core.types import Source
from recollect.data.sources import open_source
from recollect.data.sources.columns import Columns
from recollect.data.sources.subset import Joined, Subset


@dataclass(frozen=True)
class RetrievalTask:
    """Images and their matching texts.

    Attributes:
        matches: the images that each text describes, ascending.
        counts: number of captions with each text; weights for scores by caption instead of by text.
        ambiguous: whether each image also matches another text, so that a miss is not an error.
    """

    name: str
    images: Source
    texts: tuple[str, ...]
    matches: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]
    domains: tuple[str, ...]
    ambiguous: tuple[bool, ...]


def retrieval_task(
    specs: str | Sequence[str], *, name: str | None = None, split: str | None = "test", columns: Columns | None = None
) -> RetrievalTask:
    """Open captioned sources as one pool; several sources make a multi-domain pool (EFSA, Table 3).

    A caption of several images is a true match of all of them. The domain of an image defaults to its source's name.

    Args:
        split: of each, unless its address has ``?split=``.

    Raises:
        UserError: no such source or split, or no captions.
    """
    specs = [specs] if isinstance(specs, str) else list(specs)
    sources = tuple(
        open_source(spec, split=None if "split=" in spec else split, kind="caption", columns=columns) for spec in specs
    )
    images: Source = sources[0] if len(sources) == 1 else Joined(sources)
    if any(source.endless for source in sources):
        raise UserError(f"{images.name}: infinite source. Limit it, e.g. {specs[0]}?size=1000.")
    owners: dict[str, dict[int, int]] = {}
    for index in range(len(images)):
        for text in images.texts(index):
            images_of = owners.setdefault(" ".join(text.split()), {})
            images_of[index] = images_of.get(index, 0) + 1
    if not owners:
        raise UserError(f"{images.name}: no captions. Name their column with --caption-column.")
    fallback = [source.name for source in sources for _ in range(len(source))]
    domains = images.values("domain")
    return RetrievalTask(
        name or images.name,
        images,
        tuple(owners),
        tuple(tuple(sorted(images_of)) for images_of in owners.values()),
        tuple(sum(images_of.values()) for images_of in owners.values()),
        tuple(str(domain) if domain else other for domain, other in zip(domains, fallback, strict=True)),
        tuple(bool(value) for value in images.values("ambiguous")),
    )


def keep_images(task: RetrievalTask, kept: np.ndarray) -> RetrievalTask:
    """The task with some of its images, without texts that match none of them.

    Args:
        kept: ascending indices into ``task.images``.
    """
    if len(kept) == len(task.images):
        return task
    place = {int(row): number for number, row in enumerate(kept)}
    matches = [tuple(place[row] for row in images if row in place) for images in task.matches]
    asked = [number for number, images in enumerate(matches) if images]
    return replace(
        task,
        images=Subset(task.images, kept),
        texts=tuple(task.texts[number] for number in asked),
        matches=tuple(matches[number] for number in asked),
        counts=tuple(task.counts[number] for number in asked),
        domains=tuple(task.domains[int(row)] for row in kept),
        ambiguous=tuple(task.ambiguous[int(row)] for row in kept),
    )
