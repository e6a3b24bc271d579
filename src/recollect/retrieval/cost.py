"""What a query costs: products of both passes, seconds, memory."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from recollect.retrieval.search import SearchResult, TextSearch

_aten = torch.ops.aten
# In-place forms and the CPU's attention, which torch's own table leaves out.
_COUNTS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    _aten.addmm_: flop_registry[_aten.addmm],
    _aten.baddbmm_: flop_registry[_aten.baddbmm],
    _aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[_aten._scaled_dot_product_flash_attention],
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        _aten._scaled_dot_product_flash_attention_backward
    ],
}


@dataclass(frozen=True)
class Cost:
    """Of one query, on average.

    Attributes:
        seconds: from the query's text to its ranking.
        images_forward, texts_forward, images_backward, texts_backward: rows that passed through a tower.
        forward_products, backward_products: multiplications of matrix products, attention and convolutions.
        memory: bytes that were held at most beyond what was held before, over the queries in flight; None where the
            system does not tell.
    """

    seconds: float
    images_forward: float
    texts_forward: float
    images_backward: float
    texts_backward: float
    forward_products: float
    backward_products: float
    memory: float | None


class Products(TorchDispatchMode):
    """Counts the multiplications of matrix products, attention and convolutions while it is open.

    Attributes:
        forward, backward: how many so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forward = self.backward = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if count := _COUNTS.get(func._overloadpacket):
            products = int(count(*args, **(kwargs or {}), out_val=out)) // 2
            if torch._C._current_graph_task_id() == -1:  # no backward pass is running
                self.forward += products
            else:
                self.backward += products
        return out


def measured(search: TextSearch, queries: Sequence[str], k: int, probe: int = 8) -> tuple[list[SearchResult], Cost]:
    """Search, and say what it cost.

    Seconds and rows are of all queries; products and memory of the first ``probe`` asked again, since to count slows
    the search down.
    """
    before = search.tally.as_dict()
    start = time.perf_counter()
    results = search.search(queries, k)
    seconds = time.perf_counter() - start
    number = max(1, len(queries))
    rows = {name: (count - before[name]) / number for name, count in search.tally.as_dict().items()}
    some = queries[:probe]
    products = Products()
    memory = peak_memory(lambda: search.search(some, k))
    with products:
        search.search(some, k)
    each = max(1, len(some))
    return results, Cost(
        seconds=seconds / number,
        forward_products=products.forward / each,
        backward_products=products.backward / each,
        memory=None if memory is None else memory / each,
        **rows,
    )


def peak_memory(call: Callable[[], Any]) -> int | None:
    """Bytes that ``call`` holds at most beyond what was held before it; None where the system does not tell."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - held
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew (Linux)
        held = _status("VmRSS")
        call()
        return max(0, _status("VmHWM") - held)
    except OSError:
        call()
        return None


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {name}")
