"""Early ends of a run: stop signals, and one-line errors for lack of memory, killed workers and lost processes."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import torch
import torch.distributed as dist

from recollect.core.errors import UserError
from recollect.training.ranks import in_parallel

_NO_MEMORY = ("can't allocate memory", "not enough memory")  # torch has no exception type for CPU memory
_LOST_PROCESS = ("gloo", "Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL", "ProcessGroup")
_CONTINUE = "Run the same command with --resume to continue from the last checkpoint"


@contextmanager
def one_line_errors(where: str) -> Iterator[None]:
    """Convert out-of-memory errors, killed workers and lost processes into one line that says what to do.

    Raises:
        UserError: replaces torch's exception.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        message = " ".join(str(error).split())
        summary = message.split(". ")[0][:200].rstrip(".")
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in message for words in _NO_MEMORY):
            raise UserError(
                f"{where}: out of memory ({summary or 'no details'}). Set or lower --chunk to embed fewer pairs at a "
                f"time, with the same result. {_CONTINUE}."
            ) from error
        if in_parallel() and (isinstance(error, dist.DistError) or any(words in str(error) for words in _LOST_PROCESS)):
            raise UserError(
                f"{where}: another process of this run ended or cannot be reached. {_CONTINUE}, on any number of "
                "processes."
            ) from error
        if "DataLoader worker" not in message:
            raise
        full = "shared memory" in message
        advice = "Allow more shared memory (Docker: --shm-size 8g)" if full else "Use fewer --workers"
        raise UserError(
            f"{where}: a data worker was killed ({summary}). {advice}, or --workers 0. {_CONTINUE}."
        ) from error


class _StopNow(BaseException):
    """Stops an evaluation; not an Exception, so the evaluation cannot catch it."""


class StopRequest:
    """Records SIGINT or SIGTERM; created by `stop_requests`."""

    signal: int = 0
    _inside = False

    @contextmanager
    def ends(self) -> Iterator[None]:
        """Let a signal abort the block, which must be safe to abandon."""
        with suppress(_StopNow):
            self._inside = True
            try:
                yield
            finally:
                self._inside = False

    def note(self, number: int) -> None:
        """Record a signal."""
        self.signal = number
        if self._inside:
            raise _StopNow

    def leave(self) -> None:
        """Exit as the signal would."""
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + (self.signal or signal.SIGTERM))


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Record the first SIGINT or SIGTERM instead of exiting; a second one exits as usual."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread can set handlers
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        restore()
        request.note(number)

    for number in before:
        signal.signal(number, note)
    try:
        yield request
    finally:
        restore()
