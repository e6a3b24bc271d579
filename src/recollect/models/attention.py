"""Where the pooled token of a text looks, layer by layer (prefix conditioning, Fig. 3, 5, 6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import transformers
from jaxtyping import Float, Int
from torch import Tensor

from recollect.models.transformers.families import pooled_places


@dataclass(frozen=True)
class TextAttention:
    """Attention of the token whose state becomes the text's embedding.

    Attributes:
        tokens: the tokens of each text, padding included.
        places: place of the pooled token in each text.
        layers: for each layer (n, heads, tokens), every row a distribution over the tokens.
    """

    tokens: tuple[tuple[str, ...], ...]
    places: Int[Tensor, " n"]
    layers: tuple[Float[Tensor, "n heads tokens"], ...]


def pooled_attention(
    model: transformers.PreTrainedModel, tokens: dict[str, Tensor]
) -> tuple[Int[Tensor, " n"], tuple[Float[Tensor, "n heads tokens"], ...]]:
    """The pooled token's place and its attention in every layer of the text tower, in float32 on the CPU."""
    places = pooled_places(tokens["input_ids"], model.config)
    with eager_attention(model.text_model), torch.no_grad():
        output = model.get_text_features(**tokens, output_attentions=True)
    rows = torch.arange(len(places), device=places.device)
    return places.cpu(), tuple(layer[rows, :, places].float().cpu() for layer in output.attentions)


@contextmanager
def eager_attention(tower: transformers.PreTrainedModel) -> Iterator[None]:
    """Compute attention as a matrix while the block runs; the fused kernels never form it."""
    before = tower.config._attn_implementation
    tower.set_attn_implementation("eager")
    try:
        yield
    finally:
        tower.set_attn_implementation(before)
