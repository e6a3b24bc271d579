"""Where the results of a search by words end: a cut-off learnt from the captions of an index."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Int64

from recollect.core.seeding import numpy_generator

CAPTION_SHARE = 0.9
LEAST_CAPTIONS = 20
MOST_CAPTIONS = 2_048
_ROUNDING = 1e-6
"""Of float32 cosines: a caption's own picture must not fall below the cut-off because of it."""

_AMONG, _MOMENTS = 4_096, 16_384


@dataclass(frozen=True)
class CutOff:
    """A score that a share of captions give to their own picture.

    Attributes:
        threshold: of the cosine, or of the standardised cosine.
        share: of new captions whose own picture scores above it, at least (split conformal prediction).
        captions: from how many it was learnt.
        above: share of all pictures that score above it for a caption, on average.
        standardised: whether the query's mean over the pictures is subtracted, and its deviation divided out, first.
        mean: of the pictures' vectors (width,).
        covariance: of the pictures' vectors (width, width).
    """

    threshold: float
    share: float
    captions: int
    above: float
    standardised: bool
    mean: Float[np.ndarray, " width"]
    covariance: Float[np.ndarray, "width width"]

    def score_for(self, query: Float32[np.ndarray, " width"]) -> float:
        """The cosine at which the results of a query end."""
        if not self.standardised:
            return self.threshold - _ROUNDING
        mean, deviation = moments(query[None], self.mean, self.covariance)
        return float(mean[0] + self.threshold * deviation[0]) - _ROUNDING

    def __str__(self) -> str:
        """For a reader."""
        return f"{self.share:.0%} of {self.captions:,} captions give their own picture this score or more"


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
) -> CutOff:
    """The score that a share of captions give at least to their own picture.

    It is the ``floor((1 - share)(n + 1))``-th smallest of n own scores: a new caption of the same kind gives its
    picture at least that with probability ``share``. Two cut-offs are learnt, one of the cosine and one of the cosine
    standardised over the pictures, since some words score high with everything; the one that leaves fewer pictures
    wins.

    Args:
        images: unit norm.
        texts: unit norm.
        owners: the picture of each text.
        share: needs at least ``1/(1 - share) - 1`` texts.

    Raises:
        ValueError: too few texts.
    """
    rank = int((1 - share) * (len(texts) + 1) + 1e-9)
    if rank < 1:
        raise ValueError(f"{len(texts)} texts cannot show a share of {share:g}")
    generator = numpy_generator("cut-off", seed)
    some = images[np.sort(generator.permutation(len(images))[:_MOMENTS])].astype(np.float64)
    mean = some.mean(axis=0)
    covariance = (some - mean).T @ (some - mean) / len(some)
    middle, spread = moments(texts, mean, covariance)
    own = np.einsum("nw,nw->n", texts.astype(np.float64), images[owners].astype(np.float64))
    among = images[np.sort(generator.permutation(len(images))[:_AMONG])]
    every = (texts @ among.T).astype(np.float64)
    candidates = []
    for standardised in (False, True):
        scores = (own - middle) / spread if standardised else own
        threshold = float(np.sort(scores)[rank - 1])
        limits = middle + threshold * spread if standardised else np.full(len(texts), threshold)
        candidates.append((float((every >= limits[:, None]).mean()), standardised, threshold))
    above, standardised, threshold = min(candidates)
    return CutOff(threshold, share, len(texts), above, standardised, mean, covariance)
