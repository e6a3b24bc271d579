"""Adapter from transformers' dual encoders to `DualEncoder`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import transformers
from jaxtyping import Float
from torch import Tensor, nn
from transformers.utils import logging

from recollect.core.types import Kind
from recollect.data.transforms import ImageTransform
from recollect.models.dual import DualEncoder, Tower
from recollect.models.fast import image_graph
from recollect.models.prefixes import add_to_embedding, add_to_tokenizer, prefix_words
from recollect.models.transformers.families import (
    TextFormat,
    TextTokens,
    features,
    image_inputs,
    is_siglip,
    store_end_token,
    text_format,
)
from recollect.models.transformers.heads import TowerHead, image_head, text_head

_TOWERS: dict[Tower, tuple[str, ...]] = {
    "image": ("vision_model.", "visual_projection."),
    "text": ("text_model.", "text_projection."),
}


class TransformersEncoder(DualEncoder):
    """Dual encoder around any transformers model with ``get_image_features`` and ``get_text_features``.

    Attributes:
        model: the transformers model.
        processor: its image processor and tokenizer.
        text: token format of the text tower.
    """

    architecture = "transformers"

    def __init__(
        self,
        model: transformers.PreTrainedModel,
        processor: transformers.ProcessorMixin,
        transform: ImageTransform,
        preset: str = "",
    ) -> None:
        super().__init__()
        self.model = model
        self.processor = processor
        self.transform = transform
        self.preset = preset
        self.prefixes: dict[Kind, tuple[str, ...]] = {}
        self.tokenizer = processor.tokenizer
        self.text: TextFormat = text_format(model, self.tokenizer)
        if is_siglip(model.config):  # so that plain transformers passes no mask either
            self.tokenizer.model_input_names = ["input_ids"]
            self.tokenizer.init_kwargs["model_input_names"] = ["input_ids"]
        for name in ("logit_scale", "logit_bias", "temperature"):  # objectives have their own
            if isinstance(getattr(model, name, None), nn.Parameter):
                getattr(model, name).requires_grad_(False)
        self.width = self._find_width()

    def tokenize(self, texts: Sequence[str], kinds: Sequence[Kind] | Kind | None = None) -> dict[str, Tensor]:
        """See `DualEncoder.tokenize`; prefix tokens follow the start token, if any, and count towards the length."""
        return self.text_tokens(texts, kinds)

    @property
    def text_tokens(self) -> TextTokens:
        """Tokenization with the current prefixes; contains no weights and can be sent to other processes."""
        return TextTokens(self.tokenizer, self.text, dict(self.prefixes))

    @property
    def longest_text(self) -> int:
        return self.text.length

    def text_lengths(self, texts: Sequence[str], kinds: Sequence[Kind] | Kind | None = None) -> list[int]:
        prefixed = self.text_tokens.prefixed(texts, kinds)
        tokens = self.tokenizer(prefixed, padding=False, truncation=False, verbose=False)  # no warning if too long
        return [len(ids) for ids in tokens["input_ids"]]

    def encode_images(self, pixels: Float[Tensor, "n ..."]) -> Float[Tensor, "n width"]:
        """Return raw embeddings of pixels (n, 3, rows, columns), or of patches from `ImageTransform.pack`."""
        return features(self.model.get_image_features(**image_inputs(pixels, self.model.config)))

    def encode_texts(self, tokens: dict[str, Tensor]) -> Float[Tensor, "n width"]:
        device = self.device
        return features(self.model.get_text_features(**{name: ids.to(device) for name, ids in tokens.items()}))

    def pool_images(self, pixels: Float[Tensor, "n ..."]) -> Float[Tensor, "n features"]:
        """Return the pooled features before the projection (CLIP) or before the pooling's MLP (SigLIP)."""
        return self._heads["image"].read(lambda: self.encode_images(pixels))

    def project_images(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        return self._heads["image"](features)

    def _fast_images(self, encode: Callable[[Tensor], Tensor], count: int) -> Callable[[Tensor], Tensor]:
        whole = encode == self.encode_images
        projected = hasattr(self.model, "visual_projection")
        if not projected and not (whole or type(self._heads["image"]) is TowerHead):
            return encode  # the graph ends after the requested features
        graph = image_graph(self, count)
        if graph is None:
            return encode
        return (lambda pixels: self.project_images(graph(pixels))) if whole and projected else graph

    def pool_texts(self, tokens: dict[str, Tensor]) -> Float[Tensor, "n features"]:
        return self._heads["text"].read(lambda: self.encode_texts(tokens))

    def project_texts(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        return self._heads["text"](features)

    def head_parameters(self, tower: Tower) -> Iterator[nn.Parameter]:
        return self._heads[tower].parameters()

    @cached_property
    def _heads(self) -> dict[Tower, TowerHead]:
        return {"image": image_head(self.model), "text": text_head(self.model)}

    def add_prefixes(self, kinds: Sequence[Kind], *, length: int = 1, seed: int = 0) -> None:
        """Add ``length`` prefix tokens, drawn from N(0, 0.02), for each of ``kinds`` that has none.

        Raises:
            UserError: the tokenizer or the text tower cannot take new tokens.
        """
        new = {kind: prefix_words(kind, length) for kind in dict.fromkeys(kinds) if kind not in self.prefixes}
        words = [word for kind in new for word in new[kind]]
        if not words:
            return
        store_end_token(self.model, self.tokenizer)
        add_to_tokenizer(self.tokenizer, words)
        add_to_embedding(self.model.text_model, self.tokenizer, words, seed)
        self.prefixes |= new
        self.__dict__.pop("_tokenizer_key", None)

    def tower_parameters(self, tower: Tower) -> Iterator[nn.Parameter]:
        return (value for name, value in self.model.named_parameters() if name.startswith(_TOWERS[tower]))

    def checkpoint_activations(self) -> None:
        """Enable activation checkpointing in the `recomputable` towers."""
        for name in self.recomputable:
            tower = self.model.vision_model if name == "image" else self.model.text_model
            kind = "activation" if hasattr(tower, "activation_checkpointing_enable") else "gradient"  # before 5.23
            getattr(tower, f"{kind}_checkpointing_enable")()

    @property
    def recomputable(self) -> tuple[Tower, ...]:
        towers: dict[Tower, Any] = {"image": self.model.vision_model, "text": self.model.text_model}
        return tuple(name for name, tower in towers.items() if tower.supports_gradient_checkpointing)

    @property
    def scale(self) -> float | None:
        temperature = getattr(self.model, "temperature", None)  # ALIGN's logits are cosines divided by it
        return super().scale if temperature is None else 1 / float(temperature)

    def set_scale(self, scale: float, bias: float | None = None) -> None:
        super().set_scale(scale, bias)
        if getattr(self.model, "temperature", None) is not None:
            self.model.temperature.detach().fill_(1 / scale)

    def _temperatures(self) -> Any:
        return self.model

    def _find_width(self) -> int:
        config = self.model.config
        if isinstance(getattr(config, "projection_dim", None), int):
            return int(config.projection_dim)
        if is_siglip(config):
            return int(config.text_config.projection_size)
        with self._evaluating():
            return self.encode_texts(self.tokenize(["a"])).shape[1]

    def _write(self, folder: Path) -> None:
        if (backend := getattr(self.tokenizer, "backend_tokenizer", None)) is not None:
            backend.no_padding()  # the last call has left its padding and truncation in the tokenizer
            backend.no_truncation()
        with quiet():
            self.model.save_pretrained(folder)
            self.processor.save_pretrained(folder)

    def _record(self) -> dict[str, Any]:
        return {"architecture": self.architecture, "text": self.text.as_json()}

    def _reading(self) -> str:
        return f"{self.text.as_json()} {self._tokenizer_key}{self._activation('image')}{self._activation('text')}"

    def _activation(self, tower: Tower) -> str:
        """See `DualEncoder`. Configs of converted CLIPs often have the wrong GELU, which weights alone do not show."""
        config = self.model.config.vision_config if tower == "image" else self.model.config.text_config
        own, default = (str(getattr(each, "hidden_act", "")) for each in (config, type(config)))
        return f" {tower} {own}" if own != default and "gelu" in own else ""

    @cached_property
    def _tokenizer_key(self) -> str:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return hashlib.blake2b(json.dumps(self.tokenizer.get_vocab(), sort_keys=True).encode()).hexdigest()
        parts = json.loads(backend.to_str())
        for state in ("padding", "truncation"):  # left over from the last call
            parts.pop(state, None)
        return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and warnings inside the block."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
