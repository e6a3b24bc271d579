"""New blocks before each block of an image tower, closed by gates that begin at zero (REACT: Liu et al., CVPR 2023).

The checkpoint stays as it is, and only the blocks learn: at the start the model is the old one to the bit, and nothing
can spoil its weights. The gates are Flamingo's (Alayrac et al., 2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from jaxtyping import Float
from torch import Tensor, nn

from recollect.core.errors import UserError
from recollect.core.seeding import torch_generator

GATED_WEIGHTS = "gated.safetensors"
"""File of all weights of a model with gated blocks."""


_OLD, _NEW = "model.", "gated."


class GatedBlock(nn.Module):
    """A pre-norm transformer block that has no effect until its gates open::

        x ← x + tanh(a) · Attention(LN(x))
        x ← x + tanh(m) · MLP(LN(x)),        a = m = 0 at the start

    Args:
        width: entries of a token.
        heads: of the attention; they divide ``width``.
        hidden: width of the MLP.
        activation: of the MLP, as transformers calls it.
        epsilon: of both norms.
    """

    def __init__(self, width: int, heads: int, hidden: int, activation: str = "gelu", epsilon: float = 1e-5) -> None:
        super().__init__()
        self.heads, self.activation = heads, transformers.activations.ACT2FN[activation]
        self.norm_attention, self.norm_mlp = (nn.LayerNorm(width, eps=epsilon) for _ in range(2))
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.gate_attention, self.gate_mlp = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

    def forward(self, tokens: Float[Tensor, "n tokens width"], mask: Tensor | None = None) -> Tensor:
        """New tokens (n, tokens, width).

        Args:
            mask: what the tower's own attention is given: added to its logits, or True where a token is seen.
        """
        n, count, width = tokens.shape
        mixed = self.mixed(self.norm_attention(tokens)).view(n, count, 3, self.heads, width // self.heads)
        queries, keys, values = mixed.permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        tokens = tokens + self.gate_attention.tanh() * self.out(found.transpose(1, 2).reshape(n, count, width))
        return tokens + self.gate_mlp.tanh() * self.down(self.activation(self.up(self.norm_mlp(tokens))))

    def stand_before(self, _: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """What the tower's block is given in place of its own input; a hook of torch's."""
        mask = given[1] if len(given) > 1 else named.get("attention_mask")
        mask = mask if isinstance(mask, Tensor) else None
        if given:
            return (self(given[0], mask), *given[1:]), named
        return given, {**named, "hidden_states": self(named["hidden_states"], mask)}


def image_blocks(model: transformers.PreTrainedModel) -> list[nn.Module]:
    """The blocks of a model's image tower, from the first to the last.

    Raises:
        UserError: it has none of one width, as a convnet or Swin.
    """
    config = model.config.vision_config
    if isinstance(getattr(config, "num_attention_heads", None), int):
        for module in model.vision_model.modules():
            if isinstance(module, nn.ModuleList) and len(module) == config.num_hidden_layers:
                return list(module)
    raise UserError(
        f"--model.gated: the image tower of a {model.config.model_type} model has no attention blocks of one width, so "
        "gated ones cannot be inserted. Use --model.freeze text."
    )


def add_gated_blocks(model: transformers.PreTrainedModel, seed: int = 0) -> nn.ModuleList:
    """Put a closed block before each block of the image tower; the model's outputs stay as they are, to the bit.

    Matrices are Xavier uniform, drawn from (seed, place), biases zero; sizes, activation and norms are the tower's.

    Returns:
        The new blocks, which the model itself does not hold: its names and its files stay as they were.
    """
    config, old = model.config.vision_config, image_blocks(model)
    sizes = (config.hidden_size, config.num_attention_heads, config.intermediate_size)
    blocks = [GatedBlock(*sizes, config.hidden_act, config.layer_norm_eps) for _ in old]
    new = nn.ModuleList(blocks)
    with torch.no_grad():
        for name, parameter in new.named_parameters():
            if parameter.ndim == 2:
                drawn = torch.empty(parameter.shape, dtype=torch.float64)
                nn.init.xavier_uniform_(drawn, generator=torch_generator(seed, "gated", name))
                parameter.copy_(drawn)
            elif name.endswith(".bias"):
                parameter.zero_()
    new.to(model.device, model.dtype)
    for block, own in zip(blocks, old, strict=True):
        own.register_forward_pre_hook(block.stand_before, with_kwargs=True)
    return new


def gated_tensors(model: transformers.PreTrainedModel, blocks: nn.ModuleList) -> dict[str, Tensor]:
    """All weights of both, by names that say whose they are, for the file `GATED_WEIGHTS`."""
    return {
        f"{part}{name}": tensor.detach().contiguous()
        for part, module in ((_OLD, model), (_NEW, blocks))
        for name, tensor in module.state_dict().items()
    }


def load_gated(model: transformers.PreTrainedModel, blocks: nn.ModuleList, tensors: Mapping[str, Tensor]) -> None:
    """Give both what `gated_tensors` returned.

    Raises:
        RuntimeError: some are missing, or of another shape.
    """
    for part, module in ((_OLD, model), (_NEW, blocks)):
        module.load_state_dict({n.removeprefix(part): each for n, each in tensors.items() if n.startswith(part)})
