"""Small towers for studies: a linear map or a convnet, with a bag of words or a transformer over words.

They train in seconds on one core, so ablations can use several seeds. The text tower reads whole words. Training uses
no random crops, since the synthetic worlds vary their pictures themselves.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
import transformers
from jaxtyping import Bool, Float, Int
from safetensors.torch import save_file
from torch import Tensor, nn

from recollect.core.errors import UserError
from recollect.core.seeding import derive_seed, seed_default_generators, torch_generator
from recollect.core.types import Kind
from recollect.core.validation import refuse
from recollect.data.transforms import ImageTransform
from recollect.models.dual import DualEncoder, Tower
from recollect.models.prefixes import INIT_STD, prefix_words
from recollect.models.presets import Preset

WEIGHTS = "model.safetensors"
_PADDING, _END = "<pad>", "<end>"
_WORD_SPREAD = 0.5
_EDGES = re.compile(r"^\W+|\W+$")


def split_words(text: str) -> list[str]:
    """Split text into lowercase words without surrounding punctuation."""
    parts = text.lower().split()
    return [word for part in parts if (word := part if part.isalnum() else _EDGES.sub("", part))]


@dataclass(frozen=True)
class SmallTowers(Preset):
    """Settings of both towers.

    The text tower is the sum of word vectors and a linear map or a small MLP; with ``layers``, a pre-norm transformer
    over word vectors, pooled at an end token.

    Attributes:
        summary: one-line description for help texts.
        words: width of a word vector; with a linear map, the rank of the text tower.
        image: ``vectors`` of 192 entries and a linear map; or pictures of 32 × 32 and a ``convnet`` of two layers
            (``channels``, then twice as many) or one layer of frozen ``random`` filters, pooled to 4 × 4.
        hidden: width of the MLP's hidden layer, or None for a linear map.
        layers, heads: layers and attention heads of the transformer.
        longest: maximum text length of the transformer in words, prefix tokens included.
        width: embedding width.
    """

    summary: str
    words: int
    image: Literal["vectors", "convnet", "random"] = "convnet"
    hidden: int | None = None
    layers: int = 0
    heads: int = 4
    longest: int = 32
    channels: int = 48
    width: int = 256
    own_vocabulary = True

    def encoder(
        self,
        name: str,
        texts: Sequence[str] | None,
        tokenizer: transformers.PreTrainedTokenizerBase | str | None,
        seed: int,
    ) -> "SmallEncoder":
        """Create towers with the words of ``texts`` as vocabulary, initialized from ``seed``.

        Raises:
            UserError: no texts, no words, or a tokenizer is given.
        """
        refuse(
            (tokenizer is not None, f"{name}: its text tower reads words, not tokens. Omit the tokenizer."),
            (texts is None, f"{name}: needs captions to take its words from."),
        )
        words = {word for text in texts or () for word in split_words(text)}
        refuse((not words, "the captions contain no words. Use a source with captions."))
        return self._build(sorted(words), name, seed)  # sorted: the order of a set differs between processes

    def _build(self, words: Sequence[str], name: str, seed: int) -> "SmallEncoder":
        with torch.random.fork_rng(devices=[]):
            seed_default_generators(derive_seed(seed, "model"))
            return SmallEncoder(self, words, name)

    def restore(self, record: dict[str, Any], weights: dict[str, Tensor]) -> "SmallEncoder":
        """See `recollect.models.presets.Preset.restore`.

        Raises:
            KeyError, TypeError, ValueError, RuntimeError: record and weights do not match.
        """
        encoder = SmallTowers(**record["settings"])._build(record["vocabulary"], record["preset"], seed=0)
        encoder.prefixes = {name: tuple(words) for name, words in record["prefixes"].items()}
        table, known = weights["word_vectors.weight"], len(encoder._names) - 1
        if len(table) != known:
            raise ValueError(f"{len(table)} word vectors for {known} words")
        encoder._set_table(table)
        encoder.load_state_dict(weights)
        return encoder


class SentenceTower(nn.Module):
    """Transformer over words and an end token, whose final state becomes the embedding."""

    def __init__(self, settings: SmallTowers) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(settings.longest, settings.words) * 0.02)
        self.end = nn.Parameter(torch.randn(settings.words) * 0.02)
        self.blocks = nn.ModuleList(WordBlock(settings.words, settings.heads) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(settings.words)
        self.head = nn.Linear(settings.words, settings.width)

    def forward(
        self, words: Float[Tensor, "n longest width"], known: Bool[Tensor, "n longest"]
    ) -> tuple[Tensor, list[Tensor]]:
        """Return embeddings (n, out), and the end token's attention per layer (n, heads, longest + 1), itself last.

        Args:
            words: vectors of the words, padded.
            known: False for padding.
        """
        states = torch.cat([words + self.places[: words.shape[1]], self.end.expand(words.shape[0], 1, -1)], dim=1)
        seen = torch.cat([known, known.new_ones(known.shape[0], 1)], dim=1)
        maps = []
        for block in self.blocks:
            states, weights = block(states, seen)
            maps.append(weights[:, :, -1])
        return self.head(self.norm(states[:, -1])), maps


class WordBlock(nn.Module):
    """Pre-norm transformer block with an MLP of twice the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, states: Float[Tensor, "n tokens width"], seen: Bool[Tensor, "n tokens"]) -> tuple[Tensor, Tensor]:
        """Return new states (n, tokens, width) and attention weights (n, heads, tokens, tokens)."""
        n, tokens, width = states.shape
        mixed = self.mixed(self.norms[0](states)).view(n, tokens, 3, self.heads, width // self.heads)
        queries, keys, values = mixed.permute(2, 0, 3, 1, 4)
        scores = queries @ keys.transpose(2, 3) / (width // self.heads) ** 0.5
        weights = scores.masked_fill(~seen[:, None, None, :], float("-inf")).softmax(dim=3)
        states = states + self.out((weights @ values).transpose(1, 2).reshape(n, tokens, width))
        return states + self.mlp(self.norms[1](states)), weights


class RandomFilters(nn.Module):
    """Frozen random filters that respond more to edges than to brightness, pooled to 4 × 4."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.filters = nn.Conv2d(3, channels, 5, stride=2, padding=2)
        with torch.no_grad():
            weight = self.filters.weight
            weight -= 0.7 * weight.mean((2, 3), keepdim=True)
            weight /= weight.flatten(1).norm(dim=1)[:, None, None, None]
        self.filters.requires_grad_(False)
        self.norm = nn.LayerNorm(channels * 16, elementwise_affine=False)

    def forward(self, pixels: Float[Tensor, "n 3 rows columns"]) -> Float[Tensor, "n features"]:
        return self.norm(F.adaptive_avg_pool2d(F.relu(self.filters(pixels)), 4).flatten(1))


def _word_head(settings: SmallTowers) -> nn.Module:
    """Create the head that maps sums of word vectors (n, words) to embeddings (n, width)."""
    words, hidden = settings.words, settings.hidden
    if hidden is None:
        return nn.Linear(words, settings.width)
    return nn.Sequential(nn.Linear(words, hidden), nn.GELU(), nn.Linear(hidden, settings.width))


def _image_tower(settings: SmallTowers) -> nn.Sequential:
    """Create a stem and a linear head."""
    channels, features = settings.channels, 32 * settings.channels
    if settings.image == "vectors":
        stem: nn.Module = nn.Identity()
        features = 192
    elif settings.image == "random":
        stem, features = RandomFilters(channels), 16 * channels
    else:
        stem = nn.Sequential(
            nn.Conv2d(3, channels, 4, stride=4),
            nn.ReLU(),
            nn.GroupNorm(1, channels),
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.LayerNorm(features),
        )
    return nn.Sequential(stem, nn.Linear(features, settings.width))


@dataclass(frozen=True)
class TextAttention:
    """Attention of the token whose state becomes the text's embedding.

    Attributes:
        tokens: tokens of each text, including padding.
        places: position of the pooled token in each text.
        layers: (n, heads, tokens) for each layer; every row is a distribution over the tokens.
    """

    tokens: tuple[tuple[str, ...], ...]
    places: Int[Tensor, " n"]
    layers: tuple[Float[Tensor, "n heads tokens"], ...]


class SmallEncoder(DualEncoder):
    """Image tower and word-based text tower.

    Attributes:
        words: vocabulary; word n has id n + 1, 0 is padding, unknown words are skipped.
        settings: settings of the towers.
    """

    architecture = "small"

    def __init__(self, settings: SmallTowers, words: Sequence[str], preset: str) -> None:
        super().__init__()
        self.settings, self.words, self.preset, self.width = settings, tuple(words), preset, settings.width
        self.prefixes = {}
        self.reads_vectors = settings.image == "vectors"  # type: ignore[misc]
        # Transforms leave vectors unchanged.
        gray = ImageTransform(size=32, mean=(0.45,) * 3, std=(0.3,) * 3)
        self.transform = ImageTransform(size=1) if self.reads_vectors else gray
        self.image_tower = _image_tower(settings)
        count = len(self.words) + 1
        self.word_vectors: nn.Embedding | nn.EmbeddingBag = (
            nn.Embedding(count, settings.words, padding_idx=0)
            if settings.layers
            else nn.EmbeddingBag(count, settings.words, mode="sum", padding_idx=0)
        )
        with torch.no_grad():
            self.word_vectors.weight.normal_(std=_WORD_SPREAD)[0].zero_()
        self.text_head = SentenceTower(settings) if settings.layers else _word_head(settings)
        self.register_buffer("logit_scale", torch.tensor(10.0).log())
        self.register_buffer("logit_bias", torch.tensor(-10.0))

    def training_transform(self) -> ImageTransform:
        """Return the evaluation transform."""
        return self.transform

    @property
    def _names(self) -> list[str]:
        """Tokens by id, with the end token last."""
        return [_PADDING, *self.words, *(word for words in self.prefixes.values() for word in words), _END]

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Tokens that are not words of a text."""
        return (_PADDING, *self._names[len(self.words) + 1 :])

    def _rows(self, texts: Sequence[str], kinds: Sequence[Kind] | Kind | None) -> list[list[int]]:
        """Return the ids of prefix tokens and known words of each text."""
        numbers = {name: number for number, name in enumerate(self._names)}
        rows = [[numbers[word] for word in split_words(text) if word in numbers] for text in texts]
        if kinds is None or not self.prefixes:
            return rows
        each = [kinds] * len(texts) if isinstance(kinds, str) else kinds
        if len(each) != len(texts):
            raise ValueError(f"{len(each)} kinds for {len(texts)} texts")
        front = {kind: [numbers[word] for word in words] for kind, words in self.prefixes.items()}
        if unknown := set(each) - set(front):
            raise UserError(f"this model has no {unknown.pop()} prefix; it has {', '.join(front)}")
        return [front[kind] + row for kind, row in zip(each, rows, strict=True)]

    def tokenize(self, texts: Sequence[str], kinds: Sequence[Kind] | Kind | None = None) -> dict[str, Tensor]:
        """Return ids of known words, padded with 0; the prefix tokens of its kind precede each text."""
        rows = [row[: self.longest_text] for row in self._rows(texts, kinds)]
        ids = torch.zeros(len(rows), max(1, max(map(len, rows), default=0)), dtype=torch.int64)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row, dtype=torch.int64)
        return {"input_ids": ids}

    @property
    def longest_text(self) -> int | None:
        """Maximum text length of the transformer in words, prefix tokens included; None for a bag of words."""
        return self.settings.longest if self.settings.layers else None

    def text_lengths(self, texts: Sequence[str], kinds: Sequence[Kind] | Kind | None = None) -> list[int]:
        """Return the number of known words of each text, prefix tokens included."""
        return list(map(len, self._rows(texts, kinds)))

    def encode_images(self, pixels: Float[Tensor, "n ..."]) -> Float[Tensor, "n width"]:
        """Return unnormalized image embeddings."""
        return self.image_tower(pixels)

    def pool_images(self, pixels: Float[Tensor, "n ..."]) -> Float[Tensor, "n features"]:
        """Return the features before the head."""
        return self.image_tower[0](pixels)

    def project_images(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        """Apply the head to the output of `pool_images`."""
        return self.image_tower[1](features)

    def head_parameters(self, tower: Tower) -> Iterator[nn.Parameter]:
        """Return the parameters of the image tower's head; the text tower has no separate head."""
        return self.image_tower[1].parameters() if tower == "image" else iter(())

    def encode_texts(self, tokens: dict[str, Tensor]) -> Float[Tensor, "n width"]:
        """Return unnormalized text embeddings."""
        ids: Int[Tensor, "n longest"] = tokens["input_ids"].to(self.device)
        vectors = self.word_vectors(ids)
        whole = isinstance(self.text_head, SentenceTower)
        return self.text_head(vectors, ids != 0)[0] if whole else self.text_head(vectors)

    def text_attention(self, texts: Sequence[str], prefix: Kind | None = None) -> TextAttention:
        """Return the end token's attention for each text and layer.

        Raises:
            UserError: the text tower is a bag of words.
        """
        if not isinstance(self.text_head, SentenceTower):
            raise UserError("this model's text tower is a bag of words and has no attention")
        ids, names = self.tokenize(texts, prefix)["input_ids"], self._names
        with self._evaluating():
            _, layers = self.text_head(self.word_vectors(ids.to(self.device)), (ids != 0).to(self.device))
        tokens = tuple((*(names[number] for number in row), _END) for row in ids.tolist())
        return TextAttention(tokens, torch.full((len(ids),), ids.shape[1]), tuple(layer.cpu() for layer in layers))

    def add_prefixes(self, kinds: Sequence[Kind], *, length: int = 1, seed: int = 0) -> None:
        """Add ``length`` prefix vectors, drawn from N(0, 0.02), for each of ``kinds`` that has none."""
        new = {kind: prefix_words(kind, length) for kind in dict.fromkeys(kinds) if kind not in self.prefixes}
        old = self.word_vectors.weight
        drawn = [
            torch.randn(old.shape[1], generator=torch_generator(seed, "prefix", word)) * INIT_STD
            for words in new.values()
            for word in words
        ]
        if drawn:
            self._set_table(torch.cat([old.detach(), torch.stack(drawn).to(old)]))
            self.prefixes |= new

    def _set_table(self, weight: Float[Tensor, "rows words"]) -> None:
        if isinstance(self.word_vectors, nn.EmbeddingBag):
            self.word_vectors = nn.EmbeddingBag.from_pretrained(weight, freeze=False, mode="sum", padding_idx=0)
        else:
            self.word_vectors = nn.Embedding.from_pretrained(weight, freeze=False, padding_idx=0)

    def tower_parameters(self, tower: Tower) -> Iterator[nn.Parameter]:
        """Return the parameters of one tower."""
        parts = [self.image_tower] if tower == "image" else [self.word_vectors, self.text_head]
        return (value for part in parts for value in part.parameters())

    def _write(self, folder: Path) -> None:
        save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()}, folder / WEIGHTS)

    def _record(self) -> dict[str, Any]:
        return {"architecture": self.architecture, "settings": asdict(self.settings), "vocabulary": list(self.words)}

    def _reading(self) -> str:
        return " ".join(self.words)
