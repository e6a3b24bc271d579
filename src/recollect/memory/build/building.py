"""Filling a memory from a source: resumable, without what is broken or there already."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from recollect.core.errors import UserError
from recollect.core.nearest import exact_neighbours
from recollect.core.progress import progress
from recollect.core.types import Encoder, caption_prefix
from recollect.data.sources.reading import BROKEN_SHARE, BrokenCounter
from recollect.memory.build.reading import ROWS_AT_ONCE, Reader, ReadOptions, RowBlock
from recollect.memory.lookup import ROUNDING
from recollect.memory.rows import Pairs, Precision, further_id, picture_of
from recollect.memory.store import Memory

COMMIT = 16 * ROWS_AT_ONCE
"""Rows of a commit, at most: what a kill can lose. Small commits make a memory of many small files."""


@dataclass(frozen=True)
class BuildOptions:
    """How a memory is filled.

    Attributes:
        read: how samples become rows.
        limit: read only so many samples of the source.
        same: leave out rows whose picture and caption are there already.
        near: leave out rows whose image has at least this cosine with one that is there (RECO: 0.94); None keeps them.
        broken_share: stop when more than this share of the pictures cannot be read.
    """

    read: ReadOptions = field(default_factory=ReadOptions)
    limit: int | None = None
    same: bool = True
    near: float | None = None
    broken_share: float = BROKEN_SHARE


@dataclass
class BuildReport:
    """What became of the samples of one call.

    Attributes:
        read: samples read.
        added: rows added.
        replaced: rows that were there, and are now as in this edition of the source.
        removed: rows of an earlier edition that this one lacks.
        unchanged: rows that were there as they are.
        same: rows left out, because picture and caption were there already.
        near: rows left out, because a near-duplicate of the image was there already.
        broken: pictures that could not be read.
        wordless: rows added or replaced that have no text.
        earlier: samples that an earlier call had read.
    """

    read: int = 0
    added: int = 0
    replaced: int = 0
    removed: int = 0
    unchanged: int = 0
    same: int = 0
    near: int = 0
    broken: int = 0
    wordless: int = 0
    earlier: int = 0


def open_for_build(address: str | Path, encoder: Encoder, name: str, precision: Precision = "float32") -> Memory:
    """The memory at an address, which is made if nothing is there.

    Raises:
        UserError: something else is there, or a memory of another model.
    """
    fingerprint = encoder.fingerprint
    if not Memory.exists(address):
        return Memory.create(
            address,
            width=encoder.width,
            model=fingerprint,
            model_name=name,
            prefix=caption_prefix(encoder),
            precision=precision,
        )
    memory = Memory.open(address)
    memory.check_encoder(encoder, name)
    return memory


def check_alone(memory: Memory, reader: Reader) -> None:
    """Refuse to build over rows of other sources: only the same source may go on, or a newer edition of it.

    Raises:
        UserError: the memory holds other rows.
    """
    if set(memory.info().sources) - {reader.called}:
        raise UserError(
            f"{memory.address}: holds rows of other sources already. Add to it with `recollect memory add`, "
            "or name another --out."
        )


def check_name(memory: Memory, reader: Reader, given: bool | None = None) -> None:
    """Refuse a source whose name belongs to another one, unless the user gave it that name.

    Args:
        given: whether the user did; by default whether the reader has a name.

    Raises:
        UserError: saying where the other one lies, before anything is embedded.
    """
    places = memory.info().places.get(reader.called)
    if (bool(reader.name) if given is None else given) or places is None or reader.place in places:
        return
    other = f"read from {places[0]}" if places else "added without a source"
    raise UserError(
        f"{memory.address}: holds rows of another source called '{reader.called}' already, {other}. Call this one "
        f"otherwise with --name NAME; or, if it is a newer edition of that one, say so with --name '{reader.called}'."
    )


def fill_memory(
    memory: Memory, reader: Reader, options: BuildOptions, engine: Literal["local", "ray"] = "local"
) -> BuildReport:
    """Embed the samples of a source and add them, from where an earlier call was stopped.

    Rows are added in the source's order and in commits of whole blocks, each there whole or not at all; so the last row
    tells where to go on, and a call that was killed and made again gives the rows of an unbroken one.

    Where the memory holds an earlier edition of the source, pictures that have not changed are not embedded again, rows
    that have are replaced, and those that the source no longer has are removed once it was read to its end.

    Args:
        memory: embedded by the reader's model.
        reader: of the source.
        options: what to leave out.
        engine: embed in this process, or on a Ray cluster.

    Raises:
        UserError: the source's name belongs to another one; or too many broken pictures: whatever was committed before
            stays.
    """
    check_name(memory, reader)
    stop = len(reader.source) if options.limit is None else min(options.limit, len(reader.source))
    edition = Edition.read(memory, reader)
    start = edition.start(stop, memory.backend.whole_commits)
    report = BuildReport(earlier=start)
    if start < stop:
        _fill(memory, replace(reader, known=edition.stamps), (start, stop), options, edition, report, engine)
    if start == 0 and stop == len(reader.source) and (gone := edition.gone()):
        report.removed = memory.delete(gone)
    memory.renew_indexes()
    return report


def _fill(
    memory: Memory,
    reader: Reader,
    span: tuple[int, int],
    options: BuildOptions,
    edition: "Edition",
    report: BuildReport,
    engine: str,
) -> None:
    start, stop = span
    counted, deduplication = BrokenCounter(options.broken_share), Deduplicator(memory, options, edition)
    with progress(f"embed {reader.source.name}", stop, "pairs", start) as counter:
        waiting: list[Pairs] = []
        again: list[int] = []
        for block in _blocks(reader, start, stop, engine):
            count = min(ROWS_AT_ONCE, stop - start - report.read)
            report.read += count
            report.broken += len(block.failures)
            again += _confirm(block, edition, deduplication, report)
            waiting.append(deduplication.sift(edition.numbered(block.pairs), report))
            if sum(map(len, waiting)) + ROWS_AT_ONCE > COMMIT:
                _commit(memory, waiting, report)
                waiting = []
            counted.add(reader.source, count, block.failures)
            counter.advance(count)
        for index in again:
            for block in replace(reader, known={}).blocks(index, index + 1):
                waiting.append(deduplication.sift(edition.numbered(block.pairs), report))
        _commit(memory, waiting, report)


def _confirm(block: RowBlock, edition: "Edition", deduplication: "Deduplicator", report: BuildReport) -> list[int]:
    """Note what a block says of rows that are there.

    Returns:
        Samples whose row another text of the same picture has taken since: they are to be read again.
    """
    again = []
    for picture in block.failed:  # a file that cannot be read now is not a file that is gone
        edition.seen.update(edition.rows.get(picture, {}))
    for picture, stamp, index in block.unchanged:
        ids = edition.confirm(picture, stamp)
        if ids is None:
            again.append(index)
            continue
        report.unchanged += len(ids)
        for id in ids:
            deduplication.confirm(id)
    return again


@dataclass
class Edition:
    """What a memory holds of a source before it is read again.

    Attributes:
        rows: for each picture the ids of its rows, with the stamp of the sample that each was made of.
        last: the last sample of this very edition that became a row, or −1.
        older: whether rows of another edition are there.
        seen: rows that this edition has.
    """

    rows: dict[str, dict[str, str]] = field(default_factory=dict)
    last: int = -1
    older: bool = False
    seen: set[str] = field(default_factory=set)
    _changed: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, memory: Memory, reader: Reader) -> "Edition":
        """From the rows of the source's name."""
        edition = cls()
        for batch in memory.columns(["id", "stamp", "origin", "ordinal"], source=reader.called):
            for id, stamp, origin, ordinal in zip(*(batch[name] for name in batch), strict=True):
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
        if self.older or self.last < 0:
            return 0
        if self.last + 1 >= stop:
            return stop
        # A block that is there in part (a limit was raised, or a commit was cut) is looked at again.
        whole = whole_commits and (self.last + 1) % ROWS_AT_ONCE == 0
        return (self.last // ROWS_AT_ONCE + whole) * ROWS_AT_ONCE

    def has(self, id: str) -> bool:
        """Whether a row of this id was there."""
        return id in self.rows.get(picture_of(id), ())

    def confirm(self, picture: str, stamp: str) -> list[str] | None:
        """Note that a sample is as it was.

        Returns:
            Its rows that are noted for the first time; None where one of them was replaced meanwhile.
        """
        ids = [id for id, each in self.rows[picture].items() if each == stamp]
        if self._changed.intersection(ids):
            return None
        fresh = [id for id in ids if id not in self.seen]
        self.seen.update(fresh)
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
        return replace(pairs, ids=ids)

    def gone(self) -> list[str]:
        """Rows that this edition, once it was read whole, has not."""
        return [id for ids in self.rows.values() for id in ids if id not in self.seen]


def _blocks(reader: Reader, start: int, stop: int, engine: str) -> Iterator[RowBlock]:
    if engine == "ray":
        from recollect.memory.build.ray import ray_blocks

        return ray_blocks(reader, start, stop)
    return reader.blocks(start, stop)


def _commit(memory: Memory, waiting: list[Pairs], report: BuildReport) -> None:
    pairs = join(waiting)
    if pairs is None:
        return
    replaced = memory.upsert(pairs)
    report.replaced += replaced
    report.added += len(pairs) - replaced
    report.wordless += int((~pairs.has_text).sum())


def join(parts: list[Pairs]) -> Pairs | None:
    """Rows one after the other; None where there are none."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return None

    def chain(name: str) -> list:
        return [value for part in parts for value in getattr(part, name)]

    return Pairs(
        ids=chain("ids"),
        image_vectors=np.concatenate([part.image_vectors for part in parts]),
        text_vectors=np.concatenate([part.text_vectors for part in parts]),
        captions=chain("captions"),
        model=parts[0].model,
        sources=chain("sources"),
        metadata=chain("metadata"),
        images=chain("images"),
        paths=chain("paths"),
        origins=chain("origins"),
        ordinals=np.concatenate([part.ordinals for part in parts if part.ordinals is not None]),
        digests=chain("digests"),
        places=chain("places"),
        stamps=chain("stamps"),
        looks=chain("looks"),
    )


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
