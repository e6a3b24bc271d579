"""Pools of images to search, with their captions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from recollect.evaluation.retrieval import PoolCaptions
from recollect.evaluation.tasks.retrieval import RetrievalTask, merged_tasks, retrieval_task, with_distinct_names

PoolKind = Literal["single", "merged"]

_COLUMN = "column:"


def held_out(source: Source) -> PoolCaptions:
    """Use the last text of each image as its caption and not as a query, for sets with several texts per image.

    Raises:
        UserError: no image has two different texts.
    """
    captions = [texts[-1] if len(texts) > 1 else None for texts in _distinct_texts(source)]
    if not any(captions):
        raise UserError(f"{source.name}: no image has two texts, so none can be held out as its caption.")
    return PoolCaptions(tuple(captions), frozenset(caption for caption in captions if caption))


def true_captions(source: Source) -> PoolCaptions:
    """Use the first text of each image as its caption and as a query: an upper bound (EFSA, Table 6, row 1)."""
    return PoolCaptions(tuple(next(iter(texts), None) for texts in _distinct_texts(source)))


def _distinct_texts(source: Source) -> Iterator[Sequence[str]]:
    return (number_texts(source.texts(index))[0] for index in range(len(source)))


CAPTION_KINDS: Mapping[str, Callable[[Source], PoolCaptions]] = {"held-out": held_out, "true": true_captions}
"""Functions that take captions from the texts of a source, by name."""


@dataclass(frozen=True)
class CaptionedPool:
    """Queries, images, and captions to learn from, if any."""

    task: RetrievalTask
    captions: PoolCaptions | None


def open_pools(
    data: Sequence[str],
    pool: PoolKind = "single",
    captions: str | None = None,
    *,
    kinds: Mapping[str, Callable[[Source], PoolCaptions]] = CAPTION_KINDS,
    split: str = "test",
    columns: Columns | None = None,
) -> list[CaptionedPool]:
    """Open images to search, and captions to learn from.

    Args:
        data: sources with captions, which are the queries.
        pool: one pool per source, or all sources as one pool.
        captions: captions to learn from, for all sources or one per source, separated by commas: a name of ``kinds``,
            ``column:NAME``, or a .jsonl file of `recollect caption`; None for none.
        split: split of each source, unless its address names one.

    Raises:
        UserError: no data, no such source, or captions of a different source.
    """
    refuse((not data, "no data. Pass it with --data SOURCE ..."))
    choices = [None] * len(data) if captions is None else captions.split(",")
    if len(choices) == 1:
        choices *= len(data)
    if len(choices) != len(data):
        raise UserError(
            f"--captions {captions}: {len(choices)} kinds for {len(data)} sources. Name one kind, or one per source, "
            "separated by commas."
        )
    pools = []
    splits = [None if is_generated(spec) or "split=" in spec else split for spec in data]
    tasks = [retrieval_task(spec, split=own, columns=columns) for spec, own in zip(data, splits, strict=True)]
    for spec, choice, own, task in zip(data, choices, splits, with_distinct_names(data, tasks), strict=True):
        if choice is None:
            known = None
        elif choice in kinds:
            known = kinds[choice](task.images)
        elif choice.startswith(_COLUMN):
            named = Columns(image=columns.image if columns else None, caption=choice.removeprefix(_COLUMN))
            source = open_source(spec, split=own, kind="caption", columns=named)
            known = PoolCaptions(tuple(next(iter(source.texts(row)), None) for row in range(len(source))))
        elif choice.endswith(".jsonl"):
            known = PoolCaptions(captions_of(Path(choice), task.images))
        else:
            raise UserError(f"--captions {choice}: use {', '.join(kinds)}, column:NAME, or a .jsonl file")
        pools.append(CaptionedPool(task, known))
    return [_merged(pools)] if pool == "merged" else pools


def _merged(pools: Sequence[CaptionedPool]) -> CaptionedPool:
    task = merged_tasks([pool.task for pool in pools])
    captions = [pool.captions for pool in pools if pool.captions is not None]
    if not captions:
        return CaptionedPool(task, None)
    every = tuple(caption for each in captions for caption in each.captions)
    return CaptionedPool(task, PoolCaptions(every, frozenset().union(*(each.reserved for each in captions))))
