"""A simulated GPU: its tensors wrap CPU tensors and refuse to mix with them.

On machines without a GPU, this raises where a GPU would: operations on tensors of two devices, a GPU tensor converted
to numpy, GPU numbers drawn from a CPU generator. It does not simulate kernels, streams or precision.
PyTorch's C++ code sees CPU tensors, so device queries from Python are answered here.
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

GPU = torch.device("cuda", 0)
aten = torch.ops.aten
TAKES_INDICES = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
"""Operations on a GPU tensor that accept CPU indices."""


class GpuTensor(Tensor):
    """Tensor on the simulated GPU."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> "GpuTensor":
        return Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=inner.device, requires_grad=inner.requires_grad,
        )  # fmt: skip

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride) -> "GpuTensor":
        return GpuTensor(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return dispatch(function, args, kwargs or {})


def unwrap(tensor: Tensor) -> Tensor:
    return tensor.inner if isinstance(tensor, GpuTensor) else tensor


def is_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == GPU.type


def dispatch(function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the device of its inputs; raise if they are on two devices."""
    packet, name = function.overloadpacket, function._schema.name
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    first = bool(args) and isinstance(args[0], GpuTensor)
    if packet in (aten.copy_, aten._to_copy) or name.startswith("aten::new_") or name.endswith("_like"):
        on_gpu = first or (packet is not aten.copy_ and is_gpu(kwargs.get("device")))
    elif packet in TAKES_INDICES and first:
        on_gpu, tensors = True, [args[0], *args[2:3]]
    else:
        on_gpu = any(isinstance(tensor, GpuTensor) for tensor in tensors) or is_gpu(kwargs.get("device"))
    if on_gpu and packet not in (aten.copy_, aten._to_copy):
        on_cpu = [tuple(each.shape) for each in tensors if not isinstance(each, GpuTensor) and each.dim() > 0]
        if on_cpu:
            raise RuntimeError(f"{function}: tensors of shapes {on_cpu} are on the CPU, others on the GPU")
        if kwargs.get("generator") is not None:
            raise RuntimeError(f"{function}: CPU generator for a GPU tensor")
    inner_args, inner = tree_map_only(GpuTensor, unwrap, (args, dict(kwargs)))
    inner.pop("pin_memory", None)
    if is_gpu(kwargs.get("device")):
        inner["device"] = torch.device("cpu")
    result = function(*inner_args, **inner)
    if packet is aten.copy_:
        return args[0]
    if on_gpu:
        return return_and_correct_aliasing(function, args, kwargs, tree_map_only(Tensor, GpuTensor, result))
    return result


class Move(torch.autograd.Function):
    """Copy to or from the GPU; the gradient takes the opposite way."""

    @staticmethod
    def forward(context, tensor: Tensor, on_gpu: bool) -> Tensor:
        context.back = isinstance(tensor, GpuTensor)
        return Move.copy_to(tensor, on_gpu)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        return Move.copy_to(gradient, context.back), None

    @staticmethod
    def copy_to(tensor: Tensor, on_gpu: bool) -> Tensor:
        copy = unwrap(tensor).detach().clone()
        return GpuTensor(copy) if on_gpu else copy


class DispatchMode(TorchDispatchMode):
    """Also create GPU tensors from a device name alone."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return dispatch(function, args, kwargs or {})


def replacement(stand_in: Callable, plain: Callable) -> Callable:
    return lambda *args, **kwargs: stand_in(plain, *args, **kwargs)


def move(tensor: Tensor, on_gpu: bool) -> Tensor:
    return tensor if on_gpu == isinstance(tensor, GpuTensor) else Move.apply(tensor, on_gpu)


def devices_and_dtypes(tensor: Tensor, *args: Any, **kwargs: Any) -> tuple[list[Any], list[torch.dtype]]:
    """Return the devices and dtypes in the arguments of ``tensor.to(...)``."""
    like = [one for one in (*args, kwargs.get("other")) if isinstance(one, Tensor)]
    named = [one for one in (*args, kwargs.get("device")) if isinstance(one, str | torch.device)]
    types = [one for one in (*args, kwargs.get("dtype")) if isinstance(one, torch.dtype)]
    return [*named, *(one.device for one in like)], [*types, *(one.dtype for one in like)]


def to(plain: Callable, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    named, types = devices_and_dtypes(tensor, *args, **kwargs)
    if not isinstance(tensor, GpuTensor) and not any(map(is_gpu, named)):
        return plain(tensor, *args, **kwargs)
    tensor = plain(tensor, types[0]) if types else tensor
    return move(tensor, is_gpu(named[0]) if named else True)


def construct(plain: Callable, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
    if not is_gpu(device):
        return plain(*args, device=device, **kwargs)
    return Move.apply(plain(*args, **kwargs), True)


def numpy(plain: Callable, tensor: Tensor, **kwargs: Any) -> Any:
    if isinstance(tensor, GpuTensor):
        raise TypeError("cannot convert a GPU tensor to numpy")
    return plain(tensor, **kwargs)


REPLACEMENTS: dict[tuple[Any, str], Callable] = {
    (torch, "tensor"): construct,
    (torch, "as_tensor"): construct,
    (Tensor, "to"): to,
    (Tensor, "cpu"): lambda plain, tensor: move(tensor, False),
    (Tensor, "cuda"): lambda plain, tensor: move(tensor, True),
    (Tensor, "numpy"): numpy,
    (Tensor, "tolist"): lambda plain, tensor: plain(unwrap(tensor)),
    (Tensor, "pin_memory"): lambda plain, tensor: tensor,
    (safetensors.torch, "_flatten_as_ptr"): lambda plain, tensors, *more: plain(
        tree_map_only(GpuTensor, unwrap, tensors), *more
    ),
    (modeling_utils, "id_tensor_storage"): lambda plain, tensor: plain(unwrap(tensor)),
    (torch.cuda, "_lazy_init"): lambda plain: None,
    (torch.cuda, "current_device"): lambda plain: 0,
    (torch.cuda, "get_rng_state"): lambda plain, device=None: torch.get_rng_state(),
    (torch.cuda, "set_rng_state"): lambda plain, state, device=None: torch.set_rng_state(state),
}
"""Functions that query or set a device from Python, and their replacements."""


@contextmanager
def simulated_gpu() -> Iterator[str]:
    """Yield the name of a GPU that exists inside this block."""
    _device_constructors()  # PyTorch caches this set on first use; fill it before patching
    with ExitStack() as stack:
        for (owner, name), stand_in in REPLACEMENTS.items():
            plain = getattr(owner, name)
            stack.enter_context(mock.patch.object(owner, name, replacement(stand_in, plain)))
        stack.enter_context(DispatchMode())
        yield str(GPU)
