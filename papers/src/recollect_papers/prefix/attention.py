"""Attention of a text's pooled token in each layer, as heat maps (prefix conditioning, Fig. 3, 5, 6)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import torch
import transformers
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.types import Encoder, Kind
from recollect.evaluation.plots import new_figure
from recollect.models.transformers.encoder import TransformersEncoder
from recollect.models.transformers.families import LEGACY_END_ID, pooling
from recollect_papers.towers.small import SmallEncoder, TextAttention

PREFIX_NAMES: dict[Kind | None, str] = {"label": "label prefix", "caption": "caption prefix", None: "no prefix"}
"""Titles of what the paper calls prompt prefix, caption prefix and unconditional model."""

UNCONDITIONAL = "model without prefixes"

_MAX_WORD_LENGTH = 16


def reading_name(model: Encoder, prefix: Kind | None) -> str:
    """Return the title for texts embedded by ``model`` with a prefix."""
    return PREFIX_NAMES[prefix] if own_prefixes(model) else UNCONDITIONAL


def own_prefixes(model: Encoder) -> tuple[Kind, ...]:
    """Return the kinds that ``model`` has prefix tokens for, label first as in the paper's figures."""
    return tuple(sorted(model.prefixes, reverse=True))


@dataclass(frozen=True)
class AttentionMap:
    """Attention of the pooled token over the words of one text (prefix conditioning, Fig. 3, 5, 6).

    Attributes:
        text: the text.
        prefix: kind whose prefix tokens were prepended.
        words: tokens, with the pieces of a word joined and all padding in one entry.
        weights: (layers, words), mean over heads; each row sums to 1.
        content: whether each word is part of the text, not a prefix, start, end or padding token.
    """

    text: str
    prefix: Kind | None
    words: tuple[str, ...]
    weights: Float[np.ndarray, "layers words"]
    content: tuple[bool, ...]

    @property
    def spread(self) -> Float[np.ndarray, " layers"]:
        """Effective number of the text's words that each layer attends to: exp of the entropy over them."""
        own = self.weights[:, np.array(self.content)]
        shares = own / own.sum(1, keepdims=True).clip(1e-12)
        return np.exp(-np.sum(shares * np.log(shares.clip(1e-12)), axis=1))


def attention_map(model: Encoder, text: str, prefix: Kind | None = None) -> AttentionMap:
    """Compute the attention map of one text.

    Raises:
        UserError: the text tower exposes no attention, or the text is empty.
    """
    if not text.strip():
        raise UserError("an empty text has no attention map")
    if isinstance(model, TransformersEncoder):
        prefixes = (word for words in model.prefixes.values() for word in words)
        found, special = text_attention(model, [text], prefix), {*model.tokenizer.all_special_tokens, *prefixes}
    elif isinstance(model, SmallEncoder):
        found, special = model.text_attention([text], prefix), set(model.special_tokens)
    else:
        raise UserError("this model's text tower exposes no attention")
    tokens = found.tokens[0]
    weights = np.stack([layer[0].mean(0).numpy() for layer in found.layers])
    owner = _word_of(tokens, special)
    words = [""] * (max(owner) + 1)
    content = [False] * len(words)
    for token, word in zip(tokens, owner, strict=True):
        if token in special:
            words[word] = token
        else:
            words[word] += _bare(token)
            content[word] = True
    merged = np.zeros((len(weights), len(words)))
    for position, word in enumerate(owner):
        merged[:, word] += weights[:, position]
    return AttentionMap(text, prefix, tuple(words), merged, tuple(content))


def text_attention(encoder: TransformersEncoder, texts: Sequence[str], prefix: Kind | None = None) -> TextAttention:
    """Return the pooled token's attention for each text and layer, in float32 on the CPU.

    Texts form one batch, padded to the longest. The encoder is not modified.
    """
    tokens = {name: ids.to(encoder.device) for name, ids in encoder.tokenize(texts, prefix).items()}
    pooled = pooled_places(tokens["input_ids"], encoder.model.config)
    with encoder._evaluating(), eager_attention(encoder.model.text_model):
        output = encoder.model.get_text_features(**tokens, output_attentions=True)
    rows = torch.arange(len(pooled), device=pooled.device)
    layers = tuple(layer[rows, :, pooled].float().cpu() for layer in output.attentions)
    words = tuple(tuple(encoder.tokenizer.convert_ids_to_tokens(row)) for row in tokens["input_ids"].tolist())
    return TextAttention(words, pooled.cpu(), layers)


def pooled_places(ids: Int[Tensor, "n tokens"], config: Any) -> Int[Tensor, " n"]:
    """Return the position of the pooled token in each text.

    Raises:
        UserError: the text tower uses mean pooling.
    """
    if getattr(config, "text_pooling", "") == "mean":
        raise UserError("this text tower uses mean pooling, so it has no pooled token with attention to show")
    how = pooling(config)
    if how == "end":
        end = config.text_config.eos_token_id
        return (ids if end == LEGACY_END_ID else (ids == end).int()).argmax(dim=1)
    return torch.full((len(ids),), ids.shape[1] - 1 if how == "last" else 0, device=ids.device)


@contextmanager
def eager_attention(tower: transformers.PreTrainedModel) -> Iterator[None]:
    """Use eager attention in the block, because fused kernels do not return attention matrices."""
    before = tower.config._attn_implementation
    tower.set_attn_implementation("eager")
    try:
        yield
    finally:
        tower.set_attn_implementation(before)


def _word_of(tokens: Sequence[str], special: set[str]) -> list[int]:
    """Return the word index of each token.

    Tokenizers mark the first piece of a word (SentencePiece, byte-level), later pieces (WordPiece) or the last piece
    (CLIP). A run of the same special token, such as padding, is one word.
    """
    plain = [token for token in tokens if token not in special]
    begins = any(token.startswith(("▁", "Ġ")) for token in plain)
    ends = any(token.endswith("</w>") for token in plain)
    owner: list[int] = []
    before = ""
    for token in tokens:
        if token in special or before in special:
            new = token != before
        elif begins:
            new = token.startswith(("▁", "Ġ"))
        elif ends:
            new = before.endswith("</w>")
        else:
            new = not token.startswith("##")
        owner.append(owner[-1] + new if owner else 0)
        before = token
    return owner


def _bare(token: str) -> str:
    return token.removesuffix("</w>").removeprefix("##").replace("▁", "").replace("Ġ", "")


def attention_figure(rows: Sequence[Sequence[tuple[str, AttentionMap]]]) -> Figure:
    """Draw heat maps of layers by words, one row per text and one column per prefix (Fig. 3, 5, 6).

    Args:
        rows: titles and maps of each text.
    """
    columns = max(map(len, rows))
    words = max(len(shown.words) for row in rows for _, shown in row)
    layers = max(len(shown.weights) for row in rows for _, shown in row)
    size = {"width": max(2.6, 1.0 + 0.28 * words), "height": 1.5 + 0.2 * layers}
    figure, axes = new_figure(columns, len(rows), **size)
    for line, row in zip(axes, rows, strict=True):
        # Scale colors by the text's words: towers that attend to padding would make all words pale.
        top = max(float(shown.weights[:, np.array(shown.content)].max()) for _, shown in row)
        for axis in line[len(row) :]:
            axis.set_visible(False)
        for axis, (title, shown) in zip(line, row, strict=False):
            picture = _heat_map(axis, title, shown, top)
        figure.colorbar(picture, ax=list(line[: len(row)]), label="attention", shrink=0.8, extend="max")
    return figure


def _heat_map(axis: Axes, title: str, shown: AttentionMap, top: float) -> matplotlib.image.AxesImage:
    axis.grid(False)
    picture = axis.imshow(shown.weights, cmap="Blues", vmin=0, vmax=top, aspect="auto")
    names = [word if len(word) <= _MAX_WORD_LENGTH else f"{word[: _MAX_WORD_LENGTH - 1]}…" for word in shown.words]
    axis.set_xticks(range(len(names)), names, rotation=60, ha="right", rotation_mode="anchor", fontsize=8)
    axis.set_yticks(range(len(shown.weights)), [str(number) for number in range(1, len(shown.weights) + 1)])
    axis.set_ylabel("layer")
    axis.set_title(title, fontsize=9)
    for label, own in zip(axis.get_xticklabels(), shown.content, strict=True):
        label.set_color("black" if own else "0.55")
    return picture
