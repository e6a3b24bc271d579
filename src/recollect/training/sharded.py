"""Weights split over processes (FSDP2): each process holds a part of every layer, and gathers a layer to compute it.

Gradients, AdamW's moments and the weights' moving average are split as well. Checkpoints are not, so a run can resume
with or without split weights, on any number of processes.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from recollect.core.errors import UserError
from recollect.core.validation import refuse
from recollect.models import TransformersEncoder
from recollect.training.ranks import is_split
from recollect.training.step import Towers

_MIN_TORCH = (2, 13)
"""With torch 2.9, steps in chunks fail inside torch; versions in between are untested."""


def check_torch() -> None:
    """Check that this version of torch can split weights.

    Raises:
        UserError: torch is older than 2.13.
    """
    old = tuple(int(part) for part in torch.__version__.split(".")[:2]) < _MIN_TORCH
    refuse((old, f"--shard-weights: needs torch 2.13 or newer, and this is {torch.__version__}."))


def shard_weights(model: Towers) -> None:
    """Split every layer and the token embedding over the processes; projections and temperatures stay whole.

    Raises:
        UserError: the model has no layers of transformers, or torch is older than 2.13.
    """
    check_torch()
    if not isinstance(model, TransformersEncoder):
        raise UserError("--shard-weights: splits layers of transformers, and this model has none. Remove it.")
    mesh = init_device_mesh(model.device.type, (dist.get_world_size(),))
    for module in list(_sharded_apart(model)):
        fully_shard(module, mesh=mesh)
        _add_gradients(module)


def _sharded_apart(model: TransformersEncoder) -> Iterator[nn.Module]:
    """Yield the token embedding and all layers, then the modules that contain layers and prefetch them."""
    yield model.model.text_model.get_input_embeddings()
    for tower in (model.model.vision_model, model.model.text_model):
        for module in list(tower.modules()):
            for layers in module.children():
                if isinstance(layers, nn.ModuleList) and any(True for _ in layers.parameters()):
                    yield from layers
                    yield module


def _add_gradients(module: nn.Module) -> None:
    """Sum the gradients of the processes instead of averaging, since each computes its part of one loss."""
    assert isinstance(module, FSDPModule)
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)  # required by gloo


@contextmanager
def whole_weights(model: Towers) -> Iterator[None]:
    """Give every process a plain model with all weights while the block runs, to save or evaluate it.

    All processes must enter the block. Inside, each may do different work but must not change weights.
    """
    split = [(module, name, value) for module in _modules(model)
             for name, value in module.named_parameters(recurse=False) if is_split(value)]  # fmt: skip
    for module, name, value in split:
        module.register_parameter(name, nn.Parameter(whole(value.detach()), requires_grad=value.requires_grad))
    with _without_fetching(model):
        try:
            yield
        finally:
            for module, name, value in split:
                module.register_parameter(name, value)


@contextmanager
def _without_fetching(model: Towers) -> Iterator[None]:
    """Remove FSDP's hooks, which gather the parts of other processes before a layer computes."""
    hooked = [module for module in _modules(model) if isinstance(module, FSDPModule)]
    kept = [(module._forward_pre_hooks, module._forward_hooks) for module in hooked]
    for module in hooked:
        module._forward_pre_hooks, module._forward_hooks = OrderedDict(), OrderedDict()
    try:
        yield
    finally:
        for module, (before, after) in zip(hooked, kept, strict=True):
            module._forward_pre_hooks, module._forward_hooks = before, after


def _modules(model: Towers) -> Iterable[nn.Module]:
    return model.modules() if isinstance(model, nn.Module) else ()


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor; a collective call if it is split."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part_like(value: Tensor, parameter: Tensor) -> Tensor:
    """Return this process's part of a value sharded like ``parameter``; scalars are replicated."""
    value = value.to(parameter.device)
    if not isinstance(parameter, DTensor) or value.ndim == 0:
        return value
    return distribute_tensor(value, parameter.device_mesh, parameter.placements)


def clip_gradients(parameters: Mapping[str, nn.Parameter], max_norm: float) -> Tensor:
    """Clip the norm of all gradients to ``max_norm``, like ``clip_grad_norm_``, but also for split gradients.

    Returns:
        The norm before clipping, over all processes.
    """
    split = [parameter for parameter in parameters.values() if is_split(parameter)]
    rest = [parameter for parameter in parameters.values() if not is_split(parameter)]
    if not split:
        return nn.utils.clip_grad_norm_(rest, max_norm)
    norms = [nn.utils.get_total_norm([p.grad for p in group if p.grad is not None]) for group in (split, rest)]
    norm = torch.linalg.vector_norm(torch.stack([whole(norm) for norm in norms]))
    for group in (split, rest):
        nn.utils.clip_grads_with_norm_(group, max_norm, norm)
    return norm
