"""Cost of a search: rows through the towers, products of both passes, seconds, memory."""

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakIdKeyDictionary

from recollect.efsa.options import EpisodeReport
from recollect.index import Hits

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


@dataclass
class CostCounters:
    """Rows that passed each tower, forwards and backwards."""

    images_forward: int = 0
    texts_forward: int = 0
    images_backward: int = 0
    texts_backward: int = 0

    def forward(self, *, images: int = 0, texts: int = 0) -> None:
        """Count rows of a forward pass."""
        self.images_forward += images
        self.texts_forward += texts

    def backward(self, *, images: int = 0, texts: int = 0) -> None:
        """Count rows of a backward pass."""
        self.images_backward += images
        self.texts_backward += texts


@runtime_checkable
class TextSearch(Protocol):
    """A search method that evaluations compare: the plain model, episodes, or a baseline."""

    counters: CostCounters

    @property
    def report(self) -> EpisodeReport:
        """Problems in episodes."""
        ...

    def search(self, queries: Sequence[str], k: int = 10) -> list[Hits]:
        """The k best pictures of each query, fewer if the index is smaller."""
        ...


@dataclass(frozen=True)
class Cost:
    """Mean cost of one query.

    Attributes:
        seconds: from the query's text to its ranking.
        forward_products, backward_products: multiplications of matrix products, attention and convolutions.
        memory: largest number of bytes that tensors of a search of several queries held at once.
    """

    seconds: float
    images_forward: float
    texts_forward: float
    images_backward: float
    texts_backward: float
    forward_products: float
    backward_products: float
    memory: float


class Meter(TorchDispatchMode):
    """Counts torch's multiplications and memory inside the block.

    Attributes:
        forward, backward: multiplications of matrix products, attention and convolutions in each pass.
        held: bytes of living tensors that were created inside the block.
        peak: its maximum.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forward = self.backward = self.held = self.peak = 0
        self._known = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if count := _COUNTS.get(func._overloadpacket):
            products = int(count(*args, **kwargs, out_val=out)) // 2
            if torch._C._current_graph_task_id() == -1:  # no backward pass is running
                self.forward += products
            else:
                self.backward += products
        given = {each.untyped_storage()._cdata for each in _tensors((*args, *kwargs.values()))}
        for each in _tensors((out,)):
            storage = each.untyped_storage()
            if storage._cdata not in given:  # no view, and not in place
                self._hold(storage)
        return out

    def _hold(self, storage: torch.UntypedStorage) -> None:
        if storage in self._known:
            return
        size = storage.nbytes()
        self._known[storage] = size
        weakref.finalize(storage, self._let_go, size)
        self.held += size
        self.peak = max(self.peak, self.held)

    def _let_go(self, size: int) -> None:
        self.held -= size


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Tensors among an operator's arguments or results, also in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def measured(search: TextSearch, queries: Sequence[str], k: int, probe: int = 8) -> tuple[list[Hits], Cost]:
    """Search and measure the cost.

    Seconds and rows are those of all queries. Products and memory are counted in a second search of the first ``probe``
    queries, since counting is slow.
    """
    before = asdict(search.counters)
    start = time.perf_counter()
    results = search.search(queries, k)
    seconds = time.perf_counter() - start
    number = max(1, len(queries))
    rows = {name: (count - before[name]) / number for name, count in asdict(search.counters).items()}
    some = queries[:probe]
    with Meter() as meter:
        search.search(some, k)
    each = max(1, len(some))
    return results, Cost(
        seconds=seconds / number,
        forward_products=meter.forward / each,
        backward_products=meter.backward / each,
        memory=float(meter.peak),
        **rows,
    )
