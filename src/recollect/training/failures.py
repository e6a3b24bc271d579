"""What ends a run from outside it, in one line: no memory left, a process that reads ahead killed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from recollect.core.errors import UserError

_NO_MEMORY = ("can't allocate memory", "not enough memory")  # what torch says of a CPU's, which has no type of its own
_GO_ON = "The same command with --resume goes on from the last checkpoint"


@contextmanager
def in_one_line(where: str) -> Iterator[None]:
    """Say what a person can do where memory has run out, or a worker has been killed.

    Raises:
        UserError: in place of what torch raises.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        said = " ".join(str(error).split())
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in said for words in _NO_MEMORY):
            raise UserError(
                f"{where}: out of memory ({said.split('. ')[0][:200] or 'no more to be had'}). Take a --chunk, or a "
                f"smaller one: fewer pairs are embedded at a time, and the outcome is the same. {_GO_ON}, with it too."
            ) from error
        if "DataLoader worker" not in said:
            raise
        full = "shared memory" in said
        raise UserError(
            f"{where}: a process that reads ahead was killed ({said.split('. ')[0][:200].rstrip('.')}). "
            + ("Give more shared memory (Docker: --shm-size 8g)" if full else "Was memory short? Take fewer --workers")
            + f", or --workers 0. {_GO_ON}."
        ) from error
