"""Counting pictures that cannot be read, and stopping when they are too many."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from recollect.core.errors import UserError
from recollect.core.types import Sample, Source
from recollect.data.sources.derived import read_sample
from recollect.data.sources.images import BROKEN_SHARE, BrokenImageError, note

_ENOUGH = 1000  # readings before a share means anything: in the first hundred, chance alone can exceed it
_SHOWN = 3


@dataclass
class BrokenCounter:
    """What was read and what could not be, for each source.

    Attributes:
        share: stop when more than this share of a source's readings failed.
        tried: readings of each source.
        broken: readings of each source that failed.
        messages: what was wrong with each different picture, in the order met.
    """

    share: float = BROKEN_SHARE
    tried: dict[str, int] = field(default_factory=dict)
    broken: dict[str, int] = field(default_factory=dict)
    messages: dict[str, dict[str, None]] = field(default_factory=dict)

    def add(self, source: Source, tried: int, messages: Sequence[str]) -> None:
        """Count readings, say the first few failures, and stop when they are too many.

        Raises:
            UserError: more than ``share`` of the readings failed (of the first thousand, or of all of a smaller
                source, until that many were made).
        """
        name = source.name
        self.tried[name] = self.tried.get(name, 0) + tried
        self.broken[name] = self.broken.get(name, 0) + len(messages)
        known = self.messages.setdefault(name, {})
        for message in messages:
            if message not in known and len(known) < _SHOWN:
                note(f"{message}; left out")
            elif message not in known and len(known) == _SHOWN:
                note(f"{name}: further broken images are only counted")
            known[message] = None
        enough = max(self.tried[name], min(_ENOUGH, len(source)))
        if self.broken[name] > self.share * enough:
            raise UserError(
                f"{next(iter(known))}; {self.broken[name]:,} of {self.tried[name]:,} images of {name} cannot be read, "
                f"more than {self.share:.1%}. Mend or remove them, or allow a larger share."
            )

    def summary(self) -> dict[str, int]:
        """Number of different broken images of each source that has any."""
        return {name: len(messages) for name, messages in self.messages.items() if messages}


def readable_samples(
    source: Source, indices: Sequence[int] | None = None, *, share: float = BROKEN_SHARE, threads: int = 4
) -> Iterator[Sample]:
    """Yield samples in order without the broken ones, which are counted and named; decoding runs ahead in threads.

    Args:
        indices: which samples; all by default.
        share: stop when more than this share cannot be read.

    Raises:
        UserError: too many images are broken.
    """
    indices = range(len(source)) if indices is None else indices
    tally = BrokenCounter(share)

    def read(index: int) -> Sample | BrokenImageError:
        try:
            return read_sample(source, index)
        except BrokenImageError as error:
            return error

    with ThreadPoolExecutor(threads) as pool:
        ahead = 16 * threads
        waiting = [pool.submit(read, index) for index in indices[:ahead]]
        for position in range(len(indices)):
            outcome = waiting.pop(0).result()
            if position + ahead < len(indices):
                waiting.append(pool.submit(read, indices[position + ahead]))
            failed = isinstance(outcome, BrokenImageError)
            tally.add(source, 1, [str(outcome)] if failed else [])
            if not isinstance(outcome, BrokenImageError):
                yield outcome
    for name, count in tally.summary().items():
        note(f"{name}: {count:,} of {len(indices):,} images could not be read and were left out")
