"""Scores less what an image gets from any query: nearest-neighbour normalisation (NNN, Chowdhury et al., EMNLP 2024).

``s'(q, g) = s(q, g) − α · b(g)``, b(g) the mean of the k greatest cosines of image g with reference queries. An image
that is near to every query (a hub) falls. In an index it is one more entry: images ``[g, b]``, queries ``[q, −α]``.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.seeding import numpy_generator
from recollect.core.types import caption_prefix
from recollect.efsa.cost import CostCounters
from recollect.efsa.normalisation import Normalisation, choose_normalisation, reference_means
from recollect.memory import Hits, Item
from recollect.models import DualEncoder
from recollect.search.baselines.pool_wide import NO_CAPTIONS, has_caption, item_blocks
from recollect.search.pool import Pool, nearest_of, satisfying

_REFERENCES = 2_048


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
