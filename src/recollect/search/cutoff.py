"""Where a search by words ends: a cut-off learnt from a memory's own captions, with what it promises."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Int64

from recollect.core.errors import UserError
from recollect.core.seeding import numpy_generator
from recollect.memory import Memory

SHARE = 0.9
LEAST_CAPTIONS = 20
_ROUNDING = 1e-6
"""Of cosines in float32: a caption's own picture must not fall below by it."""

_CAPTIONS, _AMONG, _MOMENTS = 2_048, 4_096, 16_384


@dataclass(frozen=True)
class LearntCutOff:
    """A score that ``share`` of captions give to their own image, and words to what they are about.

    Attributes:
        threshold: of the cosine, or of the standardised cosine.
        share: of new captions whose own image lies above, at least (split conformal).
        captions: from how many it was learnt.
        above: share of all images that lie above for a caption, on average.
        standardised: whether a score is taken less the query's mean and by its deviation over the images first.
        mean: of the images' vectors (width,).
        covariance: of the images' vectors (width, width).
    """

    threshold: float
    share: float
    captions: int
    above: float
    standardised: bool
    mean: Float[np.ndarray, " width"]
    covariance: Float[np.ndarray, "width width"]

    def score_for(self, query: Float32[np.ndarray, " width"]) -> float:
        """The cosine at which this query's images end."""
        if not self.standardised:
            return self.threshold - _ROUNDING
        middle, spread = moments(query[None], self.mean, self.covariance)
        return float(middle[0] + self.threshold * spread[0]) - _ROUNDING

    def __str__(self) -> str:
        """For a reader."""
        return f"{self.share:.0%} of {self.captions:,} captions give their own picture that much or more"


def moments(
    queries: Float32[np.ndarray, "n width"],
    mean: Float[np.ndarray, " width"],
    covariance: Float[np.ndarray, "width width"],
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Mean and standard deviation of each query's cosines over the images, from the images' own."""
    asked = queries.astype(np.float64)
    variance = np.einsum("nw,wv,nv->n", asked, covariance, asked)
    return asked @ mean, np.sqrt(np.maximum(variance, 1e-12))


def learn_cut_off(
    images: Float32[np.ndarray, "images width"],
    texts: Float32[np.ndarray, "texts width"],
    owners: Int64[np.ndarray, " texts"],
    share: float = SHARE,
    seed: int = 0,
) -> LearntCutOff:
    """The score that ``share`` of captions give at least to their own image.

    The ``⌊(1 − share)(n + 1)⌋``-th least of n own scores: a new caption of the same kind gives its image at least
    that with probability ``share``. It is taken of the cosine, and of the cosine standardised over the images, since
    some words score high with everything; that of both is used which leaves fewer images.

    Args:
        images: unit-norm.
        texts: unit-norm.
        owners: the image that each text belongs to.
        share: at least ``1/(1 − share) − 1`` texts are needed.

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
        at = (own - middle) / spread if standardised else own
        threshold = float(np.sort(at)[rank - 1])
        limits = middle + threshold * spread if standardised else np.full(len(texts), threshold)
        candidates.append((float((every >= limits[:, None]).mean()), standardised, threshold))
    above, standardised, threshold = min(candidates)
    return LearntCutOff(threshold, share, len(texts), above, standardised, mean, covariance)


def cut_off_of(
    memory: Memory, ids: list[str], images: Float32[np.ndarray, "images width"], share: float = SHARE, seed: int = 0
) -> LearntCutOff:
    """The cut-off that a memory's captions teach: at most 2,048 of them, drawn at random.

    Args:
        ids: of every row.
        images: their unit-norm vectors.

    Raises:
        UserError: fewer than 20 pictures with a caption.
    """
    drawn = numpy_generator("captions", seed).permutation(len(ids))[: 4 * _CAPTIONS]
    texts = memory.vectors([ids[row] for row in drawn.tolist()], "text")
    spoken = np.flatnonzero(texts.any(axis=1))[:_CAPTIONS]
    if len(spoken) < LEAST_CAPTIONS:
        raise UserError(
            f"{memory.address}: a cut-off is learnt from captions, {LEAST_CAPTIONS} or more; {len(spoken)} were found. "
            "Write some with `recollect caption`, or name a score."
        )
    return learn_cut_off(images, texts[spoken], drawn[spoken].astype(np.int64), share, seed)
