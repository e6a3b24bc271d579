"""Scores less what an image gets from any query: nearest-neighbour normalisation (NNN, Chowdhury et al., EMNLP 2024).

``s'(q, g) = s(q, g) − α · b(g)``, b(g) the mean of the k greatest cosines of image g with reference queries. An image
that is near to every query (a hub) falls. In an index it is one more entry: images ``[g, b]``, queries ``[q, −α]``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.nearest import exact_neighbours
from recollect.core.seeding import numpy_generator
from recollect.core.types import caption_prefix
from recollect.memory import Hits, Item
from recollect.models import DualEncoder
from recollect.search.baselines.pool_wide import NO_CAPTIONS, has_caption, item_blocks
from recollect.search.counters import CostCounters
from recollect.search.pool import Pool, nearest_of, satisfying

_ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)
NEAREST = (1, 8, 32, 128)
_REFERENCES, _ASKED, _AMONG = 2_048, 512, 8_192
_BLOCK = 1_024


@dataclass(frozen=True)
class Normalisation:
    """How scores are normalised.

    Attributes:
        alpha: factor of an image's mean cosine with its nearest references; 0 changes nothing.
        k: how many references are near; all of them where there are fewer.
        reciprocal_rank: that the choice was made by: mean of 1/rank of the own image of captions that were left out;
            None where nothing was chosen.
        plain: the same without normalisation.
    """

    alpha: float
    k: int
    reciprocal_rank: float | None = None
    plain: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < float("inf"):
            raise UserError(f"alpha {self.alpha}: must be a finite number from 0 on")
        if self.k < 1:
            raise UserError(f"k {self.k}: at least 1 reference")

    def __str__(self) -> str:
        """For a reader."""
        chosen = ""
        if self.reciprocal_rank is not None and self.plain is not None:
            found = f"{self.reciprocal_rank:.3f}, without it {self.plain:.3f}"
            chosen = f"; captions that were left out find their image at a mean reciprocal rank of {found}"
        return f"alpha {self.alpha:g}, k {self.k}{chosen}"


class NormalisedPool:
    """The images of another pool by normalised scores; scores are cosines less `Normalisation.alpha` times a mean.

    Args:
        inner: knows the images.
        ids: of the images, in the order of ``vectors``.
        vectors: unit-norm image embeddings.
        means: b of each image.
        settings: alpha and k.
    """

    def __init__(
        self,
        inner: Pool,
        ids: Sequence[str],
        vectors: Float32[np.ndarray, "n width"],
        means: Float32[np.ndarray, " n"],
        settings: Normalisation,
    ) -> None:
        self.inner, self.settings, self._ids = inner, settings, np.array(ids, dtype=object)
        self._vectors = np.concatenate([vectors, means[:, None]], axis=1)
        self._row = {id: row for row, id in enumerate(ids)}

    def __len__(self) -> int:
        return len(self._ids)

    def nearest(self, vectors: Float[Tensor, "n width"], k: int) -> Hits:
        """For each unit vector its k best images, or all if there are fewer."""
        minus = vectors.new_full((len(vectors), 1), -self.settings.alpha)
        found = nearest_of(torch.cat([vectors, minus], dim=1), self._vectors, k)
        return Hits(self._ids[found.rows], found.scores)

    def items(self, ids: Sequence[str]) -> list[Item]:
        """The items of these ids, in their order."""
        return self.inner.items(ids)

    def filtered(self, where: str) -> "NormalisedPool":
        """Those images that satisfy a filter, with the means that they had."""
        rows = [self._row[id] for id in satisfying(self.inner.items(self.ids()), where)]
        kept = self._vectors[rows]
        return NormalisedPool(self.inner, self._ids[rows].tolist(), kept[:, :-1], kept[:, -1], self.settings)

    def vectors(self, ids: Sequence[str]) -> Float32[np.ndarray, "n width"]:
        """The embeddings of these ids, in their order."""
        return self._vectors[[self._row[id] for id in ids], :-1]

    def ids(self) -> Sequence[str]:
        """Every id, in a fixed order."""
        return self._ids.tolist()


def normalised(
    encoder: DualEncoder,
    pool: Pool,
    settings: Normalisation | None = None,
    *,
    counters: CostCounters | None = None,
    seed: int = 0,
) -> NormalisedPool:
    """A pool by normalised scores, whose references are its own captions: at most 2,048, drawn at random.

    Args:
        settings: alpha and k; by default those that find the own image of a caption best, that caption left out.

    Raises:
        UserError: fewer than two images have a caption.
    """
    captions = {item.id: item.caption for items in item_blocks(pool, "read captions") for item in items
                if has_caption(item)}  # fmt: skip
    if len(captions) < 2:
        raise UserError(NO_CAPTIONS)
    ids = list(pool.ids())
    vectors = pool.vectors(ids)
    owners = list(captions)
    drawn = numpy_generator("references", seed).permutation(len(owners))[:_REFERENCES]
    chosen = [owners[place] for place in sorted(drawn.tolist())]
    texts = encoder.embed_texts([captions[id] for id in chosen], caption_prefix(encoder)).numpy()
    if counters is not None:
        counters.forward(texts=len(chosen))
    if settings is None:
        rows = {id: row for row, id in enumerate(ids)}
        settings = choose_normalisation(vectors, texts, np.array([rows[id] for id in chosen]), seed=seed)
    return NormalisedPool(pool, ids, vectors, reference_means(vectors, texts, settings.k), settings)


def reference_means(
    images: Float32[np.ndarray, "images width"], references: Float32[np.ndarray, "references width"], k: int
) -> Float32[np.ndarray, " images"]:
    """b of each image: the mean of its k greatest cosines with the references, or of all if there are fewer."""
    return exact_neighbours(images, references, min(k, len(references))).scores.mean(axis=1)


def choose_normalisation(
    images: Float32[np.ndarray, "images width"],
    texts: Float32[np.ndarray, "texts width"],
    owners: Int64[np.ndarray, " texts"],
    *,
    alphas: Sequence[float] = _ALPHAS,
    nearest: Sequence[int] = NEAREST,
    seed: int = 0,
) -> Normalisation:
    """The alpha and k by which captions find their own images best, each caption left out of every image's mean.

    The measure is the mean of 1/rank over at most 512 captions, among at most 8,192 images and theirs; of equal ones
    the smaller alpha and then the smaller k.

    Args:
        owners: row of the image that each text belongs to.
    """
    generator = numpy_generator("normalisation", seed)
    asked = np.sort(generator.permutation(len(texts))[:_ASKED])
    among = np.union1d(generator.permutation(len(images))[:_AMONG], owners[asked])
    pool, references = torch.from_numpy(images[among]), torch.from_numpy(texts)
    own = torch.from_numpy(np.searchsorted(among, owners[asked]))[:, None]
    scores = references[asked] @ pool.T
    ranks: dict[tuple[float, int], float] = {}
    for k in dict.fromkeys(min(k, len(texts) - 1) for k in sorted(nearest)):
        means = _means_without(scores, pool, references, k)
        for alpha in sorted(alphas):
            after = scores - alpha * means
            rank = 1 + (after > after.gather(1, own)).sum(dim=1)
            ranks[alpha, k] = float((1 / rank.double()).mean())
    alpha, k = max(ranks, key=lambda key: (ranks[key], -key[0], -key[1]))
    plain = ranks.get((0.0, k))
    return Normalisation(alpha, k, ranks[alpha, k], plain)


def _means_without(
    scores: Float[Tensor, "asked images"],
    images: Float[Tensor, "images width"],
    references: Float[Tensor, "references width"],
    k: int,
) -> Float[Tensor, "asked images"]:
    """b of each image for each asked caption, when that caption is none of the references; k is below their number.

    Where it was among an image's k nearest, the next one comes in its place.
    """
    tops = [(references @ block.T).topk(k + 1, dim=0).values for block in images.split(_BLOCK)]
    top = torch.cat(tops, dim=1)  # (k + 1, images), greatest first
    with_next = top.sum(dim=0)
    inside = scores >= top[k - 1]
    return torch.where(inside, with_next - scores, with_next - top[k]) / k
