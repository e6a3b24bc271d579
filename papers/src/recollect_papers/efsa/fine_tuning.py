"""Fine-tuning on all captioned pictures of an index (EFSA's baseline F.T, section 4.1)."""

import copy

import numpy as np
import torch
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.progress import progress
from recollect.core.seeding import numpy_generator
from recollect.core.types import caption_prefix
from recollect.efsa.batch import number_texts
from recollect.efsa.episodes import MIN_PAIRS, contrast_scale
from recollect.efsa.loss import episode_loss, negatives
from recollect.efsa.options import EpisodeOptions
from recollect.efsa.pixels import PixelCache
from recollect.efsa.rerank import NO_CAPTIONS
from recollect.index import Index
from recollect.index.source import with_vectors
from recollect.models import DualEncoder
from recollect.models.lora import adapter_sites, add_lora, initial_weights, merged
from recollect_papers.efsa.options import TuningOptions

_BLOCK = 512


def index_by(encoder: DualEncoder, index: Index, pixels: PixelCache) -> Index:
    """Embed the pictures of an index with another model, skipping unreadable ones.

    Raises:
        UserError: all pictures are unreadable.
    """
    ids, found, blocks = index.ids, list[str](), []
    with progress("embed images", len(ids), "images") as counter:
        for start in range(0, len(ids), _BLOCK):
            pictures = index.pictures(ids[start : start + _BLOCK])
            pairs = zip(pictures, pixels.read(pictures), strict=True)
            readable = {picture.id: pixel for picture, pixel in pairs if pixel is not None}
            if readable:
                found += readable
                blocks.append(encoder.embed_images(pixels.tensor(list(readable.values()))).numpy())
            counter.advance(len(pictures))
    if not found:
        raise UserError(f"{index.address}: no picture can be opened. Check that the files still exist.")
    return with_vectors(index, found, np.concatenate(blocks), encoder, "fine-tuned model")


def fine_tune(
    encoder: DualEncoder, index: Index, episode: EpisodeOptions, options: TuningOptions, pixels: PixelCache
) -> DualEncoder:
    """Fine-tune a copy of ``encoder`` with low-rank adapters on all captioned pictures (EFSA, section 4.1, F.T).

    Uses the loss, adapters and optimizer of an episode, but random batches, so negatives come from all domains.

    Raises:
        UserError: fewer than two captioned pictures, a non-finite loss, or a model that adapters do not support.
    """
    captions = zip(index.ids, (next(iter(each or ()), "") for each in index.values("caption")), strict=True)
    ids = [id for id, caption in captions if caption]
    if len(ids) < MIN_PAIRS:
        raise UserError(NO_CAPTIONS)
    sites = adapter_sites(encoder)
    tuned = copy.deepcopy(encoder).eval()
    add_lora(tuned, *initial_weights(sites, episode.adapters), episode.scale)
    learned = [each for each in tuned.parameters() if each.requires_grad]
    rate = episode.for_sites(sites).rate if options.learning_rate is None else options.learning_rate
    optimizer = torch.optim.AdamW(learned, lr=rate, weight_decay=episode.weight_decay)
    with progress("fine-tune", options.epochs * len(ids), "images") as counter:
        for epoch in range(options.epochs):
            order = numpy_generator("fine-tuning", options.seed, epoch).permutation(len(ids))
            for first in range(0, len(ids), options.batch_size):
                pictures = index.pictures([ids[row] for row in order[first : first + options.batch_size]])
                read = zip(pictures, pixels.read(pictures), strict=True)
                pairs = [(picture.caption, pixel) for picture, pixel in read if pixel is not None]
                if len(pairs) < MIN_PAIRS:
                    continue
                texts, images = zip(*pairs, strict=True)
                with torch.enable_grad():
                    loss = _loss(tuned, pixels.tensor(list(images)), texts, episode)
                if not bool(loss.isfinite()):
                    raise UserError("fine-tuning: the loss is not finite. Lower the learning rate.")
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                counter.advance(len(pairs), f"loss {loss.item():.3f}")
    return merged(tuned)


def _loss(encoder: DualEncoder, pixels: Tensor, captions: tuple[str, ...], options: EpisodeOptions) -> Tensor:
    images = encoder.encode_images(pixels.to(encoder.device, encoder.dtype))
    texts = encoder.encode_texts(encoder.tokenize(captions, caption_prefix(encoder)))
    numbers = torch.tensor([list(number_texts(captions)[1])], device=images.device)
    every = torch.ones_like(numbers, dtype=torch.bool)
    scale = contrast_scale(encoder, options)
    return episode_loss(images[None], texts[None], every, negatives(numbers, every), scale, options)[0]
