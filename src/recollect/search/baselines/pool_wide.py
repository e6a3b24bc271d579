"""What episodes are held against: matching captions instead of images, and fine-tuning once on the whole pool."""

from collections.abc import Iterator

import numpy as np

from recollect.core.errors import UserError
from recollect.core.progress import progress
from recollect.core.types import caption_prefix
from recollect.efsa.cost import CostCounters
from recollect.memory import Item
from recollect.models import DualEncoder
from recollect.search.pool import Pool, VectorPool

_BLOCK = 512


def by_captions(encoder: DualEncoder, pool: Pool, counters: CostCounters | None = None) -> VectorPool:
    """The images of a pool, to be found by what their captions say (the text-to-text baseline, EFSA, §4.1).

    All captions of the pool are searched: EFSA writes of those of the top k, but its R@10 lies below what a random
    order of sixteen candidates would give.

    Raises:
        UserError: no image has a caption.
    """
    ids, blocks = [], []
    for items in item_blocks(pool, "embed captions"):
        there = [item for item in items if has_caption(item)]
        ids += [item.id for item in there]
        blocks.append(encoder.embed_texts([item.caption for item in there], caption_prefix(encoder)).numpy())
    if not ids:
        raise UserError(NO_CAPTIONS)
    if counters is not None:
        counters.forward(texts=len(ids))
    return VectorPool(pool, ids, np.concatenate(blocks))


NO_CAPTIONS = (
    "the pool has no captions. Write them once with `recollect caption MEMORY --model CAPTIONER`, or build the memory "
    "from data that has a caption column."
)


def has_caption(item: Item) -> bool:
    """Whether something is said of an image."""
    return bool(item.caption.strip())


def item_blocks(pool: Pool, what: str) -> Iterator[list[Item]]:
    """Every item of a pool, some at a time."""
    ids = pool.ids()
    with progress(what, len(ids), "images") as counter:
        for start in range(0, len(ids), _BLOCK):
            items = pool.items(ids[start : start + _BLOCK])
            yield items
            counter.advance(len(items))
