"""Training on several processes: start-up, gathered embeddings, summed gradients.

`torchrun` and `accelerate launch` set the same environment variables. Without them a run is a single process, and the
functions here return their input.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from recollect.core.errors import UserError, one_line
from recollect.core.types import chosen_device
from recollect.core.validation import refuse
from recollect.objectives.shards import WHOLE, Shard

Decision = TypeVar("Decision")


@dataclass(frozen=True, slots=True)
class ProcessRanks:
    """This process's rank, the number of processes, and its device."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0


@contextmanager
def ranks(device: str | None = None) -> Iterator[ProcessRanks]:
    """Join the process group of this launch, if any, while the block runs.

    Args:
        device: device to compute on (default: the best available, one GPU per process).

    Raises:
        UserError: no such device.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    chosen = chosen_device(device)
    if size == 1:
        yield ProcessRanks(0, 1, chosen)
        return
    if chosen.type == "cuda":
        chosen = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(chosen)
    elif chosen.type == "mps":
        chosen = torch.device("cpu")  # MPS has no collectives
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    _LONG_TIMEOUT.append(dist.new_group(backend="gloo", timeout=timedelta(days=30)))
    try:
        yield ProcessRanks(dist.get_rank(), size, chosen)
    finally:
        _LONG_TIMEOUT.clear()
        dist.destroy_process_group()


_LONG_TIMEOUT: list[dist.ProcessGroup] = []
"""Process group with a long timeout, for waiting while one process works: an evaluation may take longer than the
default ten minutes. If a process dies, its connections close and the others stop waiting."""


def in_parallel() -> bool:
    """Return whether several processes share each batch."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """Return the rank of this process; 0 if there is only one."""
    return dist.get_rank() if in_parallel() else 0


class RankShard(Shard):
    """This process's rows of a shared batch; every process holds the same number."""

    def __init__(self) -> None:
        self.size, self.rank = dist.get_world_size(), dist.get_rank()

    def gather(self, rows: Tensor) -> Tensor:
        return _Gather.apply(rows)

    def log_sum(self, parts: Tensor) -> Tensor:
        return _LogSum.apply(parts)

    def total(self, numbers: Tensor) -> Tensor:
        return total(numbers.detach().clone())


def shard_of_this_process() -> Shard:
    """Return this process's part of each batch."""
    return RankShard() if in_parallel() else WHOLE


def _all_rows(rows: Tensor) -> Tensor:
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.contiguous())
    return torch.cat(parts)


class _Gather(torch.autograd.Function):
    """Gather the rows of all processes; the backward pass sums the gradients of each row over processes."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.rows = len(rows)
        return _all_rows(rows.detach())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        own = slice(rank() * ctx.rows, (rank() + 1) * ctx.rows)
        if dist.get_backend() == "nccl":
            added = torch.empty_like(gradient[own])
            dist.reduce_scatter_tensor(added, gradient.contiguous())
            return added
        added = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(added)
        return added[own]


class _LogSum(torch.autograd.Function):
    """Elementwise ``log sum exp`` over processes."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor) -> Tensor:
        whole = _all_rows(parts.detach()[None]).logsumexp(0)
        ctx.save_for_backward(parts, whole)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        parts, whole = ctx.saved_tensors
        return total(gradient.clone()) * (parts - whole).exp()


def is_split(tensor: Tensor) -> bool:
    """Return whether the tensor is split over processes (FSDP); its gradients are then already summed."""
    return isinstance(tensor, DTensor)


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sum the gradients that each process computed from its own rows."""
    if not in_parallel():
        return
    gradients = [each.grad for each in parameters if each.grad is not None and not is_split(each)]
    for handle in [dist.all_reduce(gradient, async_op=True) for gradient in gradients]:
        handle.wait()


def result_of_first(decide: Callable[[], Decision]) -> Decision:
    """Run ``decide`` in the first process and return its result, or raise its error, in all processes.

    Raises:
        UserError: any error of the first process, in the other processes.
    """
    if not in_parallel():
        return decide()
    outcome: list[Any] = [None, None]  # result, error message
    failure = None
    if rank() == 0:
        try:
            outcome[0] = decide()
        except Exception as error:
            failure, outcome[1] = error, _message(error)
    dist.broadcast_object_list(outcome, group=_LONG_TIMEOUT[0] if _LONG_TIMEOUT else None)
    if failure is not None:
        raise failure
    if outcome[1] is not None:
        raise UserError(outcome[1])
    return outcome[0]


def _message(error: Exception) -> str:
    if isinstance(error, UserError):
        return str(error)
    return f"the first process of this run failed: {type(error).__name__}: {one_line(error)}"


def first_then_others(make: Callable[[], Decision]) -> Decision:
    """Run ``make`` in the first process, then in the others, which find its files on disk.

    Raises:
        UserError: see `result_of_first`.
    """
    results: list[Decision] = []
    result_of_first(lambda: results.append(make()))
    return results[0] if results else make()


def check_agreement(held: Mapping[str, str]) -> None:
    """Check that all processes have the same values, such as a digest of the data.

    Args:
        held: this process's values or digests, by name.

    Raises:
        UserError: a process differs from the first; raised in every process.
    """
    if not in_parallel():
        return
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, dict(held), group=_LONG_TIMEOUT[0] if _LONG_TIMEOUT else None)
    for number, other in enumerate(gathered):
        for name, value in gathered[0].items():
            differ = f"{name}: process {number} and process 0 differ ({other.get(name)}; {value})"
            refuse((other.get(name) != value, f"{differ}. Copy the same files to every machine."))


def broadcast_weights(modules: Iterable[object]) -> None:
    """Broadcast the first process's weights, since other machines may round differently."""
    if in_parallel():
        for module in modules:
            for tensor in module.state_dict().values() if isinstance(module, nn.Module) else ():
                sent = tensor.detach().contiguous()
                dist.broadcast(sent, 0)
                tensor.detach().copy_(sent)


def total(numbers: Tensor) -> Tensor:
    """Sum ``numbers`` over all processes, in place."""
    if in_parallel():
        dist.all_reduce(numbers)
    return numbers


def wait_for_all() -> None:
    """Wait until all processes have called this function."""
    if in_parallel():
        dist.barrier()
