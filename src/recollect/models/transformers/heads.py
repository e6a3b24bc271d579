"""Where the towers of transformers' dual encoders can be cut: the pooled features, and the head that embeds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import transformers
from jaxtyping import Float
from torch import Tensor, nn

from recollect.models.transformers.families import is_siglip


class TowerHead:
    """The last part of a tower; this base class is for towers whose pooled features are the embedding."""

    def read(self, run: Callable[[], Tensor]) -> Float[Tensor, "n features"]:
        """The input of the head while ``run`` embeds."""
        return run()

    def __call__(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        """Raw embeddings of what `read` returned."""
        return features

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of the head."""
        return iter(())


class Projection(TowerHead):
    """A module that maps pooled features to embeddings (CLIP, VisionTextDualEncoder; SigLIP's texts)."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def read(self, run: Callable[[], Tensor]) -> Float[Tensor, "n features"]:
        return _seen(self.module.register_forward_pre_hook, lambda _, given: given[0], run)

    def __call__(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        return self.module(features)

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.module.parameters()


class PoolingMlp(TowerHead):
    """SigLIP's image tower ends in attention pooling, with a residual MLP in place of a projection."""

    def __init__(self, pooling: Any) -> None:
        self.pooling = pooling

    def read(self, run: Callable[[], Tensor]) -> Float[Tensor, "n features"]:
        return _seen(self.pooling.attention.register_forward_hook, lambda _, given, made: made[0][:, 0], run)

    def __call__(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        return features + self.pooling.mlp(self.pooling.layernorm(features))

    def parameters(self) -> Iterator[nn.Parameter]:
        yield from self.pooling.layernorm.parameters()
        yield from self.pooling.mlp.parameters()


def _seen(register: Callable[..., Any], choose: Callable[..., Tensor], run: Callable[[], Tensor]) -> Tensor:
    found: list[Tensor] = []

    def note(*given: Any) -> None:
        found.append(choose(*given))

    handle = register(note)
    try:
        run()
    finally:
        handle.remove()
    return found[-1]


def image_head(model: transformers.PreTrainedModel) -> TowerHead:
    """The head of the image tower; an empty one if it has none (ALIGN)."""
    if is_siglip(model.config) and not hasattr(model, "visual_projection"):
        pooling = getattr(model.vision_model, "head", None)
        return PoolingMlp(pooling) if hasattr(pooling, "attention") else TowerHead()
    return _projection(model, "visual_projection")


def text_head(model: transformers.PreTrainedModel) -> TowerHead:
    """The head of the text tower; an empty one if it has none."""
    own = is_siglip(model.config) and not hasattr(model, "text_projection")
    return _projection(model.text_model, "head") if own else _projection(model, "text_projection")


def _projection(owner: Any, name: str) -> TowerHead:
    module = getattr(owner, name, None)
    return Projection(module) if isinstance(module, nn.Module) else TowerHead()
