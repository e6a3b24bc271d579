"""A training step at once and in chunks: examples per second, memory, and the objective's share of the time.

python benchmarks/training.py --out results/bench/training.json
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch import nn

from recollect.core.files import write_json
from recollect.core.progress import output
from recollect.core.types import best_device
from recollect.models import DualEncoder, build_model
from recollect.objectives import ContextObjective, ContrastiveObjective
from recollect.training.optimizer import Optimizer, build_optimizer
from recollect.training.step import Inputs, Precision, StepOptions, train_step
from recording import script_options, this_command, where


@dataclass(frozen=True)
class Options:
    """Command-line options."""

    preset: str = "tiny"
    batch: int = 512
    chunks: tuple[int, ...] = (256, 64, 16)
    precision: Precision = "float32"
    repeats: int = 5
    out: Path | None = None


@dataclass(frozen=True)
class Row:
    """Results of one kind of step; memory beyond weights, optimizer and inputs, in MiB."""

    objective: str
    chunk: int | None
    examples_per_second: float
    memory: float
    objective_share: float


def best_seconds(works: Sequence[Callable[[], object]], device: torch.device, repeats: int) -> list[float]:
    """Return the minimum time of each function, after one round to warm up.

    The functions take turns, so other load affects all of them. On a single CPU thread this is CPU time, which does not
    include other processes.
    """
    single = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if single else time.perf_counter
    best = [math.inf] * len(works)
    for turn in range(repeats + 1):
        for number, work in enumerate(works):
            start = clock()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn:
                best[number] = min(best[number], clock() - start)
    return best


def peak_memory(work: Callable[[], object], device: torch.device) -> float:
    """Return the peak tensor memory of ``work`` in MiB, beyond the memory in use before."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))) / 2**20


def random_inputs(model: DualEncoder, batch: int) -> Inputs:
    """Create pictures of noise and texts of the tower's full length; the content does not affect the speed."""
    size = model.transform.size
    texts = [f"{number} photos of a cat left of a large red house and two trees" for number in range(batch)]
    return Inputs(torch.randn(batch, 3, size, size), model.tokenize(texts))


def step_of(model: DualEncoder, objective: nn.Module, inputs: Inputs, options: StepOptions) -> Callable[[], None]:
    """Return a function that runs one step, including the update of the weights."""
    optimizer = build_optimizer(model, objective, Optimizer())

    def step() -> None:
        optimizer.zero_grad()
        train_step(model, objective, inputs, options)
        optimizer.step()

    return step


def alone(objective: nn.Module, batch: int, width: int, device: torch.device) -> Callable[[], None]:
    """Return a function that runs the objective without towers, forward and backward."""
    rows = [torch.randn(batch, width, device=device) for _ in range(2)]
    return lambda: objective(*(row.clone().requires_grad_() for row in rows))[0].backward()


def measure(options: Options) -> list[Row]:
    """Measure each objective at once and with each chunk size."""
    device = best_device()
    model = build_model(options.preset, texts=[f"{number} photos" for number in range(1000)]).to(device).train()
    inputs = random_inputs(model, options.batch)
    ways = [
        (name, objective.to(device), chunk)
        for name, objective in (("SigLIP", ContrastiveObjective()), ("SigLIxP", ContextObjective(tau_context=0.01)))
        for chunk in (None, *options.chunks)
    ]
    steps = [step_of(model, loss, inputs, StepOptions(chunk, options.precision)) for _, loss, chunk in ways]
    losses = [alone(loss, options.batch, model.width, device) for _, loss, _ in ways]
    times = best_seconds([*steps, *losses], device, options.repeats)
    return [
        Row(name, chunk, options.batch / whole, peak_memory(step, device), loss / whole)
        for (name, _, chunk), step, whole, loss in zip(ways, steps, times, times[len(steps) :], strict=False)
    ]


def main(options: Options) -> None:
    """Measure and print, and write the results if ``--out`` is given."""
    rows, console = measure(options), output()
    setting = f"{options.preset}, batch {options.batch}, {options.precision}, {best_device().type}"
    console.print(f"{setting}, {torch.get_num_threads()} threads, best of {options.repeats}")
    for row in rows:
        plain = next(other for other in rows if other.objective == row.objective and other.chunk is None)
        console.print(
            f"{row.objective:8} chunk {row.chunk or 'none':>5}: {row.examples_per_second:7.0f} examples/s "
            f"({row.examples_per_second / plain.examples_per_second:.2f} x), {row.memory:7.1f} MiB "
            f"({row.memory / plain.memory:.2f} x), objective {row.objective_share:.1%} of the step"
        )
    if options.out:
        settings = asdict(options) | {"out": None}
        made = {"command": this_command(), "options": settings, **where(), "rows": [asdict(row) for row in rows]}
        write_json(options.out, made)


if __name__ == "__main__":
    main(script_options(Options))
