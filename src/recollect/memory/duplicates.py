"""Duplicates: identical pictures, near-identical ones (decided on pixels), and similar ones (by embedding)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from recollect.core.errors import UserError
from recollect.core.types import ImageLike
from recollect.index.duplicates import candidate_pairs, near_identical_groups
from recollect.index.near_pairs import Bounds, DisjointSets, join_all, join_neighbourhoods
from recollect.index.phash import phash_numbers
from recollect.memory.lookup import ROUNDING
from recollect.memory.naming import LABELLED, is_label_column
from recollect.memory.rows import picture_of
from recollect.memory.store import NEAR, Memory

Level = Literal["identical", "near-identical", "similar"]
LEVELS: tuple[Level, ...] = ("identical", "near-identical", "similar")


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
        looks.append(phash_numbers([batch["look"][place] for place in new]))
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


def _groups(roots: np.ndarray, stricter: np.ndarray) -> list[list[int]]:
    """Pictures that hang together, where stricter levels leave some of them apart."""
    order = np.argsort(roots, kind="stable")
    edges = np.flatnonzero(np.diff(roots[order], prepend=-1, append=-1))
    several = np.flatnonzero(np.diff(edges) > 1)
    parts = (order[edges[each] : edges[each + 1]] for each in several.tolist())
    return [part.tolist() for part in parts if (stricter[part] != stricter[part[0]]).any()]
