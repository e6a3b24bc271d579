"""From a memory's address to a search that can be asked: what the command, the page and three lines of Python share."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from recollect.core.errors import UserError
from recollect.efsa.caption_file import CaptionFile
from recollect.efsa.options import EpisodeOptions
from recollect.efsa.pixels import PixelCache
from recollect.memory import Memory
from recollect.memory.opening import open_model_of
from recollect.search.baselines.pool_wide import NO_CAPTIONS, by_captions
from recollect.search.episodes.searcher import EpisodicSearcher
from recollect.search.memory_pool import MemoryPool
from recollect.search.normalisation import normalised
from recollect.search.searcher import MODEL, Searcher

Rerank = Literal["none", "episode", "episode-paper", "episode-full"]
Among = Literal["images", "captions"]


def open_searcher(
    memory: Memory | str | Path,
    *,
    model: str | None = None,
    rerank: Rerank = "none",
    among: Among = "images",
    normalise: bool = False,
    episode: EpisodeOptions | None = None,
    captions: str | Path | None = None,
    exact: bool = False,
    device: torch.device | str | None = None,
) -> Searcher:
    """A search of a memory by the model that embedded it.

    >>> searcher = open_searcher("memories/mine", rerank="episode")                  # doctest: +SKIP
    >>> [hit.item.path for hit in searcher.search("a red umbrella", k=5).hits]       # doctest: +SKIP

    Args:
        memory: opened, or its address.
        model: where the model is now; by default where it was when the memory was built.
        rerank: rank the first images again by the model adapted to the query (EFSA): by low-rank adapters, the same
            with the loss and step as the paper prints them, or by all parameters.
        among: find images by what they show, or by what their captions say.
        normalise: take from each score what the image gets from any query (NNN), with the memory's captions as
            references; alpha and k are those that find the captions' own images best.
        episode: settings of ``rerank``.
        captions: captions that a model wrote, if not in the memory's folder.
        exact: compare with every image, also where the memory has an index (`Memory.index`).
        device: where to compute; the best there is by default.

    Raises:
        UserError: no such memory, model or file of captions; another model than the memory's; ``rerank`` or captions
            asked for where there are no captions.
    """
    store = memory if isinstance(memory, Memory) else Memory.open(memory)
    if captions is not None and not Path(captions).exists():
        raise UserError(
            f"{captions}: no such file. Write it with `recollect caption {store.address} --model CAPTIONER`."
        )
    written = None if captions is None else CaptionFile(captions)
    pool = MemoryPool(store, written=written, exact=exact, each_caption=among == "captions")
    if (rerank != "none" or among == "captions" or normalise) and not pool.has_captions():
        raise UserError(NO_CAPTIONS)
    encoder, _ = open_model_of(store, model, device)
    if among == "captions" and rerank != "none":
        raise UserError("an episode ranks images that the model found, not their captions: leave out one of both")
    if normalise and (rerank != "none" or among == "captions"):
        raise UserError("normalised scores are of images by the model as it is: leave out the re-ranking and captions")
    if rerank == "none":
        if among == "captions":
            return Searcher(encoder, by_captions(encoder, pool), scored_by="captions")
        return Searcher(encoder, normalised(encoder, pool) if normalise else pool,
                        scored_by="normalised" if normalise else MODEL)  # fmt: skip
    episode = episode or EpisodeOptions()
    if rerank == "episode-full":
        # What somebody names counts for all parameters too; the default rate of adapters would destroy them.
        episode = replace(episode, learning_rate=episode.learning_rate or 3e-6, parameters="all")
    elif rerank == "episode-paper":
        episode = episode.as_printed()
    return EpisodicSearcher(encoder, pool, options=episode, pixels=PixelCache(encoder.transform))
