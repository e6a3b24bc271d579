"""One-line errors for running out of memory and for killed data workers and processes."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from recollect.core.errors import UserError
from recollect.training.ranks import in_parallel

_NO_MEMORY = ("can't allocate memory", "not enough memory")  # torch has no exception type for CPU memory
_GONE = ("gloo", "Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL", "ProcessGroup")
_CONTINUE = "Run the same command with --resume to continue from the last checkpoint"


@contextmanager
def in_one_line(where: str) -> Iterator[None]:
    """Turn out-of-memory errors, killed workers and the end of another process into one line that says what to do.

    Raises:
        UserError: instead of torch's exception.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        said = " ".join(str(error).split())
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in said for words in _NO_MEMORY):
            raise UserError(
                f"{where}: out of memory ({said.split('. ')[0][:200] or 'no details'}). Set or lower --chunk: fewer "
                f"pairs are embedded at a time, with the same result. {_CONTINUE}."
            ) from error
        if in_parallel() and (isinstance(error, dist.DistError) or any(words in str(error) for words in _GONE)):
            raise UserError(
                f"{where}: another process of this run ended or cannot be reached. {_CONTINUE}, on any number of "
                "processes."
            ) from error
        if "DataLoader worker" not in said:
            raise
        full = "shared memory" in said
        raise UserError(
            f"{where}: a data worker was killed ({said.split('. ')[0][:200].rstrip('.')}). "
            + ("Allow more shared memory (Docker: --shm-size 8g)" if full else "Use fewer --workers")
            + f", or --workers 0. {_CONTINUE}."
        ) from error
