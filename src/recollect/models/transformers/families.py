"""How the families of dual encoders in transformers differ: padding, masks, pooled tokens, pixels."""

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

# CLIP's checkpoints from before transformers 4.31 store this id, and are read as "the greatest id is the end token".
OLD_END = 2

_FROM_PADDING = re.compile(".*roberta|altclip")  # text towers that count positions from the padding id + 1

_LONGEST = 10_000  # tokenizers without a limit of their own say 1e30


@dataclass(frozen=True)
class TextFormat:
    """How a text tower wants its tokens.

    Attributes:
        padding: to the longest text of the batch, or always to ``length``.
        length: most tokens of a text, prefix and special tokens included.
        inputs: what the tokenizer gives that the tower reads.
    """

    padding: Literal["longest", "max_length"]
    length: int
    inputs: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class TextTokens:
    """From texts to what a text tower reads, without its weights, so that worker processes can have it.

    Attributes:
        tokenizer: of transformers.
        format: padding, length and names.
        prefixes: tokens in front of the texts of each kind.
    """

    tokenizer: transformers.PreTrainedTokenizerBase
    format: TextFormat
    prefixes: Mapping[Kind, tuple[str, ...]]

    @property
    def by_row(self) -> bool:
        """Whether the tokens of a text do not depend on the other texts (fixed length)."""
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
        """The texts with the prefix tokens of their kinds in front.

        Raises:
            UserError: a kind that has none, where others have.
            ValueError: not one kind for each text.
        """
        if kinds is None or not self.prefixes:
            return list(texts)
        each = [kinds] * len(texts) if isinstance(kinds, str) else kinds
        if len(each) != len(texts):
            raise ValueError(f"{len(texts)} texts, but {len(each)} kinds")
        return [self._prefix(kind) + text for kind, text in zip(each, texts, strict=True)]

    def _prefix(self, kind: Kind) -> str:
        if kind not in self.prefixes:
            raise UserError(f"this model has no {kind} prefix; it has {', '.join(self.prefixes)}")
        return "".join(self.prefixes[kind])


def text_format(model: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerBase) -> TextFormat:
    """How ``model`` was trained to read texts.

    SigLIP always saw ``length`` tokens, attended to the padding and pools at the last place, so its padding is part of
    the text and no mask is given. The others pad to the longest and mask the padding.
    """
    config = model.config.text_config
    length = min(tokenizer.model_max_length, _positions(config), _LONGEST)
    if is_siglip(model.config):
        return TextFormat("max_length", length, ("input_ids",))
    methods = [model.get_text_features, *([model.text_model.forward] if hasattr(model, "text_model") else [])]
    read = set(tokenizer.model_input_names).intersection(*(inspect.signature(each).parameters for each in methods))
    inputs = tuple(name for name in ("input_ids", "attention_mask", "token_type_ids") if name in read)
    return TextFormat("longest", length, inputs)


def _positions(config: Any) -> int:
    most = getattr(config, "max_position_embeddings", _LONGEST)
    return most - config.pad_token_id - 1 if _FROM_PADDING.match(config.model_type) else most


def is_siglip(config: Any) -> bool:
    """Whether the text tower is SigLIP's or SigLIP 2's."""
    return config.text_config.model_type in ("siglip_text_model", "siglip2_text_model")


def is_naflex(config: Any) -> bool:
    """Whether the image tower reads patches in any arrangement (SigLIP 2 NaFlex)."""
    return config.model_type == "siglip2"


def pooling(config: Any) -> Pooling:
    """Which token's state becomes the text's embedding: the end token, the last place, or the first (CLS)."""
    if is_siglip(config):
        return "last"
    model_type = config.text_config.model_type
    return "end" if model_type.startswith(("clip_text", "metaclip_2_text", "clip", "metaclip_2")) else "first"


def store_end_token(model: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerBase) -> None:
    """Make a CLIP text tower find its end token by the tokenizer's id for it.

    New tokens have greater ids than the end token. Towers that pool at the greatest id would pool at them instead.

    Raises:
        UserError: the end token's id really is 2, which transformers cannot express.
    """
    config = model.config.text_config
    if pooling(model.config) != "end":
        return
    if tokenizer.eos_token_id in (None, OLD_END):
        raise UserError(
            f"the tokenizer's end token has id {tokenizer.eos_token_id}, which a CLIP text tower cannot "
            "look for. Use a tokenizer whose end token has another id."
        )
    config.eos_token_id = tokenizer.eos_token_id
    model.text_model.config.eos_token_id = tokenizer.eos_token_id
    model.text_model.eos_token_id = tokenizer.eos_token_id


def image_inputs(pixels: Float[Tensor, "n ..."], config: Any) -> dict[str, Tensor]:
    """What the image tower reads: the pixels, or for NaFlex their patches from left to right and top to bottom.

    NaFlex is given pictures of one shape (n, 3, rows, columns), or of many as `ImageTransform.pack` lays them out.
    """
    if not is_naflex(config):
        return {"pixel_values": pixels}
    if pixels.ndim == 3:
        high, wide = patch_grid(pixels)
        places = torch.arange(pixels.shape[1] - 1, device=pixels.device)
        return {
            "pixel_values": pixels[:, :-1],
            "pixel_attention_mask": (places < (high * wide)[:, None]).long(),
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
    """The embedding in what ``get_image_features`` returns: a tensor before transformers 5, an output object since."""
    found = output if isinstance(output, Tensor) else output.pooler_output
    return found.flatten(1)
