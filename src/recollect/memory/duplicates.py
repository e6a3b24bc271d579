"""Duplicates in three levels, each apart: the same file, the same picture encoded again, and similar shots."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from recollect.core.errors import UserError
from recollect.core.progress import progress
from recollect.memory.build.looks import bits_apart, looks_array
from recollect.memory.lookup import ROUNDING
from recollect.memory.naming import LABELLED, is_label_column
from recollect.memory.rows import picture_of
from recollect.memory.store import NEAR, Memory

Level = Literal["same", "encoded", "similar"]
LEVELS: tuple[Level, ...] = ("same", "encoded", "similar")

LOOK_BITS = 6
"""Bits of 64 in which the perceptual hashes of one picture, encoded or resized again, may differ."""

LOOK_COSINE = 0.95
"""And the cosine that its embedding keeps: a hash alone takes two plain pictures for one."""

_QUERIES, _FIRST = 512, 32


@dataclass(frozen=True)
class Duplicates:
    """Groups of rows, by level; a group of a level has at least one pair that no stricter level explains.

    Attributes:
        groups: for each level its groups of ids, one for each picture, each sorted: first those with a caption or a
            label of the page's, which are work of somebody's; the first of a group is the one to keep.
        similar: pairs of pictures, sorted, that are similar shots by themselves; None where all of a group are.
        further: other rows of a picture in a group, for its further captions, by the id that the group has.
    """

    groups: dict[Level, list[list[str]]] = field(default_factory=dict)
    similar: frozenset[tuple[str, str]] | None = None
    further: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def spare(self, level: Level) -> list[str]:
        """All but the first of each group of a level and of those that are stricter.

        Similarity is handed on from picture to picture, and the ends of a long series are not alike: of similar shots
        only those can be spared that are similar to one that stays.
        """
        spare: list[str] = []
        covered: set[str] = set()
        shots = self._spare_shots() if level == "similar" and self.similar is not None else lambda group: group[1:]
        for each in reversed(LEVELS[: LEVELS.index(level) + 1]):  # wide groups hold the stricter ones
            for group in self.groups.get(each, []):
                if covered.isdisjoint(group):
                    spare += group[1:] if each != "similar" else shots(group)
                    covered.update(group)
        return [row for id in spare for row in (id, *self.further.get(id, ()))]

    def _spare_shots(self) -> Callable[[list[str]], list[str]]:
        """Which of a group are similar to one before them that stays."""
        near: dict[str, set[str]] = {}
        for one, other in self.similar or ():
            near.setdefault(one, set()).add(other)
            near.setdefault(other, set()).add(one)
        doubles = set(self.spare("encoded"))

        def spare_of(group: list[str]) -> list[str]:
            kept, spare = set[str](), []
            for id in group:
                picture = picture_of(id)
                if id in doubles or not kept.isdisjoint(near.get(picture, ())):
                    spare.append(id)
                else:
                    kept.add(picture)
            return spare

        return spare_of


def find_duplicates(memory: Memory, threshold: float = NEAR, limit: int | None = None) -> Duplicates:
    """Compare every picture of a memory with its nearest ones, exactly.

    Two rows are the *same* where the encoded bytes are; the same picture *encoded* again where the decoded pixels are
    the same, or perceptual hashes differ in at most `LOOK_BITS` and embeddings agree to `LOOK_COSINE`; and *similar*
    where embeddings agree to ``threshold``. Rows of one picture with several captions are no duplicates.

    Args:
        memory: what is searched.
        threshold: cosine from which two pictures count as similar.
        limit: compare only so many pictures, the first, with all; equal files are found everywhere.

    Raises:
        UserError: a threshold outside of (0, 1].
    """
    if not 0 < threshold <= 1:
        raise UserError(f"--threshold {threshold}: a cosine lies above 0 and at most at 1")
    memory = memory.snapshot() if memory.backend.whole_commits else memory
    ids, facts = _facts(memory)
    levels: dict[Level, list[tuple[int, int]]] = {level: [] for level in LEVELS}
    similar = threshold - ROUNDING
    for one, other, cosine in _near_pairs(memory, ids, min(similar, LOOK_COSINE), limit):
        level = _level(facts, one, other, cosine, similar)
        if level is not None:
            levels[level].append((one, other))
    for same in _equal(facts.content):  # also where a model would not see it, and pictures of no embedding's reach
        levels["same"] += [(same[0], each) for each in same[1:]]
    groups: dict[Level, list[list[str]]] = {}
    edges: list[tuple[int, int]] = []
    for level in LEVELS:
        edges += levels[level]
        groups[level] = _groups(ids, edges, levels[level], facts)
    shots = {tuple(sorted((facts.pictures[one], facts.pictures[other]))) for one, other in levels["similar"]}
    rows: dict[str, list[str]] = {}
    for id, picture in zip(ids, facts.pictures, strict=True):
        rows.setdefault(picture, []).append(id)
    grouped = {id for each in groups.values() for group in each for id in group}
    further = {id: [row for row in rows[picture_of(id)] if row != id] for id in grouped}
    pairs = frozenset((one, other) for one, other in shots)
    return Duplicates(groups, pairs, {id: each for id, each in further.items() if each})


@dataclass(frozen=True)
class _Facts:
    content: list[str]
    digests: list[str]
    looks: np.ndarray
    pictures: list[str]
    said: set[str]


def _facts(memory: Memory) -> tuple[list[str], _Facts]:
    ids, content, digests, looks, said = [], [], [], [], set[str]()
    for batch in memory.columns(["id", "stamp", "digest", "look", "has_text", "metadata"]):
        ids += batch["id"]
        content += [stamp.partition("-")[0] for stamp in batch["stamp"]]
        digests += batch["digest"]
        looks += batch["look"]
        for id, has_text, metadata in zip(batch["id"], batch["has_text"], batch["metadata"], strict=True):
            if has_text or (LABELLED in metadata and any(is_label_column(key) for key in json.loads(metadata))):
                said.add(picture_of(id))
    return ids, _Facts(content, digests, looks_array(looks), [picture_of(id) for id in ids], said)


def _level(facts: _Facts, one: int, other: int, cosine: float, threshold: float) -> Level | None:
    if facts.pictures[one] == facts.pictures[other]:
        return None
    if facts.content[one] and facts.content[one] == facts.content[other]:
        return "same"
    if facts.digests[one] and facts.digests[one] == facts.digests[other]:
        return "encoded"
    looks = facts.looks[[one, other]]
    if looks.all() and cosine >= LOOK_COSINE and bits_apart(looks[:1], looks[1:])[0] <= LOOK_BITS:
        return "encoded"
    return "similar" if cosine >= threshold else None


def _near_pairs(
    memory: Memory, ids: list[str], threshold: float, limit: int | None
) -> Iterator[tuple[int, int, float]]:
    """Pairs of rows (the smaller number first, and below the limit) with at least this cosine, each once."""
    row_of, count = {id: row for row, id in enumerate(ids)}, len(ids) if limit is None else min(limit, len(ids))
    with progress("compare pictures", count, "rows") as counter:
        for start in range(0, count, _QUERIES):
            waiting, k = np.arange(start, min(start + _QUERIES, count)), min(_FIRST, len(ids))
            vectors = memory.vectors([ids[row] for row in waiting.tolist()], "image")
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)  # rounding changes norms
            while len(waiting):
                found = memory.search(vectors, k, exact=True)
                full = (found.scores[:, -1] >= threshold) & (k < len(ids))
                for row, names, scores in zip(
                    waiting[~full].tolist(), found.ids[~full].tolist(), found.scores[~full].tolist(), strict=True
                ):
                    for name, score in zip(names, scores, strict=True):
                        if score >= threshold and row_of[name] > row:
                            yield row, row_of[name], score
                waiting, vectors, k = waiting[full], vectors[full], min(8 * k, len(ids))
            counter.advance(min(_QUERIES, count - start))


def _equal(content: list[str]) -> list[list[int]]:
    places: dict[str, list[int]] = {}
    for row, each in enumerate(content):
        if each:
            places.setdefault(each, []).append(row)
    return [rows for rows in places.values() if len(rows) > 1]


def _groups(ids: list[str], edges: list[tuple[int, int]], own: list[tuple[int, int]], facts: _Facts) -> list[list[str]]:
    """Rows that edges join, where one of the level's own edges takes part; one row for each picture."""
    if not own:
        return []
    ends = np.array(edges).T
    graph = coo_array((np.ones(ends.shape[1]), (ends[0], ends[1])), shape=(len(ids), len(ids)))
    member = connected_components(graph, directed=False)[1]
    groups: dict[int, dict[str, str]] = {int(member[one]): {} for one, _ in own}
    for row in np.unique(ends).tolist():
        if int(member[row]) in groups:
            groups[int(member[row])].setdefault(facts.pictures[row], ids[row])
    kept_first = [sorted(group, key=lambda picture: (picture not in facts.said, picture)) for group in groups.values()]
    named = {picture: id for group in groups.values() for picture, id in group.items()}
    return sorted([named[picture] for picture in group] for group in kept_first if len(group) > 1)
