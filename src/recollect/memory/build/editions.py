"""What a memory holds already: of an earlier edition of a source, and of anything that is the same or nearly so."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from recollect.core.nearest import exact_neighbours
from recollect.memory.build.reading import ROWS_AT_ONCE, Reader
from recollect.memory.build.report import BuildOptions, BuildReport
from recollect.memory.lookup import ROUNDING
from recollect.memory.rows import Pairs, further_id, picture_of
from recollect.memory.store import Memory


@dataclass
class Edition:
    """What a memory holds of a source before it is read again.

    Attributes:
        rows: for each picture the ids of its rows, with the stamp of the sample that each was made of.
        last: the last sample of this very edition that became a row, or −1.
        older: whether rows of another edition are there.
        seen: rows that this edition has.
        elsewhere: rows whose pictures are files in another place than the source lies in now.
        moves: the file, or None, in which this edition has the pictures of such rows.
        held: by the digests of pixels that were asked for, the pictures of which there are rows.
    """

    rows: dict[str, dict[str, str]] = field(default_factory=dict)
    last: int = -1
    older: bool = False
    seen: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)
    moves: dict[str, str | None] = field(default_factory=dict)
    held: dict[str, set[str]] = field(default_factory=dict)
    _changed: set[str] = field(default_factory=set)
    _placed: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, memory: Memory, reader: Reader, digests: Collection[str] = ()) -> "Edition":
        """From the rows of the source's name.

        Args:
            digests: of pixels; which rows have them is to be known.
        """
        edition = cls()
        names = ("id", "stamp", "origin", "ordinal", "place", "path", "digest")
        for batch in memory.columns(names, source=reader.called):
            for id, stamp, origin, ordinal, place, path, digest in zip(*(batch[name] for name in names), strict=True):
                if digest in digests:
                    edition.held.setdefault(digest, set()).add(picture_of(id))
                if path and place != reader.place:
                    edition.elsewhere.add(id)
                edition.rows.setdefault(picture_of(id), {})[id] = stamp
                if origin == reader.origin:
                    edition.last = max(edition.last, ordinal)
                else:
                    edition.older = True
        return edition

    @property
    def stamps(self) -> dict[str, frozenset[str]]:
        """Of the rows of each picture."""
        return {picture: frozenset(rows.values()) for picture, rows in self.rows.items()}

    def start(self, stop: int, whole_commits: bool) -> int:
        """The first sample to read, where a block begins; ``stop`` where nothing is left."""
        if self.older or self.elsewhere or self.last < 0:
            return 0
        if self.last + 1 >= stop:
            return stop
        # A block that is there in part (a limit was raised, or a commit was cut) is looked at again.
        whole = whole_commits and (self.last + 1) % ROWS_AT_ONCE == 0
        return (self.last // ROWS_AT_ONCE + whole) * ROWS_AT_ONCE

    def has(self, id: str) -> bool:
        """Whether a row of this id was there."""
        return id in self.rows.get(picture_of(id), ())

    def confirm(self, picture: str, stamp: str, path: str | None = None) -> list[str] | None:
        """Note that a sample is as it was, and in which file it lies.

        Returns:
            Its rows that are noted for the first time; None where one of them was replaced meanwhile.
        """
        ids = [id for id, each in self.rows[picture].items() if each == stamp]
        if self._changed.intersection(ids):
            return None
        fresh = [id for id in ids if id not in self.seen]
        self.seen.update(fresh)
        self.moves |= {id: path for id in fresh if id in self.elsewhere}
        return fresh

    def numbered(self, pairs: Pairs) -> Pairs:
        """Rows with ids of their own: those of one picture are numbered in the order in which they come."""
        ids = []
        for picture in pairs.ids:
            number = 0
            while (id := further_id(picture, number)) in self.seen:
                number += 1
            self.seen.add(id)
            if self.has(id):
                self._changed.add(id)
            ids.append(id)
        self._placed.update(digest for digest in pairs.digests if digest in self.held)
        return replace(pairs, ids=ids)

    def stays(self, digest: str) -> bool:
        """Whether this edition has a picture with these pixels, which were asked for, beside those that stay away."""
        pictures = self.held.get(digest, ())
        return digest in self._placed or any(
            id in self.seen and id not in self._changed for each in pictures for id in self.rows[each]
        )

    def gone(self) -> list[str]:
        """Rows that this edition, once it was read whole, has not."""
        return [id for ids in self.rows.values() for id in ids if id not in self.seen]


class Deduplicator:
    """Leaves out rows that are there already.

    Rows of an earlier edition of the source count as there only once this edition was seen to have them.

    Args:
        memory: what is there.
        options: what counts as being there.
        edition: of the source that is read.
    """

    def __init__(self, memory: Memory, options: BuildOptions, edition: Edition) -> None:
        self.memory, self.options, self.edition = memory, options, edition
        self.exact: Counter[tuple[str, str]] = Counter()
        self.images: list[np.ndarray] = []
        names = ["digest", "caption"] * options.same + ["image_vector"] * (options.near is not None)
        self._own: dict[str, tuple[tuple[str, str], np.ndarray | None]] = {}
        for batch in memory.columns(["id", *names]) if names and len(memory) else ():
            self._remember_rows(batch)

    def sift(self, pairs: Pairs, report: BuildReport) -> Pairs:
        """The rows that are new or changed; the others are counted."""
        known = [row for row, id in enumerate(pairs.ids) if self.edition.has(id)]
        fresh = [row for row, id in enumerate(pairs.ids) if not self.edition.has(id)]
        if self.options.same:
            kept = []
            for row in fresh:
                if self.exact[self._key(pairs, row)] == 0:
                    kept.append(row)
                    self.exact[self._key(pairs, row)] += 1
            report.same += len(fresh) - len(kept)
            fresh = kept
            for row in known:
                self.exact[self._key(pairs, row)] += 1
        if self.options.near is not None and fresh:
            far = self._far(pairs.image_vectors[fresh], self.options.near)
            report.near += len(fresh) - len(far)
            fresh = [fresh[row] for row in far]
        taken = pairs.take(sorted(known + fresh))
        if self.options.near is not None and len(taken):
            self._remember(taken.image_vectors)
        return taken

    def confirm(self, id: str) -> None:
        """Let a row that has not changed count as there."""
        key, vector = self._own.pop(id, (None, None))
        if key is not None:
            self.exact[key] += 1
        if vector is not None:
            self._remember(vector[None])

    @staticmethod
    def _key(pairs: Pairs, row: int) -> tuple[str, str]:
        return (pairs.digests[row], pairs.captions[row])

    def _remember_rows(self, batch: dict[str, Any]) -> None:
        count = len(batch["id"])
        keys = list(zip(batch["digest"], batch["caption"], strict=True)) if self.options.same else [("", "")] * count
        vectors = batch.get("image_vector")
        own = [row for row, id in enumerate(batch["id"]) if self.edition.older and self.edition.has(id)]
        for row in own:
            self._own[batch["id"][row]] = (keys[row], None if vectors is None else np.array(vectors[row]))
        others = np.setdiff1d(np.arange(count), own)
        self.exact.update(keys[row] for row in others.tolist())
        if vectors is not None and len(others):
            self._remember(vectors[others])

    def _far(self, vectors: np.ndarray, threshold: float) -> list[int]:
        """Rows that are near to nothing seen before, nor to an earlier row that is kept."""
        threshold -= ROUNDING
        seen = [exact_neighbours(vectors, part, 1).scores[:, 0] for part in self.images if len(part)]
        near = np.max(seen, axis=0) >= threshold if seen else np.zeros(len(vectors), dtype=bool)
        alike = vectors @ vectors.T >= threshold
        kept: list[int] = []
        for row in np.flatnonzero(~near):
            if not alike[row, kept].any():
                kept.append(int(row))
        return kept

    def _remember(self, vectors: np.ndarray) -> None:
        """Parts of doubling size, so that a search makes few products and nothing is copied often."""
        self.images.append(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))  # rounding changes norms
        while len(self.images) > 1 and len(self.images[-2]) <= 2 * len(self.images[-1]):
            last = self.images.pop()
            self.images[-1] = np.concatenate([self.images[-1], last])
