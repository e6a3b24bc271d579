"""Dense against block-wise objectives: time and numbers kept for the backward pass, as ratios in one run.

python benchmarks/objectives.py --out objectives.json
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from recollect.cli.parser import script_options
from recollect.core.files import write_json
from recollect.core.types import best_device
from recollect.objectives import ContextObjective, ContrastiveObjective, Form


@dataclass(frozen=True)
class Options:
    """What to measure."""

    batch: tuple[int, ...] = (256, 512, 1024, 2048, 4096)
    width: tuple[int, ...] = (128,)
    repeats: int = 5
    out: Path | None = None


def build(name: str, form: Form) -> nn.Module:
    """One of the four objectives."""
    base = "sigmoid" if "sig" in name else "softmax"
    return ContextObjective(base, form=form) if name.endswith("xp") else ContrastiveObjective(base, form=form)


def step(objective: nn.Module, images: Tensor, texts: Tensor) -> None:
    """One forward and backward pass."""
    objective.zero_grad()
    images.grad = texts.grad = None
    objective(images, texts)[0].backward()
    if images.is_cuda:
        torch.cuda.synchronize()


def seconds(function: Callable[[], None], repeats: int) -> float:
    """Median of ``repeats`` runs after one to warm up."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def kept(objective: nn.Module, images: Tensor, texts: Tensor) -> int:
    """Numbers that autograd keeps, each storage once."""
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = objective(images, texts)[0]  # alive while counted, so that no storage is freed and reused
    assert loss.requires_grad
    return sum(storages.values())


def main(options: Options) -> None:
    """Measure, print and write."""
    device = best_device()
    name_of_device = torch.cuda.get_device_name() if device.type == "cuda" else device.type
    threads = torch.get_num_threads()
    print(f"device {name_of_device}, {threads} threads; dense / block-wise; numbers kept in units of B·d")
    lines = []
    for objective in ("siglip", "siglixp", "clip", "clixp"):
        for width in options.width:
            for batch in options.batch:
                images = torch.randn(batch, width, device=device, requires_grad=True)
                texts = torch.randn(batch, width, device=device, requires_grad=True)
                forms = {form: build(objective, form).to(device) for form in ("dense", "blockwise")}
                times = {
                    form: seconds(partial(step, module, images, texts), options.repeats)
                    for form, module in forms.items()
                }
                units = {form: kept(module, images, texts) / (batch * width) for form, module in forms.items()}
                speedup = times["dense"] / times["blockwise"]
                lines.append({"objective": objective, "batch": batch, "width": width, "seconds": times,
                              "speedup": speedup, "kept_per_batch_width": units})  # fmt: skip
                print(f"{objective:8} B={batch:6} d={width:4}  {1e3 * times['dense']:9.1f} / "
                      f"{1e3 * times['blockwise']:9.1f} ms = {speedup:4.2f}x   kept {units['dense']:7.1f} / "
                      f"{units['blockwise']:4.1f}", flush=True)  # fmt: skip
    if options.out:
        write_json(options.out, {"device": name_of_device, "threads": torch.get_num_threads(), "rows": lines})


if __name__ == "__main__":
    main(script_options(Options))
