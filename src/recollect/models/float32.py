"""Models in float32, whatever default dtype their user has set, and without a change of it.

PyTorch has one default dtype for a whole process: who sets it for a moment changes what other threads make meanwhile.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_MADE = frozenset((torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn, torch.eye, torch.linspace))
_MADE_OF_NUMBERS = frozenset((torch.tensor, torch.full, torch.arange, torch.scalar_tensor))


class MadeInFloat32(TorchFunctionMode):
    """Within, tensors that this thread makes of no other tensors, and whose dtype nobody names, are float32.

    As layers make their weights. What is computed of whole numbers, ``torch.arange(3) / 2``, still has the default.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch."""
        given = kwargs or {}
        makes = func in _MADE or (func in _MADE_OF_NUMBERS and _has_float(args, given))
        if makes and given.get("dtype") is None:
            given = {**given, "dtype": torch.float32}
        return func(*args, **given)


def _has_float(args: tuple[Any, ...], given: Mapping[str, Any]) -> bool:
    """Whether plain numbers are given, some of them no whole ones."""
    left = [*args, *given.values()]
    while left:
        value = left.pop()
        if isinstance(value, float):
            return True
        if isinstance(value, list | tuple):
            left.extend(value)
    return False
