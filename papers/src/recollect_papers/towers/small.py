"""Small towers for studies: a linear map or a convnet, with a bag of words or a transformer over words.

They train in seconds on one core, so that an ablation can be run with several seeds. Their pictures are the built-in
worlds', which vary by themselves: no crop is added in training.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from safetensors.torch import save_file
from torch import Tensor, nn

from recollect.core.errors import UserError
from recollect.core.seeding import torch_generator
from recollect.core.types import Kind
from recollect.data.transforms import ImageTransform
from recollect.models.dual import DualEncoder, Tower
from recollect.models.prefixes import SPREAD, prefix_words
from recollect_papers.towers.attention import TextAttention
from recollect_papers.towers.words import WordTokenizer

_PADDING, _END = "<pad>", "<end>"


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
        self.blocks = nn.ModuleList(WordBlock(settings.words, settings.heads) for _ in range(settings.layers))
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
        states = torch.cat([words + self.places[: words.shape[1]], self.end.expand(words.shape[0], 1, -1)], dim=1)
        seen = torch.cat([known, known.new_ones(known.shape[0], 1)], dim=1)
        maps = []
        for block in self.blocks:
            states, weights = block(states, seen)
            maps.append(weights[:, :, -1])
        return self.head(self.norm(states[:, -1])), maps


class WordBlock(nn.Module):
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


WEIGHTS = "model.safetensors"

_WORD_SPREAD = 0.5


@dataclass(frozen=True)
class VectorTowers:
    """Settings for the vector world: one linear layer for the images.

    Attributes:
        text: the text tower.
        inputs: entries of an image vector.
        width: entries of an embedding.
    """

    text: BagOfWords
    inputs: int = 192
    width: int = 192


@dataclass(frozen=True)
class GlyphTowers:
    """Settings for pictures of 32 × 32: a convnet of two layers, or one frozen random layer.

    Attributes:
        text: the text tower.
        image: ``convnet`` (``channels``, then twice as many) or ``random`` (``channels`` frozen filters, pooled to
            4 × 4).
        channels: filters of the first layer.
        width: entries of an embedding.
        gain: factor on the linear head's weights at the start.
        mean, std: of the pictures, in units of full brightness.
    """

    text: BagOfWords | WordTransformer
    image: Literal["convnet", "random"] = "convnet"
    channels: int = 48
    width: int = 256
    gain: float = 1.0
    mean: float = 0.45
    std: float = 0.3


@runtime_checkable
class SmallTowers(Protocol):
    """What every kind of small towers says of itself."""

    @property
    def text(self) -> BagOfWords | WordTransformer: ...

    @property
    def width(self) -> int: ...


class SmallEncoder(DualEncoder):
    """An image tower with a text tower that reads words; see `VectorEncoder` and `GlyphEncoder`.

    Attributes:
        words: the vocabulary of the text tower.
        settings: what the towers were made from.
    """

    architecture: str

    def __init__(self, image: nn.Module, settings: "SmallTowers", words: WordTokenizer, preset: str) -> None:
        super().__init__()
        self.settings, self.words, self.preset, self.width = settings, words, preset, settings.width
        self.prefixes = {}
        text = settings.text
        self.image_tower = image
        self.word_vectors: nn.Embedding | nn.EmbeddingBag = (
            nn.EmbeddingBag(len(words), text.words, mode="sum", padding_idx=0)
            if isinstance(text, BagOfWords)
            else nn.Embedding(len(words), text.words, padding_idx=0)
        )
        with torch.no_grad():
            self.word_vectors.weight.normal_(std=_WORD_SPREAD)[0].zero_()
        self.text_head = text.head(settings.width)
        self.register_buffer("logit_scale", torch.tensor(10.0).log())
        self.register_buffer("logit_bias", torch.tensor(-10.0))

    def training_transform(self) -> ImageTransform:
        """The evaluation transform: the worlds these towers are for vary their pictures themselves."""
        return self.transform

    def tokenize(self, texts: Sequence[str], kinds: Sequence[Kind] | Kind | None = None) -> dict[str, Tensor]:
        """Numbers of the known words, padded with 0; the prefix tokens of its kind precede a text."""
        words = self.words(texts)
        if kinds is None or not self.prefixes:
            return {"input_ids": self._cut(words)}
        each = [kinds] * len(texts) if isinstance(kinds, str) else kinds
        if len(each) != len(texts):
            raise ValueError(f"{len(texts)} texts, but {len(each)} kinds")
        table = self._prefix_numbers()
        longest = max(map(len, table.values()))
        front = torch.zeros(len(texts), longest, dtype=torch.int64)
        for row, kind in enumerate(each):
            if kind not in table:
                raise UserError(f"this model has no {kind} prefix; it has {', '.join(table)}")
            front[row, : len(table[kind])] = torch.tensor(table[kind])
        return {"input_ids": self._cut(torch.cat([front, words], dim=1))}

    @property
    def longest_text(self) -> int | None:
        """Most words of a text that a transformer reads, prefix tokens included; None for a bag of words."""
        return self.settings.text.longest if isinstance(self.settings.text, WordTransformer) else None

    def text_lengths(self, texts: Sequence[str], kinds: Sequence[Kind] | Kind | None = None) -> list[int]:
        """Known words of each text, prefix tokens included."""
        words = (self.words(texts) != 0).sum(dim=1).tolist()
        if kinds is None or not self.prefixes:
            return words
        each = [kinds] * len(texts) if isinstance(kinds, str) else kinds
        table = self._prefix_numbers()
        return [count + len(table[kind]) for count, kind in zip(words, each, strict=True)]

    def _cut(self, ids: Int[Tensor, "n longest"]) -> Int[Tensor, "n shorter"]:
        text = self.settings.text
        return ids[:, : text.longest] if isinstance(text, WordTransformer) else ids

    def _prefix_numbers(self) -> dict[Kind, list[int]]:
        numbers = iter(range(len(self.words), self.word_vectors.num_embeddings))
        return {kind: [next(numbers) for _ in words] for kind, words in self.prefixes.items()}

    def encode_images(self, pixels: Float[Tensor, "n ..."]) -> Float[Tensor, "n width"]:
        """Raw image embeddings."""
        return self.image_tower(pixels)

    @abstractmethod
    def _image_parts(self) -> tuple[Callable[[Tensor], Tensor], nn.Module]:
        """The image tower as what comes before its head, and the head."""

    def pool_images(self, pixels: Float[Tensor, "n ..."]) -> Float[Tensor, "n features"]:
        """What the image tower makes of pixels before its head."""
        return self._image_parts()[0](pixels)

    def project_images(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        """Raw image embeddings of what `pool_images` returned."""
        return self._image_parts()[1](features)

    def head_parameters(self, tower: Tower) -> Iterator[nn.Parameter]:
        """The parameters of the image tower's head; the text tower has no part that could be locked by itself."""
        return self._image_parts()[1].parameters() if tower == "image" else iter(())

    def encode_texts(self, tokens: dict[str, Tensor]) -> Float[Tensor, "n width"]:
        """Raw text embeddings."""
        ids: Int[Tensor, "n longest"] = tokens["input_ids"].to(self.device)
        vectors = self.word_vectors(ids)
        return (
            self.text_head(vectors, ids != 0) if isinstance(self.text_head, SentenceTower) else self.text_head(vectors)
        )

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Tokens that are no words of a text."""
        return (_PADDING, _END, *(word for words in self.prefixes.values() for word in words))

    def text_attention(self, texts: Sequence[str], prefix: Kind | None = None) -> TextAttention:
        """What the end token of each text attends to, in every layer of the text tower.

        Raises:
            UserError: a bag of words has no attention.
        """
        if not isinstance(self.text_head, SentenceTower):
            raise UserError("this model's text tower reads a bag of words, so it has no attention to show")
        ids = self.tokenize(texts, prefix)["input_ids"]
        front = [word for words in self.prefixes.values() for word in words]
        names = [_PADDING, *self.words.words, *front, _END]
        with self._evaluating():
            _, layers = self.text_head.look(self.word_vectors(ids.to(self.device)), (ids != 0).to(self.device))
        tokens = tuple((*(names[number] for number in row), _END) for row in ids.tolist())
        return TextAttention(tokens, torch.full((len(ids),), ids.shape[1]), tuple(layer.cpu() for layer in layers))

    def add_prefixes(self, kinds: Sequence[Kind], *, length: int = 1, seed: int = 0) -> None:
        """Give each of ``kinds`` its own ``length`` prefix vectors, drawn from N(0, 0.02), unless it has some."""
        new = {kind: prefix_words(kind, length) for kind in dict.fromkeys(kinds) if kind not in self.prefixes}
        old = self.word_vectors.weight
        drawn = [
            torch.randn(old.shape[1], generator=torch_generator(seed, "prefix", word)) * SPREAD
            for words in new.values()
            for word in words
        ]
        if not drawn:
            return
        self._set_table(torch.cat([old.detach(), torch.stack(drawn).to(old)]))
        self.prefixes |= new

    def _set_table(self, weight: Float[Tensor, "rows words"]) -> None:
        if isinstance(self.word_vectors, nn.EmbeddingBag):
            self.word_vectors = nn.EmbeddingBag.from_pretrained(weight, freeze=False, mode="sum", padding_idx=0)
        else:
            self.word_vectors = nn.Embedding.from_pretrained(weight, freeze=False, padding_idx=0)

    def tower_parameters(self, tower: Tower) -> Iterator[nn.Parameter]:
        """The parameters of one tower."""
        parts = [self.image_tower] if tower == "image" else [self.word_vectors, self.text_head]
        return (value for part in parts for value in part.parameters())

    def _write(self, folder: Path) -> None:
        save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()}, folder / WEIGHTS)

    def _record(self) -> dict[str, Any]:
        return {
            "architecture": self.architecture,
            "settings": asdict(self.settings),  # type: ignore[call-overload]
            "vocabulary": list(self.words.words),
        }

    def _reading(self) -> str:
        return " ".join(self.words.words)


class VectorEncoder(SmallEncoder):
    """One linear layer for vectors of the latent world, a bag of words for captions."""

    architecture = "vectors"
    reads_vectors = True

    def __init__(self, settings: VectorTowers, words: WordTokenizer, preset: str = "") -> None:
        super().__init__(nn.Linear(settings.inputs, settings.width), settings, words, preset)
        self.transform = ImageTransform(size=1)  # vectors pass through any transform

    def _image_parts(self) -> tuple[Callable[[Tensor], Tensor], nn.Module]:
        return torch.Tensor.float, self.image_tower


class GlyphEncoder(SmallEncoder):
    """A small convnet for pictures of 32 × 32, a bag of words or a transformer over words for captions."""

    architecture = "glyphs"

    def __init__(self, settings: GlyphTowers, words: WordTokenizer, preset: str = "") -> None:
        tower = _convnet(settings) if settings.image == "convnet" else _RandomFilters(settings)
        super().__init__(tower, settings, words, preset)
        self.transform = ImageTransform(size=32, mean=(settings.mean,) * 3, std=(settings.std,) * 3)

    def _image_parts(self) -> tuple[Callable[[Tensor], Tensor], nn.Module]:
        tower = self.image_tower
        if isinstance(tower, _RandomFilters):
            return tower.features, tower.head
        assert isinstance(tower, nn.Sequential)
        return tower[:-1], tower[-1]


def _convnet(settings: GlyphTowers) -> nn.Sequential:
    channels = settings.channels
    return nn.Sequential(
        nn.Conv2d(3, channels, 4, stride=4),
        nn.ReLU(),
        nn.GroupNorm(1, channels),
        nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.LayerNorm(2 * channels * 16),
        _head(2 * channels * 16, settings),
    )


class _RandomFilters(nn.Module):
    """Frozen random filters that respond to edges more than to brightness, pooled to 4 × 4; only the head learns."""

    def __init__(self, settings: GlyphTowers) -> None:
        super().__init__()
        self.filters = nn.Conv2d(3, settings.channels, 5, stride=2, padding=2)
        with torch.no_grad():
            weight = self.filters.weight
            weight -= 0.7 * weight.mean((2, 3), keepdim=True)
            weight /= weight.flatten(1).norm(dim=1)[:, None, None, None]
        self.filters.requires_grad_(False)
        features = settings.channels * 16
        self.norm = nn.LayerNorm(features, elementwise_affine=False)
        self.head = _head(features, settings)

    def forward(self, pixels: Float[Tensor, "n 3 rows columns"]) -> Float[Tensor, "n out"]:
        return self.head(self.features(pixels))

    def features(self, pixels: Float[Tensor, "n 3 rows columns"]) -> Float[Tensor, "n features"]:
        """What the head reads."""
        return self.norm(F.adaptive_avg_pool2d(F.relu(self.filters(pixels)), 4).flatten(1))


def _head(inputs: int, settings: GlyphTowers) -> nn.Linear:
    head = nn.Linear(inputs, settings.width)
    with torch.no_grad():
        head.weight *= settings.gain
    return head
