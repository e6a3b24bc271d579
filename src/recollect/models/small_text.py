"""The text towers of the small encoders: a bag of words, or a transformer over words with an end token."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

PADDING, END = "<pad>", "<end>"


@dataclass(frozen=True)
class BagOfWords:
    """Settings of a text tower: the sum of word vectors, then a linear map or a small MLP.

    Attributes:
        words: width of a word vector; with a linear map, the rank of the tower.
        hidden: width of the MLP's hidden layer, or None for a linear map.
    """

    words: int
    hidden: int | None = None

    def head(self, width: int) -> nn.Module:
        """From the sum of the word vectors (n, words) to embeddings (n, width)."""
        if self.hidden is None:
            return nn.Linear(self.words, width)
        return nn.Sequential(nn.Linear(self.words, self.hidden), nn.GELU(), nn.Linear(self.hidden, width))


@dataclass(frozen=True)
class WordTransformer:
    """Settings of a text tower: a pre-norm transformer over word vectors, pooled at an end token.

    Attributes:
        words: width of a word vector and of the transformer.
        layers, heads: of the transformer.
        longest: most words of a text, its prefix tokens included.
    """

    words: int
    layers: int = 2
    heads: int = 4
    longest: int = 32

    def head(self, width: int) -> nn.Module:
        """From word vectors (n, longest, words) to embeddings (n, width)."""
        return SentenceTower(self, width)


class SentenceTower(nn.Module):
    """Words and an end token attend to each other; the end token's state becomes the embedding."""

    def __init__(self, settings: WordTransformer, width: int) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(settings.longest, settings.words) * 0.02)
        self.end = nn.Parameter(torch.randn(settings.words) * 0.02)
        self.blocks = nn.ModuleList(Block(settings.words, settings.heads) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(settings.words)
        self.head = nn.Linear(settings.words, width)

    def forward(self, words: Float[Tensor, "n longest width"], known: Bool[Tensor, "n longest"]) -> Tensor:
        """Embeddings (n, out).

        Args:
            words: vectors of the words, padded.
            known: where a word is, and not padding.
        """
        return self.look(words, known)[0]

    def look(
        self, words: Float[Tensor, "n longest width"], known: Bool[Tensor, "n longest"]
    ) -> tuple[Tensor, list[Tensor]]:
        """Embeddings (n, out), and for each layer the end token's attention (n, heads, longest + 1), itself last."""
        states = torch.cat([words + self.places[: words.shape[1]], self.end.expand(len(words), 1, -1)], dim=1)
        seen = torch.cat([known, known.new_ones(len(known), 1)], dim=1)
        maps = []
        for block in self.blocks:
            states, weights = block(states, seen)
            maps.append(weights[:, :, -1])
        return self.head(self.norm(states[:, -1])), maps


class Block(nn.Module):
    """Pre-norm attention and an MLP of twice the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, states: Float[Tensor, "n tokens width"], seen: Bool[Tensor, "n tokens"]) -> tuple[Tensor, Tensor]:
        """New states (n, tokens, width) and the attention weights (n, heads, tokens, tokens)."""
        n, tokens, width = states.shape
        mixed = self.mixed(self.norms[0](states)).view(n, tokens, 3, self.heads, width // self.heads)
        queries, keys, values = mixed.permute(2, 0, 3, 1, 4)
        scores = queries @ keys.transpose(2, 3) / (width // self.heads) ** 0.5
        weights = scores.masked_fill(~seen[:, None, None, :], float("-inf")).softmax(dim=3)
        states = states + self.out((weights @ values).transpose(1, 2).reshape(n, tokens, width))
        return states + self.mlp(self.norms[1](states)), weights
