"""Episodes one query at a time with PEFT and torch.optim: reference implementation, and episodes on all parameters."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recollect.core.types import caption_prefix
from recollect.efsa.batch import EpisodeBatch, Reranked
from recollect.efsa.episodes import MIN_PAIRS, as_reranked, contrast_scale, embed_episode_queries, similarities
from recollect.efsa.loss import episode_loss, negatives
from recollect.efsa.options import EpisodeOptions
from recollect.models import DualEncoder
from recollect.models.lora import adapter_sites, add_lora, initial_weights


class WeightReset:
    """Restores parameters to their initial values when called."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters, self.initial = parameters, [each.detach().clone() for each in parameters]

    @torch.no_grad()
    def __call__(self) -> None:
        """Restore the parameters and clear their gradients."""
        for parameter, initial in zip(self.parameters, self.initial, strict=True):
            parameter.copy_(initial)
            parameter.grad = None


class OneAtATime:
    """Base class: runs an episode per query on a copy of the model, starting from the same weights.

    Attributes:
        encoder: the model to copy.
        options: options of episodes.
        steps: optimizer steps per episode.
    """

    def __init__(self, encoder: DualEncoder, options: EpisodeOptions | None = None, steps: int = 1) -> None:
        self.encoder, self.options, self.steps = encoder, options or EpisodeOptions(), steps
        self._copy = copy.deepcopy(encoder).eval().requires_grad_(False)
        self._learned = self._prepare()
        self._reset = WeightReset(self._learned)

    def _prepare(self) -> list[nn.Parameter]:
        """Prepare the copy and return its trainable parameters."""
        raise NotImplementedError

    def rerank(self, batch: EpisodeBatch) -> Reranked:
        """Adapt to each query of the batch and rescore its candidates."""
        scores, losses = [], []
        for query in range(len(batch.queries)):
            alone = batch.one(query)
            losses.append(self._learn(alone))
            scores.append(self._scores(alone))
            self._reset()
        return as_reranked(batch, torch.cat(scores), torch.stack(losses))

    def _learn(self, batch: EpisodeBatch) -> Float[Tensor, ""]:
        options = self.options
        optimizer = torch.optim.AdamW(self._learned, lr=options.rate, weight_decay=options.weight_decay)
        total = torch.zeros((), dtype=self._copy.dtype, device=self._copy.device)
        if batch.pairs.sum() < MIN_PAIRS:
            return total
        for _ in range(self.steps):
            loss = self._loss(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        return total

    def _loss(self, batch: EpisodeBatch) -> Float[Tensor, ""]:
        pairs = batch.pairs[0]
        images, texts = batch.images[0][pairs], batch.texts[0][pairs]
        raw_images = self._encode_images(batch.pixels[images])
        captions = [batch.captions[number] for number in texts.tolist()]
        raw_texts = self._copy.encode_texts(self._copy.tokenize(captions, caption_prefix(self._copy)))
        every = torch.ones(1, len(images), dtype=torch.bool, device=raw_images.device)
        wrong = negatives(texts[None].to(raw_images.device), every)
        scale = contrast_scale(self.encoder, self.options)
        return episode_loss(raw_images[None], raw_texts[None], every, wrong, scale, self.options)[0]

    @torch.no_grad()
    def _scores(self, batch: EpisodeBatch) -> Float[Tensor, "one k"]:
        images = self._encode_images(batch.pixels[batch.images[0].clamp(min=0)])
        return similarities(images[None], embed_episode_queries(self._copy, batch))

    def _encode_images(self, pixels: Float[Tensor, "n ..."]) -> Float[Tensor, "n width"]:
        return self._copy.encode_images(pixels.to(self._copy.device, self._copy.dtype))


class SequentialEpisodes(OneAtATime):
    """Reference implementation of EFSA with PEFT; `Episodes` gives the same results faster."""

    def _prepare(self) -> list[nn.Parameter]:
        sites = adapter_sites(self._copy)
        self.options = self.options.for_sites(sites)
        layers: dict[str, Any] = add_lora(
            self._copy, *initial_weights(sites, self.options.adapters), self.options.scale
        )
        down = [layer.lora_A["default"].weight for layer in layers.values()]
        return [*down, *(layer.lora_B["default"].weight for layer in layers.values())]


class FullEpisodes(OneAtATime):
    """Episodes that adapt all parameters of both towers (EFSA, §5.1 and Fig. 4), at a much lower learning rate."""

    def _prepare(self) -> list[nn.Parameter]:
        towers = (self._copy.tower_parameters("image"), self._copy.tower_parameters("text"))
        learned = [each for tower in towers for each in tower]
        for each in learned:
            each.requires_grad_()
        return learned
