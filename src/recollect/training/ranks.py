"""Many processes, one batch: start-up, gathered embeddings, summed gradients.

`torchrun` and `accelerate launch` set the same environment variables; a run without them is one process, and every
function here then returns what it was given.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from recollect.core.errors import UserError
from recollect.core.types import best_device

Decision = TypeVar("Decision")


@dataclass(frozen=True, slots=True)
class ProcessRanks:
    """Which of how many processes this is, and the device it computes on."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the one process that writes files and shows progress."""
        return self.rank == 0


@contextmanager
def ranks(device: str | None = None) -> Iterator[ProcessRanks]:
    """Join the other processes of this launch, if there are any, and leave them at the end.

    Args:
        device: where to compute; the best device of the machine by default, one GPU to a process.

    Raises:
        UserError: this machine, or this build of torch, has no such device.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    chosen = _usable(device) if device else best_device()
    if size == 1:
        yield ProcessRanks(0, 1, chosen)
        return
    if chosen.type == "cuda":
        chosen = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(chosen)
    elif chosen.type == "mps":
        chosen = torch.device("cpu")  # one machine has one MPS device, and it has no collectives
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield ProcessRanks(dist.get_rank(), size, chosen)
    finally:
        dist.destroy_process_group()


def _usable(device: str) -> torch.device:
    try:
        torch.empty(1, device=device).cpu()
        return torch.device(device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"--device {device}: cannot be used here. This machine has {best_device().type}.") from error


def in_parallel() -> bool:
    """Whether several processes share each batch."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """The place of this process among those that share each batch."""
    return dist.get_rank() if in_parallel() else 0


def gather(rows: Tensor) -> Tensor:
    """The rows of all processes in rank order; the gradient flows to this process's own rows only.

    Every process computes the whole loss, so the gradient that its own rows receive is already the complete one
    and no collective is needed on the way back: `sum_gradients` adds what each process's rows did to the weights.
    """
    if not in_parallel():
        return rows
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.detach().contiguous())
    parts[rank()] = rows
    return torch.cat(parts)


def sum_gradients(towers: Iterable[nn.Parameter], objective: Iterable[nn.Parameter]) -> None:
    """Make the gradients of all processes those of the whole batch.

    Towers saw only their own rows: sum. The objective saw every row in every process: its gradients agree already
    up to the order of additions, and their mean keeps the processes from drifting apart.
    """
    if not in_parallel():
        return
    own = [parameter.grad for parameter in towers if parameter.grad is not None]
    shared = [parameter.grad for parameter in objective if parameter.grad is not None]
    for handle in [dist.all_reduce(gradient, async_op=True) for gradient in own + shared]:
        handle.wait()
    for gradient in shared:
        gradient.div_(dist.get_world_size())


def first_decides(decide: Callable[[], Decision]) -> Decision:
    """What the first process finds, for all of them; its `UserError` is everybody's, so that none waits for it.

    Raises:
        UserError: the first process met it.
    """
    if not in_parallel():
        return decide()
    told: list[Any] = [None, None]
    if rank() == 0:
        try:
            told[0] = decide()
        except UserError as error:
            told[1] = str(error)
    dist.broadcast_object_list(told)
    if told[1] is not None:
        raise UserError(told[1])
    return told[0]


def total(numbers: Tensor) -> Tensor:
    """Sum of ``numbers`` over all processes."""
    if in_parallel():
        dist.all_reduce(numbers)
    return numbers


def wait_for_all() -> None:
    """Return when every process has come this far."""
    if in_parallel():
        dist.barrier()
