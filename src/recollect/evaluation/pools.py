"""Opens pools of images to search, with their captions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from recollect.core.errors import UserError
from recollect.core.validation import refuse
from recollect.data.sources import open_source
from recollect.data.sources.columns import Columns
from recollect.data.sources.generated import is_generated
from recollect.efsa.caption_file import captions_of
from recollect.efsa.corruption import (
    CaptionCorruption,
    PoolCaptions,
    corrupted_captions,
    held_out,
    true_captions,
)
from recollect.evaluation.retrieval import merged_tasks
from recollect.evaluation.tasks.retrieval import RetrievalTask, retrieval_task

PoolKind = Literal["single", "merged"]

_COLUMN = "column:"
_WORDS = "write reworded, held-out, true, column:NAME, or name a .jsonl file"


@dataclass(frozen=True)
class PoolSelection:
    """Images to search, and captions to learn from.

    Attributes:
        data: sources with captions, which are the queries.
        pool: one pool per source, or all sources as one pool.
        captions: captions to learn from, for all sources or one per source with commas between: ``reworded``,
            ``held-out``, ``true``, ``column:NAME``, or a .jsonl file of `recollect caption`; None for none.
        corruption: of ``reworded`` captions.
        split: of sources that have splits.
        columns: names of unusual columns.
    """

    data: Sequence[str]
    pool: PoolKind = "single"
    captions: str | None = None
    corruption: CaptionCorruption = field(default_factory=CaptionCorruption)
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
    if word == "reworded":
        return corrupted_captions(task.images, selection.corruption)
    if word in ("held-out", "true"):
        return {"held-out": held_out, "true": true_captions}[word](task.images)
    if word.startswith(_COLUMN):
        columns = Columns(image=selection.columns.image, caption=word.removeprefix(_COLUMN))
        source = open_source(spec, split=_split(spec, selection.split), kind="caption", columns=columns)
        return PoolCaptions(tuple(next(iter(source.texts(row)), None) for row in range(len(source))))
    if not word.endswith(".jsonl"):
        raise UserError(f"--captions {word}: {_WORDS}")
    return PoolCaptions(captions_of(Path(word), task.images))


def _merged(pools: Sequence[CaptionedPool]) -> CaptionedPool:
    task = merged_tasks([pool.task for pool in pools])
    captions = [pool.captions for pool in pools if pool.captions is not None]
    if not captions:
        return CaptionedPool(task, None)
    every = tuple(caption for each in captions for caption in each.captions)
    return CaptionedPool(task, PoolCaptions(every, frozenset().union(*(each.reserved for each in captions))))
