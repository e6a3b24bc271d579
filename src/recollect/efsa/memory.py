"""Memory measurement of tensors."""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary


class TensorMemory(TorchDispatchMode):
    """Measures the memory of tensors created inside the block.

    Attributes:
        held: bytes of tensors currently alive.
        peak: maximum of ``held``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held = self.peak = 0
        self._known = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        inputs = {each.untyped_storage()._cdata for each in _tensors((*args, *kwargs.values()))}
        for each in _tensors((out,)):
            storage = each.untyped_storage()
            if storage._cdata not in inputs:  # neither a view nor in place
                self._add(storage)
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage in self._known:
            return
        size = storage.nbytes()
        self._known[storage] = size
        weakref.finalize(storage, self._release, size)
        self.held += size
        self.peak = max(self.peak, self.held)

    def _release(self, size: int) -> None:
        self.held -= size


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among an operator's arguments or results, including those in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
