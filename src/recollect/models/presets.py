"""Presets: named architectures to train from scratch."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import transformers
from torch import Tensor

from recollect.core.errors import UserError, user_errors
from recollect.core.paths import reject_typo
from recollect.core.plugins import Table
from recollect.core.seeding import derive_seed, seed_default_generators
from recollect.core.types import Kind
from recollect.core.validation import check_choice, refuse
from recollect.data.transforms import ImageTransform
from recollect.models.dual import DualEncoder, Tower
from recollect.models.tokenizers import train_unigram
from recollect.models.transformers.encoder import TransformersEncoder, quiet
from recollect.models.transformers.processors import processor_of

_HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class Transformer:
    """Size of a transformer tower; the MLP is ``mlp`` times as wide as the tower."""

    width: int
    layers: int
    heads: int
    mlp: int = 4


class Preset(ABC):
    """Architecture to train from scratch; subclasses are frozen dataclasses of sizes.

    Attributes:
        summary: one-line description for help texts.
        own_vocabulary: whether the text tower builds its own vocabulary instead of using a tokenizer.
        recomputable: see `DualEncoder.recomputable`.
    """

    summary: str
    own_vocabulary: ClassVar[bool] = False
    recomputable: ClassVar[tuple[Tower, ...]] = ()

    @abstractmethod
    def encoder(
        self,
        name: str,
        texts: Sequence[str] | None,
        tokenizer: transformers.PreTrainedTokenizerBase | str | None,
        seed: int,
    ) -> DualEncoder:
        """Return a model whose initialization depends only on ``seed``; see `build_model`."""

    def restore(self, record: dict[str, Any], weights: dict[str, Tensor]) -> DualEncoder:
        """Rebuild a saved model that is not a transformers model from its ``recollect.json`` and weights."""
        raise ValueError("models of this preset are opened by transformers")


class TransformersPreset(Preset):
    """Preset of transformers towers with a tokenizer trained on the captions."""

    recomputable = ("image", "text")
    vocabulary: int
    length: int

    @abstractmethod
    def build(
        self, tokenizer: transformers.PreTrainedTokenizerBase
    ) -> tuple[transformers.PreTrainedModel, transformers.ProcessorMixin, ImageTransform]:
        """Return the towers, initialized from torch's current random state, and their processor and transform."""

    def encoder(
        self,
        name: str,
        texts: Sequence[str] | None,
        tokenizer: transformers.PreTrainedTokenizerBase | str | None,
        seed: int,
    ) -> TransformersEncoder:
        if tokenizer is None:
            if texts is None:
                raise UserError(f"{name}: needs captions to train a tokenizer on, or a tokenizer.")
            reader = train_unigram(texts, self.vocabulary, self.length)
        else:
            reader = _open_tokenizer(tokenizer) if isinstance(tokenizer, str) else copy.deepcopy(tokenizer)
        incomplete = reader.pad_token_id is None or reader.eos_token_id is None
        refuse((incomplete, f"{name}: the tokenizer has no padding token or no end token. Use another one."))
        with torch.random.fork_rng(devices=[]), quiet():
            seed_default_generators(derive_seed(seed, "model"))
            encoder = TransformersEncoder(*self.build(reader), name)
        encoder.set_scale(10.0, -10.0)  # SigLIP's initial values; objectives set their own
        return encoder


@dataclass(frozen=True)
class SiglipPreset(TransformersPreset):
    """A ViT with attention pooling and a BERT-type text tower, as in SigLIP and LIxP.

    Attributes:
        summary: one-line description for help texts.
        image: size of the ViT; its width is the embedding dimension.
        text: size of the text tower, which has bidirectional attention and pools at the last token.
        size: input size in pixels.
        patch: patch size in pixels.
        length: text length in tokens, including padding.
        vocabulary: maximum vocabulary size of a tokenizer trained on the captions.
        activation: activation of the MLPs; SigLIP uses the tanh form of GELU, the exact form is faster on a CPU.
    """

    summary: str
    image: Transformer
    text: Transformer
    size: int = 256
    patch: int = 16
    length: int = 64
    vocabulary: int = 32_000
    activation: str = "gelu_pytorch_tanh"

    def build(
        self, tokenizer: transformers.PreTrainedTokenizerBase
    ) -> tuple[transformers.PreTrainedModel, transformers.ProcessorMixin, ImageTransform]:
        def tower(size: Transformer) -> dict[str, Any]:
            return {
                "hidden_size": size.width,
                "num_hidden_layers": size.layers,
                "num_attention_heads": size.heads,
                "intermediate_size": size.mlp * size.width,
                "hidden_act": self.activation,
            }

        text = tower(self.text) | {
            "vocab_size": len(tokenizer),
            "max_position_embeddings": self.length,
            "projection_size": self.image.width,
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        }
        image = tower(self.image) | {"image_size": self.size, "patch_size": self.patch}
        transform = ImageTransform(size=self.size, mean=_HALF, std=_HALF, fit="squash")
        # SigLIP attends to padding; a processor that also returned a mask would change the embeddings.
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = ["input_ids"]
        processor = transformers.SiglipProcessor(processor_of(transform), tokenizer)
        return (
            transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=image)),
            processor,
            transform,
        )


PRESETS: Table[Preset] = Table(
    "presets",
    {
        "tiny": SiglipPreset(
            "for a CPU: 32 px, ViT of 3 layers",
            Transformer(96, 3, 3, mlp=2),
            Transformer(64, 2, 2, mlp=2),
            size=32,
            patch=8,
            length=24,
            vocabulary=4_000,
            activation="gelu",
        ),
        "small": SiglipPreset(
            "for a CPU: 64 px, ViT of 4 layers",
            Transformer(128, 4, 4, mlp=2),
            Transformer(96, 2, 3, mlp=2),
            size=64,
            patch=8,
            length=32,
            vocabulary=8_000,
            activation="gelu",
        ),
        "vit-s-16": SiglipPreset("LIxP's ViT-S/16 at 256 px", Transformer(384, 12, 6), Transformer(384, 12, 6)),
        "vit-b-16": SiglipPreset("LIxP's ViT-B/16 at 256 px", Transformer(768, 12, 12), Transformer(768, 12, 12)),
        "vit-l-16": SiglipPreset("LIxP's ViT-L/16 at 256 px", Transformer(1024, 24, 16), Transformer(1024, 24, 16)),
    },
)


def build_model(
    preset: str,
    *,
    texts: Sequence[str] | None,
    tokenizer: transformers.PreTrainedTokenizerBase | str | None = None,
    prefixes: Sequence[Kind] = (),
    seed: int = 0,
) -> DualEncoder:
    """Build a new model on the CPU; equal arguments give equal weights in every process.

    Args:
        preset: a name in `PRESETS`.
        texts: captions to train the tokenizer or build the vocabulary on; not needed if ``tokenizer`` is given.
        tokenizer: an existing tokenizer, or its folder or hub id.
        prefixes: kinds of source that get a prefix token (prefix conditioning).
        seed: seed for initializing the weights.

    Raises:
        UserError: the preset is unknown, or neither texts nor a tokenizer are given.
    """
    encoder = PRESETS[check_choice(preset, PRESETS, "preset")].encoder(preset, texts, tokenizer, seed)
    encoder.add_prefixes(prefixes, seed=seed)
    return encoder


def _open_tokenizer(name: str) -> transformers.PreTrainedTokenizerBase:
    reject_typo(name, "folder")
    with user_errors(f"{name}: not a tokenizer", OSError, ValueError, ImportError, KeyError), quiet():
        return transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
