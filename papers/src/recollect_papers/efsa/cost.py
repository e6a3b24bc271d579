"""Cost of a search: time, multiplications and memory."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from recollect.efsa.memory import TensorMemory
from recollect.efsa.methods import TextSearch
from recollect.evaluation.retrieval import timed
from recollect.index import Hits

_aten = torch.ops.aten
# In-place operations and CPU attention, which torch's registry lacks.
_COUNTS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    _aten.addmm_: flop_registry[_aten.addmm],
    _aten.baddbmm_: flop_registry[_aten.baddbmm],
    _aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[_aten._scaled_dot_product_flash_attention],
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        _aten._scaled_dot_product_flash_attention_backward
    ],
}


class CostMeter(TensorMemory):
    """Context manager that counts multiplications and memory.

    Attributes:
        forward, backward: multiplications in matrix products, attention and convolutions in each pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forward = self.backward = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if count := _COUNTS.get(func._overloadpacket):
            products = int(count(*args, **kwargs, out_val=out)) // 2
            if torch._C._current_graph_task_id() == -1:  # no backward pass is running
                self.forward += products
            else:
                self.backward += products
        return out


def measured(search: TextSearch, queries: Sequence[str], k: int, probe: int = 8) -> tuple[list[Hits], dict[str, float]]:
    """Search, and measure the mean cost per query.

    Multiplications and peak tensor bytes (``memory``) are counted in a second search over the first ``probe`` queries,
    because counting is slow.
    """
    results, cost = timed(search, queries, k)
    with CostMeter() as meter:
        search(queries[:probe], k)
    count = max(1, len(queries[:probe]))
    products = {
        "forward_products per query": meter.forward / count,
        "backward_products per query": meter.backward / count,
    }
    return results, {**cost, **products, "memory": float(meter.peak)}
