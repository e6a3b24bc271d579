"""Duplicates in an index: identical files, near-identical pictures (by pixels), and similar ones (by embedding)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float32, Int64, UInt64

from recollect.core.errors import UserError
from recollect.core.nearest import exact_neighbours
from recollect.core.ordering import in_order
from recollect.core.progress import progress
from recollect.core.types import ImageLike
from recollect.core.validation import check_number
from recollect.data.sources.images import BrokenImageError
from recollect.index import annotations
from recollect.index.contents import IndexContents
from recollect.index.phash import near_hashes, phash_numbers, runs
from recollect.index.rows import ROUNDING
from recollect.index.same_picture import PreparedPicture, near_identical
from recollect.index.sketches import EDGE, Sketches

HASH_BITS = 7
"""Pictures whose perceptual hashes differ in at most this many bits are compared by pixels."""

NEIGHBORS, LEAST_COSINE = 8, 0.9
"""So are pictures with their nearest neighbors by embedding, down to this cosine."""

MOST_HASHES, MOST_PAIRS = 3 * 10**9, 10**7
"""Comparisons of hashes, and pairs of pictures with near hashes, beyond which `find_duplicates` skips some unless it
compares everything."""

_PREPARED = 64  # pictures kept in memory, at most 4 MB each
_AT_ONCE = 256


@dataclass(frozen=True)
class Duplicates:
    """What is in an index more than once.

    Attributes:
        identical: files of one picture, for each picture with several files: their pixels are equal, and the index has
            one row for them.
        near_identical: groups of ids; the first is the one to keep, and every other one was compared with it by pixels.
            One with a caption or a label of the user's is kept first, then color before gray, then the largest.
        similar: groups of ids of pictures whose embeddings are near to one another, directly or through others. Groups
            that only repeat a near-identical one are left out.
        skipped: what was not compared, one sentence each.
        unread: pictures with near neighbors that could not be read, so that their pixels were not compared.
    """

    identical: tuple[tuple[str, ...], ...] = ()
    near_identical: tuple[tuple[str, ...], ...] = ()
    similar: tuple[tuple[str, ...], ...] = ()
    skipped: tuple[str, ...] = ()
    unread: int = 0

    @property
    def spare(self) -> list[str]:
        """All but the first picture of each near-identical group."""
        return [id for group in self.near_identical for id in group[1:]]


def find_duplicates(index: IndexContents, threshold: float, everything: bool = True) -> Duplicates:
    """Compare the pictures of an index with one another; see `Index.duplicates`."""
    check_number("--threshold", threshold, above=0, most=1)
    facts = _Facts.read(index)
    count = len(facts.ids)
    if not count:
        return Duplicates(facts.identical)
    skipped = list[str]()
    pairs, cut = candidate_pairs(facts.hashes, facts.vectors, everything)
    if cut:
        skipped.append("Some pictures with very common perceptual hashes were not compared.")
    prefer = {
        place: (facts.ids[place] not in facts.described, -facts.sizes[place], facts.ids[place])
        for place in np.unique(pairs).tolist()
    }
    found = near_identical_groups(
        pairs, lambda places: [each.open for each in index.pictures([facts.ids[place] for place in places])], prefer
    )
    from recollect.index.near_pairs import Bounds, DisjointSets, join_all, join_neighbourhoods  # imports torch

    joined = DisjointSets(count)
    for group in found.groups:
        joined.join(np.array(group[1:]), np.full(len(group) - 1, group[0]))
    stricter = joined.all()
    bounds = Bounds(facts.vectors, threshold)
    if everything:
        join_all(bounds, joined, threshold - ROUNDING)
    else:
        cells = join_neighbourhoods(bounds, joined, threshold - ROUNDING)
        skipped.append(f"Similar pictures were sought within {cells:,} neighborhoods; pairs across borders are missed.")
    similar = _groups(joined.all(), stricter)

    def named(groups: list[list[int]]) -> tuple[tuple[str, ...], ...]:
        return tuple(sorted(tuple(facts.ids[place] for place in group) for group in groups))

    return Duplicates(
        facts.identical,
        named(found.groups),
        named([sorted(group, key=lambda each: (facts.ids[each] not in facts.described, each)) for group in similar]),
        tuple(skipped),
        found.unread,
    )


class _Neighbors:
    """What each picture is paired with."""

    def __init__(self, pairs: Int64[np.ndarray, "pairs 2"], count: int) -> None:
        both = np.concatenate([pairs, pairs[:, ::-1]])
        both = both[in_order(both[:, 0])]
        self._others, self._ends = both[:, 1], np.searchsorted(both[:, 0], np.arange(count + 1))

    def of(self, number: int) -> Int64[np.ndarray, " others"]:
        """Numbers of the pictures paired with this one."""
        return self._others[self._ends[number] : self._ends[number + 1]]


@dataclass(frozen=True)
class NearIdentical:
    """Groups of near-identical pictures, the one to keep first, and how many pictures could not be read."""

    groups: list[list[int]]
    unread: int


def near_identical_groups(
    pairs: Int64[np.ndarray, "pairs 2"],
    pictures: Callable[[Sequence[int]], Sequence[Callable[[], ImageLike]]],
    prefer: Mapping[int, tuple[object, ...]],
) -> NearIdentical:
    """Group pictures around the one to keep: every other member is near-identical to that one.

    Args:
        pairs: which pictures to compare, by number.
        pictures: finds pictures by number; each result decodes one, or raises `BrokenImageError`.
        prefer: sort key of each picture; of equal first entries, color is kept before gray, more pixels before fewer.
    """
    places = np.unique(pairs)
    sketches = Sketches.empty(len(places))
    readable = np.zeros(len(places), dtype=bool)
    order: list[tuple[tuple[object, ...], int]] = []
    unread = 0
    prepared = lru_cache(_PREPARED)(lambda place: PreparedPicture(pictures([place])[0]()))
    with progress("read pictures", len(places), "pictures") as counter:
        found = (
            each for start in range(0, len(places), _AT_ONCE) for each in pictures(places[start:][:_AT_ONCE].tolist())
        )
        for number, (place, read) in enumerate(zip(places.tolist(), found, strict=True)):
            counter.advance(1)
            try:
                picture = read()
            except BrokenImageError:
                unread += 1
                continue
            if isinstance(picture, np.ndarray) and picture.ndim != 3:
                continue  # a vector of a generated world
            small = PreparedPicture(picture)
            sketches.put(number, small.square(EDGE), small.gray)
            readable[number] = True
            key = prefer[place]
            order.append(((key[0], small.gray, -small.width * small.height, *key[1:]), number))
    near = _Neighbors(np.searchsorted(places, pairs), len(places))
    groups, taken = list[list[int]](), set[int]()
    with progress("compare pixels", len(order), "pictures") as counter:
        for _, number in sorted(order):
            counter.advance(1)
            if number in taken:
                continue
            taken.add(number)
            others = [each for each in near.of(number).tolist() if readable[each] and each not in taken]
            likely = np.array(others, dtype=np.int64)
            likely = likely[sketches.may_be_near_identical(number, likely)]
            if not len(likely):
                continue
            kept = int(places[number])
            try:
                same = [each for each in likely.tolist() if near_identical(prepared(kept), prepared(int(places[each])))]
            except BrokenImageError:  # deleted meanwhile
                continue
            taken.update(same)
            if same:
                groups.append([kept, *places[same].tolist()])
    return NearIdentical(groups, unread)


def candidate_pairs(
    hashes: UInt64[np.ndarray, " pictures"], vectors: Float32[np.ndarray, "pictures width"], everything: bool = True
) -> tuple[Int64[np.ndarray, "pairs 2"], bool]:
    """Pictures that may show the same: those with near hashes, and neighbors by embedding.

    Args:
        hashes: perceptual hashes as numbers, 0 where unknown.
        vectors: image embeddings, none of them zero.
        everything: compare all hashes, however many are near.

    Returns:
        Pairs of numbers, and whether some were skipped.
    """
    found = [np.empty((0, 2), dtype=np.int64)]
    known = np.flatnonzero(hashes)
    rows = known[in_order(hashes[known])]
    distinct, first, counts = np.unique(hashes[rows], return_index=True, return_counts=True)
    total, cut = 0, False
    for one, other, some in _near_or_equal(distinct, counts, everything):
        cut |= some
        for ours, theirs in _each_with_each(first[one], counts[one], first[other], counts[other]):
            total += len(ours)
            if total > MOST_PAIRS and not everything:
                cut = True
                break
            found.append(np.stack([rows[ours], rows[theirs]], axis=1))
    k = min(NEIGHBORS + 1, len(vectors))
    unit = np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)
    for start in range(0, len(unit), 8192):
        block = exact_neighbours(unit[start : start + 8192], unit, k)
        near = np.asarray(block.scores) >= LEAST_COSINE
        row, column = np.nonzero(near)
        found.append(np.stack([row + start, np.asarray(block.rows)[row, column]], axis=1))
    pairs = np.sort(np.concatenate(found), axis=1)
    return np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0), cut


@dataclass(frozen=True)
class _Facts:
    """Pictures with a vector, in one order; ``sizes`` are bytes, ``described`` have a caption or a user's label."""

    ids: list[str]
    sizes: list[int]
    hashes: UInt64[np.ndarray, " pictures"]
    vectors: Float32[np.ndarray, "pictures width"]
    described: set[str]
    identical: tuple[tuple[str, ...], ...]

    @classmethod
    def read(cls, index: IndexContents) -> "_Facts":
        ids, hashes, sizes = list[str](), list[str](), list[int]()
        described = annotations.labelled_ids(index.annotations)
        identical = list[tuple[str, ...]]()
        for table in index.store.scan(["id", "phash", "captions", "files"]):
            ids += table["id"].to_pylist()
            hashes += table["phash"].to_pylist()
            rows = zip(table["id"].to_pylist(), table["captions"].to_pylist(), table["files"].to_pylist(), strict=True)
            for id, captions, files in rows:
                if captions:
                    described.add(id)
                sizes.append(max((file["size"] or 0 for file in files), default=0))
                names = dict.fromkeys(file["path"] or f"{file['source']}:{file['key']}" for file in files)
                if len(names) > 1:
                    identical.append(tuple(names))
        vectors = index.vectors()
        if len(vectors) != len(ids):  # a store without versions
            raise UserError(f"{index.address}: pictures were deleted while it was read. Try again.")
        has = vectors.any(axis=1)
        chosen = np.flatnonzero(has).tolist()
        return cls(
            [ids[place] for place in chosen],
            [sizes[place] for place in chosen],
            phash_numbers([hashes[place] for place in chosen]),
            vectors if has.all() else vectors[has],
            described,
            tuple(sorted(identical)),
        )


def _near_or_equal(
    distinct: np.ndarray, counts: np.ndarray, everything: bool
) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """Each hash that several pictures share with itself, then pairs of near hashes."""
    several = np.flatnonzero(counts > 1)
    yield several, several, False
    yield from near_hashes(distinct, HASH_BITS, None if everything else MOST_HASHES)


def _each_with_each(
    first: np.ndarray, many: np.ndarray, other_first: np.ndarray, other_many: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Each place of one run with each place of another, run by run."""
    numbers = np.arange(len(first))
    for run, place in runs(numbers, np.zeros_like(numbers), many * other_many):
        one, other = np.divmod(place, other_many[run])
        yield first[run] + one, other_first[run] + other


def _groups(roots: np.ndarray, stricter: np.ndarray) -> list[list[int]]:
    """Connected pictures, unless a stricter level connects all of them."""
    order = in_order(roots)
    edges = np.flatnonzero(np.diff(roots[order], prepend=-1, append=-1))
    several = np.flatnonzero(np.diff(edges) > 1)
    parts = (order[edges[each] : edges[each + 1]] for each in several.tolist())
    return [part.tolist() for part in parts if (stricter[part] != stricter[part[0]]).any()]
