"""Swin-T with CLIP's text tower, as in the prefix conditioning paper."""

from __future__ import annotations

from dataclasses import dataclass

import transformers

from recollect.data.transforms import ImageTransform
from recollect.models.presets import TransformersPreset
from recollect.models.transformers.processors import processor_of


@dataclass(frozen=True)
class SwinPreset(TransformersPreset):
    """Swin-T at 224 px and CLIP's causal text tower, pooled at the end token (UniCL's towers).

    Attributes:
        summary: one-line description for help texts.
        length: maximum text length in tokens.
        vocabulary: maximum vocabulary of a tokenizer trained on the captions.
    """

    summary: str
    length: int = 77
    vocabulary: int = 49_408

    def build(
        self, tokenizer: transformers.PreTrainedTokenizerBase
    ) -> tuple[transformers.PreTrainedModel, transformers.ProcessorMixin, ImageTransform]:
        image = transformers.SwinConfig(
            image_size=224, patch_size=4, embed_dim=96, depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24], window_size=7
        )
        text = transformers.CLIPTextConfig(
            vocab_size=len(tokenizer), hidden_size=512, intermediate_size=2048, num_hidden_layers=12,
            num_attention_heads=8, max_position_embeddings=self.length, pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        )  # fmt: skip
        config = transformers.VisionTextDualEncoderConfig.from_vision_text_configs(image, text, projection_dim=512)
        transform = ImageTransform(size=224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), fit="crop")
        processor = transformers.VisionTextDualEncoderProcessor(processor_of(transform), tokenizer)
        return transformers.VisionTextDualEncoderModel(config), processor, transform


SWIN_T = SwinPreset("Swin-T at 224 px with CLIP's text tower, of the prefix conditioning paper")
