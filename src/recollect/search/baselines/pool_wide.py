"""What episodes are held against: matching captions instead of images, and fine-tuning once on the whole pool."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.progress import progress
from recollect.core.seeding import numpy_generator
from recollect.core.types import caption_prefix
from recollect.memory import Item
from recollect.models import DualEncoder
from recollect.models.lora.layers import Adapters, adapted, adapter_sites, initial_adapters, merge_adapters
from recollect.search.counters import CostCounters
from recollect.search.episodes.batch import number_texts
from recollect.search.episodes.batched import LEAST_PAIRS, contrast_scale, frozen
from recollect.search.episodes.loss import episode_loss, negatives
from recollect.search.episodes.options import EpisodeOptions, TuningOptions
from recollect.search.pixels import PixelCache
from recollect.search.pool import Pool, VectorPool

_BLOCK = 512


@dataclass(frozen=True)
class _Pairs:
    """A batch of pictures with the numbers of their captions; equal wordings have equal numbers."""

    pixels: Tensor
    captions: tuple[str, ...]
    numbers: tuple[int, ...]


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


def by_model(encoder: DualEncoder, pool: Pool, pixels: PixelCache, counters: CostCounters | None = None) -> VectorPool:
    """The images of a pool embedded again, by another model; those that cannot be opened any more are left out.

    Raises:
        UserError: none can be opened.
    """
    ids, blocks = [], []
    for items in item_blocks(pool, "embed images"):
        read = zip(items, pixels.read(items), strict=True)
        there = [(item.id, picture) for item, picture in read if picture is not None]
        if there:
            ids += [id for id, _ in there]
            blocks.append(encoder.embed_images(pixels.tensor([picture for _, picture in there])).numpy())
    if not ids:
        raise UserError("no image of the pool can be opened any more. Are they still where they were?")
    if counters is not None:
        counters.forward(images=len(ids))
    return VectorPool(pool, ids, np.concatenate(blocks))


def fine_tune(
    encoder: DualEncoder,
    pool: Pool,
    episode: EpisodeOptions,
    options: TuningOptions,
    pixels: PixelCache,
    counters: CostCounters | None = None,
) -> DualEncoder:
    """A copy of ``encoder``, tuned by low-rank adapters on all captioned images of the pool (EFSA, §4.1, F.T).

    Loss, adapters and optimiser are an episode's; batches are drawn at random, so that other images of any domain are
    the negatives.

    Raises:
        UserError: fewer than two captioned images, a loss that is not finite, a model that adapters cannot wrap.
    """
    ids = [item.id for items in item_blocks(pool, "read captions") for item in items if has_caption(item)]
    if len(ids) < LEAST_PAIRS:
        raise UserError(NO_CAPTIONS)
    sites = adapter_sites(encoder)
    start = initial_adapters(sites, episode.adapters)
    halves = [{name: each.clone().requires_grad_() for name, each in half.items()} for half in (start.down, start.up)]
    adapters = Adapters(halves[0], halves[1], start.scale)
    learned = [each for half in halves for each in half.values()]
    rate = episode.for_sites(sites).rate if options.learning_rate is None else options.learning_rate
    optimiser = torch.optim.AdamW(learned, lr=rate, weight_decay=episode.weight_decay)
    with frozen(encoder), progress("fine-tune", options.epochs * len(ids), "images") as counter:
        for epoch in range(options.epochs):
            for batch in _batches(pool, ids, options, epoch, pixels):
                with torch.enable_grad(), adapted(encoder, adapters):
                    loss = _loss(encoder, batch, episode)
                if not bool(loss.isfinite()):
                    raise UserError("the fine-tuning broke down: its loss is not finite. Lower the learning rate.")
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                counter.advance(len(batch.numbers), f"loss {loss.item():.3f}")
                if counters is not None:
                    counters.forward(images=len(batch.numbers), texts=len(batch.numbers))
                    counters.backward(images=len(batch.numbers), texts=len(batch.numbers))
    tuned = copy.deepcopy(encoder).eval()
    down, up = ({name: each.detach() for name, each in half.items()} for half in halves)
    merge_adapters(tuned, Adapters(down, up, start.scale))
    return tuned


def _loss(encoder: DualEncoder, batch: _Pairs, options: EpisodeOptions) -> Tensor:
    images = encoder.encode_images(batch.pixels.to(encoder.device, encoder.dtype))
    texts = encoder.encode_texts(encoder.tokenize(batch.captions, caption_prefix(encoder)))
    numbers = torch.tensor([batch.numbers], device=images.device)
    every = torch.ones_like(numbers, dtype=torch.bool)
    scale = contrast_scale(encoder, options)
    return episode_loss(images[None], texts[None], every, negatives(numbers, every), scale, options)[0]


def _batches(
    pool: Pool, ids: Sequence[str], options: TuningOptions, epoch: int, pixels: PixelCache
) -> Iterator[_Pairs]:
    order = numpy_generator("fine-tuning", options.seed, epoch).permutation(len(ids))
    for first in range(0, len(ids), options.batch_size):
        items = pool.items([ids[row] for row in order[first : first + options.batch_size]])
        read = zip(items, pixels.read(items), strict=True)
        there = [(item.caption, picture) for item, picture in read if picture is not None]
        if len(there) < LEAST_PAIRS:
            continue
        captions = tuple(caption for caption, _ in there)
        yield _Pairs(pixels.tensor([picture for _, picture in there]), captions, tuple(number_texts(captions)[1]))


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
