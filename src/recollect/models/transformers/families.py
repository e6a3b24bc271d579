"""Differences between families of dual encoders in transformers: padding, masks, pooled tokens, image inputs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
import transformers
from jaxtyping import Float
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.types import Kind
from recollect.data.transforms import patch_grid

Pooling = Literal["end", "last", "first"]

# With this end token id, stored by CLIP checkpoints from before transformers 4.31, a text is pooled at its largest id.
LEGACY_END_ID = 2

_OFFSET_POSITIONS = re.compile(".*roberta|altclip")  # text towers whose positions start at the padding id + 1

_MAX_LENGTH = 10_000  # tokenizers without a limit report 1e30


@dataclass(frozen=True)
class TextFormat:
    """Token format of a text tower.

    Attributes:
        padding: pad to the longest text of the batch, or always to ``length``.
        length: maximum text length in tokens, including prefix and special tokens.
        inputs: names of the tokenizer outputs that the tower uses.
    """

    padding: Literal["longest", "max_length"]
    length: int
    inputs: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the fields as a dictionary."""
        return asdict(self)


@dataclass(frozen=True)
class TextTokens:
    """Tokenization for a text tower; contains no weights and can be sent to worker processes.

    Attributes:
        tokenizer: the transformers tokenizer.
        format: token format of the tower.
        prefixes: prefix tokens by kind of source.
    """

    tokenizer: transformers.PreTrainedTokenizerBase
    format: TextFormat
    prefixes: Mapping[Kind, tuple[str, ...]]

    @property
    def by_row(self) -> bool:
        """Whether a text's tokens are independent of the rest of the batch (fixed length)."""
        return self.format.padding == "max_length"

    def __call__(self, texts: Sequence[str], kinds: Sequence[Kind] | Kind | None = None) -> dict[str, Tensor]:
        """See `DualEncoder.tokenize`."""
        tokens = self.tokenizer(
            self.prefixed(texts, kinds),
            padding=self.format.padding,
            truncation=True,
            max_length=self.format.length,
            return_tensors="pt",
        )
        return {name: tokens[name] for name in self.format.inputs}

    def prefixed(self, texts: Sequence[str], kinds: Sequence[Kind] | Kind | None) -> list[str]:
        """Prepend the prefix tokens of their kinds to texts.

        Raises:
            UserError: the model has prefix tokens, but not for one of the kinds.
            ValueError: the number of kinds is not the number of texts.
        """
        if kinds is None or not self.prefixes:
            return list(texts)
        kinds = [kinds] * len(texts) if isinstance(kinds, str) else kinds
        if len(kinds) != len(texts):
            raise ValueError(f"{len(texts)} texts, but {len(kinds)} kinds")
        return [self._prefix(kind) + text for kind, text in zip(kinds, texts, strict=True)]

    def _prefix(self, kind: Kind) -> str:
        if kind not in self.prefixes:
            raise UserError(f"this model has no {kind} prefix; it has {', '.join(self.prefixes)}")
        return "".join(self.prefixes[kind])


def text_format(model: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerBase) -> TextFormat:
    """Return the token format that ``model`` was trained with.

    SigLIP was trained on texts padded to ``length``, attends to the padding and pools at the last token, so padding is
    part of the text and there is no mask. Other models pad to the longest text and mask the padding.
    """
    config = model.config.text_config
    length = min(tokenizer.model_max_length, _max_positions(config), _MAX_LENGTH)
    if is_siglip(model.config):
        return TextFormat("max_length", length, ("input_ids",))
    methods = [model.get_text_features, *([model.text_model.forward] if hasattr(model, "text_model") else [])]
    read = set(tokenizer.model_input_names).intersection(*(inspect.signature(each).parameters for each in methods))
    inputs = tuple(name for name in ("input_ids", "attention_mask", "token_type_ids") if name in read)
    return TextFormat("longest", length, inputs)


def _max_positions(config: Any) -> int:
    count = getattr(config, "max_position_embeddings", _MAX_LENGTH)
    return count - config.pad_token_id - 1 if _OFFSET_POSITIONS.match(config.model_type) else count


def is_siglip(config: Any) -> bool:
    """Whether the text tower is SigLIP's or SigLIP 2's."""
    return config.text_config.model_type in ("siglip_text_model", "siglip2_text_model")


def is_naflex(config: Any) -> bool:
    """Whether the image tower accepts variable input shapes (SigLIP 2 NaFlex)."""
    return config.model_type == "siglip2"


def pooling(config: Any) -> Pooling:
    """Return which token is pooled to the text embedding: the end token, the last position, or the first (CLS)."""
    if is_siglip(config):
        return "last"
    model_type = config.text_config.model_type
    return "end" if model_type.startswith(("clip_text", "metaclip_2_text", "clip", "metaclip_2")) else "first"


def store_end_token(model: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerBase) -> None:
    """Make a CLIP text tower pool at the tokenizer's end token instead of the largest id.

    Added tokens have larger ids than the end token, so a tower that pools at the largest id would pool at them.

    Raises:
        UserError: the tokenizer has no end token, or its id is 2, which transformers treats as "largest id".
    """
    config = model.config.text_config
    if pooling(model.config) != "end":
        return
    if tokenizer.eos_token_id in (None, LEGACY_END_ID):
        raise UserError(
            f"the tokenizer's end token has id {tokenizer.eos_token_id}, which a CLIP text tower does not support. "
            "Use a tokenizer whose end token has another id."
        )
    config.eos_token_id = tokenizer.eos_token_id
    model.text_model.config.eos_token_id = tokenizer.eos_token_id
    model.text_model.eos_token_id = tokenizer.eos_token_id


def image_inputs(pixels: Float[Tensor, "n ..."], config: Any) -> dict[str, Tensor]:
    """Return the inputs of the image tower: pixels, or for NaFlex patches in row-major order.

    Args:
        pixels: (n, 3, rows, columns); for NaFlex also pictures of different shapes from `ImageTransform.pack`.
        config: config of the model.
    """
    if not is_naflex(config):
        return {"pixel_values": pixels}
    if pixels.ndim == 3:
        high, wide = patch_grid(pixels)
        positions = torch.arange(pixels.shape[1] - 1, device=pixels.device)
        return {
            "pixel_values": pixels[:, :-1],
            "pixel_attention_mask": (positions < (high * wide)[:, None]).long(),
            "spatial_shapes": torch.stack([high, wide], dim=1),
        }
    patch = config.vision_config.patch_size
    n, channels, height, width = pixels.shape
    rows, columns = height // patch, width // patch
    patches = pixels.reshape(n, channels, rows, patch, columns, patch).permute(0, 2, 4, 3, 5, 1)
    return {
        "pixel_values": patches.reshape(n, rows * columns, patch * patch * channels),
        "pixel_attention_mask": torch.ones(n, rows * columns, dtype=torch.int64, device=pixels.device),
        "spatial_shapes": torch.tensor([[rows, columns]] * n, device=pixels.device),
    }


def features(output: Any) -> Float[Tensor, "n width"]:
    """Return the embeddings from ``get_image_features``: a tensor before transformers 5, now an output object."""
    return (output if isinstance(output, Tensor) else output.pooler_output).flatten(1)
