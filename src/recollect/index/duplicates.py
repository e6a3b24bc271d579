"""Duplicates in an index: identical files, near-identical pictures (by pixels), and similar pictures (by embedding)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32, Int64, UInt64

from recollect.core.errors import UserError
from recollect.core.ordering import stable_argsort
from recollect.core.progress import progress
from recollect.core.types import ImageLike, best_device
from recollect.core.validation import check_number
from recollect.data.sources.images import BrokenImageError
from recollect.index import annotations
from recollect.index.rows import ROUNDING
from recollect.index.same_picture import PreparedPicture, may_be_near_identical, near_identical, sketch

if TYPE_CHECKING:
    from recollect.index.index import Index

HASH_BITS = 7
"""Pictures whose perceptual hashes differ in at most this many bits are compared by pixels."""

_NEIGHBORS, _MIN_COSINE = 8, 0.9
"""Each picture is also compared by pixels with this many nearest neighbors by embedding, down to this cosine."""

MAX_HASH_PAIRS = 10**7
"""Maximum number of pairs with near hashes that are compared by pixels."""

_STRIPE, _BLOCK = 512, 4_096  # rows and columns of one matrix product
_MAX_PENDING = 2**20  # neighbor pairs collected before they are pruned
_MAX_PREPARED = 64  # pictures cached in memory, at most 4 MB each
_CHUNK = 256


@dataclass(frozen=True)
class Duplicates:
    """Duplicates in an index.

    Attributes:
        identical: files by id, for pictures with several files: the files have equal pixels and share one row.
        near_identical: groups of ids; the first is the picture to keep, and each of the others was compared with it by
            pixels. Pictures with a caption or a user's label are preferred, then color over gray, then the largest.
        similar: groups of ids connected by near embeddings, directly or through other pictures. Groups that equal a
            near-identical group are omitted.
        skipped: one sentence for each comparison that was skipped.
        unread: number of unreadable pictures among the candidates; their pixels were not compared.
    """

    identical: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    near_identical: tuple[tuple[str, ...], ...] = ()
    similar: tuple[tuple[str, ...], ...] = ()
    skipped: tuple[str, ...] = ()
    unread: int = 0

    @property
    def spare(self) -> list[str]:
        """All but the first picture of each near-identical group."""
        return [id for group in self.near_identical for id in group[1:]]

    @cached_property
    def groups(self) -> dict[str, list[tuple[str, ...]]]:
        """Ids of each group by kind, largest first; identical files are one picture, so these groups have one id."""
        identical = sorted(self.identical, key=lambda id: (-len(self.identical[id]), id))
        near, similar = (sorted(each, key=lambda ids: (-len(ids), ids)) for each in (self.near_identical, self.similar))
        return {"identical": [(id,) for id in identical], "near-identical": near, "similar": similar}


def find_duplicates(index: "Index", threshold: float) -> Duplicates:
    """Implement `Index.duplicates`."""
    check_number("--threshold", threshold, above=0, most=1)
    rows, vectors = list(index.store.dicts(["id", "phash", "captions", "files"])), index.vectors()
    if len(vectors) != len(rows):  # a store without versions
        raise UserError(f"{index.address}: pictures were deleted while it was read. Try again.")
    names = {row["id"]: tuple(dict.fromkeys(map(_file_name, row["files"]))) for row in rows}
    identical = {id: files for id, files in names.items() if len(files) > 1}
    has_vector = vectors.any(axis=1)
    rows = [rows[row] for row in np.flatnonzero(has_vector).tolist()]
    if not rows:
        return Duplicates(identical)
    ids = [row["id"] for row in rows]
    labeled = annotations.labeled_ids(index.annotations)
    unannotated = [not row["captions"] and row["id"] not in labeled for row in rows]
    hashes = np.array([int(row["phash"] or "0", 16) for row in rows], dtype=np.uint64)
    near = near_rows(vectors if has_vector.all() else vectors[has_vector], hashes, threshold - ROUNDING)
    prefer = {
        row: (unannotated[row], -max((file["size"] or 0 for file in rows[row]["files"]), default=0), ids[row])
        for row in np.unique(near.pairs).tolist()
    }
    found, unread = near_identical_groups(
        near.pairs, lambda some: [each.open for each in index.pictures([ids[row] for row in some])], prefer
    )
    representative = np.arange(len(ids))  # of each picture's near-identical group
    for group in found:
        representative[group] = group[0]
    groups = _joined(near.groups, representative, np.arange(len(ids)))
    similar = [group for group in _members(groups) if (representative[group] != representative[group[0]]).any()]

    def as_ids(groups: list[list[int]]) -> tuple[tuple[str, ...], ...]:
        return tuple(sorted(tuple(ids[row] for row in group) for group in groups))

    return Duplicates(
        identical,
        as_ids(found),
        as_ids([sorted(group, key=lambda each: (unannotated[each], each)) for group in similar]),
        ("Some pictures with very common perceptual hashes were not compared.",) if near.cut else (),
        unread,
    )


def _file_name(file: Mapping[str, Any]) -> str:
    return file["path"] or f"{file['source']}:{file['key']}"


@dataclass(frozen=True)
class NearRows:
    """Result of `near_rows`.

    Attributes:
        pairs: rows of pictures that may be near-identical: near hashes, or neighbors by embedding.
        groups: group number of each picture; pictures connected by near embeddings share a number.
        cut: whether pairs with near hashes were dropped because there are more than `MAX_HASH_PAIRS`.
    """

    pairs: Int64[np.ndarray, "pairs 2"]
    groups: Int64[np.ndarray, " pictures"]
    cut: bool


def near_rows(
    vectors: Float32[np.ndarray, "pictures width"], hashes: UInt64[np.ndarray, " pictures"], threshold: float
) -> NearRows:
    """Compare all pairs of pictures by embedding and by perceptual hash, in bounded memory.

    Args:
        vectors: nonzero; they are normalized here.
        hashes: 0 if unknown.
        threshold: minimum cosine of similar pictures.
    """
    import torch  # slow to import, and not needed for a search

    count = len(vectors)
    least = np.full(count, np.nextafter(np.float32(_MIN_COSINE), np.float32(0)))
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = torch.from_numpy(np.asarray(vectors / norms, dtype=np.float32)).to(best_device())
    groups = np.arange(count)
    neighbors = np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.float32)
    hashed, cut = [np.empty((0, 2), dtype=np.int64)], False
    with progress("compare pictures", count * (count + 1) / 2e6, "million pairs") as counter:
        for start in range(0, count, _STRIPE):
            stripe = slice(start, min(start + _STRIPE, count))
            for first in range(start, count, _BLOCK):
                block = slice(first, min(first + _BLOCK, count))
                ones, others = _hash_pairs(hashes, stripe, block)
                cut |= sum(map(len, hashed)) + len(ones) > MAX_HASH_PAIRS
                if not cut and len(ones):
                    hashed.append(np.stack([ones, others], axis=1))
                products = unit[stripe] @ unit[block].T
                if float(products.max()) < min(threshold, _MIN_COSINE):
                    continue
                cosines = products.cpu().numpy()
                near = np.nonzero((cosines >= threshold) & (groups[stripe, None] != groups[block]))
                groups = _joined(groups, near[0] + start, near[1] + first)
                close = np.nonzero(cosines > np.minimum(least[stripe, None], least[block]))
                pairs = np.stack([close[0] + start, close[1] + first], axis=1)
                neighbors = np.concatenate([neighbors[0], pairs]), np.concatenate([neighbors[1], cosines[close]])
                if len(neighbors[0]) > _MAX_PENDING:
                    neighbors = _nearest_of_each(*neighbors, least)
            counter.advance((stripe.stop - start) * (count - (start + stripe.stop) / 2) / 1e6)
    pairs = np.concatenate([*hashed, _nearest_of_each(*neighbors, least)[0]])
    return NearRows(np.unique(pairs[pairs[:, 0] < pairs[:, 1]], axis=0), groups, cut)


def _hash_pairs(hashes: np.ndarray, stripe: slice, block: slice) -> tuple[np.ndarray, np.ndarray]:
    """Return the row pairs with near hashes, each pair once."""
    ours, theirs = hashes[stripe, None], hashes[block]
    near = np.bitwise_count(ours ^ theirs) <= HASH_BITS
    ones, others = np.nonzero(near & (ours > 0) & (theirs > 0)) if near.any() else np.zeros((2, 0), dtype=np.int64)
    ones, others = ones + stripe.start, others + block.start
    return ones[ones < others], others[ones < others]


def _joined(groups: np.ndarray, ones: np.ndarray, others: np.ndarray) -> Int64[np.ndarray, " pictures"]:
    """Return the group numbers after merging the groups of each pair."""
    if not len(ones):
        return groups
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count = len(groups)
    edges = coo_array((np.ones(len(ones), dtype=bool), (groups[ones], groups[others])), shape=(count, count))
    return np.asarray(connected_components(edges, directed=False)[1][groups], dtype=np.int64)


def _nearest_of_each(pairs: np.ndarray, cosines: np.ndarray, least: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs in which one picture is among the nearest of the other.

    ``least`` is raised in place to the cosine of each picture's farthest neighbor kept.
    """
    kept = np.zeros(len(pairs), dtype=bool)
    apart = np.flatnonzero(pairs[:, 0] < pairs[:, 1])
    rows, scores = pairs[apart].T.reshape(-1), np.tile(cosines[apart], 2)
    order = np.lexsort((-scores, rows))
    rank = np.arange(len(rows)) - np.searchsorted(rows[order], rows[order])
    best = order[rank < _NEIGHBORS]
    last = order[rank == _NEIGHBORS - 1]
    least[rows[last]] = np.maximum(least[rows[last]], scores[last])
    kept[np.tile(apart, 2)[best]] = True
    return pairs[kept], cosines[kept]


def near_identical_groups(
    pairs: Int64[np.ndarray, "pairs 2"],
    pictures: Callable[[Sequence[int]], Sequence[Callable[[], ImageLike]]],
    prefer: Mapping[int, tuple[object, ...]],
) -> tuple[list[list[int]], int]:
    """Group pictures around a picture to keep, to which all other members are near-identical.

    Args:
        pairs: rows of the pictures to compare.
        pictures: returns a loader per row; a loader decodes the picture, or raises `BrokenImageError`.
        prefer: sort key of each row; ties of the first entry prefer color over gray, then more pixels.

    Returns:
        The groups, each with the picture to keep first; and the number of unreadable pictures.
    """
    rows = np.unique(pairs)
    sketches = np.zeros((len(rows), 32, 32), dtype=np.uint8)
    readable, unread = np.zeros(len(rows), dtype=bool), 0
    order: list[tuple[tuple[object, ...], int]] = []
    prepared = lru_cache(_MAX_PREPARED)(lambda row: PreparedPicture(pictures([row])[0]()))
    with progress("read pictures", len(rows), "pictures") as counter:
        loaders = (each for start in range(0, len(rows), _CHUNK) for each in pictures(rows[start:][:_CHUNK].tolist()))
        for number, (row, load) in enumerate(zip(rows.tolist(), loaders, strict=True)):
            counter.advance(1)
            try:
                picture = load()
            except BrokenImageError:
                unread += 1
                continue
            if isinstance(picture, np.ndarray) and picture.ndim != 3:
                continue  # generated data may consist of vectors
            small = PreparedPicture(picture)
            sketches[number] = sketch(small)
            readable[number] = True
            key = prefer[row]
            order.append(((key[0], small.gray, -small.width * small.height, *key[1:]), number))
    edges = np.searchsorted(rows, np.concatenate([pairs, pairs[:, ::-1]]))
    edges = edges[stable_argsort(edges[:, 0])]
    ends = np.searchsorted(edges[:, 0], np.arange(len(rows) + 1))
    groups, taken = list[list[int]](), set[int]()
    with progress("compare pixels", len(order), "pictures") as counter:
        for _, number in sorted(order):
            counter.advance(1)
            if number in taken:
                continue
            taken.add(number)
            others = edges[ends[number] : ends[number + 1], 1].tolist()
            others = np.array([each for each in others if readable[each] and each not in taken], dtype=np.int64)
            likely = others[may_be_near_identical(sketches[number], sketches[others])].tolist()
            keep = int(rows[number])
            try:
                same = [each for each in likely if near_identical(prepared(keep), prepared(int(rows[each])))]
            except BrokenImageError:  # deleted since it was first read
                continue
            taken.update(same)
            if same:
                groups.append([keep, *rows[same].tolist()])
    return groups, unread


def _members(groups: Int64[np.ndarray, " pictures"]) -> list[list[int]]:
    """Return the rows of each group with several members."""
    order = stable_argsort(groups)
    edges = np.flatnonzero(np.diff(groups[order], prepend=-1, append=-1))
    parts = (order[start:end] for start, end in pairwise(edges) if end - start > 1)
    return [part.tolist() for part in parts]
