"""What a prefix does to a text: where the pooled token looks, and how prompts of classes are embedded."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from sklearn.manifold import TSNE
from sklearn.neighbors import NearestNeighbors

from recollect.core.errors import UserError
from recollect.core.types import Encoder, Kind
from recollect.models.transformers.encoder import TransformersEncoder
from recollect_papers.towers.attention import special_tokens, text_attention
from recollect_papers.towers.small import SmallEncoder

PREFIX_NAMES: dict[Kind | None, str] = {"label": "label prefix", "caption": "caption prefix", None: "no prefix"}
"""What the paper calls prompt prefix, caption prefix and unconditional model."""

UNCONDITIONAL = "model without prefixes"

_FEWEST_POINTS = 4


def reading_name(model: Encoder, prefix: Kind | None) -> str:
    """How to call what ``model`` makes of a text with this prefix."""
    return PREFIX_NAMES[prefix] if own_prefixes(model) else UNCONDITIONAL


def own_prefixes(model: Encoder) -> tuple[Kind, ...]:
    """The kinds that ``model`` has prefix tokens for, label first as in the paper's figures."""
    return tuple(sorted(model.prefixes, reverse=True))


@dataclass(frozen=True)
class AttentionMap:
    """Attention of the pooled token over the words of one text (prefix conditioning, Fig. 3, 5, 6).

    Attributes:
        text: what was read.
        prefix: whose prefix tokens stood in front of it.
        words: the tokens, pieces of one word put together, and all padding too.
        weights: (layers, words), mean over heads; every row adds up to 1.
        content: for each word, whether it is a word of the text (not a prefix, start, end or padding token).
    """

    text: str
    prefix: Kind | None
    words: tuple[str, ...]
    weights: Float[np.ndarray, "layers words"]
    content: tuple[bool, ...]

    @property
    def spread(self) -> Float[np.ndarray, " layers"]:
        """Effective number of the text's own words that each layer looks at: exp of the entropy over them."""
        own = self.weights[:, np.array(self.content)]
        shares = own / own.sum(1, keepdims=True).clip(1e-12)
        return np.exp(-np.sum(shares * np.log(shares.clip(1e-12)), axis=1))


def attention_map(model: Encoder, text: str, prefix: Kind | None = None) -> AttentionMap:
    """Look at one text through ``model``.

    Raises:
        UserError: its text tower has no attention, or the text has no words.
    """
    if not text.strip():
        raise UserError("a text without words has no attention to show")
    if isinstance(model, TransformersEncoder):
        found, special = text_attention(model, [text], prefix), set(special_tokens(model))
    elif isinstance(model, SmallEncoder):
        found, special = model.text_attention([text], prefix), set(model.special_tokens)
    else:
        raise UserError("this model's text tower shows no attention")
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
    for place, word in enumerate(owner):
        merged[:, word] += weights[:, place]
    return AttentionMap(text, prefix, tuple(words), merged, tuple(content))


def _word_of(tokens: Sequence[str], special: set[str]) -> list[int]:
    """The word of each token. Pieces are marked where words begin (SentencePiece, byte-level), go on (WordPiece) or
    end (CLIP); a special token is a word of its own, however often it is repeated, as padding is."""
    plain = [token for token in tokens if token not in special]
    begins = any(token.startswith(("▁", "Ġ")) for token in plain)
    ends = any(token.endswith("</w>") for token in plain)
    owner: list[int] = []
    before = ""
    for token in tokens:
        if not owner:
            new = True
        elif token == before and token in special:
            new = False
        elif token in special or before in special:
            new = True
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


def in_plane(
    embeddings: Float[np.ndarray, "n width"], *, perplexity: float = 30.0, seed: int = 0
) -> Float[np.ndarray, "n 2"]:
    """t-SNE of unit embeddings (van der Maaten and Hinton, 2008), from a start by principal components.

    Args:
        perplexity: neighbours that count; lowered to a third of the points where there are few.

    Raises:
        UserError: fewer than four points.
    """
    if len(embeddings) < _FEWEST_POINTS:
        raise UserError(f"{len(embeddings)} points are too few for t-SNE. Take more classes, templates or samples.")
    fitting = min(perplexity, (len(embeddings) - 1) / 3)
    spread = embeddings + 1e-7 * np.random.default_rng(seed).normal(size=embeddings.shape)  # equal points divide by 0
    return TSNE(perplexity=fitting, init="pca", random_state=seed).fit_transform(spread.astype(np.float32))


@dataclass(frozen=True)
class Scatter:
    """How far apart the embeddings of a class's prompts are, and how far the classes (prefix conditioning, §4.3).

    Attributes:
        within: mean squared distance of a prompt from its class's mean.
        between: mean squared distance of the classes' means from the mean of all.
    """

    within: float
    between: float

    @property
    def ratio(self) -> float:
        """between / within; larger is more discriminative."""
        return self.between / max(self.within, 1e-12)


def scatter(embeddings: Float[np.ndarray, "n width"], labels: np.ndarray) -> Scatter:
    """Within-class and between-class variance of embeddings, every class counting the same.

    Args:
        labels: (n,), the class of each row.
    """
    classes = np.unique(labels)
    means = np.stack([embeddings[labels == label].mean(0) for label in classes])
    within = [
        np.mean(np.sum((embeddings[labels == label] - mean) ** 2, axis=1))
        for label, mean in zip(classes, means, strict=True)
    ]
    between = np.mean(np.sum((means - means.mean(0)) ** 2, axis=1))
    return Scatter(float(np.mean(within)), float(between))


def told_apart(first: Float[np.ndarray, "n width"], second: Float[np.ndarray, "m width"]) -> float:
    """Share of rows (percent) whose nearest other row is of the same set: 100 where two sets are apart (Fig. 8, 9)."""
    both = np.concatenate([first, second])
    side = np.repeat([0, 1], [len(first), len(second)])
    nearest = NearestNeighbors(n_neighbors=2).fit(both).kneighbors(both, return_distance=False)
    other = np.where(nearest[:, 0] == np.arange(len(both)), nearest[:, 1], nearest[:, 0])
    return 100.0 * float(np.mean(side[other] == side))
