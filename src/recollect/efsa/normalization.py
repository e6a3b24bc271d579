"""Nearest-neighbor normalization: penalize pictures that score high with many queries (Chowdhury et al., 2024).

``s'(q, g) = s(q, g) - α b(g)``, where b(g) is the mean of the k largest cosines of picture g with reference queries.
This lowers hubs, pictures close to every query. The index stores it as two extra dimensions that keep unit norm:
pictures ``[g, b, √(B² - b²)] / √(1 + B²)`` with ``B = max b``, queries ``[q, -α, 0] / √(1 + α²)``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.nearest import exact_neighbors
from recollect.core.seeding import numpy_generator
from recollect.efsa.rerank import NO_CAPTIONS
from recollect.index import Found, Index
from recollect.index.source import with_vectors

_ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)
NEIGHBOR_COUNTS = (1, 8, 32, 128)
_MAX_REFERENCES, _MAX_QUERIES, _MAX_PICTURES = 2_048, 512, 8_192


@dataclass(frozen=True)
class Normalization:
    """Settings of the normalization.

    Attributes:
        alpha: factor of a picture's mean cosine with its nearest references; 0 disables normalization.
        k: number of nearest references; all if there are fewer.
        reciprocal_rank: mean reciprocal rank of the pictures of held-out captions, if it was used to choose the
            settings; else None.
        plain: ``reciprocal_rank`` without normalization.
    """

    alpha: float
    k: int
    reciprocal_rank: float | None = None
    plain: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < float("inf"):
            raise UserError(f"alpha {self.alpha}: must be a finite number, 0 or more")
        if self.k < 1:
            raise UserError(f"k {self.k}: must be at least 1")

    def __str__(self) -> str:
        """Return the settings and how they were chosen."""
        chosen = ""
        if self.reciprocal_rank is not None and self.plain is not None:
            found = f"{self.reciprocal_rank:.3f}, without normalization {self.plain:.3f}"
            chosen = f"; held-out captions find their picture at a mean reciprocal rank of {found}"
        return f"alpha {self.alpha:g}, k {self.k}{chosen}"


class NormalizedIndex(Index):
    """An index that ranks by normalized scores.

    Args:
        ids: pictures to include.
        vectors: unit-norm vectors of these pictures.
        means: b of each picture.
    """

    def __init__(
        self,
        index: Index,
        ids: Sequence[str],
        vectors: Float32[np.ndarray, "n width"],
        means: Float32[np.ndarray, " n"],
        settings: Normalization,
    ) -> None:
        bound = float(np.abs(means).max(initial=0.0))
        rest = np.sqrt(np.maximum(bound**2 - means.astype(np.float64) ** 2, 0))
        extended = np.concatenate([vectors, means[:, None], rest[:, None]], axis=1) / np.sqrt(1 + bound**2)
        inner = with_vectors(index, ids, extended.astype(np.float32), scored_by="normalized")
        super().__init__(inner.store, inner.model, inner._read)
        self._labels, self.scored_by = inner._labels, inner.scored_by
        self.settings = settings
        self._factor = np.sqrt(1 + bound**2) * np.sqrt(1 + settings.alpha**2)

    def lookup(self, vectors: Tensor | np.ndarray, k: int, *args: Any, **options: Any) -> Found:
        """Find the k best pictures by normalized score; see `Index.lookup`."""
        queries = np.asarray(vectors.detach().cpu() if isinstance(vectors, Tensor) else vectors, dtype=np.float64)
        added = np.broadcast_to([-self.settings.alpha, 0.0], (len(queries), 2))
        extended = np.concatenate([queries, added], axis=1) / np.sqrt(1 + self.settings.alpha**2)
        found = super().lookup(extended.astype(np.float32), k, *args, **options)
        return replace(found, scores=(found.scores * self._factor).astype(np.float32))


def normalized(index: Index, settings: Normalization | None = None, seed: int = 0) -> NormalizedIndex:
    """Return an index with normalized scores; the references are up to 2,048 random captions of the index.

    Args:
        settings: alpha and k; default: chosen by `choose_normalization`.

    Raises:
        UserError: fewer than two pictures have a caption.
    """
    ids, vectors = index.ids, index.vectors()
    captions = index.vectors(by="text")
    owners = np.flatnonzero(captions.any(axis=1))
    if len(owners) < 2:
        raise UserError(NO_CAPTIONS)
    drawn = numpy_generator("references", seed).permutation(len(owners))[:_MAX_REFERENCES]
    chosen = owners[np.sort(drawn)]
    texts = captions[chosen]
    if settings is None:
        settings = choose_normalization(vectors, texts, chosen, seed=seed)
    return NormalizedIndex(index, ids, vectors, reference_means(vectors, texts, settings.k), settings)


def reference_means(
    images: Float32[np.ndarray, "images width"], references: Float32[np.ndarray, "references width"], k: int
) -> Float32[np.ndarray, " images"]:
    """Return b of each picture: the mean of its k largest cosines with the references, or of all if there are fewer."""
    return exact_neighbors(images, references, min(k, len(references))).scores.mean(axis=1)


def choose_normalization(
    images: Float32[np.ndarray, "images width"],
    texts: Float32[np.ndarray, "texts width"],
    owners: Int64[np.ndarray, " texts"],
    *,
    alphas: Sequence[float] = _ALPHAS,
    nearest: Sequence[int] = NEIGHBOR_COUNTS,
    seed: int = 0,
) -> Normalization:
    """Choose the alpha and k at which captions find their own images best; each caption is held out of the means.

    The measure is the mean reciprocal rank of up to 512 captions' images among up to 8,192 others. Ties prefer the
    smaller alpha, then the smaller k.

    Args:
        owners: row of the image of each text.
    """
    generator = numpy_generator("normalisation", seed)
    queries = np.sort(generator.permutation(len(texts))[:_MAX_QUERIES])
    sample = np.union1d(generator.permutation(len(images))[:_MAX_PICTURES], owners[queries])
    pool, references = torch.from_numpy(images[sample]), torch.from_numpy(texts)
    own = torch.from_numpy(np.searchsorted(sample, owners[queries]))[:, None]
    scores = references[queries] @ pool.T
    ranks: dict[tuple[float, int], float] = {}
    for k in dict.fromkeys(min(k, len(texts) - 1) for k in sorted(nearest)):
        means = _means_without(scores, pool, references, k)
        for alpha in sorted(alphas):
            normalized_scores = scores - alpha * means
            rank = 1 + (normalized_scores > normalized_scores.gather(1, own)).sum(dim=1)
            ranks[alpha, k] = float((1 / rank.double()).mean())
    alpha, k = max(ranks, key=lambda key: (ranks[key], -key[0], -key[1]))
    return Normalization(alpha, k, ranks[alpha, k], ranks.get((0.0, k)))


def _means_without(
    scores: Float[Tensor, "queries images"],
    images: Float[Tensor, "images width"],
    references: Float[Tensor, "references width"],
    k: int,
) -> Float[Tensor, "queries images"]:
    """Return b of each image with each query held out of the references.

    If the query is among the image's k nearest references, the next nearest replaces it.
    """
    top = torch.from_numpy(exact_neighbors(images.numpy(), references.numpy(), k + 1).scores).T  # largest first
    with_next = top.sum(dim=0)
    inside = scores >= top[k - 1]
    return torch.where(inside, with_next - scores, with_next - top[k]) / k
