"""Heads of transformers' dual encoders, which map a tower's pooled features to embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import transformers
from jaxtyping import Float
from torch import Tensor, nn

from recollect.models.transformers.families import is_siglip


class TowerHead:
    """Identity head, for towers whose pooled features are the embeddings; base class of the others."""

    def read(self, run: Callable[[], Tensor]) -> Float[Tensor, "n features"]:
        """Call ``run``, which embeds, and return the features that reach the head."""
        return run()

    def __call__(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        """Map features from `read` to raw embeddings."""
        return features

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of the head."""
        return iter(())


class Projection(TowerHead):
    """Head that is a single module (CLIP, VisionTextDualEncoder; SigLIP's texts)."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def read(self, run: Callable[[], Tensor]) -> Float[Tensor, "n features"]:
        return _capture(self.module.register_forward_pre_hook, lambda _, args: args[0], run)

    def __call__(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        return self.module(features)

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.module.parameters()


class PoolingMlp(TowerHead):
    """Head of SigLIP's image tower: the residual MLP after its attention pooling."""

    def __init__(self, pooling: Any) -> None:
        self.pooling = pooling

    def read(self, run: Callable[[], Tensor]) -> Float[Tensor, "n features"]:
        return _capture(self.pooling.attention.register_forward_hook, lambda _, args, output: output[0][:, 0], run)

    def __call__(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        return features + self.pooling.mlp(self.pooling.layernorm(features))

    def parameters(self) -> Iterator[nn.Parameter]:
        yield from self.pooling.layernorm.parameters()
        yield from self.pooling.mlp.parameters()


def _capture(register: Callable[..., Any], choose: Callable[..., Tensor], run: Callable[[], Tensor]) -> Tensor:
    captured: list[Tensor] = []
    handle = register(lambda *args: captured.append(choose(*args)))
    try:
        run()
    finally:
        handle.remove()
    return captured[-1]


def image_head(model: transformers.PreTrainedModel) -> TowerHead:
    """Return the head of the image tower; the identity if it has none (ALIGN)."""
    if is_siglip(model.config) and not hasattr(model, "visual_projection"):
        pooling = getattr(model.vision_model, "head", None)
        return PoolingMlp(pooling) if hasattr(pooling, "attention") else TowerHead()
    return _projection(model, "visual_projection")


def text_head(model: transformers.PreTrainedModel) -> TowerHead:
    """Return the head of the text tower; the identity if it has none."""
    inner = is_siglip(model.config) and not hasattr(model, "text_projection")
    return _projection(model.text_model, "head") if inner else _projection(model, "text_projection")


def _projection(owner: Any, name: str) -> TowerHead:
    module = getattr(owner, name, None)
    return Projection(module) if isinstance(module, nn.Module) else TowerHead()
