"""Score cut-offs for text search: learned from captions or marks, or estimated from a query's scores."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float, Float32, Int64

from recollect.core.errors import user_errors
from recollect.core.seeding import numpy_generator

if TYPE_CHECKING:
    from recollect.index.index import Index

CAPTION_SHARE = 0.9
MIN_CAPTIONS = 20
_MAX_CAPTIONS = 2_048
_ROUNDING = 1e-6
"""Tolerance for float32 cosines: rounding must not push a caption's own picture below the cut-off."""

_MIN_PICTURES = 50
"""Minimum number of pictures for an estimated cut-off."""

MIN_DEVIATIONS, HALFWAY = 3.0, 0.5
"""Estimated cut-off: halfway between a query's mean score and its best score; no cut-off unless the best score is at
least three standard deviations above the mean. Chosen with the starter model and class names as queries (imagenette,
dtd10 and 4,000 COCO pictures; the first two alone and mixed with other pictures): F1 0.49, recall 0.68. Alternatives:
no cut-off F1 0.12; 2.5 deviations above the mean (the previous rule) 0.39, recall 0.32; a mixture of two normals 0.41;
Otsu's threshold, the largest gap and the knee of the sorted scores 0.16 to 0.45. On sets not used for the choice
(butterfly10, resisc12, and words in the captions of flickr8k): F1 0.27, recall 0.55; no cut-off 0.13; the previous rule
0.20, recall 0.17."""

_COMPARED = 4_096  # pictures sampled to measure how many score above a cut-off
_MOMENT_PICTURES, _ESTIMATE_PICTURES = 16_384, 2_048  # pictures sampled for mean and covariance

Basis = Literal["captions", "marks", "scores"]


@dataclass(frozen=True)
class CutOff:
    """Score below which results are cut off: learned from texts with known pictures, or estimated per query.

    Attributes:
        threshold: on the cosine or the standardized cosine; if estimated, the score that the best result must reach.
        share: minimum share of new texts whose own picture scores above it (split conformal prediction); 0 if
            estimated.
        texts: number of texts it was learned from; 0 if estimated.
        above: average share of all pictures that score above it for a text; 0 if estimated.
        standardized: whether cosines are standardized with the query's mean and standard deviation over the pictures.
        mean: mean of the picture vectors (width,).
        covariance: covariance of the picture vectors (width, width).
        basis: ``captions``; ``marks``, pictures marked by the user with their label names; or ``scores`` of each query.
    """

    threshold: float
    share: float
    texts: int
    above: float
    standardized: bool
    mean: Float[np.ndarray, " width"]
    covariance: Float[np.ndarray, "width width"]
    basis: Basis = "captions"

    def limit(self, query: Float32[np.ndarray, " width"]) -> float:
        """Return the cosine at which a query's results end; if estimated, the cosine the best result must reach."""
        if not self.standardized:
            return self.threshold - _ROUNDING
        mean, deviation = score_moments(query[None], self.mean, self.covariance)
        return float(mean[0] + self.threshold * deviation[0]) - _ROUNDING

    def score_limit(self, query: Float32[np.ndarray, " width"], best: float) -> float | None:
        """Return the cosine at which results with the top score ``best`` end; None for no cut-off.

        An estimated cut-off applies only if the best result stands out: when a third of the pictures match, none does.
        """
        limit = self.limit(query)
        if self.basis != "scores":
            return limit
        mean = float(score_moments(query[None], self.mean, self.covariance)[0][0])
        return None if best < limit else mean + HALFWAY * (best - mean) - _ROUNDING

    def __str__(self) -> str:
        if self.basis == "scores":
            return "halfway between the mean and the best score; there are too few captions or marks to learn it"
        leaves = f"on average {self.above:.1%} of all pictures do"
        return f"{self.share:.0%} of {self.texts:,} {self.basis} reach this score with their own picture; {leaves}"


def index_cut_off(index: "Index", share: float = CAPTION_SHARE, seed: int = 0) -> CutOff:
    """Implement `Index.cut_off`."""
    images = index.vectors()
    if index.texts >= MIN_CAPTIONS:
        drawn = numpy_generator("captions", seed).permutation(len(images))[: 4 * _MAX_CAPTIONS]
        ids = index.ids
        texts = index.vectors([ids[row] for row in drawn.tolist()], "text")
        usable = np.flatnonzero(texts.any(axis=1) & images[drawn].any(axis=1))[:_MAX_CAPTIONS]
        if len(usable) >= MIN_CAPTIONS:
            return learn_cut_off(images, texts[usable], drawn[usable].astype(np.int64), share, seed)
    images = images[images.any(axis=1)]
    counts = f"{index.address}: {len(images)} pictures and {index.texts} captions"
    with user_errors(counts, ValueError, then=". Set a score instead."):
        return estimate_cut_off(images, seed)


def score_moments(
    queries: Float32[np.ndarray, "n width"],
    mean: Float[np.ndarray, " width"],
    covariance: Float[np.ndarray, "width width"],
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return mean and standard deviation of each query's cosines, from the mean and covariance of the pictures."""
    wide = queries.astype(np.float64)
    variance = np.einsum("nw,wv,nv->n", wide, covariance, wide)
    return wide @ mean, np.sqrt(np.maximum(variance, 1e-12))


def learn_cut_off(
    images: Float32[np.ndarray, "images width"],
    texts: Float32[np.ndarray, "texts width"],
    owners: Int64[np.ndarray, " texts"],
    share: float = CAPTION_SHARE,
    seed: int = 0,
    basis: Basis = "captions",
) -> CutOff:
    """Learn the score that at least a ``share`` of texts give to their own picture.

    It is the ``floor((1 - share)(n + 1))``-th smallest of the n scores between a text and its own picture: a new text
    of the same kind reaches it with probability ``share``. Two cut-offs are learned, one on the cosine and one on the
    cosine standardized over the pictures (some words score high with every picture); the one that leaves fewer
    pictures is returned.

    Args:
        images, texts: unit norm.
        owners: row of each text's picture.
        share: needs at least ``1/(1 - share) - 1`` texts.
        basis: stored in the result.

    Raises:
        ValueError: too few texts.
    """
    rank = int((1 - share) * (len(texts) + 1) + 1e-9)
    if rank < 1:
        raise ValueError(f"{len(texts)} texts are too few for a share of {share:g}")
    generator = numpy_generator("cut-off", seed)
    mean, covariance = _picture_moments(images[np.sort(generator.permutation(len(images))[:_MOMENT_PICTURES])])
    middle, spread = score_moments(texts, mean, covariance)
    own = np.einsum("nw,nw->n", texts.astype(np.float64), images[owners].astype(np.float64))
    sample = images[np.sort(generator.permutation(len(images))[:_COMPARED])]
    all_scores = (texts @ sample.T).astype(np.float64)
    candidates = []
    for standardized in (False, True):
        scores = (own - middle) / spread if standardized else own
        threshold = float(np.sort(scores)[rank - 1])
        limits = middle + threshold * spread if standardized else np.full(len(texts), threshold)
        candidates.append((float((all_scores >= limits[:, None]).mean()), standardized, threshold))
    above, standardized, threshold = min(candidates)
    return CutOff(threshold, share, len(texts), above, standardized, mean, covariance, basis)


def estimate_cut_off(images: Float32[np.ndarray, "images width"], seed: int = 0) -> CutOff:
    """Return a cut-off computed per query: `HALFWAY` from its mean score over the (unit-norm) pictures to its best.

    Unlike a learned cut-off it has no guarantee, and it keeps some pictures even if none match the query.

    Raises:
        ValueError: fewer than `_MIN_PICTURES` pictures.
    """
    if len(images) < _MIN_PICTURES:
        raise ValueError(f"too few; a cut-off needs {_MIN_PICTURES} pictures or {MIN_CAPTIONS} captions")
    drawn = numpy_generator("cut-off", seed).permutation(len(images))[:_ESTIMATE_PICTURES]
    return CutOff(MIN_DEVIATIONS, 0.0, 0, 0.0, True, *_picture_moments(images[np.sort(drawn)]), "scores")


def _picture_moments(
    images: Float32[np.ndarray, "images width"],
) -> tuple[Float[np.ndarray, " width"], Float[np.ndarray, "width width"]]:
    wide = images.astype(np.float64)
    mean = wide.mean(axis=0)
    return mean, (wide - mean).T @ (wide - mean) / len(wide)
