"""Reading samples ahead in threads; pictures that cannot be read are counted, and too many of them stop a run."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from recollect.core.errors import UserError
from recollect.core.progress import note
from recollect.core.types import Encoder, Sample, Source
from recollect.data.sources.images import BROKEN_SHARE, BrokenImageError, prepared

MOST_BROKEN = 0.1
"""Largest share of broken pictures in an evaluation; it reports them and goes on."""

_ENOUGH = 1000  # readings before a share means anything: among the first hundred, chance alone can exceed it
_THREADS = 4


@dataclass
class BrokenCounter:
    """Counts readings and failures for each source.

    Attributes:
        share: stop when more than this share of a source's readings failed.
        option: command-line option that sets the share, for the error message; empty if there is none.
        shown: failures of a source that are named; further ones are only counted.
        tried: readings of each source.
        broken: readings of each source that failed.
        messages: what was wrong with each different picture, in order.
    """

    share: float = BROKEN_SHARE
    option: str = ""
    shown: int = 3
    tried: dict[str, int] = field(default_factory=dict)
    broken: dict[str, int] = field(default_factory=dict)
    messages: dict[str, dict[str, None]] = field(default_factory=dict)

    def add(self, source: Source, tried: int, messages: Sequence[str]) -> None:
        """Count readings, print the first few failures, and stop when there are too many.

        Raises:
            UserError: more than ``share`` of the readings failed (of the first thousand, or of all of a smaller
                source, until that many were made).
        """
        name = source.name
        self.tried[name] = self.tried.get(name, 0) + tried
        self.broken[name] = self.broken.get(name, 0) + len(messages)
        known = self.messages.setdefault(name, {})
        for message in messages:
            if message not in known and len(known) < self.shown:
                note(f"{message}; left out")
            elif message not in known and len(known) == self.shown:
                note(f"{name}: further broken images are only counted")
            known[message] = None
        enough = max(self.tried[name], min(_ENOUGH, len(source)))
        if self.broken[name] > self.share * enough:
            larger = f", or allow more with {self.option}" if self.option else ""
            raise UserError(
                f"{next(iter(known))}; {self.broken[name]:,} of {self.tried[name]:,} images of {name} cannot be read, "
                f"more than {self.share:.1%}. Repair or remove them{larger}."
            )

    def summary(self) -> dict[str, int]:
        """Number of different broken images of each source that has any."""
        return {name: len(messages) for name, messages in self.messages.items() if messages}


_Read = TypeVar("_Read")

Outcome = Sample | BrokenImageError
"""A sample, or why it cannot be read."""


def read_ahead(
    source: Source,
    indices: Sequence[int],
    block: int,
    *,
    needed: int = 0,
    extra: bool = True,
    prepare: Callable[[Sample], Sample] = lambda sample: sample,
) -> Iterator[list[Outcome]]:
    """Read samples in order, in blocks; threads decode the next block while the caller uses the current one.

    Args:
        indices: which samples.
        block: samples of a block; the last may have fewer.
        needed: shorter side in pixels above which detail is of no use (see `Source.read`).
        extra: also read what only evaluation needs.
        prepare: what to do with each sample in its thread, such as making its picture smaller.
    """
    if source.reads_blocks:
        for start in range(0, len(indices), block):
            yield list(source.read_block(np.asarray(indices[start : start + block], dtype=np.int64)))
        return

    def read(index: int) -> Outcome:
        try:
            return prepare(source.read(index, needed=needed, extra=extra))
        except BrokenImageError as error:
            return error

    yield from blocks_ahead(read, indices, block)


def blocks_ahead(read: Callable[[int], _Read], indices: Sequence[int], block: int) -> Iterator[list[_Read]]:
    """``read(index)`` for each index, in order and in blocks, in threads one block ahead of the caller.

    An exception of ``read`` is raised when its block is due.
    """
    with ThreadPoolExecutor(_THREADS) as pool:  # decoding lets go of the interpreter's lock
        waiting = [pool.submit(read, int(index)) for index in indices[:block]]
        try:
            for start in range(0, len(indices), block):
                coming = [pool.submit(read, int(index)) for index in indices[start + block : start + 2 * block]]
                yield [item.result() for item in waiting]
                waiting = coming
        finally:  # a caller that stops early does not wait for the rest
            pool.shutdown(wait=False, cancel_futures=True)


def ready_for(encoder: Encoder | None) -> Callable[[Sample], Sample]:
    """Makes the picture of a sample what an encoder reads (`prepared`), if there is an encoder."""

    def prepare(sample: Sample) -> Sample:
        return sample if encoder is None else replace(sample, image=prepared(encoder, sample.image))

    return prepare


def readable_blocks(
    source: Source, block: int, *, encoder: Encoder | None = None, share: float = BROKEN_SHARE
) -> Iterator[list[tuple[int, Sample]]]:
    """Every sample that can be read, with its index, in blocks; the others are left out, counted and named.

    Args:
        encoder: what will embed the pictures, if any; they are cropped and resized for it (`prepared`).
        share: largest share of the pictures that may be broken.

    Raises:
        UserError: more than ``share`` of the pictures cannot be read.
    """
    counter = BrokenCounter(share)
    blocks = read_ahead(source, range(len(source)), block, prepare=ready_for(encoder))
    for start, outcomes in zip(range(0, len(source), block), blocks, strict=True):
        counter.add(source, len(outcomes), [str(each) for each in outcomes if isinstance(each, BrokenImageError)])
        yield [(start + place, each) for place, each in enumerate(outcomes) if isinstance(each, Sample)]
    for name, count in counter.summary().items():
        note(f"{name}: {count:,} of {len(source):,} images could not be read and were left out")
