"""Opens pools of images to search, with their captions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from recollect.core.errors import UserError
from recollect.core.types import Source
from recollect.core.validation import refuse
from recollect.data.sources import open_source
from recollect.data.sources.columns import Columns
from recollect.data.sources.generated import is_generated
from recollect.efsa.batch import number_texts
from recollect.efsa.caption_file import captions_of
from recollect.evaluation.retrieval import PoolCaptions, merged_tasks
from recollect.evaluation.tasks.retrieval import RetrievalTask, retrieval_task

PoolKind = Literal["single", "merged"]

_COLUMN = "column:"


def held_out(source: Source) -> PoolCaptions:
    """The last text of each image as its caption, and not as a query: for sets with several texts an image.

    Raises:
        UserError: no image has two different texts.
    """
    captions: list[str | None] = []
    for index in range(len(source)):
        wordings, _ = number_texts(source.texts(index))
        captions.append(wordings[-1] if len(wordings) > 1 else None)
    if not any(captions):
        raise UserError(f"{source.name}: no image has two texts, so none can be held out as its caption.")
    return PoolCaptions(tuple(captions), frozenset(caption for caption in captions if caption))


def true_captions(source: Source) -> PoolCaptions:
    """The first text of each image as its caption, though it is also asked for: the ceiling (EFSA, Table 6, row 1)."""
    captions: list[str | None] = []
    for index in range(len(source)):
        wordings, _ = number_texts(source.texts(index))
        captions.append(wordings[0] if wordings else None)
    return PoolCaptions(tuple(captions))


CAPTION_KINDS: Mapping[str, Callable[[Source], PoolCaptions]] = {"held-out": held_out, "true": true_captions}
"""How captions come from the texts of a source, by name."""


@dataclass(frozen=True)
class PoolSelection:
    """Images to search, and captions to learn from.

    Attributes:
        data: sources with captions, which are the queries.
        pool: one pool per source, or all sources as one pool.
        captions: captions to learn from, for all sources or one per source with commas between: a name of ``kinds``,
            ``column:NAME``, or a .jsonl file of `recollect caption`; None for none.
    """

    data: Sequence[str]
    pool: PoolKind = "single"
    captions: str | None = None
    kinds: Mapping[str, Callable[[Source], PoolCaptions]] = field(default_factory=lambda: CAPTION_KINDS)
    split: str = "test"
    columns: Columns = field(default_factory=Columns)


@dataclass(frozen=True)
class CaptionedPool:
    """Queries, images, and captions to learn from, if any."""

    task: RetrievalTask
    captions: PoolCaptions | None


def open_pools(selection: PoolSelection) -> list[CaptionedPool]:
    """Open everything that is selected.

    Raises:
        UserError: no data, no such source, or captions of another source.
    """
    refuse((not selection.data, "no data. Name it with --data SOURCE ..."))
    words = [None] * len(selection.data) if selection.captions is None else selection.captions.split(",")
    if len(words) == 1:
        words *= len(selection.data)
    if len(words) != len(selection.data):
        raise UserError(
            f"--captions {selection.captions}: {len(words)} kinds for {len(selection.data)} sources. Name one kind, or "
            "one per source with commas between."
        )
    each = [_open(spec, word, selection) for spec, word in zip(selection.data, words, strict=True)]
    return [_merged(each)] if selection.pool == "merged" else each


def _open(spec: str, word: str | None, selection: PoolSelection) -> CaptionedPool:
    split = _split(spec, selection.split)
    task = retrieval_task(spec, split=split, columns=selection.columns)
    if word is None:
        return CaptionedPool(task, None)
    return CaptionedPool(task, _captions(task, word, selection, spec))


def _split(spec: str, split: str) -> str | None:
    return None if is_generated(spec) or "split=" in spec else split


def _captions(task: RetrievalTask, word: str, selection: PoolSelection, spec: str) -> PoolCaptions:
    if word in selection.kinds:
        return selection.kinds[word](task.images)
    if word.startswith(_COLUMN):
        columns = Columns(image=selection.columns.image, caption=word.removeprefix(_COLUMN))
        source = open_source(spec, split=_split(spec, selection.split), kind="caption", columns=columns)
        return PoolCaptions(tuple(next(iter(source.texts(row)), None) for row in range(len(source))))
    if not word.endswith(".jsonl"):
        raise UserError(f"--captions {word}: write {', '.join(selection.kinds)}, column:NAME, or name a .jsonl file")
    return PoolCaptions(captions_of(Path(word), task.images))


def _merged(pools: Sequence[CaptionedPool]) -> CaptionedPool:
    task = merged_tasks([pool.task for pool in pools])
    captions = [pool.captions for pool in pools if pool.captions is not None]
    if not captions:
        return CaptionedPool(task, None)
    every = tuple(caption for each in captions for caption in each.captions)
    return CaptionedPool(task, PoolCaptions(every, frozenset().union(*(each.reserved for each in captions))))
