"""Filling a memory from a source: resumable, without what is broken or there already."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from recollect.core.errors import UserError
from recollect.core.nearest import exact_neighbours
from recollect.core.progress import progress
from recollect.core.types import Encoder
from recollect.data.sources.reading import BROKEN_SHARE, BrokenCounter
from recollect.memory.backends.lance import EXACT_ROWS
from recollect.memory.build.reading import ROWS_AT_ONCE, Reader, ReadOptions, RowBlock
from recollect.memory.rows import Pairs
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
        same: rows left out, because picture and caption were there already.
        near: rows left out, because a near-duplicate of the image was there already.
        broken: pictures that could not be read.
        wordless: samples that have neither a caption nor a class.
        earlier: samples that an earlier call had read.
    """

    read: int = 0
    added: int = 0
    same: int = 0
    near: int = 0
    broken: int = 0
    wordless: int = 0
    earlier: int = 0


def open_for_build(address: str | Path, encoder: Encoder, name: str) -> Memory:
    """The memory at an address, which is made if nothing is there.

    Raises:
        UserError: something else is there, or a memory of another model.
    """
    fingerprint = encoder.fingerprint
    if not Memory.exists(address):
        return Memory.create(address, width=encoder.width, model=fingerprint, model_name=name)
    memory = Memory.open(address)
    memory.check_model(fingerprint, name)
    return memory


def check_resumable(memory: Memory, reader: Reader) -> None:
    """Refuse to build over rows of other sources: only the same build may go on.

    Raises:
        UserError: the memory holds other rows.
    """
    others = {origin for batch in memory.columns(["origin"]) for origin in batch["origin"]} - {reader.origin}
    if others:
        raise UserError(
            f"{memory.address}: holds rows of other sources already. Add to it with `recollect memory add`, "
            "or name another --out."
        )


def fill_memory(
    memory: Memory, reader: Reader, options: BuildOptions, engine: Literal["local", "ray"] = "local"
) -> BuildReport:
    """Embed the samples of a source and add them, from where an earlier call was stopped.

    Rows are added in the source's order and in commits of whole blocks, each there whole or not at all; so the last row
    tells where to go on, and a call that was killed and made again gives the rows of an unbroken one.

    Args:
        memory: embedded by the reader's model.
        reader: of the source.
        options: what to leave out.
        engine: embed in this process, or on a Ray cluster.

    Raises:
        UserError: too many broken pictures; whatever was committed before stays.
    """
    stop = len(reader.source) if options.limit is None else min(options.limit, len(reader.source))
    start = _start(memory, reader.origin, stop)
    report = BuildReport(earlier=start)
    if start >= stop:
        return report
    tally, deduplication = BrokenCounter(options.broken_share), Deduplicator(memory, options)
    with progress(f"embed {reader.source.name}", stop, "pairs", start) as counter:
        waiting: list[Pairs] = []
        for block in _blocks(reader, start, stop, engine):
            count = min(ROWS_AT_ONCE, stop - start - report.read)
            report.read += count
            report.broken += len(block.failures)
            assert block.pairs.ordinals is not None
            report.wordless += count - len(block.failures) - len(np.unique(block.pairs.ordinals))
            waiting.append(deduplication.sift(block.pairs, report))
            if sum(map(len, waiting)) + ROWS_AT_ONCE > COMMIT:
                report.added += _commit(memory, waiting)
                waiting = []
            tally.add(reader.source, count, block.failures)
            counter.advance(count)
        report.added += _commit(memory, waiting)
    if memory.backend.whole_commits and len(memory) > EXACT_ROWS:
        memory.index()
    return report


def _blocks(reader: Reader, start: int, stop: int, engine: str) -> Iterator[RowBlock]:
    if engine == "ray":
        from recollect.memory.build.ray import ray_blocks

        return ray_blocks(reader, start, stop)
    return reader.blocks(start, stop)


def _start(memory: Memory, origin: str, stop: int) -> int:
    """The first sample that is still to be read, where a block begins; or ``stop``."""
    last = max((max(batch["ordinal"]) for batch in memory.columns(["ordinal"], origin=origin)), default=-1)
    if last < 0:
        return 0
    if last + 1 >= stop:
        return stop
    # Where a commit can be there in part, its last block is looked at again, and rows that are there are left out.
    return (last // ROWS_AT_ONCE + memory.backend.whole_commits) * ROWS_AT_ONCE


def _commit(memory: Memory, waiting: list[Pairs]) -> int:
    pairs = join(waiting)
    if pairs is None:
        return 0
    memory.add(pairs)
    return len(pairs)


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
    )


class Deduplicator:
    """Leaves out rows that are there already.

    Args:
        memory: what is there.
        options: what counts as being there.
    """

    def __init__(self, memory: Memory, options: BuildOptions) -> None:
        self.memory, self.options = memory, options
        self.digests: set[str] = set()
        self.images: list[np.ndarray] = []
        names = ["digest"] * options.same + ["image_vector"] * (options.near is not None)
        for batch in memory.columns(names) if names and len(memory) else ():
            self.digests.update(batch.get("digest", ()))
            if "image_vector" in batch:
                self._remember(batch["image_vector"])

    def sift(self, pairs: Pairs, report: BuildReport) -> Pairs:
        """The rows that are new; the others are counted."""
        if not self.memory.backend.whole_commits and len(pairs):
            known = self.memory.backend.known(pairs.ids)
            pairs = pairs.take([row for row, id in enumerate(pairs.ids) if id not in known])
        if self.options.same:
            fresh = []
            for row, value in enumerate(pairs.digests):
                if value not in self.digests:
                    fresh.append(row)
                    self.digests.add(value)
            report.same += len(pairs) - len(fresh)
            pairs = pairs.take(fresh)
        if self.options.near is None or not len(pairs):
            return pairs
        far = self._far(pairs.image_vectors, self.options.near)
        report.near += len(pairs) - len(far)
        pairs = pairs.take(far)
        self._remember(pairs.image_vectors)
        return pairs

    def _far(self, vectors: np.ndarray, threshold: float) -> list[int]:
        """Rows that are near to nothing seen before, nor to an earlier row that is kept."""
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
        self.images.append(np.array(vectors))
        while len(self.images) > 1 and len(self.images[-2]) <= 2 * len(self.images[-1]):
            last = self.images.pop()
            self.images[-1] = np.concatenate([self.images[-1], last])
