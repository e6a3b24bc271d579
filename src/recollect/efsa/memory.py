"""How much memory tensors hold."""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary


class TensorMemory(TorchDispatchMode):
    """Counts the memory of tensors that are created inside the block.

    Attributes:
        held: bytes of those that are alive.
        peak: its maximum.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held = self.peak = 0
        self._known = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
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
