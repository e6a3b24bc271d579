"""Swin-T with CLIP's text tower, as in the prefix conditioning paper."""

from __future__ import annotations

from dataclasses import dataclass, field

import transformers

from recollect.data.transforms import ImageTransform
from recollect.models.presets import Transformer, TransformersPreset
from recollect.models.transformers.processors import processor_of


@dataclass(frozen=True)
class SwinPreset(TransformersPreset):
    """Swin transformer and CLIP's causal text tower (UniCL's towers).

    Attributes:
        summary: one-line description for help texts.
        patch_width: width after the patch layer; doubles at each stage.
        depths, heads: number of layers and attention heads of each stage.
        text: text tower, pooled at the end token.
        size: image side in pixels.
        patch: patch side in pixels.
        window: side of an attention window in patches.
        width: embedding width.
        length: maximum text length in tokens.
        vocabulary: maximum vocabulary of a tokenizer trained on the captions.
    """

    summary: str
    patch_width: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    heads: tuple[int, ...] = (3, 6, 12, 24)
    text: Transformer = field(default_factory=lambda: Transformer(512, 12, 8))
    size: int = 224
    patch: int = 4
    window: int = 7
    width: int = 512
    length: int = 77
    vocabulary: int = 49_408

    def build(
        self, tokenizer: transformers.PreTrainedTokenizerBase
    ) -> tuple[transformers.PreTrainedModel, transformers.ProcessorMixin, ImageTransform]:
        image = transformers.SwinConfig(
            image_size=self.size,
            patch_size=self.patch,
            embed_dim=self.patch_width,
            depths=list(self.depths),
            num_heads=list(self.heads),
            window_size=self.window,
        )
        text = transformers.CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=self.text.width,
            intermediate_size=self.text.mlp * self.text.width,
            num_hidden_layers=self.text.layers,
            num_attention_heads=self.text.heads,
            max_position_embeddings=self.length,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        config = transformers.VisionTextDualEncoderConfig.from_vision_text_configs(
            image, text, projection_dim=self.width
        )
        transform = ImageTransform(size=self.size, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), fit="crop")
        processor = transformers.VisionTextDualEncoderProcessor(processor_of(transform), tokenizer)
        return transformers.VisionTextDualEncoderModel(config), processor, transform


SWIN_T = SwinPreset("Swin-T at 224 px with CLIP's text tower, of the prefix conditioning paper")
