"""Dual encoders that pair any transformers vision backbone with any text encoder.

Pairs that have their own transformers class (CLIP, SigLIP, VisionTextDualEncoder) are opened as that class. All other
pairs become a `TowersModel`: two towers, each pooled to one feature vector, and two heads that map into one space.

Importing this module imports transformers' modeling code, which takes seconds, so import it only to open a model.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
import transformers
from huggingface_hub.dataclasses import strict
from jaxtyping import Float
from torch import Tensor, nn

MODEL_TYPE = "two-towers"


@strict
class TowersConfig(transformers.PreTrainedConfig):
    """Config of a `TowersModel`, stored in `config.json`.

    Attributes:
        vision_config, text_config: transformers configs of the towers.
        projection_dim: embedding dimension.
        vision_features, text_features: number of features of each tower.
        vision_pooling, text_pooling: pooling of a tower's output: "pooler" (the tower's own), "mean" over positions
            (padding excluded), or "first" token.
        text_normalize: scale text features to norm 1, like sentence-transformers' ``Normalize``.
        classes: number of classes of the vision tower's original classifier, for the heads `NamedFeatures` and
            `NamedTexts`; 0 for linear heads.
        name_share, name_pull, name_gain: `share` of `NamedFeatures`, `pull` and `gain` of `NamedTexts`.
        bank: number of texts for the popularity estimate of `NamedFeatures`; 0 to omit it.
        text_hidden: hidden width of `NamedTexts`.
    """

    model_type = MODEL_TYPE
    sub_configs: ClassVar[dict[str, Any]] = {
        "vision_config": transformers.AutoConfig,
        "text_config": transformers.AutoConfig,
    }
    has_no_defaults_at_init = True

    projection_dim: int = 512
    vision_features: int = 768
    text_features: int = 768
    vision_pooling: str = "pooler"
    text_pooling: str = "mean"
    text_normalize: bool = False
    classes: int = 0
    name_share: float = 0.05
    name_pull: float = 0.5
    name_gain: float = 1.0
    bank: int = 0
    text_hidden: int = 512

    def __post_init__(self, **kwargs: Any) -> None:
        """Convert the towers' dictionaries to their config classes."""
        for name in ("vision_config", "text_config"):
            config = kwargs.pop(name, None)
            if config is None:
                raise ValueError(f"a {MODEL_TYPE} config needs a {name}")
            settings = dict(config) if isinstance(config, dict) else config.to_dict()
            setattr(self, name, transformers.AutoConfig.for_model(settings.pop("model_type"), **settings))
        super().__post_init__(**kwargs)


NEAREST_TEXTS = 5
POPULARITY, _MAX_DEVIATIONS = 0.1, 3.0


class NamedFeatures(nn.Module):
    """Image head: standardized features of a frozen tower, joined with the class names its classifier predicts.

    Nothing is trained. The first part is the image side of locked-image tuning (Zhai et al., 2022). The second is the
    mean of the text features of all class names, weighted by the classifier's probabilities (ConSE, Norouzi et al.,
    2014). Both parts are scaled to norm 1, so the cosine of two pictures is
    ``(1 - share) cos(features) + share cos(names)``.

    Some pictures score high with most texts and crowd out others (hubness). With a bank of texts, the last entry is the
    picture's popularity: its mean cosine with the `NEAREST_TEXTS` nearest texts, standardized and multiplied by
    `POPULARITY`, which is small enough to barely affect the cosine of two pictures. `NamedTexts` discounts it, like
    cross-domain similarity local scaling (Conneau et al., 2018).

    Args:
        features: number of features of the tower.
        classes: number of classes of the classifier.
        entries: number of text features.
        share: weight of the names part.
        bank: number of texts in the bank; 0 omits the popularity entry.
    """

    def __init__(self, features: int, classes: int, entries: int, share: float, bank: int = 0) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(features))
        self.std = nn.Parameter(torch.ones(features))
        self.classifier = nn.Linear(features, classes)
        self.names = nn.Parameter(torch.zeros(classes, entries))
        self.share = share
        if bank:
            self.bank = nn.Parameter(torch.zeros(bank, features + entries))
            self.level = nn.Parameter(torch.tensor([0.0, 1.0]))  # mean and standard deviation
        self.freeze_parameters()

    def freeze_parameters(self) -> None:
        """Freeze all parameters."""
        self.requires_grad_(False)

    def forward(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        plain = self.plain(features)
        if not hasattr(self, "bank"):
            return plain
        mean, deviation = self.level
        popular = (self.popularity(plain) - mean) / deviation
        return torch.cat([plain, POPULARITY * popular.clamp(-_MAX_DEVIATIONS, _MAX_DEVIATIONS)[:, None]], dim=-1)

    def popularity(self, plain: Float[Tensor, "n width"]) -> Float[Tensor, " n"]:
        """Return the mean cosine of `plain` embeddings with their nearest texts of the bank."""
        return (plain @ self.bank.T).topk(min(NEAREST_TEXTS, len(self.bank)), dim=-1).values.mean(dim=-1)

    def plain(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        """Return embeddings without the popularity entry."""
        own = F.normalize((features - self.mean) / self.std, dim=-1)
        named = F.normalize(self.classifier(features).softmax(dim=-1) @ self.names, dim=-1)
        return torch.cat([(1 - self.share) ** 0.5 * own, self.share**0.5 * named], dim=-1)


class ResidualMlp(nn.Module):
    """Sum of a linear map and an MLP with one hidden layer."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)
        self.direct = nn.Linear(inputs, outputs)

    def forward(self, features: Float[Tensor, "n inputs"]) -> Float[Tensor, "n outputs"]:
        return self.direct(features) + self.down(F.gelu(self.up(features)))


class NamedTexts(nn.Module):
    """Text head for `NamedFeatures`: a learned map, plus the centered text feature in the names part.

    Args:
        entries: number of text features.
        hidden: hidden width of the learned map.
        width: embedding dimension without the popularity entry; the names part is the last ``entries`` of them.
        pull: norm of the centered text feature that is added to the map's output, which has norm 1.
        gain: factor of the names part, which gives names more weight between text and picture than between pictures.
        discounts: append a negative entry that discounts popular pictures; the rest is then scaled to norm 1.
    """

    def __init__(
        self, entries: int, hidden: int, width: int, pull: float, gain: float = 1.0, discounts: bool = False
    ) -> None:
        super().__init__()
        self.mlp = ResidualMlp(entries, hidden, width)
        self.center = nn.Parameter(torch.zeros(entries))
        self.pull, self.gain = pull, gain
        if discounts:
            self.discount = nn.Parameter(torch.zeros(()))
        self.freeze_parameters()

    def freeze_parameters(self) -> None:
        """Freeze all parameters except those of the map."""
        self.requires_grad_(False)
        self.mlp.requires_grad_(True)

    def forward(self, features: Float[Tensor, "n entries"]) -> Float[Tensor, "n width"]:
        plain = self.plain(features)
        if not hasattr(self, "discount"):
            return plain
        last = -self.discount.to(plain.dtype).expand(plain.shape[0], 1)  # `len` would fix the number of rows in ONNX
        return torch.cat([F.normalize(plain, dim=-1), last], dim=-1)

    def plain(self, features: Float[Tensor, "n entries"]) -> Float[Tensor, "n width"]:
        """Return embeddings without the discount entry, not normalized."""
        mapped, own = F.normalize(self.mlp(features), dim=-1), F.normalize(features - self.center, dim=-1)
        first, names = mapped.split([mapped.shape[-1] - own.shape[-1], own.shape[-1]], dim=-1)
        return torch.cat([first, self.gain * (names + self.pull * own)], dim=-1)


class TowersModel(transformers.PreTrainedModel):
    """Two towers and two heads, with the interface of transformers' dual encoders."""

    config_class = TowersConfig
    base_model_prefix = "towers"
    input_modalities = ("image", "text")
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True

    def __init__(
        self,
        config: TowersConfig,
        vision_model: transformers.PreTrainedModel | None = None,
        text_model: transformers.PreTrainedModel | None = None,
    ) -> None:
        super().__init__(config)
        self.vision_model = (
            transformers.AutoModel.from_config(config.vision_config) if vision_model is None else vision_model
        )
        self.text_model = transformers.AutoModel.from_config(config.text_config) if text_model is None else text_model
        for name in ("vision", "text"):  # share one config object per tower, so changes reach both
            tower, settings = getattr(self, f"{name}_model"), getattr(config, f"{name}_config")
            settings._attn_implementation = tower.config._attn_implementation
            tower.config = settings
        image, text, width = config.vision_features, config.text_features, config.projection_dim
        if config.classes:
            self.visual_projection: nn.Module = NamedFeatures(
                image, config.classes, text, config.name_share, config.bank
            )
            self.text_projection: nn.Module = NamedTexts(
                text, config.text_hidden, image + text, config.name_pull, config.name_gain, config.bank > 0
            )
        else:
            self.visual_projection, self.text_projection = nn.Linear(image, width), nn.Linear(text, width)
        self.logit_scale = nn.Parameter(torch.tensor(2.6592))
        self.logit_bias = nn.Parameter(torch.tensor(-10.0))
        self.post_init()

    @classmethod
    def from_pretrained(cls, *args: Any, **options: Any) -> Any:
        """Load like transformers, then freeze the fixed parameters, which transformers loads as trainable."""
        loaded = super().from_pretrained(*args, **options)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        for head in (model.visual_projection, model.text_projection):
            if isinstance(head, NamedFeatures | NamedTexts):
                head.freeze_parameters()
        return loaded

    def _init_weights(self, module: nn.Module) -> None:
        """Initialize a head; the towers initialize themselves."""
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            nn.init.zeros_(module.bias)

    def get_image_features(self, pixel_values: Tensor, **settings: Any) -> Float[Tensor, "n width"]:
        """Return image embeddings before normalization."""
        output = self.vision_model(pixel_values=pixel_values, return_dict=True, **settings)
        return self.visual_projection(pooled(output, self.config.vision_pooling))

    def get_text_features(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **settings: Any,
    ) -> Float[Tensor, "n width"]:
        """Return text embeddings before normalization."""
        optional = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
        settings |= {name: value for name, value in optional.items() if value is not None}
        output = self.text_model(input_ids=input_ids, return_dict=True, **settings)
        features = pooled(output, self.config.text_pooling, attention_mask)
        return self.text_projection(F.normalize(features, dim=-1) if self.config.text_normalize else features)


def pooled(output: Any, pooling: str, mask: Tensor | None = None) -> Float[Tensor, "n features"]:
    """Pool a tower's output to one feature vector per row.

    Args:
        output: output of a transformers model, with hidden states (n, positions, features) or, for a convolutional
            network, (n, features, rows, columns).
        pooling: see `TowersConfig`.
        mask: 1 for tokens, 0 for padding, (n, positions).
    """
    if pooling == "pooler":
        return output.pooler_output.flatten(1)
    states = output.last_hidden_state
    if states.ndim == 4:
        return states.mean(dim=(2, 3))
    if pooling == "first":
        return states[:, 0]
    if mask is None:
        return states.mean(dim=1)
    weights = mask[..., None].to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1)


def register() -> None:
    """Register `TowersModel` with transformers' Auto classes."""
    transformers.AutoConfig.register(MODEL_TYPE, TowersConfig, exist_ok=True)
    transformers.AutoModel.register(TowersConfig, TowersModel, exist_ok=True)


register()
