"""Prefetching samples in threads, and counting unreadable pictures, which stop a run if there are too many."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from recollect.core.errors import UserError
from recollect.core.progress import note
from recollect.core.types import Encoder, Sample, Source
from recollect.data.sources.images import BROKEN_SHARE, BrokenImageError, prepare_image

MAX_BROKEN_SHARE = 0.1
"""Maximum fraction of broken pictures in an evaluation; fewer are only reported."""

_MIN_READS = 1000  # reads before the fraction is reliable; among the first hundred, it may exceed the limit by chance
_THREADS = 4


@dataclass
class BrokenCounter:
    """Counts of reads and failures by source.

    Attributes:
        share: maximum fraction of failed reads of a source.
        option: command-line option that sets ``share``, for the error message; empty if there is none.
        shown: number of failures printed per source.
        tried: number of reads of each source.
        broken: number of failed reads of each source.
        messages: distinct error messages of each source, in order.
    """

    share: float = BROKEN_SHARE
    option: str = ""
    shown: int = 3
    tried: dict[str, int] = field(default_factory=dict)
    broken: dict[str, int] = field(default_factory=dict)
    messages: dict[str, dict[str, None]] = field(default_factory=dict)

    def add(self, source: Source, tried: int, messages: Sequence[str]) -> None:
        """Count ``tried`` reads of a source, and print the first few error ``messages`` of those that failed.

        Raises:
            UserError: more than ``share`` of the reads failed. Until 1,000 reads (or the size of a smaller source),
                failures count as a fraction of that number.
        """
        name = source.name
        self.tried[name] = self.tried.get(name, 0) + tried
        self.broken[name] = self.broken.get(name, 0) + len(messages)
        known = self.messages.setdefault(name, {})
        for message in messages:
            if message not in known and len(known) < self.shown:
                note(f"{message}; skipped")
            elif message not in known and len(known) == self.shown:
                note(f"{name}: further broken images are only counted")
            known[message] = None
        enough = max(self.tried[name], min(_MIN_READS, len(source)))
        if self.broken[name] > self.share * enough:
            larger = f", or allow more with {self.option}" if self.option else ""
            raise UserError(
                f"{next(iter(known))}; {self.broken[name]:,} of {self.tried[name]:,} images of {name} cannot be read, "
                f"more than {self.share:.1%}. Repair or remove them{larger}."
            )

    def summary(self) -> dict[str, int]:
        """Return the number of distinct broken images of each source that has any."""
        return {name: len(messages) for name, messages in self.messages.items() if messages}


_Read = TypeVar("_Read")

Outcome = Sample | BrokenImageError
"""A sample, or the error from reading it."""


def read_ahead(
    source: Source,
    indices: Sequence[int],
    block: int,
    *,
    needed: int = 0,
    extra: bool = True,
    prepare: Callable[[Sample], Sample] = lambda sample: sample,
) -> Iterator[list[Outcome]]:
    """Yield samples in order, in blocks; threads decode the next block while the caller uses the current one.

    Args:
        indices: indices of the samples.
        block: number of samples per block; the last may have fewer.
        needed: shorter side in pixels that the caller needs (see `Source.read`).
        extra: also read values that only evaluation needs.
        prepare: applied to each sample in its thread, for example to resize its picture.
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
    """Yield ``read(index)`` for each index, in order and in blocks; threads work one block ahead of the caller.

    An exception from ``read`` is raised when its block is due.
    """
    with ThreadPoolExecutor(_THREADS) as pool:  # decoding releases the GIL
        current = [pool.submit(read, int(index)) for index in indices[:block]]
        try:
            for start in range(0, len(indices), block):
                ahead = [pool.submit(read, int(index)) for index in indices[start + block : start + 2 * block]]
                yield [item.result() for item in current]
                current = ahead
        finally:  # do not wait for the rest if the caller stops early
            pool.shutdown(wait=False, cancel_futures=True)


def sample_preprocessor(encoder: Encoder | None) -> Callable[[Sample], Sample]:
    """Return a function that preprocesses a sample's picture for ``encoder`` (`prepare_image`), if any."""
    return lambda sample: sample if encoder is None else replace(sample, image=prepare_image(encoder, sample.image))


def readable_blocks(
    source: Source, block: int, *, encoder: Encoder | None = None, share: float = BROKEN_SHARE
) -> Iterator[list[tuple[int, Sample]]]:
    """Yield all readable samples with their indices, in blocks; broken ones are skipped, counted and reported.

    Args:
        block: number of samples read per block.
        encoder: encoder for which pictures are cropped and resized (`prepare_image`), if any.
        share: maximum fraction of broken pictures.

    Raises:
        UserError: more than ``share`` of the pictures cannot be read.
    """
    counter = BrokenCounter(share)
    blocks = read_ahead(source, range(len(source)), block, prepare=sample_preprocessor(encoder))
    for start, outcomes in zip(range(0, len(source), block), blocks, strict=True):
        counter.add(source, len(outcomes), [str(each) for each in outcomes if isinstance(each, BrokenImageError)])
        yield [(start + offset, each) for offset, each in enumerate(outcomes) if isinstance(each, Sample)]
    for name, count in counter.summary().items():
        note(f"{name}: skipped {count:,} of {len(source):,} images that cannot be read")
