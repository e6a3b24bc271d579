"""Many processes, one batch: start-up, gathered embeddings, summed gradients.

`torchrun` and `accelerate launch` set the same environment variables; a run without them is one process, and every
function here then returns what it was given.
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

from recollect.core.errors import UserError
from recollect.core.types import chosen_device
from recollect.objectives.shards import WHOLE, Shard

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
    chosen = chosen_device(device)
    if size == 1:
        yield ProcessRanks(0, 1, chosen)
        return
    if chosen.type == "cuda":
        chosen = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(chosen)
    elif chosen.type == "mps":
        chosen = torch.device("cpu")  # one machine has one MPS device, and it has no collectives
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    _PATIENT.append(dist.new_group(backend="gloo", timeout=timedelta(days=30)))
    try:
        yield ProcessRanks(dist.get_rank(), size, chosen)
    finally:
        _PATIENT.clear()
        dist.destroy_process_group()


_PATIENT: list[dist.ProcessGroup] = []
"""The group by which processes wait for what one of them does alone: an evaluation may take longer than the ten minutes
that a backend gives a collective. A process that ends closes its connections, and so ends the others' waiting."""


def in_parallel() -> bool:
    """Whether several processes share each batch."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """The place of this process among those that share each batch."""
    return dist.get_rank() if in_parallel() else 0


class RankShard(Shard):
    """The rows that this process holds of a batch that all share; every process holds as many."""

    def __init__(self) -> None:
        self.size, self.place = dist.get_world_size(), dist.get_rank()

    def gather(self, rows: Tensor) -> Tensor:
        return _Gather.apply(rows)

    def log_sum(self, parts: Tensor) -> Tensor:
        return _LogSum.apply(parts)

    def total(self, numbers: Tensor) -> Tensor:
        return total(numbers.detach().clone())


def shard_of_this_process() -> Shard:
    """Which part of each batch this process holds."""
    return RankShard() if in_parallel() else WHOLE


def _all_rows(rows: Tensor) -> Tensor:
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.contiguous())
    return torch.cat(parts)


class _Gather(torch.autograd.Function):
    """The rows of all processes; what all of them found to be the gradient of this one's is added up."""

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
    """``log sum exp`` over processes of a vector that each has a part of."""

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
    """Whether each process holds a part of it alone, whose gradients it has been given whole."""
    return isinstance(tensor, DTensor)


def sum_gradients(modules: Iterable[nn.Parameter]) -> None:
    """Make the gradients of all processes those of the whole batch: each found those of its rows."""
    if not in_parallel():
        return
    found = [each.grad for each in modules if each.grad is not None and not is_split(each)]
    for handle in [dist.all_reduce(gradient, async_op=True) for gradient in found]:
        handle.wait()


def first_decides(decide: Callable[[], Decision]) -> Decision:
    """What the first process finds, for all of them, however long it takes; its error is everybody's.

    Raises:
        UserError: the first process met it; in the others also whatever else it met, in one line.
    """
    if not in_parallel():
        return decide()
    told: list[Any] = [None, None]
    met = None
    if rank() == 0:
        try:
            told[0] = decide()
        except Exception as error:
            met, told[1] = error, _one_line(error)
    dist.broadcast_object_list(told, group=_PATIENT[0] if _PATIENT else None)
    if met is not None:
        raise met
    if told[1] is not None:
        raise UserError(told[1])
    return told[0]


def _one_line(error: Exception) -> str:
    if isinstance(error, UserError):
        return str(error)
    return f"the first process of this run has failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def first_makes(make: Callable[[], Decision]) -> Decision:
    """What ``make`` gives; the first process runs it before the others, who find what it has kept on the disk.

    Raises:
        UserError: see `first_decides`.
    """
    made: list[Decision] = []
    first_decides(lambda: made.append(make()))
    return made[0] if made else make()


def check_agreement(held: Mapping[str, str]) -> None:
    """Refuse to train where processes hold different things under one name: another copy of the data, say.

    Args:
        held: what this process has, in words or as a digest.

    Raises:
        UserError: in every process, naming one that differs from the first.
    """
    if not in_parallel():
        return
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, dict(held), group=_PATIENT[0] if _PATIENT else None)
    for number, theirs in enumerate(everybody):
        for name, value in everybody[0].items():
            if theirs.get(name) != value:
                raise UserError(
                    f"{name}: process {number} of this run has another than process 0 ({theirs.get(name)}; {value}). "
                    "Copy it to every machine from one place."
                )


def share_from_first(modules: Iterable[object]) -> None:
    """Give every process the first one's weights, so that what another machine rounds otherwise is nobody's own."""
    if in_parallel():
        for module in modules:
            for tensor in module.state_dict().values() if isinstance(module, nn.Module) else ():
                sent = tensor.detach().contiguous()
                dist.broadcast(sent, 0)
                tensor.detach().copy_(sent)


@contextmanager
def dead_ranks(where: str) -> Iterator[None]:
    """Say in one line that another process has ended, where a collective cannot go on without it.

    Raises:
        UserError: in place of what torch's backend raises.
    """
    try:
        yield
    except RuntimeError as error:
        gone = isinstance(error, dist.DistError) or any(word in str(error) for word in _GONE)
        if not (in_parallel() and gone):
            raise
        raise UserError(
            f"{where}: another process of this run has ended, or its machine cannot be reached. The same command with "
            "--resume goes on from the last checkpoint, on any number of processes."
        ) from error


_GONE = ("gloo", "Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL", "ProcessGroup")


def total(numbers: Tensor) -> Tensor:
    """Sum of ``numbers`` over all processes."""
    if in_parallel():
        dist.all_reduce(numbers)
    return numbers


def wait_for_all() -> None:
    """Return when every process has come this far."""
    if in_parallel():
        dist.barrier()
