"""Duplicates in three levels, each apart: the same file, the same picture encoded again, and similar shots."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from recollect.core.errors import UserError
from recollect.memory.build.looks import expanded, looks_array, near_looks
from recollect.memory.lookup import ROUNDING
from recollect.memory.naming import LABELLED, is_label_column
from recollect.memory.near_pairs import (
    Bounds,
    DisjointSets,
    join_all,
    join_between,
    join_neighbourhoods,
    join_pairs,
    kept_apart,
)
from recollect.memory.rows import picture_of
from recollect.memory.store import NEAR, Memory

Level = Literal["same", "encoded", "similar"]
LEVELS: tuple[Level, ...] = ("same", "encoded", "similar")

LOOK_BITS = 6
"""Bits of 64 in which the perceptual hashes of one picture, encoded or resized again, may differ."""

LOOK_COSINE = 0.95
"""And the cosine that its embedding keeps: a hash alone takes two plain pictures for one."""

_SHARED = 4_096
"""Pairs of pictures with two given hashes from which they are compared by matrices."""

MOST_HASHES, MOST_SHARING = 3 * 10**9, 3 * 10**9
"""Comparisons of hashes, and of pictures whose hashes are near, from which `find_duplicates` leaves some out when it
need not compare all."""


@dataclass(frozen=True)
class Duplicates:
    """Groups of pictures, by level; a group of a level joins pictures that no stricter level does.

    Attributes:
        groups: for each level its groups of ids, one for each picture, each sorted: first those with a caption or a
            label of the page's, which are work of somebody's; the first of a group is the one to keep.
        further: other rows of a picture in a group, for its further captions, by the id that the group has.
        find_unlike: finds those of similar groups that are similar to none before them that stays.
        left_out: what was not compared, a sentence each.
    """

    groups: dict[Level, list[list[str]]] = field(default_factory=dict)
    further: Mapping[str, Sequence[str]] = field(default_factory=dict)
    find_unlike: Callable[[], frozenset[str]] = frozenset
    left_out: tuple[str, ...] = ()

    @cached_property
    def unlike(self) -> frozenset[str]:
        """Ids of similar groups that stay, beside the first: none that stays is similar to them."""
        return self.find_unlike()

    def spare(self, level: Level) -> list[str]:
        """All but the first of each group of a level and of those that are stricter.

        Similarity is handed on from picture to picture, and the ends of a long series are not alike: of similar shots
        only those can be spared that are similar to one that stays.
        """
        spare: list[str] = []
        covered: set[str] = set()
        for each in reversed(LEVELS[: LEVELS.index(level) + 1]):  # wide groups hold the stricter ones
            for group in self.groups.get(each, []):
                if covered.isdisjoint(group):
                    spare += [id for id in group[1:] if each != "similar" or id not in self.unlike]
                    covered.update(group)
        return [row for id in spare for row in (id, *self.further.get(id, ()))]


def find_duplicates(memory: Memory, threshold: float = NEAR, everything: bool = True) -> Duplicates:
    """Compare the pictures of a memory with one another, in memory that grows with the rows alone, not with groups.

    Two pictures are the *same* where the encoded bytes are; the same picture *encoded* again where the decoded pixels
    are the same, or perceptual hashes differ in at most `LOOK_BITS` and embeddings agree to `LOOK_COSINE`; and
    *similar* where embeddings agree to ``threshold``. Rows of one picture with several captions are no duplicates.

    Args:
        memory: what is searched.
        threshold: cosine from which two pictures count as similar.
        everything: compare all pictures with all: hours for millions. Else similar ones are looked for among those
            that are near to the same centres (`join_neighbourhoods`), and what was left out is said; the same files,
            and those encoded again, are all found but where thousands share a hash.

    Raises:
        UserError: a threshold outside of (0, 1].
    """
    if not 0 < threshold <= 1:
        raise UserError(f"--threshold {threshold}: a cosine lies above 0 and at most at 1")
    memory = memory.snapshot() if memory.backend.whole_commits else memory
    facts = _facts(memory)
    if not len(facts.pictures):
        return Duplicates({level: [] for level in LEVELS})
    bounds, joined, left_out = (
        Bounds(_vectors(memory, facts), threshold),
        DisjointSets(len(facts.pictures)),
        list[str](),
    )
    groups: dict[Level, list[list[int]]] = {}
    _join_equal(joined, facts.content)
    groups["same"] = _groups(joined.all(), np.arange(len(facts.pictures)))
    stricter = joined.all()
    _join_equal(joined, facts.digests)
    if _join_encoded(bounds, joined, facts.looks, everything):
        left_out.append("of pictures whose perceptual hashes are near to those of thousands, not all were compared")
    groups["encoded"] = _groups(joined.all(), stricter)
    stricter = joined.all()
    if everything:
        join_all(bounds, joined, threshold - ROUNDING)
    else:
        count = join_neighbourhoods(bounds, joined, threshold - ROUNDING)
        left_out.append(
            f"similar ones were looked for within {count:,} neighbourhoods, and a few on their borders may be missing"
        )
    groups["similar"] = _groups(joined.all(), stricter)
    ordered = {level: [facts.ordered(group) for group in found] for level, found in groups.items()}

    def unlike() -> frozenset[str]:
        return frozenset(_unlike(bounds, ordered["similar"], stricter, threshold - ROUNDING, facts))

    named = {level: sorted([facts.ids[each] for each in group] for group in found) for level, found in ordered.items()}
    grouped = {each for found in ordered.values() for group in found for each in group}
    further = {facts.ids[each]: facts.further[each] for each in grouped if each in facts.further}
    return Duplicates(named, further, unlike, tuple(left_out))


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


def _join_encoded(bounds: Bounds, joined: DisjointSets, looks: np.ndarray, everything: bool) -> bool:
    """Join pictures whose hashes and embeddings are near; whether some were left out."""
    known = np.flatnonzero(looks)
    rows = known[np.argsort(looks[known], kind="stable")]
    distinct, first, counts = np.unique(looks[rows], return_index=True, return_counts=True)
    shared, cut = 0, False
    for one, other, some in _near_hashes(distinct, counts, everything):
        products = counts[one] * counts[other]
        few, cut = products <= _SHARED, cut or some
        for pairs, place in _placed(first[one[few]], counts[one[few]], first[other[few]], counts[other[few]]):
            join_pairs(bounds, joined, rows[pairs], rows[place], LOOK_COSINE)
        for a, b, product in zip(one[~few].tolist(), other[~few].tolist(), products[~few].tolist(), strict=True):
            shared += product
            if shared > MOST_SHARING and not everything:
                return True
            own, others = (rows[first[each] : first[each] + counts[each]] for each in (a, b))
            join_between(bounds, joined, own, others, LOOK_COSINE)
    return cut


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


def _unlike(
    bounds: Bounds, groups: list[list[int]], doubles: np.ndarray, threshold: float, facts: _Facts
) -> Iterator[str]:
    """Of similar groups, beside the first: pictures that are similar to none before them that stays."""
    for group in groups:
        rows = np.array(group, dtype=np.int64)
        rows = rows[np.sort(np.unique(doubles[rows], return_index=True)[1])]  # of one picture encoded again, the first
        stays = rows[kept_apart(bounds, rows, threshold)]
        yield from (facts.ids[each] for each in stays[1:].tolist())
