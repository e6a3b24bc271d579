"""Perceptual hashes: 64 bits of how a picture looks, which resizing and encoding again hardly change."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int64, UInt64
from PIL import Image

from recollect.core.ordering import in_order
from recollect.core.types import ImageLike

_EDGE, _KEPT = 32, 8
_BAND, _BANDS = 16, 4
_FLIPS = (0, *(1 << bit for bit in range(_BAND)))
_AT_ONCE = 2**21


def phash_of(image: ImageLike) -> str:
    """Which of the 64 lowest cosine frequencies of the gray picture are above their median (pHash; Zauner, 2010).

    Returns:
        16 hexadecimal digits; empty for what is not a picture, or where all pixels are equal.
    """
    from scipy.fft import dctn  # slow to import

    if isinstance(image, np.ndarray):
        if image.ndim != 3:
            return ""
        image = Image.fromarray(image)
    gray = np.asarray(image.convert("L").resize((_EDGE, _EDGE), Image.Resampling.BOX), dtype=np.float64)
    if np.ptp(gray) == 0:
        return ""
    low = dctn(gray, norm="ortho")[:_KEPT, :_KEPT].reshape(-1)
    bits = low > np.median(low[1:])  # the first is the mean brightness
    bits[0] = False
    return np.packbits(bits).tobytes().hex()


def phash_numbers(hashes: Sequence[str]) -> UInt64[np.ndarray, " n"]:
    """Hashes as 64-bit numbers; an empty one is 0."""
    return np.array([int(each, 16) if each else 0 for each in hashes], dtype=np.uint64)


def near_hashes(
    hashes: UInt64[np.ndarray, " n"], bits: int, most: int | None = None
) -> Iterator[tuple[Int64[np.ndarray, " pairs"], Int64[np.ndarray, " pairs"], bool]]:
    """Pairs of different hashes with a Hamming distance of at most ``bits``, each pair once, many pairs at a time.

    Hashes that differ in at most 7 bits differ in at most one bit within one of their four bands of 16 bits
    (multi-index hashing, Norouzi et al., 2012), so only hashes with such a band are compared.

    Args:
        hashes: distinct.
        bits: at most 7.
        most: upper limit for the number of comparisons; some pairs of crowded bands are skipped to stay below it. No
            limit by default.

    Yields:
        The places of each pair, and whether comparisons were skipped.

    Raises:
        ValueError: more than 7 bits.
    """
    if not 0 <= bits < 2 * _BANDS:
        raise ValueError(f"{bits} bits; four bands find at most 7")
    bands = [((hashes >> np.uint64(_BAND * band)) & np.uint64(2**_BAND - 1)).astype(np.int64) for band in range(_BANDS)]
    counts = [np.bincount(band, minlength=2**_BAND) for band in bands]
    reach = len(hashes)
    while most is not None and reach > 1 and sum(map(_comparisons, counts, [reach] * _BANDS)) > most:
        reach //= 2
    cut = any(int(each.max(initial=0)) > reach for each in counts)
    for place, band in enumerate(bands):
        order = in_order(band)
        own, ordered = band[order], hashes[order]
        bounds = np.concatenate([[0], np.cumsum(counts[place])])
        for flip in _FLIPS:
            asks = np.arange(len(hashes)) if flip == 0 else np.flatnonzero(own & flip == 0)
            first = asks + 1 if flip == 0 else bounds[own[asks] ^ flip]
            many = np.minimum(bounds[(own[asks] ^ flip) + 1] - first, reach)
            for one, other in runs(asks, first, many):
                near = np.bitwise_count(ordered[one] ^ ordered[other]) <= bits
                a, b = order[one[near]], order[other[near]]
                for before in bands[:place]:  # pairs that an earlier band has found
                    new = np.bitwise_count(before[a] ^ before[b]) > 1
                    a, b = a[new], b[new]
                if len(a):
                    yield a, b, cut


def _comparisons(counts: Int64[np.ndarray, " buckets"], reach: int) -> int:
    """Comparisons in one band if each hash is compared with at most ``reach`` hashes of a bucket."""
    buckets, capped = np.arange(2**_BAND), np.minimum(counts, reach)
    return sum(int((counts * capped[buckets ^ flip]).sum()) // 2 for flip in _FLIPS)


def runs(
    asks: Int64[np.ndarray, " n"], first: Int64[np.ndarray, " n"], many: Int64[np.ndarray, " n"]
) -> Iterator[tuple[Int64[np.ndarray, " pairs"], Int64[np.ndarray, " pairs"]]]:
    """Each number of ``asks`` with ``many`` consecutive numbers from ``first`` on, about 2 million at a time."""
    ends = np.cumsum(many)
    start = 0
    while start < len(asks):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _AT_ONCE, side="right")))
        some = many[start:stop]
        total = int(some.sum())
        offsets = np.arange(total) - np.repeat(ends[start:stop] - some - before, some)
        yield np.repeat(asks[start:stop], some), np.repeat(first[start:stop], some) + offsets
        start = stop
