"""A graphics card that is not there: its tensors are the CPU's numbers under another name, and mix with none of them.

Where no card is, this shows what one would refuse: tensors of two places in one operation, a tensor of the card as an
array of numpy, numbers drawn for the card by the CPU's generator. Kernels, streams and precision are not its business.
PyTorch's own engine takes the tensors for the CPU's, so what Python asks of their place is answered here.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import safetensors.torch
import torch
from torch import Tensor
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only
from transformers import modeling_utils

CARD = torch.device("cuda", 0)
aten = torch.ops.aten
TAKES_INDICES = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
"""Indices may lie on the CPU where what they point into does not."""


class Away(Tensor):
    """A tensor of the card."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Away":
        return Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=inner.device, requires_grad=inner.requires_grad,
        )  # fmt: skip

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: CARD)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride) -> "Away":
        return Away(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return placed(function, args, kwargs or {})


def inside(tensor: Tensor) -> Tensor:
    return tensor.inner if isinstance(tensor, Away) else tensor


def of_card(device: Any) -> bool:
    return device is not None and torch.device(device).type == CARD.type


def placed(function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What an operation gives, where its inputs are; an error where they are in two places."""
    packet, name = function.overloadpacket, function._schema.name
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    first = bool(args) and isinstance(args[0], Away)
    if packet in (aten.copy_, aten._to_copy) or name.startswith("aten::new_") or name.endswith("_like"):
        away = first or (packet is not aten.copy_ and of_card(kwargs.get("device")))
    elif packet in TAKES_INDICES and first:
        away, tensors = True, [args[0], *args[2:3]]
    else:
        away = any(isinstance(tensor, Away) for tensor in tensors) or of_card(kwargs.get("device"))
    if away and packet not in (aten.copy_, aten._to_copy):
        here = [tuple(one.shape) for one in tensors if not isinstance(one, Away) and one.dim() > 0]
        if here:
            raise RuntimeError(f"{function}: tensors of shapes {here} are on the CPU, others are on the card")
        if kwargs.get("generator") is not None:
            raise RuntimeError(f"{function}: numbers of the CPU's generator for a tensor of the card")
    inner_args, inner = tree_map_only(Away, inside, (args, dict(kwargs)))
    inner.pop("pin_memory", None)
    if of_card(kwargs.get("device")):
        inner["device"] = torch.device("cpu")
    found = function(*inner_args, **inner)
    if packet is aten.copy_:
        return args[0]
    return return_and_correct_aliasing(function, args, kwargs, tree_map_only(Tensor, Away, found)) if away else found


class Move(torch.autograd.Function):
    """To the card or back, with the gradient on the other way."""

    @staticmethod
    def forward(context, tensor: Tensor, away: bool) -> Tensor:
        context.back = isinstance(tensor, Away)
        return Move.copied(tensor, away)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        return Move.copied(gradient, context.back), None

    @staticmethod
    def copied(tensor: Tensor, away: bool) -> Tensor:
        copy = inside(tensor).detach().clone()
        return Away(copy) if away else copy


class Operations(TorchDispatchMode):
    """Makes tensors of the card from nothing but a name, too."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return placed(function, args, kwargs or {})


def bound(stand_in: Callable, plain: Callable) -> Callable:
    return lambda *args, **kwargs: stand_in(plain, *args, **kwargs)


def moved(tensor: Tensor, away: bool) -> Tensor:
    return tensor if away == isinstance(tensor, Away) else Move.apply(tensor, away)


def places(tensor: Tensor, *args: Any, **kwargs: Any) -> tuple[list[Any], list[torch.dtype]]:
    """What ``tensor.to(...)`` names: places, and types of numbers."""
    like = [one for one in (*args, kwargs.get("other")) if isinstance(one, Tensor)]
    named = [one for one in (*args, kwargs.get("device")) if isinstance(one, str | torch.device)]
    types = [one for one in (*args, kwargs.get("dtype")) if isinstance(one, torch.dtype)]
    return [*named, *(one.device for one in like)], [*types, *(one.dtype for one in like)]


def to(plain: Callable, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    named, types = places(tensor, *args, **kwargs)
    if not isinstance(tensor, Away) and not any(map(of_card, named)):
        return plain(tensor, *args, **kwargs)
    tensor = plain(tensor, types[0]) if types else tensor
    return moved(tensor, of_card(named[0]) if named else True)


def made(plain: Callable, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
    if not of_card(device):
        return plain(*args, device=device, **kwargs)
    return Move.apply(plain(*args, **kwargs), True)


def numpy(plain: Callable, tensor: Tensor, **kwargs: Any) -> Any:
    if isinstance(tensor, Away):
        raise TypeError("an array of numpy from a tensor on the card")
    return plain(tensor, **kwargs)


BY_NAME: dict[tuple[Any, str], Callable] = {
    (torch, "tensor"): made,
    (torch, "as_tensor"): made,
    (Tensor, "to"): to,
    (Tensor, "cpu"): lambda plain, tensor: moved(tensor, False),
    (Tensor, "cuda"): lambda plain, tensor: moved(tensor, True),
    (Tensor, "numpy"): numpy,
    (Tensor, "tolist"): lambda plain, tensor: plain(inside(tensor)),
    (Tensor, "pin_memory"): lambda plain, tensor: tensor,
    (safetensors.torch, "_flatten_as_ptr"): lambda plain, tensors, *more: plain(
        tree_map_only(Away, inside, tensors), *more
    ),
    (modeling_utils, "id_tensor_storage"): lambda plain, tensor: plain(inside(tensor)),
    (torch.cuda, "_lazy_init"): lambda plain: None,
    (torch.cuda, "current_device"): lambda plain: 0,
    (torch.cuda, "get_rng_state"): lambda plain, device=None: torch.get_rng_state(),
    (torch.cuda, "set_rng_state"): lambda plain, state, device=None: torch.set_rng_state(state),
}
"""What Python code asks a place or a driver for, with what stands in for it."""


@contextmanager
def card() -> Iterator[str]:
    """The name of a device that is there in this block."""
    _device_constructors()  # PyTorch keeps this set when it is first asked for: not with what stands in
    with ExitStack() as stack:
        for (owner, name), stand_in in BY_NAME.items():
            plain = getattr(owner, name)
            stack.enter_context(mock.patch.object(owner, name, bound(stand_in, plain)))
        stack.enter_context(Operations())
        yield str(CARD)
