"""Where the results of a search by words end: a cut-off learned from captions or marks, or estimated from scores."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Float32, Int64

from recollect.core.errors import user_errors
from recollect.core.seeding import numpy_generator

CAPTION_SHARE = 0.9
LEAST_CAPTIONS = 20
MOST_CAPTIONS = 2_048
_ROUNDING = 1e-6
"""Of float32 cosines: a caption's own picture must not fall below the cut-off because of it."""

LEAST_PICTURES = 50
"""To estimate a cut-off from."""

STANDS_OUT, HALFWAY = 3.0, 0.5
"""Where nothing taught a cut-off, results end halfway between a query's mean score and its best one, and have no end
unless the best is three standard deviations above the mean. Chosen with the starter and the names of classes
(imagenette, dtd10 and 4,000 pictures of COCO, the first two alone and among other pictures; a query without an end
keeps everything): F1 0.49, recall 0.68. Without any end F1 0.12; 2.5 deviations above the mean (the rule before) 0.39,
recall 0.32; a mixture of two normals 0.41; Otsu's threshold, the largest gap and the knee of the sorted scores 0.16 to
0.45. On sets that decided nothing (butterfly10, resisc12, and words in the captions of flickr8k): F1 0.27, recall 0.55;
without any end 0.13; before 0.20, recall 0.17."""

_AMONG, _MOMENTS, _FEW_MOMENTS = 4_096, 16_384, 2_048

Basis = Literal["captions", "marks", "scores"]


@dataclass(frozen=True)
class CutOff:
    """A score that a share of texts give to their own picture, or one estimated from the scores of each query alone.

    Attributes:
        threshold: of the cosine, or of the standardized cosine; if estimated, what the best one must reach.
        share: of new texts whose own picture scores above it, at least (split conformal prediction); 0 if estimated.
        texts: from how many it was learned; 0 if estimated.
        above: share of all pictures that score above it for a text, on average; 0 if estimated.
        standardized: whether the query's mean over the pictures is subtracted, and its deviation divided out, first.
        mean: of the pictures' vectors (width,).
        covariance: of the pictures' vectors (width, width).
        basis: captions; pictures that the user marked, with the names of their labels; or the scores of a query alone.
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
        """The cosine at which the results of a query end; if estimated, that the best result must reach."""
        if not self.standardized:
            return self.threshold - _ROUNDING
        mean, deviation = moments(query[None], self.mean, self.covariance)
        return float(mean[0] + self.threshold * deviation[0]) - _ROUNDING

    def limit_among(self, query: Float32[np.ndarray, " width"], best: float) -> float | None:
        """The cosine at which results end of which ``best`` is the highest; None where they have no end.

        Where a third of the pictures match, none stands out from the mean, and an estimate would leave nothing.
        """
        limit = self.limit(query)
        if self.basis != "scores":
            return limit
        mean = float(moments(query[None], self.mean, self.covariance)[0][0])
        return None if best < limit else mean + HALFWAY * (best - mean) - _ROUNDING

    def __str__(self) -> str:
        """For a reader."""
        if self.basis == "scores":
            return "halfway between the mean score and the best; there is too little to learn it from"
        leaves = f"it leaves {self.above:.1%} of the pictures on average"
        return f"{self.share:.0%} of {self.texts:,} {self.basis} give their own picture this score or more; {leaves}"


def index_cut_off(index: Any, share: float = CAPTION_SHARE, seed: int = 0) -> CutOff:
    """See `Index.cut_off`."""
    images = index.vectors()
    if index.texts >= LEAST_CAPTIONS:
        drawn = numpy_generator("captions", seed).permutation(len(images))[: 4 * MOST_CAPTIONS]
        ids = index.ids
        texts = index.vectors([ids[row] for row in drawn.tolist()], "text")
        spoken = np.flatnonzero(texts.any(axis=1) & images[drawn].any(axis=1))[:MOST_CAPTIONS]
        if len(spoken) >= LEAST_CAPTIONS:
            return learn_cut_off(images, texts[spoken], drawn[spoken].astype(np.int64), share, seed)
    images = images[images.any(axis=1)]
    few = f"{index.address}: {len(images)} pictures and {index.texts} captions"
    with user_errors(few, ValueError, then=". Name a score instead."):
        return estimate_cut_off(images, seed)


def moments(
    queries: Float32[np.ndarray, "n width"],
    mean: Float[np.ndarray, " width"],
    covariance: Float[np.ndarray, "width width"],
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Mean and standard deviation of each query's cosines over the pictures, from the pictures' own moments."""
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
    """The score that a share of captions give at least to their own picture.

    It is the ``floor((1 - share)(n + 1))``-th smallest of n own scores: a new caption of the same kind gives its
    picture at least that with probability ``share``. Two cut-offs are learned, one of the cosine and one of the cosine
    standardized over the pictures, since some words score high with everything; the one that leaves fewer pictures
    wins.

    Args:
        images, texts: unit norm.
        owners: the picture of each text.
        share: needs at least ``1/(1 - share) - 1`` texts.
        basis: what the texts are.

    Raises:
        ValueError: too few texts.
    """
    rank = int((1 - share) * (len(texts) + 1) + 1e-9)
    if rank < 1:
        raise ValueError(f"{len(texts)} texts cannot show a share of {share:g}")
    generator = numpy_generator("cut-off", seed)
    mean, covariance = _picture_moments(images[np.sort(generator.permutation(len(images))[:_MOMENTS])])
    middle, spread = moments(texts, mean, covariance)
    own = np.einsum("nw,nw->n", texts.astype(np.float64), images[owners].astype(np.float64))
    among = images[np.sort(generator.permutation(len(images))[:_AMONG])]
    every = (texts @ among.T).astype(np.float64)
    candidates = []
    for standardized in (False, True):
        scores = (own - middle) / spread if standardized else own
        threshold = float(np.sort(scores)[rank - 1])
        limits = middle + threshold * spread if standardized else np.full(len(texts), threshold)
        candidates.append((float((every >= limits[:, None]).mean()), standardized, threshold))
    above, standardized, threshold = min(candidates)
    return CutOff(threshold, share, len(texts), above, standardized, mean, covariance, basis)


def estimate_cut_off(images: Float32[np.ndarray, "images width"], seed: int = 0) -> CutOff:
    """A cut-off from the scores of a query alone: `HALFWAY` from their mean over the (unit-norm) pictures to the best.

    Unlike a learned one it promises nothing, and leaves some pictures for words that fit none.

    Raises:
        ValueError: fewer than `LEAST_PICTURES` pictures.
    """
    if len(images) < LEAST_PICTURES:
        raise ValueError(f"too few; {LEAST_PICTURES} pictures or {LEAST_CAPTIONS} captions tell where results end")
    drawn = numpy_generator("cut-off", seed).permutation(len(images))[:_FEW_MOMENTS]
    return CutOff(STANDS_OUT, 0.0, 0, 0.0, True, *_picture_moments(images[np.sort(drawn)]), "scores")


def _picture_moments(
    images: Float32[np.ndarray, "images width"],
) -> tuple[Float[np.ndarray, " width"], Float[np.ndarray, "width width"]]:
    wide = images.astype(np.float64)
    mean = wide.mean(axis=0)
    return mean, (wide - mean).T @ (wide - mean) / len(wide)
