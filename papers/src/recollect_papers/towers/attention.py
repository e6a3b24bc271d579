"""Where the pooled token of a text looks, layer by layer (prefix conditioning, Fig. 3, 5, 6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from jaxtyping import Float, Int
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.types import Kind
from recollect.models.transformers.encoder import TransformersEncoder
from recollect.models.transformers.families import OLD_END, pooling


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


def text_attention(encoder: TransformersEncoder, texts: Sequence[str], prefix: Kind | None = None) -> TextAttention:
    """Attention of the pooled token of each text in every layer of the text tower, in float32 on the CPU.

    Args:
        encoder: in any mode; it is left as it was.
        texts: read together, so that all have the length of the longest.
        prefix: whose prefix tokens to put in front.
    """
    tokens = {name: ids.to(encoder.device) for name, ids in encoder.tokenize(texts, prefix).items()}
    places = pooled_places(tokens["input_ids"], encoder.model.config)
    with encoder._evaluating(), eager_attention(encoder.model.text_model):
        output = encoder.model.get_text_features(**tokens, output_attentions=True)
    rows = torch.arange(len(places), device=places.device)
    layers = tuple(layer[rows, :, places].float().cpu() for layer in output.attentions)
    words = tuple(tuple(encoder.tokenizer.convert_ids_to_tokens(row)) for row in tokens["input_ids"].tolist())
    return TextAttention(words, places.cpu(), layers)


def special_tokens(encoder: TransformersEncoder) -> tuple[str, ...]:
    """Tokens that are no words of a text."""
    return (*encoder.tokenizer.all_special_tokens, *(word for words in encoder.prefixes.values() for word in words))


def pooled_places(ids: Int[Tensor, "n tokens"], config: Any) -> Int[Tensor, " n"]:
    """The place of the pooled token in each text.

    Raises:
        UserError: the text tower takes the mean over all tokens.
    """
    if getattr(config, "text_pooling", "") == "mean":
        raise UserError("this text tower takes the mean over all tokens; there is no pooled token to look at.")
    how = pooling(config)
    if how == "end":
        end = config.text_config.eos_token_id
        return (ids if end == OLD_END else (ids == end).int()).argmax(dim=1)
    return torch.full((len(ids),), ids.shape[1] - 1 if how == "last" else 0, device=ids.device)


@contextmanager
def eager_attention(tower: transformers.PreTrainedModel) -> Iterator[None]:
    """Compute attention as a matrix while the block runs; the fused kernels never form it."""
    before = tower.config._attn_implementation
    tower.set_attn_implementation("eager")
    try:
        yield
    finally:
        tower.set_attn_implementation(before)
