"""Duplicates: identical pictures, near-identical ones (decided on pixels), and similar ones (by embedding)."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
from jaxtyping import Int64

from recollect.core.errors import UserError
from recollect.core.nearest import exact_neighbours
from recollect.core.progress import progress
from recollect.core.types import ImageLike
from recollect.data.sources.images import BrokenImageError
from recollect.memory.build.looks import expanded, looks_array, near_looks
from recollect.memory.lookup import ROUNDING
from recollect.memory.naming import LABELLED, is_label_column
from recollect.memory.near_pairs import Bounds, DisjointSets, join_all, join_neighbourhoods
from recollect.memory.rows import picture_of
from recollect.memory.same_picture import PreparedPicture, near_identical, worth_comparing
from recollect.memory.store import NEAR, Memory

Level = Literal["identical", "near-identical", "similar"]
LEVELS: tuple[Level, ...] = ("identical", "near-identical", "similar")

LOOK_BITS = 7
"""Pictures whose perceptual hashes differ in at most this many bits are compared, pixel by pixel."""

NEIGHBORS, LEAST_COSINE = 8, 0.9
"""So are pictures with their nearest neighbors by embedding, down to this cosine."""

MOST_HASHES, MOST_PAIRS = 3 * 10**9, 10**7
"""Comparisons of hashes, and pairs of pictures with near hashes, beyond which `find_duplicates` skips some unless it
has to compare everything."""

_PREPARED = 256  # pictures kept in memory, about 200 KB each


@dataclass(frozen=True)
class Duplicates:
    """Groups of pictures, by level. Identical pictures appear once, by the first of them, in groups of wider levels.

    Attributes:
        groups: for each level its groups of ids, one for each picture. The first of a group is the one to keep: one
            with a caption or a label of the user's where there is one, then color before gray, then the largest. In the
            first two levels every other picture of a group was compared with it.
        further: other rows of a picture in a group, for its further captions, by the id that the group has.
        left_out: what was not compared, a sentence each.
        unread: pictures with near neighbors that could not be read, and whose pixels were not compared.
    """

    groups: dict[Level, list[list[str]]] = field(default_factory=dict)
    further: Mapping[str, Sequence[str]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    unread: int = 0

    def spare(self, level: Literal["identical", "near-identical"]) -> list[str]:
        """Rows of all but the first picture of each group, of a level and of those that are stricter."""
        wider = LEVELS[: LEVELS.index(level) + 1]
        ids = dict.fromkeys(id for each in wider for group in self.groups.get(each, []) for id in group[1:])
        return [row for id in ids for row in (id, *self.further.get(id, ()))]


def find_duplicates(memory: Memory, threshold: float = NEAR, everything: bool = True) -> Duplicates:
    """Compare the pictures of a memory with one another.

    Pictures are *identical* if their decoded pixels are equal, *near-identical* if `same_picture.near_identical` says
    so, and *similar* if their embeddings agree to ``threshold``. Only pictures with near hashes or embeddings are
    decoded. Rows of one picture with several captions are no duplicates.

    Args:
        memory: what is searched.
        threshold: cosine from which two pictures count as similar.
        everything: compare all embeddings with all: hours for millions. Otherwise similar pictures are looked for among
            those that are near to the same centers (`join_neighbourhoods`).

    Raises:
        UserError: a threshold outside of (0, 1].
    """
    if not 0 < threshold <= 1:
        raise UserError(f"--threshold {threshold}: a cosine lies above 0 and at most at 1")
    memory = memory.snapshot() if memory.backend.whole_commits else memory
    facts = _facts(memory)
    count = len(facts.pictures)
    if not count:
        return Duplicates({level: [] for level in LEVELS})
    vectors, left_out = _vectors(memory, facts), list[str]()
    identical = DisjointSets(count)
    _join_equal(identical, facts.content)
    _join_equal(identical, facts.digests)
    groups: dict[Level, list[list[int]]] = {"identical": _groups(identical.all(), np.arange(count))}
    groups["identical"] = [facts.ordered(group) for group in groups["identical"]]
    first = np.arange(count)
    for group in groups["identical"]:
        first[group] = group[0]
    pairs, cut = candidate_pairs(facts.looks, vectors, everything)
    if cut:
        left_out.append("of pictures whose perceptual hashes are near to those of thousands, not all were compared")
    pairs = np.unique(np.sort(first[pairs], axis=1), axis=0)

    def read(place: int) -> ImageLike:
        (item,) = memory.fetch([facts.ids[place]])
        return item.read()

    prefer = {place: (place not in facts.said, facts.pictures[place]) for place in np.unique(pairs).tolist()}
    found = near_identical_groups(pairs[pairs[:, 0] != pairs[:, 1]], read, prefer)
    groups["near-identical"] = found.groups
    joined = DisjointSets(count)
    for group in groups["identical"] + found.groups:
        joined.join(np.array(group[1:]), np.full(len(group) - 1, group[0]))
    stricter = joined.all()
    bounds = Bounds(vectors, threshold)
    if everything:
        join_all(bounds, joined, threshold - ROUNDING)
    else:
        cells = join_neighbourhoods(bounds, joined, threshold - ROUNDING)
        left_out.append(
            f"similar ones were looked for within {cells:,} neighbourhoods, and a few on their borders may be missing"
        )
    groups["similar"] = [facts.ordered(group) for group in _groups(joined.all(), stricter)]
    named = {level: sorted([facts.ids[each] for each in group] for group in found) for level, found in groups.items()}
    grouped = {each for found in groups.values() for group in found for each in group}
    further = {facts.ids[each]: facts.further[each] for each in grouped if each in facts.further}
    return Duplicates(named, further, tuple(left_out), found.unread)


@dataclass(frozen=True)
class NearIdentical:
    """Groups of near-identical pictures, the one to keep first, and how many pictures could not be read."""

    groups: list[list[int]]
    unread: int


def near_identical_groups(
    pairs: Int64[np.ndarray, "pairs 2"],
    read: Callable[[int], ImageLike],
    prefer: Mapping[int, tuple[object, ...]],
) -> NearIdentical:
    """Group pictures around the one that stays: every other member is near-identical to that one.

    Args:
        pairs: which pictures to compare, by number.
        read: decodes a picture; may raise `BrokenImageError`.
        prefer: sort key of each picture; of equal first entries, color is kept before gray and large before small.
    """
    places = np.unique(pairs).tolist()
    sketches: dict[int, np.ndarray] = {}
    order: list[tuple[tuple[object, ...], int]] = []
    unread = 0
    prepared = lru_cache(_PREPARED)(lambda place: PreparedPicture(read(place)))
    with progress("compare pixels", len(places), "pictures") as counter:
        for place in places:
            counter.advance(1)
            try:
                picture = read(place)
            except BrokenImageError:
                unread += 1
                continue
            if isinstance(picture, np.ndarray) and picture.ndim != 3:
                continue  # a vector of a made world
            small = PreparedPicture(picture)
            sketches[place] = small.sketch
            key = prefer[place]
            order.append(((key[0], small.gray, -small.width * small.height, *key[1:]), place))
    near: dict[int, list[int]] = {}
    for one, other in pairs.tolist():
        if one in sketches and other in sketches and worth_comparing(sketches[one], sketches[other]):
            near.setdefault(one, []).append(other)
            near.setdefault(other, []).append(one)
    groups, taken = list[list[int]](), set[int]()
    with progress("compare pixels", len(order), "pictures") as counter:
        for _, place in sorted(order):
            counter.advance(1)
            others = [other for other in near.get(place, ()) if other not in taken]
            if place in taken or not others:
                continue
            taken.add(place)
            try:
                members = [other for other in others if near_identical(prepared(place), prepared(other))]
            except BrokenImageError:  # removed meanwhile
                continue
            taken.update(members)
            if members:
                groups.append([place, *members])
    return NearIdentical(groups, unread)


def candidate_pairs(
    looks: np.ndarray, vectors: np.ndarray, everything: bool = True
) -> tuple[Int64[np.ndarray, "pairs 2"], bool]:
    """Pictures that may be the same: those with near hashes, and neighbors by embedding.

    Args:
        looks: perceptual hashes as numbers, 0 where unknown.
        vectors: (pictures, width) image embeddings.
        everything: do not cut, however many hashes are near.

    Returns:
        Pairs of numbers, and whether some were left out.
    """
    found = [np.empty((0, 2), dtype=np.int64)]
    known = np.flatnonzero(looks)
    rows = known[np.argsort(looks[known], kind="stable")]
    distinct, first, counts = np.unique(looks[rows], return_index=True, return_counts=True)
    total, cut = 0, False
    for one, other, some in _near_hashes(distinct, counts, everything):
        cut |= some
        for ours, theirs in _placed(first[one], counts[one], first[other], counts[other]):
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
    """Of pictures, each by its first row: its id, and what tells it from others.

    ``content`` and ``digests`` are empty where unknown; ``said`` has the numbers of those with a caption or a label.
    """

    ids: list[str]
    pictures: list[str]
    content: np.ndarray
    digests: np.ndarray
    looks: np.ndarray
    said: set[int]
    further: dict[int, list[str]]

    def ordered(self, group: list[int]) -> list[int]:
        """What somebody has worked at comes first."""
        return sorted(group, key=lambda each: (each not in self.said, self.pictures[each]))


def _facts(memory: Memory) -> _Facts:
    number: dict[str, int] = {}
    ids, said, further = list[str](), set[int](), dict[int, list[str]]()
    content, digests, looks = [np.empty(0, "S1")], [np.empty(0, "S1")], [np.empty(0, np.uint64)]
    for batch in memory.columns(["id", "stamp", "digest", "look", "has_text", "metadata"]):
        new = []
        for place, (id, has_text, metadata) in enumerate(
            zip(batch["id"], batch["has_text"], batch["metadata"], strict=True)
        ):
            picture = picture_of(id)
            own = number.setdefault(picture, len(ids))
            if own == len(ids):
                ids.append(id)
                new.append(place)
            else:
                further.setdefault(own, []).append(id)
            if has_text or (LABELLED in metadata and any(is_label_column(key) for key in json.loads(metadata))):
                said.add(own)
        content.append(np.array([batch["stamp"][place].partition("-")[0].encode() for place in new], dtype=np.bytes_))
        digests.append(np.array([batch["digest"][place].encode() for place in new], dtype=np.bytes_))
        looks.append(looks_array([batch["look"][place] for place in new]))
    arrays = np.concatenate(content), np.concatenate(digests), np.concatenate(looks)
    return _Facts(ids, list(number), *arrays, said, further)


def _vectors(memory: Memory, facts: _Facts) -> np.ndarray:
    """The image vector of each picture; those of the memory itself, where they come in this order."""
    ids, vectors = memory.matrix("image")
    if ids == facts.ids:
        return vectors
    row_of = {id: row for row, id in enumerate(ids)}
    if not row_of.keys() >= set(facts.ids):  # of a store that keeps no versions
        raise UserError(f"{memory.address}: rows were removed while it was read. Ask again.")
    return np.asarray(vectors[[row_of[id] for id in facts.ids]])


def _join_equal(joined: DisjointSets, keys: np.ndarray) -> None:
    """Join what has one key; an empty one is none."""
    known = np.flatnonzero(keys != b"")
    order = known[np.argsort(keys[known], kind="stable")]
    equal = keys[order[1:]] == keys[order[:-1]]
    joined.join(order[:-1][equal], order[1:][equal])


def _near_hashes(
    distinct: np.ndarray, counts: np.ndarray, everything: bool
) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """Each hash that several share with itself, and pairs of hashes."""
    several = np.flatnonzero(counts > 1)
    yield several, several, False
    yield from near_looks(distinct, LOOK_BITS, None if everything else MOST_HASHES)


def _placed(
    first: np.ndarray, many: np.ndarray, other_first: np.ndarray, other_many: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Each place of one run with each of another, run by run."""
    runs = np.arange(len(first))
    for run, place in expanded(runs, np.zeros_like(runs), many * other_many):
        one, other = np.divmod(place, other_many[run])
        yield first[run] + one, other_first[run] + other


def _groups(roots: np.ndarray, stricter: np.ndarray) -> list[list[int]]:
    """Pictures that hang together, where stricter levels leave some of them apart."""
    order = np.argsort(roots, kind="stable")
    edges = np.flatnonzero(np.diff(roots[order], prepend=-1, append=-1))
    several = np.flatnonzero(np.diff(edges) > 1)
    parts = (order[edges[each] : edges[each + 1]] for each in several.tolist())
    return [part.tolist() for part in parts if (stricter[part] != stricter[part[0]]).any()]
