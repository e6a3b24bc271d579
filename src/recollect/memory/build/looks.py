"""Perceptual hashes: sixty-four bits of how a picture looks, which resizing and encoding again hardly change."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int64, UInt64
from PIL import Image
from scipy.fft import dctn

from recollect.core.types import ImageLike

_EDGE, _KEPT = 32, 8
_BAND, _BANDS = 16, 4
_FLIPS = (0, *(1 << bit for bit in range(_BAND)))
_AT_ONCE = 2**21


def look_of(image: ImageLike) -> str:
    """Which of the 64 lowest cosine frequencies of the grey picture lie above their median (pHash; Zauner, 2010).

    Returns:
        16 hexadecimal digits; empty for what is no picture, or where every pixel is the same.
    """
    if isinstance(image, np.ndarray):
        if image.ndim != 3:
            return ""
        image = Image.fromarray(image)
    grey = np.asarray(image.convert("L").resize((_EDGE, _EDGE), Image.Resampling.BOX), dtype=np.float64)
    if np.ptp(grey) == 0:
        return ""
    low = dctn(grey, norm="ortho")[:_KEPT, :_KEPT].reshape(-1)
    bits = low > np.median(low[1:])  # the first is the mean brightness
    bits[0] = False
    return np.packbits(bits).tobytes().hex()


def looks_array(looks: Sequence[str]) -> UInt64[np.ndarray, " n"]:
    """Hashes as numbers, for `bits_apart`; an empty one is 0."""
    return np.array([int(look, 16) if look else 0 for look in looks], dtype=np.uint64)


def bits_apart(one: UInt64[np.ndarray, " n"], other: UInt64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """In how many bits two hashes differ, element by element."""
    return np.bitwise_count(one ^ other).astype(np.int64)


def near_looks(
    looks: UInt64[np.ndarray, " n"], bits: int, most: int | None = None
) -> Iterator[tuple[Int64[np.ndarray, " pairs"], Int64[np.ndarray, " pairs"], bool]]:
    """Pairs of different hashes that differ in at most so many bits, each pair once, many at a time.

    Hashes that differ in at most 7 bits differ in at most one within one of their four bands of 16 bits (Norouzi et
    al., 2012, multi-index hashing), so each is compared with those alone that have its band but for a bit.

    Args:
        looks: each once.
        bits: at most 7.
        most: comparisons, of which more are not made; with the hashes that share a band with most others begun with
            fewer of them. All by default.

    Yields:
        The places of each pair, and whether comparisons were left out.

    Raises:
        ValueError: more than 7 bits.
    """
    if not 0 <= bits < 2 * _BANDS:
        raise ValueError(f"{bits} bits; four bands serve up to 7")
    bands = [((looks >> np.uint64(_BAND * band)) & np.uint64(2**_BAND - 1)).astype(np.int64) for band in range(_BANDS)]
    counts = [np.bincount(band, minlength=2**_BAND) for band in bands]
    reach = len(looks)
    while most is not None and reach > 1 and sum(map(_comparisons, counts, [reach] * _BANDS)) > most:
        reach //= 2
    cut = any(int(each.max(initial=0)) > reach for each in counts)
    for place, band in enumerate(bands):
        order = np.argsort(band, kind="stable")
        own, sorted_looks = band[order], looks[order]
        bounds = np.concatenate([[0], np.cumsum(counts[place])])
        for flip in _FLIPS:
            asks = np.arange(len(looks)) if flip == 0 else np.flatnonzero(own & flip == 0)
            first = asks + 1 if flip == 0 else bounds[own[asks] ^ flip]
            many = np.minimum(bounds[(own[asks] ^ flip) + 1] - first, reach)
            for one, other in expanded(asks, first, many):
                near = np.bitwise_count(sorted_looks[one] ^ sorted_looks[other]) <= bits
                a, b = order[one[near]], order[other[near]]
                for before in bands[:place]:  # those were found there
                    new = np.bitwise_count(before[a] ^ before[b]) > 1
                    a, b = a[new], b[new]
                if len(a):
                    yield a, b, cut


def _comparisons(counts: Int64[np.ndarray, " buckets"], reach: int) -> int:
    """Of one band, where each hash is compared with no more than so many of a bucket."""
    buckets, capped = np.arange(2**_BAND), np.minimum(counts, reach)
    return sum(int((counts * capped[buckets ^ flip]).sum()) // 2 for flip in _FLIPS)


def expanded(
    asks: Int64[np.ndarray, " n"], first: Int64[np.ndarray, " n"], many: Int64[np.ndarray, " n"]
) -> Iterator[tuple[Int64[np.ndarray, " pairs"], Int64[np.ndarray, " pairs"]]]:
    """Each number with ``many`` that follow one another from ``first`` on, about two million pairs at a time."""
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
