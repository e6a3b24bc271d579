"""Any vision backbone of transformers with any text encoder, for pairs without a class of their own there.

`DualEncoder` models of transformers (CLIP, SigLIP, a VisionTextDualEncoder) are opened whole. Everything else is two
towers, each of which ends in one vector of features, and two heads that map these vectors into one space.

Importing this module imports transformers' modeling code, which takes seconds: import it where a model is opened.
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
    """What `config.json` says about a pair of towers.

    Attributes:
        vision_config, text_config: of the towers, as transformers writes them.
        projection_dim: number of entries of an embedding.
        vision_features, text_features: number of features of each tower.
        vision_pooling, text_pooling: how a tower's output becomes one vector: the tower's own pooler, the mean over
            places (padding excluded), or the first token.
        text_normalize: scale text features to norm 1, as sentence-transformers' ``Normalize`` does.
        classes: number of classes of the classifier the vision tower was trained with, for the heads `NamedFeatures`
            and `NamedTexts`; 0 for linear heads.
        name_share, name_pull, name_gain: see these two.
        bank: number of texts that pictures are compared with to tell how popular they are; see these two.
        text_hidden: width of the hidden layer of `NamedTexts`.
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
        """Turn the dictionaries of the two towers into their own config classes."""
        for name in ("vision_config", "text_config"):
            given = kwargs.pop(name, None)
            if given is None:
                raise ValueError(f"a {MODEL_TYPE} config needs a {name}")
            settings = dict(given) if isinstance(given, dict) else given.to_dict()
            setattr(self, name, transformers.AutoConfig.for_model(settings.pop("model_type"), **settings))
        super().__post_init__(**kwargs)


NEAREST_TEXTS = 5
POPULARITY, _MOST_DEVIATIONS = 0.1, 3.0


class NamedFeatures(nn.Module):
    """Standardized features of a locked tower, followed by the names that the tower's own classifier expects.

    Nothing is learned here. The first part is the image side of locked-image tuning (Zhai et al., 2022). The second is
    the mean of the text features of all class names, weighted by the classifier's probabilities (ConSE, Norouzi et al.,
    2014). Both parts have norm 1 before they are joined, so that a cosine of two pictures is
    ``(1 - share) cos(features) + share cos(names)``.

    Some pictures score high with most texts, and hide others. With a bank of texts a last entry holds how popular a
    picture is: its mean cosine with the `NEAREST_TEXTS` texts nearest to it, standardized and times `POPULARITY`, so
    that it hardly changes the cosine of two pictures. Texts discount it (`NamedTexts`), as cross-domain similarity
    local scaling does (Conneau et al., 2018).

    Args:
        features: number of features of the tower.
        classes: of the classifier.
        entries: of a text feature.
        share: of the names.
        bank: number of texts; 0 leaves the last entry out.
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
        self.fix()

    def fix(self) -> None:
        """Let nothing learn here."""
        self.requires_grad_(False)

    def forward(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        made = self.plain(features)
        if not hasattr(self, "bank"):
            return made
        mean, deviation = self.level
        popular = (self.popularity(made) - mean) / deviation
        return torch.cat([made, POPULARITY * popular.clamp(-_MOST_DEVIATIONS, _MOST_DEVIATIONS)[:, None]], dim=-1)

    def popularity(self, made: Float[Tensor, "n width"]) -> Float[Tensor, " n"]:
        """Mean cosine of embeddings without their last entry with the texts of the bank that are nearest to each."""
        return (made @ self.bank.T).topk(min(NEAREST_TEXTS, len(self.bank)), dim=-1).values.mean(dim=-1)

    def plain(self, features: Float[Tensor, "n features"]) -> Float[Tensor, "n width"]:
        """Without the last entry."""
        own = F.normalize((features - self.mean) / self.std, dim=-1)
        named = F.normalize(self.classifier(features).softmax(dim=-1) @ self.names, dim=-1)
        return torch.cat([(1 - self.share) ** 0.5 * own, self.share**0.5 * named], dim=-1)


class ResidualMlp(nn.Module):
    """A linear map plus an MLP with one hidden layer, both on the same input."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)
        self.direct = nn.Linear(inputs, outputs)

    def forward(self, features: Float[Tensor, "n inputs"]) -> Float[Tensor, "n outputs"]:
        return self.direct(features) + self.down(F.gelu(self.up(features)))


class NamedTexts(nn.Module):
    """The text side of `NamedFeatures`: a learned map, plus the text itself where pictures have the names they expect.

    Args:
        entries: of a text feature.
        hidden: width of the hidden layer of the learned map.
        width: of an embedding without the popularity of pictures; the names are its last ``entries`` entries.
        pull: norm of what is added to the output of the map, which has norm 1.
        gain: factor of the names' part, so that words count names more than two pictures do when they are compared.
        discounts: whether pictures have a last entry for how popular they are; then texts have norm 1 without theirs,
            which is negative.
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
        self.fix()

    def fix(self) -> None:
        """Let nothing but the map learn."""
        self.requires_grad_(False)
        self.mlp.requires_grad_(True)

    def forward(self, features: Float[Tensor, "n entries"]) -> Float[Tensor, "n width"]:
        made = self.plain(features)
        if not hasattr(self, "discount"):
            return made
        last = -self.discount.to(made.dtype).expand(made.shape[0], 1)  # `len` would fix the number of rows of an export
        return torch.cat([F.normalize(made, dim=-1), last], dim=-1)

    def plain(self, features: Float[Tensor, "n entries"]) -> Float[Tensor, "n width"]:
        """Without the last entry."""
        found, own = F.normalize(self.mlp(features), dim=-1), F.normalize(features - self.center, dim=-1)
        plain, named = found.split([found.shape[-1] - own.shape[-1], own.shape[-1]], dim=-1)
        return torch.cat([plain, self.gain * (named + self.pull * own)], dim=-1)


class TowersModel(transformers.PreTrainedModel):
    """Two towers and two heads, with the methods of transformers' own dual encoders."""

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
        for name in ("vision", "text"):  # each tower and the whole share one config, so that a change reaches both
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
        """As transformers does, which lets every weight learn that it reads."""
        made = super().from_pretrained(*args, **options)
        model = made[0] if isinstance(made, tuple) else made
        for head in (model.visual_projection, model.text_projection):
            if isinstance(head, NamedFeatures | NamedTexts):
                head.fix()
        return made

    def _init_weights(self, module: nn.Module) -> None:
        """Initialize a head; the towers initialize themselves."""
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            nn.init.zeros_(module.bias)

    def get_image_features(self, pixel_values: Tensor, **settings: Any) -> Float[Tensor, "n width"]:
        """Image embeddings before normalization."""
        output = self.vision_model(pixel_values=pixel_values, return_dict=True, **settings)
        return self.visual_projection(pooled(output, self.config.vision_pooling))

    def get_text_features(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **settings: Any,
    ) -> Float[Tensor, "n width"]:
        """Text embeddings before normalization."""
        given = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
        settings |= {name: value for name, value in given.items() if value is not None}
        output = self.text_model(input_ids=input_ids, return_dict=True, **settings)
        features = pooled(output, self.config.text_pooling, attention_mask)
        return self.text_projection(F.normalize(features, dim=-1) if self.config.text_normalize else features)


def pooled(output: Any, pooling: str, mask: Tensor | None = None) -> Float[Tensor, "n features"]:
    """One vector of features from a tower's output.

    Args:
        output: of a transformers model: hidden states (n, places, features) or, of a convolutional network,
            (n, features, rows, columns).
        pooling: see `TowersConfig`.
        mask: 1 for tokens, 0 for padding (n, places).
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
    """Let transformers' Auto classes open a folder that `TowersModel` was saved to."""
    transformers.AutoConfig.register(MODEL_TYPE, TowersConfig, exist_ok=True)
    transformers.AutoModel.register(TowersConfig, TowersModel, exist_ok=True)


register()
