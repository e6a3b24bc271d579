"""Episodes: adapters trained for one step per query on its candidates, for many queries at once (EFSA, §3.2)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from recollect.core.types import caption_prefix
from recollect.efsa.adapters import Adapters, FirstStep, adapted
from recollect.efsa.batch import EpisodeBatch, Reranked, shared_rows
from recollect.efsa.loss import episode_loss, negatives
from recollect.efsa.options import EpisodeOptions
from recollect.models import DualEncoder
from recollect.models.lora import adapter_sites, initial_weights

_DEFAULT_SCALE = 1 / 0.07  # CLIP's initial value, for models without a temperature
MIN_PAIRS = 2
"""Minimum number of pairs: a single pair has no negatives."""

_EPSILON = 1e-8  # of AdamW


class Episodes:
    """Adapts a model to many queries at once and re-ranks their candidates, without changing the model.

    Training is a single step from B = 0, so every picture and caption passes the frozen model once, even if several
    queries share it. Only the gradient of each query's B is computed, and AdamW's first step needs no state.
    """

    def __init__(self, encoder: DualEncoder, options: EpisodeOptions | None = None) -> None:
        self._sites = adapter_sites(encoder)
        self.encoder = encoder
        self.options = (options or EpisodeOptions()).for_sites(self._sites)
        self._start = Adapters(*initial_weights(self._sites, self.options.adapters), self.options.scale)

    def rerank(self, batch: EpisodeBatch) -> Reranked:
        """Adapt to each query of the batch and rescore its candidates."""
        with frozen(self.encoder):
            adapters, losses = self._adapt(batch)
            scores = self._scores(batch, adapters)
        return as_reranked(batch, scores, losses)

    def _adapt(self, batch: EpisodeBatch) -> tuple[Adapters, Float[Tensor, " queries"]]:
        step = FirstStep(self._sites, self._start, len(batch.queries))
        queries, k = batch.images.shape
        pairs = batch.pairs
        images, texts = shared_rows(batch.images, pairs), shared_rows(batch.texts, pairs)
        tokens = self.encoder.tokenize(batch.captions, caption_prefix(self.encoder)) if batch.captions else {}
        with step.recording():
            outputs = [self._encode_images(batch.pixels[group.rows]) for group in images]
            outputs += [self.encoder.encode_texts(rows_of(tokens, group.rows)) for group in texts]
        groups = images + texts
        # Candidates without a pair are ignored by the loss, but must be normalizable.
        raw = torch.ones(2, queries * k, self.encoder.width, dtype=self.encoder.dtype, device=self.encoder.device)
        for number, (group, output) in enumerate(zip(groups, outputs, strict=True)):
            for places in group.places:
                raw[int(number >= len(images))].index_copy_(0, places.to(raw.device), output.detach())
        losses, gradients = self._loss_gradients(batch, raw.unflatten(1, (queries, k)))
        for number, (group, output) in enumerate(zip(groups, outputs, strict=True)):
            tower = gradients[int(number >= len(images))].flatten(0, 1)
            for use, places in enumerate(group.places.to(raw.device)):
                keep = use + 1 < len(group.places)
                step.backward(output, tower[places], places // k, keep=keep)
        for gradient in step.gradient.values():  # in place to B: AdamW's first step is -lr · g / (|g| + ε)
            gradient.div_(gradient.abs().add_(_EPSILON)).mul_(-self.options.rate)
        return Adapters(self._decayed(), step.gradient, self._start.scale), losses

    def _loss_gradients(
        self, batch: EpisodeBatch, raw: Float[Tensor, "towers queries k width"]
    ) -> tuple[Float[Tensor, " queries"], Float[Tensor, "towers queries k width"]]:
        pairs, scale = batch.pairs.to(raw.device), contrast_scale(self.encoder, self.options)
        wrong = negatives(batch.texts.to(raw.device), pairs)
        with torch.enable_grad():
            raw = raw.detach().requires_grad_()
            losses = episode_loss(raw[0], raw[1], pairs, wrong, scale, self.options)
            (gradients,) = torch.autograd.grad(losses.sum(), raw)
        return losses.detach(), gradients

    def _decayed(self) -> dict[str, Tensor]:
        """Return A after the step: its gradient is zero at B = 0, so only weight decay applies."""
        factor = 1 - self.options.rate * self.options.weight_decay
        return {name: down * factor for name, down in self._start.down.items()}

    @torch.no_grad()
    def _scores(self, batch: EpisodeBatch, adapters: Adapters) -> Float[Tensor, "queries k"]:
        queries, k = batch.images.shape
        with adapted(self._sites, adapters):
            images = self._encode_images(batch.pixels[batch.images.clamp(min=0).reshape(-1)])
            embedded = embed_episode_queries(self.encoder, batch)
        return similarities(images.view(queries, k, -1), embedded)

    def _encode_images(self, pixels: Float[Tensor, "n ..."]) -> Float[Tensor, "n width"]:
        return self.encoder.encode_images(pixels.to(self.encoder.device, self.encoder.dtype))


def embed_episode_queries(encoder: DualEncoder, batch: EpisodeBatch) -> Float[Tensor, "queries width"]:
    """Embed the queries with the current towers, as weighted sums of unit embeddings of words and pictures.

    All queries are padded to the same number of words and of pictures by terms of weight 0, as `adapted` requires.
    """
    total = torch.zeros(len(batch.queries), encoder.width, dtype=encoder.dtype, device=encoder.device)
    longest = max(len(query.words) for query in batch.queries)
    if longest:
        words = [(*query.words, *(("", 0.0),) * (longest - len(query.words))) for query in batch.queries]
        tokens = encoder.tokenize([word for each in words for word, _ in each], caption_prefix(encoder))
        total = total + _weighted(encoder.encode_texts(tokens), [[weight for _, weight in each] for each in words])
    longest = max(len(query.pictures) for query in batch.queries)
    if longest:
        pictures = [(*query.pictures, *((0, 0.0),) * (longest - len(query.pictures))) for query in batch.queries]
        pixels = batch.pixels[[row for each in pictures for row, _ in each]].to(encoder.device, encoder.dtype)
        total = total + _weighted(encoder.encode_images(pixels), [[weight for _, weight in each] for each in pictures])
    for row, query in enumerate(batch.queries):
        if query.vector is not None:
            total[row] += query.vector.to(total)
    return total


def _weighted(raw: Float[Tensor, "rows width"], weights: list[list[float]]) -> Float[Tensor, "queries width"]:
    factors = torch.tensor(weights, dtype=raw.dtype, device=raw.device)
    return torch.einsum("qt,qtd->qd", factors, F.normalize(raw, dim=1).unflatten(0, factors.shape))


def similarities(
    images: Float[Tensor, "queries k width"], queries: Float[Tensor, "queries width"]
) -> Float[Tensor, "queries k"]:
    """Return the cosine of each query with its candidates."""
    return torch.einsum("qkd,qd->qk", F.normalize(images, dim=2), F.normalize(queries, dim=1))


def as_reranked(batch: EpisodeBatch, scores: Float[Tensor, "queries k"], losses: Float[Tensor, " queries"]) -> Reranked:
    """Move scores to the CPU, set invalid ones to NaN, and mark queries whose episode failed."""
    exists = batch.images >= 0
    scores = scores.double().cpu()
    failed = ~losses.isfinite().cpu() | ((~scores.isfinite()) & exists).any(dim=1)
    pairs = batch.pairs.sum(dim=1)
    valid = exists & ~failed[:, None] & (pairs >= MIN_PAIRS)[:, None]
    return Reranked(scores.masked_fill(~valid, torch.nan), failed, pairs)


def contrast_scale(encoder: DualEncoder, options: EpisodeOptions) -> float:
    """Return 1/τ of Eq. 1, by default the model's own."""
    if options.temperature is not None:
        return 1 / options.temperature
    return encoder.scale or _DEFAULT_SCALE


def rows_of(tokens: Mapping[str, Tensor], rows: Int[Tensor, " n"]) -> dict[str, Tensor]:
    """Return some rows of a tokenizer's output."""
    return {name: each[rows] for name, each in tokens.items()}


@contextmanager
def frozen(encoder: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode and disable gradients of parameters inside the block."""
    training = [module for module in encoder.modules() if module.training]
    trainable = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    encoder.eval()
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
        for module in training:
            module.training = True
